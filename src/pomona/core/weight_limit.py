"""Aggregation weights by samples, with one client's share limited.

    n'_i = min(n_i, c),  c the largest number with  c <= s * sum_j min(n_j, c)

with s the largest share. Nobody weighs more than s; among those who are not cut, weights keep the ratios of their
samples, and where nobody holds more than s of all samples, n' is n. Of m clients somebody always weighs 1/m or more:
for m <= 1/s the best that can be had is that all weigh the same.
"""

from collections.abc import Sequence
from fractions import Fraction


def limited(sizes: Sequence[int], largest: float) -> tuple[int | float, ...]:
    """Effective numbers of samples; ``sizes`` unchanged if no client exceeds the limit.

    Args:
        sizes: samples of those that are averaged; 0 for whoever is no member, who stays at 0.
        largest: the share s, in (0, 1]; 1 cuts nobody.
    """
    share, rest = Fraction(largest), sum(sizes)
    descending = sorted((n for n in sizes if n), reverse=True)
    if share == 1 or not descending:
        return tuple(sizes)
    if len(descending) * share <= 1:
        return tuple(min(n, 1) for n in sizes) if descending[0] != descending[-1] else tuple(sizes)
    for cut, n in enumerate(descending):  # as many are cut; exact, so that it ends before the divisor is 0
        limit = share * rest / (1 - cut * share)
        if n <= limit:
            return tuple(sizes) if not cut else tuple(float(limit) if n > limit else float(n) for n in sizes)
        rest -= n
    raise AssertionError("the smallest of more than 1/s clients is never cut")


def weights(sizes: Sequence[int], largest: float) -> list[float]:
    """Weights that sum to 1; all 0 without any samples."""
    counted = limited(sizes, largest)
    total = sum(counted)
    return [n / total if total else 0.0 for n in counted]
