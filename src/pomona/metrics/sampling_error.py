"""The chance error of a mean difference: its intervals and tests, and what it could have shown.

A difference is detectable if a test at ``LEVEL`` finds it with probability ``POWER``: as the
observed difference varies by its standard error, that is one quantile of t for the level, and one
for the power (Lachin, "Introduction to sample size determination and power analysis for clinical
trials", Controlled Clinical Trials 1981, section 2). The variance is that of the observed samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, hypot, log2, sqrt

from pydantic import Field

from pomona.core.settings import Settings
from pomona.metrics.influence import FEW

LEVEL = 0.05
POWER = 0.8
_MIN_P = 1e-12  # smallest p-value
_MAX_FACTOR = 1e9  # of the samples, from which more would not help
_SPREAD = 0.84  # standard deviations of a Poisson count of which 80 % is above

Variances = Sequence[tuple[float, float]]


class VerdictSettings(Settings):
    """Verdicts on gains.

    Attributes:
        margin: a model is not worse than another if a loss of this much or more is ruled out; for
            metrics between 0 and 1 where more is better, 0.02 of accuracy is two percentage points
    """

    margin: float = Field(0.02, ge=0, le=1)


def half_width(level: float, variances: Variances) -> float:
    """Return half the width of the interval with this error rate.

    ``variances``: variances of independent parts of the error, with their degrees of freedom.
    """
    # imported late, as all of SciPy: every silo process loads this module
    from scipy.special import stdtrit

    return hypot(
        *(float(stdtrit(df, 1 - level / 2)) * sqrt(variance) for variance, df in variances)
    )


def two_sided(distance: float, variances: Variances) -> float:
    """Return the level at which the interval ends at a distance from the mean; for several parts at
    least 1e-12.
    """
    from scipy.special import stdtr

    if len(variances) == 1:
        (variance, df) = variances[0]
        return float(2 * stdtr(df, -distance / sqrt(variance)))
    if half_width(_MIN_P, variances) <= distance:
        return _MIN_P
    return _root(lambda level: half_width(level, variances) - distance, _MIN_P, 1.0)


@dataclass(frozen=True)
class SamplingError:
    """The chance error of a mean difference.

    Attributes:
        variances: of the samples, and with several seeds of the seeds, with their degrees of
            freedom.
        unit: what one unit in which the models differ adds to the mean, if all its differences
            have one size (right or wrong answers); else 0.
    """

    variances: tuple[tuple[float, float], ...]
    unit: float = 0.0

    def above(self, difference: float) -> float:
        """Return the p-value of a true difference of at most 0 at an observed one, two-sided, so
        that it is compared with the same level; 1 for a negative one.
        """
        return two_sided(difference, self.variances) if difference > 0 else 1.0

    def detectable(self, comparisons: int = 1) -> float:
        """Return the smallest true difference that is found with 80 % probability.

        ``comparisons``: number of comparisons among which it must be significant (Bonferroni).
        """
        return self._detectable(1.0, comparisons)

    def factor(self, difference: float, comparisons: int = 1) -> float | None:
        """Return how many times the samples a difference above 0 needs to be detectable; None if
        the seeds vary too much for any number of samples.
        """
        if self._detectable(_MAX_FACTOR, comparisons) > difference:
            return None
        return _root(
            lambda factor: self._detectable(factor, comparisons) - difference, 1e-9, _MAX_FACTOR
        )

    def _detectable(self, factor: float, comparisons: int) -> float:
        """Return the detectable difference with ``factor`` times the samples."""
        (variance, df), *seeds = self.variances
        variances = [(variance / factor, max(df * factor, 1.0)), *seeds]
        # so many units must differ that random signs seldom agree in all of them
        units = max(FEW, ceil(log2(comparisons / LEVEL)))
        return max(
            half_width(LEVEL / comparisons, variances) + half_width(2 * (1 - POWER), variances),
            (units + _SPREAD * sqrt(units)) * self.unit / factor,
        )


def of_right_answers(units: Sequence[int], disagreement: float) -> SamplingError | None:
    """Return the error of a mean gain in accuracy before anything is trained, from each client's
    number of independent test samples and the share of them that only one of two models will get
    right; None without two samples at a client.
    """
    sizes = [n for n in units if n]
    df = sum(sizes) - len(sizes)
    if not df:
        return None
    variance = disagreement * sum(1 / n for n in sizes) / len(sizes) ** 2
    return SamplingError(((variance, float(df)),), 1 / sum(sizes))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=1e-15))
