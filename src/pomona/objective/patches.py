"""Patches of images and their masks, cut out of the resident arrays: no more of an image is read than is seen."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

Window = tuple[slice, ...]  # one slice an axis


def window(sides: Sequence[int], size: Sequence[int], draw: np.random.Generator | None) -> Window:
    """Where a patch of this size lies in an image: uniform over all places within it, or without a draw its middle."""
    rooms = [side - own for side, own in zip(sides, size, strict=True)]
    starts = [int(draw.integers(room + 1)) if draw else room // 2 for room in rooms]
    return tuple(slice(start, start + own) for start, own in zip(starts, size, strict=True))


def cut(t: Tensor, index: Tensor, windows: Sequence[Window]) -> Tensor:
    """Of rows ``index`` (b,) of t (N, *sides, ...) a patch each: (b, *size, ...)."""
    return torch.stack([t[(row, *own)] for row, own in zip(index.tolist(), windows, strict=True)])
