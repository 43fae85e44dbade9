"""Aggregation weights by samples, with one client's share limited.

    n'_i = min(n_i, c),  c the largest number with  c <= s * sum_j min(n_j, c)

with s the largest share. Nobody weighs more than s; among those who are not cut, weights keep the ratios of their
samples, and where nobody holds more than s of all samples, n' is n. Of m clients somebody always weighs 1/m or more:
for m <= 1/s the best that can be had is that all weigh the same.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeVar

Exact = TypeVar("Exact", int, Fraction)


def limited(sizes: Sequence[Exact], largest: float) -> tuple[Exact | float, ...]:
    """Effective numbers of samples; ``sizes`` unchanged if no client exceeds the limit.

    Args:
        sizes: samples of those that are averaged, or what weighs in their place; 0 for whoever is no member, who stays
            at 0. Exact numbers: in floats the sum of the rest could fall below 0.
        largest: the share s, in (0, 1]; 1 cuts nobody.
    """
    share, rest = Fraction(largest), sum(sizes)
    descending = sorted((n for n in sizes if n), reverse=True)
    if share == 1 or not descending:
        return tuple(sizes)
    if len(descending) * share <= 1:
        return tuple(1 if n else 0 for n in sizes) if descending[0] != descending[-1] else tuple(sizes)
    for cut, n in enumerate(descending):  # as many are cut; exact, so that it ends before the divisor is 0
        limit = share * rest / (1 - cut * share)
        if n <= limit:
            return tuple(sizes) if not cut else tuple(float(limit) if n > limit else float(n) for n in sizes)
        rest -= n
    raise AssertionError("the smallest of more than 1/s clients is never cut")


def weights(sizes: Sequence[Exact], largest: float) -> list[float]:
    """Weights that sum to 1; all 0 without any samples."""
    counted = limited(sizes, largest)
    total = sum(counted)
    return [float(n / total) if total else 0.0 for n in counted]


SLACK = 1e-9
"""Share by which weights may pass the limit before they are cut: more than rounding, less than anybody would notice."""
BESIDE_NOTHING = 1e-12
"""Share by which clients count by their samples where another's number leaves nothing of their weights."""


def reweighted(p: Sequence[float], counted: Sequence[float], largest: float) -> list[float]:
    """Weights that a method makes of ``p``, with the same limit: nobody has more than ``largest`` of their sum.

    A number that comes beside a model is a weight, too: whatever it is, what ``largest`` limits is left of it. The sum
    is at most 1: with a limit nothing is moved further than the models went. ``counted`` itself where both hold.

    Args:
        p: weights by samples, which sum to 1, none above the limit where that can be.
        counted: what the method makes of them, finite, 0 or more, one of them more.
        largest: the share s, in (0, 1]; 1 changes nothing.
    """
    total = sum(counted)
    if largest == 1 or (total <= 1 + SLACK and max(counted) <= largest * total * (1 + SLACK)):
        return list(counted)
    parts = [Fraction(c / total) + Fraction(BESIDE_NOTHING) * Fraction(n) for c, n in zip(counted, p, strict=True)]
    return [min(total, 1.0) * share for share in weights(parts, largest)]
