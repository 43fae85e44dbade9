"""Whole images through a network that sees patches: overlapping windows, by MONAI (the extra ``monai``)."""

import warnings
from collections.abc import Callable
from math import prod

from torch import Tensor, nn

from pomona.models import packages
from pomona.models.settings import PatchSettings

PIXELS_AT_ONCE = 2**18  # of the windows that pass the network together


def whole(network: nn.Module, patch: PatchSettings | None) -> Callable[[Tensor], Tensor]:
    """The network as a function of whole images: (b, C, *sides) -> (b, K, *sides), float32; itself without patches.

    The outputs of a pixel are the mean of those of all windows that hold it, weighted by ``patch.blend``. The last
    window of each row ends with the image. One window as large as the image and of constant weights changes nothing.

    Raises ConfigError without MONAI.
    """
    if patch is None:
        return network
    require()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MONAI's own imports
        from monai.inferers.utils import sliding_window_inference

    size, overlap, blend = patch.size, patch.overlap, patch.blend
    at_once = max(1, PIXELS_AT_ONCE // prod(size))

    def over_windows(images: Tensor) -> Tensor:
        made = sliding_window_inference(images, size, at_once, lambda part: network(part).float(), overlap, blend)
        assert isinstance(made, Tensor)
        return made

    return over_windows


def require() -> None:
    """Raise ConfigError unless MONAI can be imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packages.require("monai", "model.patch")
