"""Metrics of individual outcomes, as in diagnostic studies: at a threshold, over all thresholds,
and calibration, the agreement of predicted probabilities with observed frequencies.

An outcome is binary: the second of two classes, each of more classes against the rest, or each
label.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.intervals import CONFIDENCE, RESAMPLES, Interval, intervals, wilson
from pomona.metrics.measures import average_precision
from pomona.metrics.nan_safe import Array, defined, divide

BINS = 10
UNSETTLED = 1e-4  # relative to the score's possible sum: at the maximum of the likelihood it is 0
SURE = np.finfo(float).eps  # probabilities closer to 0 or 1 have no accurate logit
NEWTON_STEPS = 100  # maximum iterations of the fit
STILL = 1e-10  # slopes and steps below which the fit has converged


def reliability_curve(p: Array, positive: NDArray[np.bool_]) -> list[tuple[float, int, int]]:
    """Return (mean probability, samples with the outcome, samples) for up to ten equal groups of
    rising probability.

    Samples with equal probability are in one group; empty groups are omitted. ``p`` and
    ``positive``: (n,).
    """
    if not len(p):
        return []
    group = np.searchsorted(np.quantile(p, np.arange(1, BINS) / BINS), p)
    samples, hits, mass = (np.bincount(group, weights, BINS) for weights in (None, positive, p))
    return [
        (float(mass[k] / samples[k]), int(hits[k]), int(samples[k]))
        for k in np.flatnonzero(samples)
    ]


def recalibration(
    p: Array, positive: NDArray[np.bool_]
) -> dict[str, tuple[float, Interval]] | None:
    """Fit intercept a and slope b of logit P(outcome) = a + b logit(p) without penalty, with 95 %
    Wald intervals.

    Perfect calibration has a = 0 and b = 1; b < 1 means that probabilities are too extreme; with b
    = 1, a < 0 means that they are too high overall. Cox, "Two further applications of a model for
    binary regression", Biometrika 1958.

    The likelihood has a maximum only if the probabilities of both outcomes overlap (Albert and
    Anderson, "On the existence of maximum likelihood estimates in logistic regression models",
    Biometrika 1984): None if not, if one outcome is missing, if all probabilities are equal, or if
    the fit does not converge.

    Args:
        p: (n,) probabilities of the outcome.
        positive: (n,) whether it occurred.
    """
    share = np.clip(p, SURE, 1 - SURE)
    x = np.log(share) - np.log1p(-share)
    positives, negatives = x[positive], x[~positive]
    if not (
        len(positives)
        and len(negatives)
        and positives.min() < negatives.max()
        and negatives.min() < positives.max()
    ):
        return None
    # imported late, since every silo process loads this module
    from scipy.special import expit, ndtri

    centre, scale = x.mean(), x.std()
    start, rise = _most_likely(np.stack([np.ones_like(x), (x - centre) / scale]), positive)
    slope = rise / scale
    intercept = start - slope * centre
    chance = expit(intercept + slope * x)
    design = np.stack([np.ones_like(x), x])
    if np.abs(design @ (chance - positive)).max() > UNSETTLED * np.abs(design).sum():
        return None
    covariance = np.linalg.pinv((design * chance * (1 - chance)) @ design.T)
    margins = ndtri((1 + CONFIDENCE) / 2) * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    values = {"intercept": float(intercept), "slope": float(slope)}
    return {
        name: (value, [value - float(reach), value + float(reach)])
        for (name, value), reach in zip(values.items(), margins, strict=True)
    }


def _most_likely(design: Array, positive: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the two coefficients of a logistic regression on ``design`` (2, n), by Newton's method
    with step halving.

    Written out because SciPy's ``minimize`` takes half a processor second to import. The caller
    checks convergence.
    """
    from scipy.special import expit  # imported late, as above

    def surprise(w: Array) -> float:
        z = w @ design
        return float((np.logaddexp(0, z) - positive * z).sum())

    w = np.zeros(2)
    for _ in range(NEWTON_STEPS):
        chance = expit(w @ design)
        slope = design @ (chance - positive)
        if np.abs(slope).max() <= STILL:
            break
        step = np.linalg.pinv((design * chance * (1 - chance)) @ design.T) @ slope
        while surprise(w - step) > surprise(w) and np.abs(step).max() > STILL:
            step = step / 2
        w = w - step
    return float(w[0]), float(w[1])


MAX_OUTCOMES = 5  # outcomes; more are not read individually, and each needs a bootstrap
DEFAULT_THRESHOLD = 0.5
ROUNDING = 1e-9  # tolerance when a share of samples is converted to a count
# probabilities (n, K), and targets: (n,) class numbers or (n, K) zeros and ones
Predictions = tuple[Array, NDArray[Any]]


class ThresholdTarget(NamedTuple):
    """What a threshold must reach on validation samples."""

    measure: Literal["sensitivity", "specificity"]
    share: float


def evaluate_outcomes(
    tested: Predictions,
    validation: Predictions | None,
    generator: Callable[[], np.random.Generator],
    resamples: int = RESAMPLES,
    target: ThresholdTarget | None = None,
) -> list[dict[str, Any]]:
    """Evaluate each outcome on test samples; returns JSON values, with None for undefined metrics.

    Empty for more than 5 classes or labels. The keys:

    - ``outcome``: the number of the class or label; ``samples``, ``positives``: test samples, and
      those with it.
    - ``threshold``: an outcome is predicted if its probability is at least this; ``chosen``:
      whether it was chosen on the validation samples, see ``youden``, ``at_specificity`` and
      ``at_sensitivity``. It is 0.5 otherwise.
    - ``sensitivity``, ``specificity``, ``ppv``, ``npv``: at the threshold.
    - ``auprc``, ``brier``: area under the precision-recall curve, and mean squared distance of the
      probability from the outcome.
    - ``calibration_intercept``, ``calibration_slope``: see ``recalibration``;
      ``calibration``: see ``reliability_curve``.
    - ``intervals``: 95 % confidence intervals [low, high]: of the four shares by Wilson's score, of
      the two others by the bootstrap within samples with and without the outcome, of the
      recalibration by Wald.

    Args:
        tested: predictions and targets of the test samples.
        validation: those of the validation samples; None without any.
        generator: creates the bootstrap's generator, the same each time.
        resamples: number of bootstrap resamples.
        target: sensitivity or specificity of the threshold on the validation samples; if None,
            Youden's index chooses it.
    """
    rule = partial(RULES[target.measure], target=target.share) if target else youden
    count = tested[0].shape[1]
    if count > MAX_OUTCOMES:
        return []
    results = []
    for k in outcome_numbers(tested):
        p, positive = outcome(tested, k)
        chosen = rule(*outcome(validation, k)) if validation else None
        threshold = DEFAULT_THRESHOLD if chosen is None else chosen
        figures = (
            _at_threshold(threshold, p, positive)
            | _threshold_free(p, positive, generator(), resamples)
            | _calibrated(p, positive)
        )
        results.append(
            {
                "outcome": int(k),
                "samples": len(p),
                "positives": int(positive.sum()),
                "threshold": threshold,
                "chosen": chosen is not None,
                **{name: value for name, (value, _) in figures.items()},
                "calibration": reliability_curve(p, positive),
                "intervals": {name: interval for name, (_, interval) in figures.items()},
            }
        )
    return results


def youden(p: Array, positive: NDArray[np.bool_]) -> float | None:
    """Return the threshold with the largest sensitivity + specificity - 1, the highest in case of
    ties.

    None if no threshold exceeds 0, or one outcome is missing. Youden, "Index for rating diagnostic
    tests", Cancer 1950. ``p`` and ``positive``: (n,).
    """
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    if not (n_positive and n_negative):
        return None
    thresholds = np.unique(p)
    above = [
        counts - np.searchsorted(np.sort(scores), thresholds)
        for scores, counts in ((p[positive], n_positive), (p[~positive], n_negative))
    ]
    # In integers, where equality is exact: sensitivity + specificity - 1, times both counts.
    index = above[0] * n_negative - above[1] * n_positive
    best = len(index) - 1 - int(index[::-1].argmax())  # the highest in case of ties
    return float(thresholds[best]) if index[best] > 0 else None


def at_specificity(p: Array, positive: NDArray[np.bool_], target: float) -> float | None:
    """Return the lowest probability that, as a threshold, has at least the specificity ``target``.

    None if all samples have the outcome, or no probability reaches it. ``p`` and ``positive``:
    (n,).
    """
    negatives = np.sort(p[~positive])
    thresholds = np.unique(p)
    below = np.searchsorted(negatives, thresholds, side="left")  # true negatives at each threshold
    enough = (
        thresholds[below >= target * len(negatives) - ROUNDING]
        if len(negatives)
        else thresholds[:0]
    )
    return float(enough[0]) if len(enough) else None


def at_sensitivity(p: Array, positive: NDArray[np.bool_], target: float) -> float | None:
    """Return the highest probability that, as a threshold, has at least the sensitivity ``target``.

    None if no sample has the outcome. ``p`` and ``positive``: (n,).
    """
    scores = np.sort(p[positive])[::-1]
    if not len(scores):
        return None
    needed = max(int(np.ceil(target * len(scores) - ROUNDING)), 1)
    return float(scores[needed - 1])


RULES: Mapping[str, Callable[..., float | None]] = {
    "sensitivity": at_sensitivity,
    "specificity": at_specificity,
}


def outcome_numbers(predictions: Predictions) -> Sequence[int]:
    """Return the classes or labels that are outcomes; for two classes, only the second."""
    p, targets = predictions
    return [1] if targets.ndim == 1 and p.shape[1] == 2 else range(p.shape[1])


def outcome(predictions: Predictions, k: int) -> tuple[Array, NDArray[np.bool_]]:
    """Return the probabilities (n,) of a class or label, and whether each sample has it (n,)."""
    p, targets = predictions
    return p[:, k], targets == k if targets.ndim == 1 else targets[:, k] > DEFAULT_THRESHOLD


Estimates = dict[str, tuple[float | None, Interval]]


def _at_threshold(threshold: float, p: Array, positive: NDArray[np.bool_]) -> Estimates:
    predicted = p >= threshold
    shares = {
        "sensitivity": (predicted & positive, positive),
        "specificity": (~predicted & ~positive, ~positive),
        "ppv": (predicted & positive, predicted),
        "npv": (~predicted & ~positive, ~predicted),
    }
    counts = {name: (int(hits.sum()), int(total.sum())) for name, (hits, total) in shares.items()}
    return {name: (hits / n if n else None, wilson(hits, n)) for name, (hits, n) in counts.items()}


def _threshold_free(
    p: Array, positive: NDArray[np.bool_], generator: np.random.Generator, resamples: int
) -> Estimates:
    statistics = partial(_weighted, p, positive)
    bootstrapped = intervals(statistics, positive.astype(np.int64), resamples, generator)
    return {
        name: (defined(v[0]), bootstrapped[name])
        for name, v in statistics(np.ones((1, len(p)))).items()
    }


def _weighted(p: Array, positive: NDArray[np.bool_], weights: Array) -> dict[str, Array]:
    return {
        "auprc": average_precision(p, positive, weights),
        "brier": divide(weights @ (p - positive) ** 2, weights.sum(axis=1)),
    }


def _calibrated(p: Array, positive: NDArray[np.bool_]) -> Estimates:
    line = recalibration(p, positive)
    names = ("intercept", "slope")
    return {f"calibration_{name}": line[name] if line else (None, None) for name in names}
