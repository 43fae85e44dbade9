"""Definitions of the metrics on arrays, for one model and one client's (weighted) samples.

Predictions (n, K) are on their natural scale: probabilities of classes (rows sum to 1) or of
labels, or numbers. Targets are (n,) class numbers, (n, K) zeros and ones, or (n, K) numbers. A
metric that is a mean over samples is given by each sample's contribution, (n,); any other by a
function of sample weights (R, n), so that its point estimate and resamples share one computation:
(R,), NaN where the samples do not define it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.nan_safe import Array, divide, row_means


def auroc(scores: Array, positive: NDArray[np.bool_], weights: Array) -> Array:
    """Return the share of (positive, negative) pairs that the scores rank correctly, with ties
    counting half.

    Hanley and McNeil, "The meaning and use of the area under a ROC curve", Radiology 1982 (the
    Mann-Whitney form).

    Args:
        scores: (n,) higher means more likely positive.
        positive: (n,) the truth.
        weights: (R, n) weight of each sample.

    Returns:
        (R,), NaN if positives or negatives are missing.
    """
    order = np.argsort(scores)
    scores, positive, weights = scores[order], positive[order], weights[:, order]
    negatives = np.cumsum(np.pad(weights * ~positive, ((0, 0), (1, 0))), axis=1)
    below = negatives[:, np.searchsorted(scores, scores[positive], side="left")]
    upto = negatives[:, np.searchsorted(scores, scores[positive], side="right")]
    positives = weights[:, positive]
    pairs = positives.sum(axis=1) * negatives[:, -1]
    return divide((positives * (below + upto)).sum(axis=1) / 2, pairs)


def average_precision(scores: Array, positive: NDArray[np.bool_], weights: Array) -> Array:
    """Return the area under the precision-recall curve as a sum of steps, one per distinct score.

    sum over thresholds of (recall - recall before) * precision, without interpolation, which is
    optimistic (Davis and Goadrich, "The relationship between precision-recall and ROC curves", ICML
    2006).

    Args:
        scores: (n,) higher means more likely positive.
        positive: (n,) the truth.
        weights: (R, n) weight of each sample.

    Returns:
        (R,), NaN if positives or negatives are missing.
    """
    order = np.argsort(-scores)
    scores, positive, weights = scores[order], positive[order], weights[:, order]
    last = np.flatnonzero(np.append(scores[1:] != scores[:-1], [True] * (len(scores) > 0)))
    hits = np.cumsum(weights * positive, axis=1)[:, last]
    predicted = np.cumsum(weights, axis=1)[:, last]
    gained = np.diff(hits, axis=1, prepend=0.0)
    steps = np.where(gained > 0, gained * np.nan_to_num(divide(hits, predicted)), 0.0)
    positives, negatives = weights[:, positive].sum(axis=1), weights[:, ~positive].sum(axis=1)
    return np.where(negatives > 0, divide(steps.sum(axis=1), positives), np.nan)


Labels = NDArray[np.integer]
Samples = Callable[[Array, Any], Array]  # (predictions, targets) -> (n,)
Weighted = Callable[[Array, Any, Array], Array]  # (predictions, targets, weights) -> (R,)
# (scores (n,), positive (n,), weights) -> (R,)
Ranking = Callable[[Array, NDArray[np.bool_], Array], Array]

BINS = 15
TINY = np.finfo(float).tiny
# targets whose variance relative to their square is below this are constant up to rounding
FLAT = 1e-12


def right_class(p: Array, labels: Labels) -> Array:
    """Return 1 where the most likely class (the first in case of ties) is the label."""
    return np.asarray(p.argmax(axis=1) == labels, dtype=float)


def right_flags(p: Array, flags: Array) -> Array:
    """Return the share of a sample's flags that are right at a threshold of 0.5."""
    return row_means(((p > 0.5) == (flags > 0.5)).astype(float))


def every_flag(p: Array, flags: Array) -> Array:
    """Return 1 where every flag is right at a threshold of 0.5."""
    return np.asarray(((p > 0.5) == (flags > 0.5)).all(axis=1), dtype=float)


def class_surprise(p: Array, labels: Labels) -> Array:
    """Return -log p(label), the cross-entropy, with p at least the smallest normal number."""
    surprise: Array = -np.log(np.maximum(p[np.arange(len(p)), labels], TINY))
    return surprise


def flag_surprise(p: Array, flags: Array) -> Array:
    """Return the binary cross-entropy, averaged over labels."""
    surprise: Array = -np.log(np.maximum(np.where(flags > 0.5, p, 1 - p), TINY))
    return row_means(surprise)


def class_brier(p: Array, labels: Labels) -> Array:
    """Return the squared distance of the probabilities from the truth; for two classes, of the
    probability of class 1.

    Brier, "Verification of forecasts expressed in terms of probability", Monthly Weather Review
    1950.
    """
    squares: Array = (p - (labels[:, np.newaxis] == np.arange(p.shape[1]))) ** 2 / (
        2 if p.shape[1] == 2 else 1
    )
    total: Array = squares.sum(axis=1)
    return total


def squared_error(predicted: Array, truth: Array) -> Array:
    """Return the squared difference, averaged over targets."""
    return row_means((predicted - truth) ** 2)


def absolute_error(predicted: Array, truth: Array) -> Array:
    """Return the absolute difference, averaged over targets."""
    return row_means(np.abs(predicted - truth))


def balanced_accuracy(p: Array, labels: Labels, weights: Array) -> Array:
    """Return the mean sensitivity over the classes that occur; undefined if only one does."""
    truth, guess = _one_hot(p, labels)
    sensitivity = divide(weights @ (truth & guess), weights @ truth)
    return np.where(_single(truth), np.nan, row_means(sensitivity))


def macro_f1(p: Array, labels: Labels, weights: Array) -> Array:
    """Return the mean F1 over the classes that occur or are predicted; undefined if only one class
    occurs.
    """
    truth, guess = _one_hot(p, labels)
    f1 = divide(2 * (weights @ (truth & guess)), weights @ truth + weights @ guess)
    return np.where(_single(truth), np.nan, row_means(f1))


def calibration_error(p: Array, labels: Labels, weights: Array) -> Array:
    """Return the expected calibration error, sum over bins B of |B|/n * |accuracy(B) - mean
    confidence(B)|.

    With 15 bins of equal width, (k/15, (k+1)/15] (Guo et al., "On Calibration of Modern Neural
    Networks", ICML 2017, eq. 3). It is biased upwards, and its resamples more so: an
    interval of them can lie above it.
    """
    confidence = p.max(axis=1)
    bins = np.digitize(confidence, np.arange(1, BINS) / BINS, right=True)
    gap = ((p.argmax(axis=1) == labels) - confidence)[:, np.newaxis] * (
        bins[:, np.newaxis] == np.arange(BINS)
    )
    return divide(np.abs(weights @ gap).sum(axis=1), weights.sum(axis=1))


def balanced_flags(p: Array, flags: Array, weights: Array) -> Array:
    """Return the mean of sensitivity and specificity, averaged over the labels that have both
    values.
    """
    truth, guess = flags > 0.5, p > 0.5
    sensitivity = divide(weights @ (truth & guess), weights @ truth)
    specificity = divide(weights @ (~truth & ~guess), weights @ ~truth)
    return row_means((sensitivity + specificity) / 2)


def flags_f1(p: Array, flags: Array, weights: Array) -> Array:
    """Return the mean F1 over the labels that occur or are predicted."""
    truth, guess = flags > 0.5, p > 0.5
    return row_means(divide(2 * (weights @ (truth & guess)), weights @ truth + weights @ guess))


def ranked_classes(area: Ranking) -> Weighted:
    """Return the area of class 1 for two classes; else the mean one-vs-rest area over classes with
    both outcomes.
    """

    def measure(p: Array, labels: Labels, weights: Array) -> Array:
        truth, _ = _one_hot(p, labels)
        ranked = [1] if p.shape[1] == 2 else np.flatnonzero(truth.any(axis=0) & ~truth.all(axis=0))
        return _mean([area(p[:, c], truth[:, c], weights) for c in ranked], weights)

    return measure


def ranked_labels(area: Ranking) -> Weighted:
    """Return the mean of an area over the labels that have both values."""

    def measure(p: Array, flags: Array, weights: Array) -> Array:
        truth = flags > 0.5
        return _mean([area(p[:, k], truth[:, k], weights) for k in range(p.shape[1])], weights)

    return measure


def r2(predicted: Array, truth: Array, weights: Array) -> Array:
    """Return the mean coefficient of determination over the targets that vary."""
    if not len(truth):
        return np.full(len(weights), np.nan)
    centred = truth - truth.mean(axis=0)
    total, squares = weights.sum(axis=1, keepdims=True), weights @ centred**2
    spread = squares - divide((weights @ centred) ** 2, total)
    lost = weights @ (predicted - truth) ** 2
    return row_means(1 - divide(lost, np.where(spread > FLAT * squares, spread, 0.0)))


AUROC_CLASSES, AUROC_LABELS = ranked_classes(auroc), ranked_labels(auroc)
AUPRC_CLASSES, AUPRC_LABELS = ranked_classes(average_precision), ranked_labels(average_precision)


def _one_hot(p: Array, labels: Labels) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (n, C) masks of the true class and of the most likely one."""
    classes = np.arange(p.shape[1])
    return labels[:, np.newaxis] == classes, p.argmax(axis=1)[:, np.newaxis] == classes


def _single(truth: NDArray[np.bool_]) -> bool:
    return int(truth.any(axis=0).sum()) < 2


def _mean(areas: list[Array], weights: Array) -> Array:
    return row_means(np.stack(areas, axis=1) if areas else np.empty((len(weights), 0)))
