"""The area under the receiver operating characteristic, for many weightings of the samples at once."""

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.undefined import Array, divide


def auroc(scores: Array, positive: NDArray[np.bool_], weights: Array) -> Array:
    """The share of (positive, negative) pairs that the scores put in order, a tie counting half.

    Hanley and McNeil, "The meaning and use of the area under a ROC curve", Radiology 1982 (the Mann-Whitney form).

    Args:
        scores: (n,) higher means more likely positive.
        positive: (n,) the truth.
        weights: (R, n) how often each sample counts.

    Returns:
        (R,), NaN where positives or negatives are missing.
    """
    order = np.argsort(scores, kind="stable")
    scores, positive, weights = scores[order], positive[order], weights[:, order]
    negatives = np.cumsum(np.pad(weights * ~positive, ((0, 0), (1, 0))), axis=1)
    below = negatives[:, np.searchsorted(scores, scores[positive], side="left")]
    upto = negatives[:, np.searchsorted(scores, scores[positive], side="right")]
    positives = weights[:, positive]
    pairs = positives.sum(axis=1) * negatives[:, -1]
    return divide((positives * (below + upto)).sum(axis=1) / 2, pairs)
