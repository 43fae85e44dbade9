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
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator
from torch import Tensor, nn

from pomona.core.errors import ConfigError, near

Draws = Sequence[np.random.Generator]  # one per sample
# images (b, C, H, W) or volumes (b, C, D, H, W), and their targets (b, ...)
Pair = tuple[Tensor, Tensor]
Change = Callable[[Tensor, Tensor, Draws, float], Pair]


def flip(x: Tensor, y: Tensor, draws: Draws, chance: float = 0.5, axis: int = -1) -> Pair:
    """Mirror left to right, with a probability per sample."""
    mirrored = torch.tensor([draw.random() < chance for draw in draws], device=x.device)
    return _moved(x, y, lambda t: t.flip(axis).where(_beside(mirrored, t), t))


def flip_vertical(x: Tensor, y: Tensor, draws: Draws, chance: float = 0.5) -> Pair:
    """Mirror top to bottom, with a probability per sample."""
    return flip(x, y, draws, chance, -2)


def crop(x: Tensor, y: Tensor, draws: Draws, most: float = 4) -> Pair:
    """Shift along each axis by an integer number of pixels, at most ``most``; below 1 it is a share
    of the side.
    """
    for axis in range(2 - x.dim(), 0):
        n = x.shape[axis]
        reach = round(most * n) if most < 1 else int(most)
        shifts = torch.tensor(
            [int(draw.integers(-reach, reach + 1)) for draw in draws], device=x.device
        )
        places = (shifts.unsqueeze(1) + torch.arange(n, device=x.device)) % max(2 * n - 2, 1)
        places = torch.minimum(places, (2 * n - 2 - places).abs())  # reflected at the borders
        x, y = _moved(x, y, partial(_taken, places=places, axis=axis))
    return x, y


def rotate(x: Tensor, y: Tensor, draws: Draws, most: float = 10) -> Pair:
    """Rotate an image about its centre by at most ``most`` degrees, bilinearly; a mask takes the
    nearest pixel.
    """
    angles = _between(draws, most * pi / 180, x)
    cos, sin, (h, w) = angles.cos(), angles.sin(), x.shape[-2:]
    none = torch.zeros_like(cos)
    turns = torch.stack(
        [torch.stack([cos, -sin * h / w, none], 1), torch.stack([sin * w / h, cos, none], 1)], 1
    )
    grid = nn.functional.affine_grid(turns, [len(x), 1, h, w], align_corners=False)

    def turned(t: Tensor) -> Tensor:
        image = t.dim() == x.dim()
        mode = "bilinear" if image else "nearest"
        seen = (t if image else t.unsqueeze(1)).to(x)
        found = nn.functional.grid_sample(seen, grid, mode, "reflection", align_corners=False)
        return found if image else found.squeeze(1).to(t.dtype)

    return _moved(x, y, turned)


def brightness(x: Tensor, y: Tensor, draws: Draws, most: float = 0.2) -> Pair:
    """Add one number per sample, at most ``most`` in units of the network's input."""
    return x + _beside(_between(draws, most, x), x), y


def contrast(x: Tensor, y: Tensor, draws: Draws, most: float = 0.2) -> Pair:
    """Scale a sample's deviations from its mean by a factor between 1 - ``most`` and 1 +
    ``most``.
    """
    factor = 1 + _beside(_between(draws, most, x), x)
    return torch.lerp(x.flatten(1).mean(1).view_as(factor), x, factor), y


def noise(x: Tensor, y: Tensor, draws: Draws, deviation: float = 0.1) -> Pair:
    """Add Gaussian noise to each value, in units of the network's input."""
    drawn = np.stack([draw.standard_normal(x.shape[1:], np.float32) for draw in draws])
    return torch.from_numpy(drawn).to(x).mul_(deviation).add_(x), y


@dataclass(frozen=True)
class Kind:
    """A change: its default and maximum strength, and whether it supports volumes."""

    change: Change
    strength: float
    most: float
    volumes: bool = True


KINDS = {
    "flip": Kind(flip, 0.5, 1),
    "flip-vertical": Kind(flip_vertical, 0.5, 1),
    "crop": Kind(crop, 4, 1000),
    "rotate": Kind(rotate, 10, 180, volumes=False),
    "brightness": Kind(brightness, 0.2, 10),
    "contrast": Kind(contrast, 0.2, 1),
    "noise": Kind(noise, 0.1, 10),
}


def parsed(text: str) -> tuple[Kind, float]:
    """Parse a change and its strength from ``name`` or ``name:strength``.

    Raises ValueError with a phrase.
    """
    name, colon, number = text.partition(":")
    if name not in KINDS:
        raise ValueError(near(name, KINDS))
    kind = KINDS[name]
    try:
        strength = float(number) if colon else kind.strength
    except ValueError:
        strength = -1.0
    if not 0 <= strength <= kind.most:
        raise ValueError(f"{text!r}: give {name}:number, from 0 to {kind.most:g}")
    return kind, strength


def _known(text: str) -> str:
    parsed(text)
    return text


Augmentation = Annotated[str, AfterValidator(_known)]


def require(changes: Sequence[str], kind: str, axes: int) -> None:
    """Raise ConfigError for changes that the samples do not support.

    Args:
        changes: from ``parsed``.
        kind: of the data, as in ``Dataset``.
        axes: of one sample, including channels.
    """
    if changes and kind != "image":
        raise ConfigError(
            f"augment = {list(changes)} is for images, the data are of kind {kind}; remove it"
        )
    flat = [text for text in changes if axes > 3 and not parsed(text)[0].volumes]
    if flat:
        raise ConfigError(
            f"augment: {', '.join(flat)} is for flat images, the data are volumes; remove it"
        )


def augmented(changes: Sequence[str], x: Tensor, y: Tensor, draws: Draws) -> Pair:
    """Apply these changes to a batch, in their order.

    Args:
        changes: from ``parsed``.
        x: (b, C, H, W) or (b, C, D, H, W) float32, as network input.
        y: (b, ...), a mask if its other axes are those of an image.
        draws: (b,) one generator per sample.
    """
    for text in changes if len(x) else ():
        kind, strength = parsed(text)
        x, y = kind.change(x, y, draws, strength)
    return x, y


def _moved(x: Tensor, y: Tensor, move: Callable[[Tensor], Tensor]) -> Pair:
    """Move images, and also the targets if they are masks."""
    return move(x), move(y) if y.shape[1:] == x.shape[2:] else y


def _between(draws: Draws, most: float, x: Tensor) -> Tensor:
    """Draw a number between -most and most for each sample (b,), uniform."""
    drawn: NDArray[np.float64] = np.array([draw.uniform(-most, most) for draw in draws])
    return torch.from_numpy(drawn).to(x)


def _beside(values: Tensor, t: Tensor) -> Tensor:
    """View values (b,) with trailing axes of length 1 to match t (b, ...)."""
    return values.view(-1, *(1 for _ in t.shape[1:]))


def _taken(t: Tensor, places: Tensor, axis: int) -> Tensor:
    """Take entries of t (b, ...) along an axis at each sample's own positions (b, n)."""
    shape = [1] * t.dim()
    shape[0], shape[axis] = places.shape
    return t.gather(axis, places.view(shape).expand_as(t))
