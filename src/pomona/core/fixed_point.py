"""Fixed point for secure aggregation: a client's weighted change as integers modulo 2^b, whose sum
is exact whatever is added to and taken from them in between.

    q_i = round(p_i x_i s),   s = 2^(b - 2) / C,   sum_i p_i x_i  ~=  (sum_i q_i mod 2^b) / s

with C the largest L2 norm of a change x_i and p_i its weight. No overflow: every |x_i[k]| is at
most C, but for the rounding of float32, and the weights sum to 1, so that |sum_i q_i[k]| is at most
2^(b - 2) (1 + 1e-6) + n / 2 < 2^(b - 1) for n <= 10^4 clients. The error of a number is at most
that of n roundings, n / (2 s) = n C / 2^(b - 1), and of arithmetic in float64, C / 2^50.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.training_settings import SecureAggregation

Numbers = NDArray[np.float32]
Integers = NDArray[np.unsignedinteger[Any]]
HALF_RANGE = 2.0**32


def scale(terms: SecureAggregation) -> float:
    """Return the factor s of the integers."""
    return float(2.0 ** (terms.bits - 2) / terms.max_norm)


def integer_dtype(terms: SecureAggregation) -> np.dtype[Any]:
    """Return the type of a number on the wire: unsigned, little-endian."""
    return np.dtype(f"<u{terms.bits // 8}")


def error(terms: SecureAggregation, clients: int) -> float:
    """Return the largest error of a number of the mean over this many clients."""
    return clients / (2 * scale(terms)) + terms.max_norm / 2**50


def clipped(change: Numbers, max_norm: float) -> tuple[Numbers, float]:
    """Return a change (d,) of at most this L2 norm, and its norm before; in float64 in between."""
    norm = float(np.sqrt(np.sum(np.square(change, dtype=np.float64))))
    if norm <= max_norm:
        return change, norm
    return (change * np.float64(max_norm / norm)).astype(np.float32), norm


def encoded(change: Numbers, weight: float, terms: SecureAggregation) -> Integers:
    """Return a change (d,) with its weight as integers modulo 2^b (d,).

    Exact for any finite change: conversions of floats that no integer type holds may saturate, so
    that halves of 32 bits are taken before.
    """
    integers = np.rint(change.astype(np.float64) * (weight * scale(terms)))
    low = np.mod(integers, HALF_RANGE)
    high = np.mod((integers - low) / HALF_RANGE, HALF_RANGE)
    return (high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)).astype(
        integer_dtype(terms)
    )


def decoded(total: Integers, terms: SecureAggregation) -> NDArray[np.float64]:
    """Return the weighted mean (d,) of changes from the sum of their integers modulo 2^b."""
    return total.view(f"<i{terms.bits // 8}") / np.float64(scale(terms))
