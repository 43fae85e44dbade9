"""Aggregation weights by sample count, with a limit on each client's share.

    n'_i = min(n_i, c),  c the largest number with  c <= s * sum_j min(n_j, c)

with s the largest share. No weight exceeds s. The weights of clients that are not limited keep the
ratios of their sample counts; if no client holds more than s of all samples, n' is n. Among m
clients the largest weight is always at least 1/m, so for m <= 1/s all weights are equal.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeVar

Exact = TypeVar("Exact", int, Fraction)


def limited(sizes: Sequence[Exact], largest: float) -> tuple[Exact | float, ...]:
    """Return effective sample counts; the same as ``sizes`` if no client exceeds the limit.

    Args:
        sizes: sample counts of the clients in the average, or other weights; 0 for clients that are
            not members, which stay at 0. Exact numbers, because with floats the sum of the rest
            could become negative.
        largest: the share s, in (0, 1]; 1 means no limit.
    """
    share, total = Fraction(largest), sum(sizes)
    descending = sorted((n for n in sizes if n), reverse=True)
    if not descending or descending[0] <= share * total or descending[0] == descending[-1]:
        return tuple(sizes)
    if len(descending) * share <= 1:
        return tuple(int(n > 0) for n in sizes)
    # limited clients; exact, so that the loop ends before the divisor is 0
    for limited_count, n in enumerate(descending):
        limit = share * total / (1 - limited_count * share)
        if n <= limit:
            return tuple(float(min(Fraction(size), limit)) for size in sizes)
        total -= n
    raise AssertionError("the smallest of more than 1/s clients is never cut")


def weights(sizes: Sequence[Exact], largest: float) -> list[float]:
    """Return weights that sum to 1; all 0 if there are no samples."""
    counted = limited(sizes, largest)
    total = sum(counted)
    return [float(n / total) if total else 0.0 for n in counted]


SLACK = 1e-9
"""Tolerance for exceeding the limit: above rounding errors, and negligible in effect."""
BESIDE_NOTHING = 1e-12
"""Share of sample-count weights that clients keep where another client's factor leaves them
none.
"""


def reweighted(p: Sequence[float], counted: Sequence[float], largest: float) -> list[float]:
    """Apply the limit to weights that a method derives from ``p``: none exceeds ``largest`` of
    their sum.

    This also limits factors that clients send beside their models. The sum is at most 1: with a
    limit, the update is no larger than the clients' changes. Returns ``counted`` unchanged if both
    already hold.

    Args:
        p: weights by sample count, which sum to 1, none above the limit where possible.
        counted: the method's weights, finite and at least 0, at least one of them positive.
        largest: the share s, in (0, 1]; 1 means no limit.
    """
    total = sum(counted)
    if largest == 1 or (total <= 1 + SLACK and max(counted) <= largest * total * (1 + SLACK)):
        return list(counted)
    weighted = [
        Fraction(c / total) + Fraction(BESIDE_NOTHING) * Fraction(n)
        for c, n in zip(counted, p, strict=True)
    ]
    return [min(total, 1.0) * share for share in weights(weighted, largest)]
