"""Augmentation: random changes of training images, drawn independently for each sample in every
step.

Each change is a pure function of a batch and of one generator per sample, so that a sample's view
does not depend on the rest of the batch. Masks, targets of the image's size, are moved with it;
classes are never interpolated. Borders are filled by reflection.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import pi
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from pomona.core.errors import ConfigError, suggestion
from pomona.core.lazy_torch import Tensor, torch

Draws = Sequence[np.random.Generator]  # one per sample
# images (b, C, H, W) or volumes (b, C, D, H, W), and their targets (b, ...)
Pair = tuple[Tensor, Tensor]
Change = Callable[[Tensor, Tensor, Draws, float], Pair]


def flip(x: Tensor, y: Tensor, draws: Draws, chance: float = 0.5, axis: int = -1) -> Pair:
    """Mirror left to right, with a probability per sample."""
    mirrored = torch.tensor([draw.random() < chance for draw in draws], device=x.device)
    return _warped(x, y, lambda t: t.flip(axis).where(_broadcast(mirrored, t), t))


def flip_vertical(x: Tensor, y: Tensor, draws: Draws, chance: float = 0.5) -> Pair:
    """Mirror top to bottom, with a probability per sample."""
    return flip(x, y, draws, chance, -2)


def crop(x: Tensor, y: Tensor, draws: Draws, max_shift: float = 4) -> Pair:
    """Shift along each axis by an integer number of pixels, at most ``max_shift``; below 1 it is a
    share of the side.
    """
    for axis in range(2 - x.dim(), 0):
        n = x.shape[axis]
        reach = round(max_shift * n) if max_shift < 1 else int(max_shift)
        shifts = torch.tensor(
            [int(draw.integers(-reach, reach + 1)) for draw in draws], device=x.device
        )
        positions = (shifts.unsqueeze(1) + torch.arange(n, device=x.device)) % max(2 * n - 2, 1)
        # reflected at the borders
        positions = torch.minimum(positions, (2 * n - 2 - positions).abs())
        x, y = _warped(x, y, partial(_gathered, positions=positions, axis=axis))
    return x, y


def rotate(x: Tensor, y: Tensor, draws: Draws, max_degrees: float = 10) -> Pair:
    """Rotate an image about its centre by at most ``max_degrees`` degrees, bilinearly; a mask takes
    the nearest pixel.
    """
    angles = _uniform(draws, max_degrees * pi / 180, x)
    cos, sin, (h, w) = angles.cos(), angles.sin(), x.shape[-2:]
    zero = torch.zeros_like(cos)
    turns = torch.stack(
        [torch.stack([cos, -sin * h / w, zero], 1), torch.stack([sin * w / h, cos, zero], 1)], 1
    )
    grid = torch.nn.functional.affine_grid(turns, [len(x), 1, h, w], align_corners=False)

    def resampled(t: Tensor) -> Tensor:
        image = t.dim() == x.dim()
        mode = "bilinear" if image else "nearest"
        source = (t if image else t.unsqueeze(1)).to(x)
        target = torch.nn.functional.grid_sample(
            source, grid, mode, "reflection", align_corners=False
        )
        return target if image else target.squeeze(1).to(t.dtype)

    return _warped(x, y, resampled)


def brightness(x: Tensor, y: Tensor, draws: Draws, max_change: float = 0.2) -> Pair:
    """Add one number per sample, at most ``max_change`` in units of the network's input."""
    return x + _broadcast(_uniform(draws, max_change, x), x), y


def contrast(x: Tensor, y: Tensor, draws: Draws, max_change: float = 0.2) -> Pair:
    """Scale a sample's deviations from its mean by a factor between 1 - ``max_change`` and 1 +
    ``max_change``.
    """
    factor = 1 + _broadcast(_uniform(draws, max_change, x), x)
    return torch.lerp(x.flatten(1).mean(1).view_as(factor), x, factor), y


def noise(x: Tensor, y: Tensor, draws: Draws, deviation: float = 0.1) -> Pair:
    """Add Gaussian noise to each value, in units of the network's input."""
    values = np.stack([draw.standard_normal(x.shape[1:], np.float32) for draw in draws])
    return torch.from_numpy(values).to(x).mul_(deviation).add_(x), y


@dataclass(frozen=True)
class Transform:
    """A change: its default and maximum strength, and whether it supports volumes."""

    change: Change
    strength: float
    maximum: float
    volumes: bool = True


TRANSFORMS = {
    "flip": Transform(flip, 0.5, 1),
    "flip-vertical": Transform(flip_vertical, 0.5, 1),
    "crop": Transform(crop, 4, 1000),
    "rotate": Transform(rotate, 10, 180, volumes=False),
    "brightness": Transform(brightness, 0.2, 10),
    "contrast": Transform(contrast, 0.2, 1),
    "noise": Transform(noise, 0.1, 10),
}


def parse(text: str) -> tuple[Transform, float]:
    """Parse a change and its strength from ``name`` or ``name:strength``.

    Raises ValueError with a phrase.
    """
    name, colon, number = text.partition(":")
    if name not in TRANSFORMS:
        raise ValueError(suggestion(name, TRANSFORMS))
    transform = TRANSFORMS[name]
    try:
        strength = float(number) if colon else transform.strength
    except ValueError:
        strength = -1.0
    if not 0 <= strength <= transform.maximum:
        raise ValueError(f"{text!r}: give {name}:number, from 0 to {transform.maximum:g}")
    return transform, strength


def _valid(text: str) -> str:
    parse(text)
    return text


Augmentation = Annotated[str, AfterValidator(_valid)]


def require(changes: Sequence[str], modality: str, axes: int) -> None:
    """Raise ConfigError for changes that the samples do not support.

    Args:
        changes: texts that ``parse`` accepts.
        modality: kind of the data, as in ``Dataset``.
        axes: of one sample, including channels.
    """
    if changes and modality != "image":
        raise ConfigError(
            f"augment = {list(changes)} is for images, the data are of kind {modality}; remove it"
        )
    flat = [text for text in changes if axes > 3 and not parse(text)[0].volumes]
    if flat:
        raise ConfigError(
            f"augment: {', '.join(flat)} is for flat images, the data are volumes; remove it"
        )


def augment(changes: Sequence[str], x: Tensor, y: Tensor, draws: Draws) -> Pair:
    """Apply these changes to a batch, in their order.

    Args:
        changes: texts that ``parse`` accepts.
        x: (b, C, H, W) or (b, C, D, H, W) float32, as network input.
        y: (b, ...), a mask if its other axes are those of an image.
        draws: (b,) one generator per sample.
    """
    for text in changes if len(x) else ():
        transform, strength = parse(text)
        x, y = transform.change(x, y, draws, strength)
    return x, y


def _warped(x: Tensor, y: Tensor, move: Callable[[Tensor], Tensor]) -> Pair:
    """Apply a spatial change to images, and to the targets if they are masks."""
    return move(x), move(y) if y.shape[1:] == x.shape[2:] else y


def _uniform(draws: Draws, limit: float, x: Tensor) -> Tensor:
    """Draw a number between -limit and limit for each sample (b,), uniform."""
    values: NDArray[np.float64] = np.array([draw.uniform(-limit, limit) for draw in draws])
    return torch.from_numpy(values).to(x)


def _broadcast(values: Tensor, t: Tensor) -> Tensor:
    """View values (b,) with trailing axes of length 1 to match t (b, ...)."""
    return values.view(-1, *(1 for _ in t.shape[1:]))


def _gathered(t: Tensor, positions: Tensor, axis: int) -> Tensor:
    """Take entries of t (b, ...) along an axis at each sample's own positions (b, n)."""
    shape = [1] * t.dim()
    shape[0], shape[axis] = positions.shape
    return t.gather(axis, positions.view(shape).expand_as(t))
