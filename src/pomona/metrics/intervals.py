"""Intervals at 95 %: the percentile bootstrap, Wilson's, and the mean difference of two models over
clients.

The bootstrap is for statistics that are functions of sample weights. A resample is a row of counts,
one per sample, so that a statistic of all resamples is a matrix product with the samples'
contributions, and its point estimate is the same function at weights of one. Efron and Tibshirani,
"An Introduction to the Bootstrap", 1993, chapter 13 (percentile interval), section 8.3 (strata).

Of the difference (docs/statistics.md), with its p-value:

The clients are fixed and their test samples random: clients are strata (Rao and Wu, JASA 1988).

- Variances of strata add up, with Satterthwaite's degrees of freedom (Biometrics Bulletin 1946),
  for a t interval. For one client and a mean over samples it is that of the paired t-test.
- A client with too few samples for a variance of its own is one unit in a stratum of such clients,
  whose spread counts as chance ("collapsed strata": Wolter, Introduction to Variance Estimation,
  2nd ed. 2007, section 2.5). The interval is too wide if these clients differ, never too narrow.
  The stratum includes the smallest other clients until it has ``FEW``; if there are not enough
  clients, or if the metric is unbounded for few samples (R2), they are excluded from the mean.
- With several seeds, evaluated on the same samples as readers read the same cases (Obuchowski and
  Rockette 1995), the variance of their mean is added, with a t quantile of its own degrees of
  freedom: half^2 = t_samples^2 V_samples + t_seeds^2 V_seeds. Satterthwaite's for both would be too
  narrow for two or three seeds. Effects of samples in single seeds are in both variances, which
  makes the interval too wide, never too narrow.
- The t interval assumes a normal mean, which does not hold for few differing samples. If the
  effective number of units, (sum u^2)^2 / sum u^4, is small, the difference must also be
  significant against random signs (Fisher's randomisation test, exact for two exchangeable models,
  with its mid-p); otherwise the interval reaches 0.
- The limits of an AUROC's difference are at least those of ``auroc_intervals``: near 1 the
  difference is not normal. Their distances add up over clients as standard deviations do.
- The variance of an accuracy is at least that of one unit in which the models differ: the absence
  of differences in the samples does not prove that there are none (as the added pairs of Agresti
  and Min, Statistics in Medicine 2005).
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import hypot

import numpy as np
from numpy.typing import NDArray

from pomona.core.rng import stream
from pomona.metrics.influence import EQUAL, FEW, Evidence, unit_count
from pomona.metrics.nan_safe import Array, spans
from pomona.metrics.sampling_error import LEVEL, SamplingError, half_width, two_sided

CONFIDENCE = 0.95
RESAMPLES = (200, 1000)
LEAST_DEFINED = 0.99  # of a statistic's resamples, for an interval
_MOST_NUMBERS = 1_000_000  # of all resamples together, within these limits

Statistics = Callable[[Array], Mapping[str, Array]]
Interval = list[float] | None


def stratified(
    strata: NDArray[np.integer], resamples: int, generator: np.random.Generator
) -> Array:
    """Resample with replacement within each stratum: (n,) stratum numbers -> counts (resamples,
    n).
    """
    n = len(strata)
    order = np.argsort(strata, kind="stable")
    _, start, size = np.unique(strata[order], return_index=True, return_counts=True)
    first = np.repeat(start, size)
    indices = order[generator.integers(first, first + np.repeat(size, size), size=(resamples, n))]
    cells = indices + n * np.arange(resamples)[:, np.newaxis]
    return np.bincount(cells.ravel(), minlength=resamples * n).reshape(resamples, n).astype(float)


def intervals(
    statistics: Statistics,
    strata: NDArray[np.integer],
    resamples: int | None,
    generator: np.random.Generator | None,
    groups: NDArray[np.int64] | None = None,
    shares: Set[str] = frozenset(),
) -> dict[str, Interval]:
    """Return the percentile interval of each statistic, of ``shares`` joined with the one on the
    logit scale; None if more than 1 % of its resamples are undefined; empty without resamples or
    generator.

    It is also undefined if all resamples give the same value, e.g. if all samples are correct: an
    interval of zero width would claim certainty about other samples.

    Args:
        statistics: weights (R, n) -> named values (R,), NaN where undefined.
        strata: (n,) the stratum of each sample; resampling keeps their sizes.
        resamples: number of resamples; None for as many as are quick, between the two of
            ``RESAMPLES``; 0 for no intervals.
        generator: random generator; None for no intervals.
        groups: (n,) each sample's group, which is resampled as a whole, without strata; None if
            samples are independent.
        shares: names of statistics between 0 and 1.
    """
    resamples = _quick(strata) if resamples is None else resamples
    if generator is None or resamples < 1:
        return {}
    values = _resampled(statistics, strata, resamples, generator, groups)
    n, joined = len(strata), shares & values.keys()
    once = statistics(np.ones((1, n))) if joined else {}
    of_shares = {name: _of_share(float(once[name][0]), values[name], n) for name in joined}
    return {name: _percentiles(resampled) for name, resampled in values.items()} | of_shares


def _resampled(
    statistics: Statistics,
    strata: NDArray[np.integer],
    resamples: int,
    generator: np.random.Generator,
    groups: NDArray[np.int64] | None,
) -> dict[str, Array]:
    """Compute the statistics of resamples of samples, or of groups: (resamples,) each."""
    n = len(strata)
    if groups is not None:
        strata = np.zeros(unit_count(n, groups), np.int64)
    draws = (stratified(strata, len(span), generator) for span in spans(resamples, n))
    chunks = [statistics(counts if groups is None else counts[:, groups]) for counts in draws]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _quick(strata: NDArray[np.integer]) -> int:
    """Return how many resamples are quick."""
    numbers = len(strata) * max(2, int(strata.max(initial=0)) + 1)  # of a resample, about
    return int(np.clip(_MOST_NUMBERS // max(numbers, 1), *RESAMPLES))


def _percentiles(values: Array) -> Interval:
    defined = values[~np.isnan(values)]
    if len(defined) < LEAST_DEFINED * len(values) or np.ptp(defined) <= EQUAL:
        return None
    low, high = np.quantile(defined, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return [float(low), float(high)]


def _of_share(value: float, values: Array, n: int) -> Interval:
    """Return the union of two intervals of a share: the percentiles', and the one around its logit
    with the resamples' deviation as standard error (Boyd, Eng and Page, "Area under the
    precision-recall curve", ECML 2013).

    Percentiles of an AUPRC's resamples lie too high, since they repeat samples; the other interval
    is too short near 1. 0 and 1 count as half a sample away.
    """
    percentiles = _percentiles(values)
    if percentiles is None or np.isnan(value):
        return None
    from scipy.special import expit, logit, ndtri  # late, as below

    inside = 1 / (2 * n), 1 - 1 / (2 * n)
    error = float(logit(np.clip(values[~np.isnan(values)], *inside)).std(ddof=1))
    reach = float(ndtri((1 + CONFIDENCE) / 2)) * error
    centre = float(logit(np.clip(value, *inside)))
    low, high = float(expit(centre - reach)), float(expit(centre + reach))
    return [min(value, low, percentiles[0]), max(value, high, percentiles[1])]


def proportion(hits: Array, groups: NDArray[np.int64] | None = None) -> Interval:
    """Return the interval of a proportion from zeros and ones (n,): Wilson's.

    Of grouped samples it is that of the effective number of samples, by the groups' variance and
    degrees of freedom (Korn and Graubard, "Confidence intervals for proportions with small expected
    number of positive counts estimated from survey data", Survey Methodology 1998), or of the
    groups if all samples are alike; None for less than ``FEW`` groups. ``groups``: (n,) numbers
    from 0 on.
    """
    n, share = len(hits), float(np.mean(hits)) if len(hits) else 0.0
    if groups is None:
        return wilson(round(n * share), n)
    count = unit_count(n, groups)
    if count < FEW:
        return None
    from scipy.special import ndtri, stdtrit  # late, as below

    totals = np.bincount(groups, hits - share)
    variance = count / (count - 1) * float((totals**2).sum()) / n**2
    effective = min(n, share * (1 - share) / variance) if variance > 0 else count
    tail = (1 + CONFIDENCE) / 2
    effective *= (float(ndtri(tail)) / float(stdtrit(count - 1, tail))) ** 2
    return wilson(share * effective, effective)


def wilson(hits: float, n: float) -> Interval:
    """Return Wilson's score interval of a proportion (Wilson, JASA 1927, uncorrected); None without
    samples.
    """
    if not n:
        return None
    # late, for silo processes: scipy.stats takes a second to import
    from scipy.special import ndtri

    z = ndtri((1 + CONFIDENCE) / 2)
    centre = (hits + z**2 / 2) / (n + z**2)
    reach = z / (n + z**2) * (hits * (n - hits) / n + z**2 / 4) ** 0.5
    return [
        max(0.0, float(centre - reach)) if hits else 0.0,
        min(1.0, float(centre + reach)) if hits < n else 1.0,
    ]


def mean_of_proportions(every_hits: Sequence[Array]) -> Interval:
    """Return the interval of the mean of independent proportions, as of classes' sensitivities.

    The distances of Wilson's limits add up as standard deviations do (Zou and Donner, Statistics in
    Medicine 2008). None without proportions, or if one has no samples.

    Args:
        every_hits: of each proportion zeros and ones (n,).
    """
    limits = [wilson(float(hits.sum()), len(hits)) for hits in every_hits]
    if not limits or None in limits:
        return None
    low, high = np.transpose(np.array(limits))
    shares = np.array([hits.mean() for hits in every_hits])
    mean, count = float(shares.mean()), len(shares)
    reach_down, reach_up = hypot(*(shares - low)), hypot(*(high - shares))
    return [mean - reach_down / count, mean + reach_up / count]


ENOUGH = 30
"""Effective number of units from which the t interval is used without the sign test."""
_SIGNS = 9999
_ROUNDING = 1e-9  # share of an interval that counts as 0


@dataclass(frozen=True)
class Estimate:
    """Mean of the clients' differences.

    Attributes:
        value: their mean.
        interval: 95 % interval; None if there are too few samples.
        p: two-sided p-value of no difference; None likewise.
        clients: those in the mean; all if none has enough samples.
        error: of the mean by chance; None likewise.
    """

    value: float
    interval: tuple[float, float] | None
    p: float | None
    clients: tuple[int, ...]
    error: SamplingError | None = None


@dataclass(frozen=True)
class _Stratum:
    """Values whose mean has ``weight`` in the total; ``step``: see ``Evidence``."""

    values: Array
    weight: float
    step: float

    @property
    def units(self) -> Array:
        """Contributions of the values to the total."""
        return self.weight / len(self.values) * self.values

    @property
    def variance(self) -> float:
        return float(self.weight**2 * self.values.var(ddof=1) / len(self.values))

    @property
    def min_variance(self) -> float:
        return (self.weight / len(self.values) * self.step) ** 2


def mean_difference(evidence: Sequence[Evidence]) -> Estimate:
    """Return the mean of the clients' differences, unweighted; ``evidence`` has at least one."""
    included, small = _small(evidence)
    if not included:
        return Estimate(
            float(np.mean([e.value for e in evidence])), None, None, tuple(range(len(evidence)))
        )
    strata, sides = _strata(evidence, included, small)
    chosen = [evidence[i] for i in included]
    value = float(np.mean([e.value for e in chosen]))
    of_seeds = _variance_of_seeds(chosen)
    variances = [_variance(strata), *of_seeds]
    interval, p = _test(
        value, variances, [np.concatenate([s.units for s in side]) for side in sides]
    )
    margins = [evidence[i].margins for i in included if i not in small]
    further = [*([_variance(strata[-1:])] if small else []), *of_seeds]
    interval, p = _widened(value, interval, p, _added(margins, len(included), further))
    error = SamplingError(tuple(variances), _unit(chosen)) if interval else None
    return Estimate(value, interval, p, tuple(included), error)


def _variance_of_seeds(evidence: Sequence[Evidence]) -> list[tuple[float, float]]:
    """Return variance and degrees of freedom of the mean over seeds; empty for one seed."""
    seeds = np.mean([e.seeds for e in evidence], axis=0)
    return [(float(seeds.var(ddof=1)) / len(seeds), len(seeds) - 1.0)] if seeds.any() else []


def _added(
    margins: Sequence[tuple[float, float] | None],
    clients: int,
    variances: Sequence[tuple[float, float]],
) -> tuple[float, float]:
    """Return how far the interval of a mean over clients reaches at least below and above it; 0 if
    a client has no margins.

    ``margins``: of clients by themselves; ``variances``: of the other clients' mean and of seeds.
    """
    defined_margins = [margin for margin in margins if margin]
    if len(defined_margins) < len(margins) or not defined_margins:
        return 0.0, 0.0
    rest = half_width(LEVEL, variances)
    low, high = (hypot(*(margin[k] / clients for margin in defined_margins), rest) for k in (0, 1))
    return low, high


def _widened(
    value: float, interval: tuple[float, float] | None, p: float | None, reach: tuple[float, float]
) -> tuple[tuple[float, float] | None, float | None]:
    """Extend an interval to at least ``reach`` below and above the value, and its p-value so that
    both agree.
    """
    from scipy.special import ndtr, ndtri  # late, as above

    if interval is None or p is None or not any(reach):
        return interval, p
    low, high = min(interval[0], value - reach[0]), max(interval[1], value + reach[1])
    towards = reach[0] if value > 0 else reach[1]
    if towards > 0:
        p = max(p, float(2 * ndtr(ndtri(LEVEL / 2) * abs(value) / towards)))
    return (low, high), p


def _unit(evidence: Sequence[Evidence]) -> float:
    """Return what one unit in which the models differ adds to the mean; 0 for arbitrary sizes."""
    return max(e.step for e in evidence) / sum(e.units for e in evidence)


def _strata(
    evidence: Sequence[Evidence], included: Sequence[int], small: set[int]
) -> tuple[list[_Stratum], list[list[_Stratum]]]:
    """Return all strata of the mean, and those of each sign test.

    All clients' events, then all their non-events: the mean must be significant against random
    signs of each.
    """
    weight, large = 1 / len(included), [evidence[i] for i in included if i not in small]
    alike = []
    if small:
        step = max(evidence[i].step / evidence[i].units for i in small)
        alike = [
            _Stratum(
                np.array([evidence[i].value for i in sorted(small)]), weight * len(small), step
            )
        ]
    strata = [_Stratum(values, weight, e.step) for e in large for values in e.strata] + alike
    sides = [
        [_Stratum(e.strata[min(k, len(e.strata) - 1)], weight, e.step) for e in large] + alike
        for k in range(max((len(e.strata) for e in large), default=1))
    ]
    return strata, sides


def _small(evidence: Sequence[Evidence]) -> tuple[list[int], set[int]]:
    """Return the clients in the mean, and those of them that are units of one common stratum."""
    size = [min((len(values) for values in e.strata), default=0) for e in evidence]
    included = [i for i, e in enumerate(evidence) if size[i] or e.bounded]
    few = sum(not size[i] for i in included)
    if few and len(included) < FEW:
        return [i for i in included if size[i]], set()
    order = sorted(included, key=size.__getitem__)
    return included, set(order[: max(few, FEW)]) if few else set()


def _variance(strata: Sequence[_Stratum]) -> tuple[float, float]:
    """Return the variance of the total and its degrees of freedom."""
    variances = np.array([s.variance for s in strata])
    free = np.array([len(s.values) - 1.0 for s in strata])
    total = float(variances.sum())
    df = float(total**2 / (variances**2 / free).sum()) if total > 0 else float(free.sum())
    return max(total, *(s.min_variance for s in strata)), df


def _test(
    value: float, variances: Sequence[tuple[float, float]], sides: Sequence[Array]
) -> tuple[tuple[float, float] | None, float | None]:
    """Return the interval and the p-value.

    ``variances``: variances and their degrees of freedom, that of the samples first; ``sides``:
    units for the sign test.
    """
    if not variances[0][0] > 0:
        return None, None
    margin = half_width(LEVEL, variances)
    low, high = (
        0.0 if abs(end) <= _ROUNDING * margin else end for end in (value - margin, value + margin)
    )
    p = two_sided(abs(value), variances)
    if low > 0 or high < 0:
        p = max([p, *(_by_signs(units) for units in sides if _effective(units) < ENOUGH)])
        if p > LEVEL:
            low, high = min(low, 0.0), max(high, 0.0)
    return (low, high), p


def _effective(units: Array) -> float:
    squares = units**2
    return float(squares.sum() ** 2 / (squares**2).sum()) if squares.any() else 0.0


def _by_signs(units: Array) -> float:
    """Return how often random signs give a sum as far from 0, with ties counting half (the same
    draws each time).
    """
    units = units[units != 0]
    if len(units) < FEW:
        return 1.0
    observed, reached = abs(float(units.sum())), 0.0
    draws = stream(0, "signs")
    for span in spans(_SIGNS, len(units)):
        signs = draws.integers(0, 2, (len(span), len(units)), dtype=np.int8)
        sums = np.abs(2.0 * (signs @ units) - units.sum())
        reached += (
            (sums > observed * (1 + _ROUNDING)).sum() + (sums >= observed * (1 - _ROUNDING)).sum()
        ) / 2
    return float(reached / _SIGNS)
