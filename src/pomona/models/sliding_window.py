"""Evaluation of patch networks on whole images: overlapping windows, by MONAI (the extra
``monai``).
"""

import warnings
from collections.abc import Callable
from math import prod

from torch import Tensor, nn

from pomona.models import packages
from pomona.models.settings import PatchSettings

PIXELS_AT_ONCE = 2**18  # windows in one batch of the network


def whole(network: nn.Module, patch: PatchSettings | None) -> Callable[[Tensor], Tensor]:
    """Return a function of whole images, (b, C, *sides) -> (b, K, *sides), float32; the network
    itself without patches.

    A pixel's outputs are the mean over all windows that contain it, weighted by ``patch.blend``.
    The last window of each row ends at the image's edge. A single window of the image's size with
    constant weights changes nothing.

    Raises ConfigError without MONAI.
    """
    if patch is None:
        return network
    require()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from MONAI's own imports
        from monai.inferers.utils import sliding_window_inference

    size, overlap, blend = patch.size, patch.overlap, patch.blend
    at_once = max(1, PIXELS_AT_ONCE // prod(size))

    def over_windows(images: Tensor) -> Tensor:
        made = sliding_window_inference(
            images, size, at_once, lambda part: network(part).float(), overlap, blend
        )
        assert isinstance(made, Tensor)
        return made

    return over_windows


def require() -> None:
    """Raise ConfigError unless MONAI can be imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packages.require("monai", "model.patch")
