"""How good outputs for targets (n, K) are, numbers or independent labels: one client, one model, one split."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.ranking import auroc
from pomona.metrics.undefined import defined, divide, require_finite, row_means


def evaluate_regression(predictions: NDArray[np.floating], targets: NDArray[np.floating]) -> dict[str, Any]:
    """Evaluate predictions (n, K) against numbers (n, K); None for what the samples do not define.

    ``mse`` and ``mae`` are means over samples and targets; ``r2`` is the mean coefficient of determination over the
    targets that vary. Raises DivergedError if the predictions are not finite.
    """
    predicted, truth = np.asarray(predictions, dtype=float), np.asarray(targets, dtype=float)
    require_finite(predicted)
    if not len(truth):
        return {"samples": 0, "mse": None, "mae": None, "r2": None}
    from sklearn import metrics  # late: a second, in each process of a silo

    varying = np.ptp(truth, axis=0) > 0
    return {
        "samples": len(truth),
        "mse": float(metrics.mean_squared_error(truth, predicted)),
        "mae": float(metrics.mean_absolute_error(truth, predicted)),
        "r2": float(metrics.r2_score(truth[:, varying], predicted[:, varying])) if varying.any() else None,
    }


def evaluate_multilabel(probabilities: NDArray[np.floating], labels: NDArray[np.generic]) -> dict[str, Any]:
    """Evaluate probabilities (n, K) against zeros and ones (n, K); None for what the samples do not define.

    ``loss`` is the mean binary cross-entropy; ``auroc`` the mean over the labels that have both values;
    ``subset_accuracy`` the share of samples with every label right, at a threshold of 0.5; ``macro_f1`` the mean over
    the labels that occur or are predicted. Raises DivergedError if the probabilities are not finite.
    """
    p, truth = np.asarray(probabilities, dtype=float), np.asarray(labels) > 0.5
    require_finite(p)
    once, guess = np.ones((1, len(p))), p > 0.5
    likelihood = np.maximum(np.where(truth, p, 1 - p), np.finfo(float).tiny)
    areas = np.array([[auroc(p[:, k], truth[:, k], once)[0] for k in range(p.shape[1])]])
    f1 = divide(2 * (once @ (truth & guess)), once @ truth + once @ guess)
    return {
        "samples": len(p),
        "loss": float(-np.log(likelihood).mean()) if len(p) else None,
        "auroc": defined(row_means(areas)[0]),
        "subset_accuracy": float((truth == guess).all(axis=1).mean()) if len(p) else None,
        "macro_f1": defined(row_means(f1)[0]),
    }
