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

from pomona.metrics.influence import FEW, unit_count
from pomona.metrics.intervals import CONFIDENCE, Interval, Statistics, intervals, proportion
from pomona.metrics.measures import average_precision
from pomona.metrics.nan_safe import Array, defined, divide

Groups = NDArray[np.int64] | None
BINS = 10
UNSETTLED = 1e-4  # relative to the score's possible sum: at the maximum of the likelihood it is 0
SURE = np.finfo(float).eps  # probabilities closer to 0 or 1 have no accurate logit
NEWTON_STEPS = 100  # maximum iterations of the fit
STILL = 1e-10  # slopes and steps below which the fit has converged


def reliability_curve(
    p: Array, positive: NDArray[np.bool_], bins: int = BINS
) -> list[tuple[float, int, int]]:
    """Return (mean probability, samples with the outcome, samples) for up to ``bins`` equal groups
    of rising probability.

    Samples with equal probability are in one group; empty groups are omitted. ``p`` and
    ``positive``: (n,).
    """
    if not len(p):
        return []
    group = np.searchsorted(np.quantile(p, np.arange(1, bins) / bins), p)
    samples, hits, mass = (np.bincount(group, weights, bins) for weights in (None, positive, p))
    return [
        (float(mass[k] / samples[k]), int(hits[k]), int(samples[k]))
        for k in np.flatnonzero(samples)
    ]


def recalibration(
    p: Array, positive: NDArray[np.bool_], groups: Groups = None
) -> dict[str, tuple[float, Interval]] | None:
    """Fit intercept a and slope b of logit P(outcome) = a + b logit(p) without penalty, with 95 %
    Wald intervals.

    Perfect calibration has a = 0 and b = 1; b < 1 means that probabilities are too extreme. Cox,
    "Two further applications of a model for binary regression", Biometrika 1958.

    The likelihood has a maximum only if the probabilities of both outcomes overlap (Albert and
    Anderson, "On the existence of maximum likelihood estimates in logistic regression models",
    Biometrika 1984): None if not, if one outcome is missing, if all probabilities are equal, or if
    the fit does not converge.

    Args:
        p: (n,) probabilities of the outcome.
        positive: (n,) whether it occurred.
        groups: (n,) of samples that are not independent, of numbers from 0 on; see ``_wald``.
    """
    x = _logits(p)
    positives, negatives = x[positive], x[~positive]
    if not (
        len(positives)
        and len(negatives)
        and positives.min() < negatives.max()
        and negatives.min() < positives.max()
    ):
        return None
    centre, scale = x.mean(), x.std()
    start, rise = _most_likely(np.stack([np.ones_like(x), (x - centre) / scale]), positive)
    slope = rise / scale
    fit = np.array([start - slope * centre, slope])
    design = np.stack([np.ones_like(x), x])
    chance = _expit(fit[0] + slope * x)
    if np.abs(design @ (chance - positive)).max() > UNSETTLED * np.abs(design).sum():
        return None
    bounds = _wald(fit, design, chance, positive, groups)
    return {name: (float(fit[k]), bounds[k]) for k, name in enumerate(("intercept", "slope"))}


def calibration_in_the_large(
    p: Array, positive: NDArray[np.bool_], groups: Groups = None
) -> tuple[float | None, Interval]:
    """Fit a of logit P(outcome) = a + logit(p), with its 95 % Wald interval: below 0 probabilities
    are too high overall, above 0 too low; None if one outcome is missing.

    Steyerberg, "Clinical Prediction Models", 2nd ed. 2019, section 15.3. Arguments as of
    ``recalibration``.
    """
    if positive.all() or not positive.any():
        return None, None
    x, design = _logits(p), np.ones((1, len(p)))
    fit = _most_likely(design, positive, x)
    return float(fit[0]), _wald(fit, design, _expit(fit[0] + x), positive, groups)[0]


def _logits(p: Array) -> Array:
    share = np.clip(p, SURE, 1 - SURE)
    logits: Array = np.log(share) - np.log1p(-share)
    return logits


def _expit(logits: Array) -> Array:
    from scipy.special import expit  # imported late, since every silo process loads this module

    chances: Array = expit(logits)
    return chances


def _wald(
    fit: Array, design: Array, chance: Array, positive: NDArray[np.bool_], groups: Groups
) -> list[Interval]:
    """Return the 95 % Wald interval of each coefficient (k,) of a logistic regression on ``design``
    (k, n), with its probabilities ``chance`` (n,).

    Of groups, by the variance between them (Liang and Zeger, "Longitudinal data analysis using
    generalized linear models", Biometrika 1986, with G / (G - 1) and t of G - 1 degrees of
    freedom); None for less than ``FEW``.
    """
    from scipy.special import ndtri, stdtrit  # imported late, as above

    covariance = np.linalg.pinv((design * chance * (1 - chance)) @ design.T)
    tail = (1 + CONFIDENCE) / 2
    quantile = float(ndtri(tail))
    if groups is not None:
        count = unit_count(len(positive), groups)
        if count < FEW:
            return [None] * len(fit)
        totals = np.stack([np.bincount(groups, x * (positive - chance)) for x in design])
        covariance = covariance @ totals @ totals.T @ covariance * count / (count - 1)
        quantile = float(stdtrit(count - 1, tail))
    margins = quantile * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return [[float(a - margin), float(a + margin)] for a, margin in zip(fit, margins, strict=True)]


def _most_likely(design: Array, positive: NDArray[np.bool_], offset: Array | float = 0.0) -> Array:
    """Return the coefficients (k,) of a logistic regression on ``design`` (k, n), by Newton's
    method with step halving.

    Written out because SciPy's ``minimize`` takes half a processor second to import. The caller
    checks convergence.
    """

    def surprise(w: Array) -> float:
        z = w @ design + offset
        return float((np.logaddexp(0, z) - positive * z).sum())

    w = np.zeros(len(design))
    for _ in range(NEWTON_STEPS):
        chance = _expit(w @ design + offset)
        slope = design @ (chance - positive)
        if np.abs(slope).max() <= STILL:
            break
        step = np.linalg.pinv((design * chance * (1 - chance)) @ design.T) @ slope
        while surprise(w - step) > surprise(w) and np.abs(step).max() > STILL:
            step = step / 2
        w = w - step
    return w


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
    resamples: int | None = None,
    target: ThresholdTarget | None = None,
    groups: Groups = None,
) -> list[dict[str, Any]]:
    """Evaluate each outcome on test samples; returns JSON values, with None for undefined metrics.

    Empty for more than 5 classes or labels. The keys:

    - ``outcome``: the number of the class or label; ``samples``, ``positives``: test samples, and
      those with it; ``units``: groups of samples, or samples if they are independent.
    - ``threshold``: an outcome is predicted if its probability is at least this; ``chosen``:
      whether it was chosen on the validation samples, see ``youden``, ``at_specificity`` and
      ``at_sensitivity``. It is 0.5 otherwise.
    - ``sensitivity``, ``specificity``, ``ppv``, ``npv``: at the threshold.
    - ``auprc``, ``brier``: area under the precision-recall curve, and mean squared distance of the
      probability from the outcome.
    - ``calibration_in_the_large``, ``calibration_intercept``, ``calibration_slope``: see the
      function, and ``recalibration``; ``calibration``: see ``reliability_curve``.
    - ``intervals``: 95 % confidence intervals [low, high]: of the four shares by ``proportion``, of
      the two others by the bootstrap within samples with and without the outcome, or of groups,
      from ``FEW`` on, of the recalibration by Wald.

    Args:
        tested: predictions and targets of the test samples.
        validation: those of the validation samples; None without any.
        generator: creates the bootstrap's generator, the same each time.
        resamples: number of bootstrap resamples; None as in ``intervals``.
        target: sensitivity or specificity of the threshold on the validation samples; if None,
            Youden's index chooses it.
        groups: (n,) each test sample's group, of numbers from 0 on; None if samples are
            independent.
    """
    rule = partial(RULES[target.measure], target=target.share) if target else youden
    count = tested[0].shape[1]
    if count > MAX_OUTCOMES:
        return []
    results, n = [], len(tested[1])

    def resample(statistics: Statistics, positive: NDArray[np.bool_]) -> dict[str, Interval]:
        draws = generator() if unit_count(n, groups) >= FEW else None
        return intervals(statistics, positive.astype(np.int64), resamples, draws, groups, {"auprc"})

    for k in outcome_numbers(tested):
        p, positive = outcome(tested, k)
        chosen = rule(*outcome(validation, k)) if validation else None
        threshold = DEFAULT_THRESHOLD if chosen is None else chosen
        figures = (
            _at_threshold(threshold, p, positive, groups)
            | _threshold_free(p, positive, resample)
            | _calibrated(p, positive, groups)
        )
        results.append(
            {
                "outcome": int(k),
                "samples": n,
                "units": unit_count(n, groups),
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


def _at_threshold(
    threshold: float, p: Array, positive: NDArray[np.bool_], groups: Groups
) -> Estimates:
    predicted = p >= threshold
    shares = {
        "sensitivity": (predicted, positive),
        "specificity": (~predicted, ~positive),
        "ppv": (positive, predicted),
        "npv": (~positive, ~predicted),
    }
    return {
        name: _share(hits[counted], groups, counted) for name, (hits, counted) in shares.items()
    }


def _share(
    hits: NDArray[np.bool_], groups: Groups, counted: NDArray[np.bool_]
) -> tuple[float | None, Interval]:
    """Return the share of hits (m,) among the samples ``counted`` (n,), and its interval."""
    if not len(hits):
        return None, None
    within = None if groups is None else np.unique(groups[counted], return_inverse=True)[1]
    return float(hits.mean()), proportion(hits.astype(float), within)


def _threshold_free(
    p: Array,
    positive: NDArray[np.bool_],
    resample: Callable[[Statistics, NDArray[np.bool_]], Mapping[str, Interval]],
) -> Estimates:
    statistics = partial(_weighted, p, positive)
    bootstrapped = resample(statistics, positive)
    return {
        name: (defined(v[0]), bootstrapped.get(name))
        for name, v in statistics(np.ones((1, len(p)))).items()
    }


def _weighted(p: Array, positive: NDArray[np.bool_], weights: Array) -> dict[str, Array]:
    return {
        "auprc": average_precision(p, positive, weights),
        "brier": divide(weights @ (p - positive) ** 2, weights.sum(axis=1)),
    }


def _calibrated(p: Array, positive: NDArray[np.bool_], groups: Groups) -> Estimates:
    line = recalibration(p, positive, groups)
    names = ("intercept", "slope")
    return {
        "calibration_in_the_large": calibration_in_the_large(p, positive, groups),
        **{f"calibration_{name}": line[name] if line else (None, None) for name in names},
    }
