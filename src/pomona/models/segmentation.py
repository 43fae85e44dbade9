"""U-Net for images and volumes (Ronneberger et al., MICCAI 2015; its 3-D form: Cicek et al.,
MICCAI 2016), and evaluation of patch networks on whole images, in overlapping windows, by MONAI
(the extra ``monai``).

``model.depth`` halvings (max-pooling); two 3x3(x3) convolutions per level, each with GroupNorm
(four channels per group) and ReLU; ``model.width`` channels on the first level, doubled on each
deeper one; nearest-neighbour upsampling with skip connections. GroupNorm instead of BatchNorm
stores no statistics of patients, so that personal models need none and privacy covers everything.
Sides need not be powers of two.
"""

import warnings
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

from pomona.core import registry
from pomona.core.errors import ConfigError
from pomona.models.settings import ModelSettings, PatchSettings

GROUP = 4  # channels


class UNet(nn.Module):
    """Map (B, C, *S) to logits (B, K, *S).

    Its layers are its levels, down and up again, and the head.
    """

    def __init__(self, channels: int, outputs: int, rank: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.parameter_blocks = (
            *(f"down.{level}" for level in range(depth + 1)),
            *(f"up.{level}" for level in range(depth)),
            "head",
        )
        in_widths = [channels, *widths]
        self.down = nn.ModuleList(
            _level(in_widths[k], out_channels, rank) for k, out_channels in enumerate(widths)
        )
        joins = reversed(range(depth))
        self.up = nn.ModuleList(_level(widths[k] + widths[k + 1], widths[k], rank) for k in joins)
        self.head = (nn.Conv2d, nn.Conv3d)[rank - 2](width, outputs, 1)
        self.pool = (nn.MaxPool2d, nn.MaxPool3d)[rank - 2](2)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, C, H, W) or volumes (B, C, D, H, W) to logits of each pixel's classes (B,
        K, ...).
        """
        levels = []
        for k, level in enumerate(self.down):
            x = level(x if k == 0 else self.pool(x))
            levels.append(x)
        for level, skip in zip(self.up, levels[-2::-1], strict=True):
            larger = nn.functional.interpolate(x, size=skip.shape[2:], mode="nearest")
            x = level(torch.cat([skip, larger], 1))
        logits: Tensor = self.head(x)
        return logits


def _level(in_channels: int, out_channels: int, rank: int) -> nn.Sequential:
    convolution = (nn.Conv2d, nn.Conv3d)[rank - 2]
    groups = out_channels // GROUP if out_channels % GROUP == 0 else 1
    steps: list[nn.Module] = []
    for width in (in_channels, out_channels):
        steps += [
            convolution(width, out_channels, 3, padding=1, bias=False),
            nn.GroupNorm(groups, out_channels),
            nn.ReLU(),
        ]
    return nn.Sequential(*steps)


def unet(
    settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int
) -> UNet:
    """Build a U-Net.

    Raises ConfigError unless the samples are images or volumes with sides of 2**depth or more.
    """
    if vocabulary or len(input_shape) not in {3, 4}:
        raise ConfigError(
            f"model.name=unet takes images or volumes, but a sample has shape {input_shape}; take "
            "mlp"
        )
    min_side = 2**settings.depth
    if min(input_shape[1:]) < min_side:
        subject = "patch" if settings.patch else "sample"
        raise ConfigError(
            f"model.name=unet halves the sides {settings.depth} times, but a {subject} has shape "
            f"{input_shape}; lower model.depth, or give sides of at least {min_side}"
        )
    return UNet(input_shape[0], n_outputs, len(input_shape) - 1, settings.width, settings.depth)


PIXELS_AT_ONCE = 2**18  # windows in one batch of the network


def on_whole_images(network: nn.Module, patch: PatchSettings | None) -> Callable[[Tensor], Tensor]:
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
        outputs = sliding_window_inference(
            images, size, at_once, lambda window: network(window).float(), overlap, blend
        )
        assert isinstance(outputs, Tensor)
        return outputs

    return over_windows


def require() -> None:
    """Raise ConfigError unless MONAI can be imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        registry.require("monai", "model.patch")
