"""Areas under curves over all thresholds, for many sample weightings at once."""

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.nan_safe import Array, divide


def auroc(scores: Array, positive: NDArray[np.bool_], weights: Array) -> Array:
    """Return the share of (positive, negative) pairs that the scores rank correctly, with ties counting half.

    Hanley and McNeil, "The meaning and use of the area under a ROC curve", Radiology 1982 (the Mann-Whitney form).

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

    sum over thresholds of (recall - recall before) * precision, without interpolation, which is optimistic (Davis and
    Goadrich, "The relationship between precision-recall and ROC curves", ICML 2006).

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
    taken = np.cumsum(weights, axis=1)[:, last]
    gained = np.diff(hits, axis=1, prepend=0.0)
    steps = np.where(gained > 0, gained * np.nan_to_num(divide(hits, taken)), 0.0)
    positives, negatives = weights[:, positive].sum(axis=1), weights[:, ~positive].sum(axis=1)
    return np.where(negatives > 0, divide(steps.sum(axis=1), positives), np.nan)
