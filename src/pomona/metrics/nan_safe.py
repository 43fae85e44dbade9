"""Arithmetic with undefined values: NaN in arrays, None (JSON null) outside, no warnings; and in
parts that fit in memory.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pomona.core.errors import DivergedError

Array = NDArray[np.float64]
_CELLS = 1 << 21  # numbers held at a time: 16 MB


def spans(count: int, n: int) -> Iterator[range]:
    """Split the rows 0 to count - 1 of n numbers each into runs that fit in memory."""
    step = max(1, _CELLS // max(1, n))
    return (range(start, min(start + step, count)) for start in range(0, count, step))


def divide(numerator: ArrayLike, denominator: ArrayLike) -> Array:
    """Divide where the denominator is positive, NaN elsewhere; shapes broadcast."""
    above, below = np.broadcast_arrays(
        np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    )
    quotient = np.full(above.shape, np.nan)
    np.divide(above, below, out=quotient, where=below > 0)
    return quotient


def row_means(values: Array, weights: ArrayLike = 1.0) -> Array:
    """Return the (weighted) mean of the defined values in each row: (R, n) -> (R,), NaN if there
    are none.
    """
    weight = np.broadcast_to(np.asarray(weights, dtype=float), values.shape) * ~np.isnan(values)
    return divide((np.nan_to_num(values) * weight).sum(axis=1), weight.sum(axis=1))


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    present = [v for v in values if v is not None]
    return float(np.mean(present)) if present else None


def defined(value: float | np.floating) -> float | None:
    """Convert to a plain float, or None for NaN."""
    return None if np.isnan(value) else float(value)


def exact(targets: NDArray[Any]) -> NDArray[Any]:
    """Return class numbers unchanged, other targets as float64."""
    return targets if targets.dtype.kind in "iu" else targets.astype(float)


def require_finite(outputs: NDArray[np.generic]) -> None:
    """Raise DivergedError unless a model's outputs (n, K) are all finite."""
    broken = int((~np.isfinite(outputs)).any(axis=1).sum())
    if broken:
        raise DivergedError(
            f"the model's outputs are not finite for {broken} of {len(outputs)} samples; lower lr "
            "or check the data"
        )
