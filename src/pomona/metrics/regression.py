"""Metrics of outputs for numeric or multi-label targets (n, K), for one client, model and split."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics import measures
from pomona.metrics.bootstrap import intervals
from pomona.metrics.influence import FEW
from pomona.metrics.measures import auroc, average_precision
from pomona.metrics.nan_safe import Array, defined, divide, require_finite


def evaluate_regression(
    predictions: NDArray[np.floating],
    targets: NDArray[np.floating],
    generator: np.random.Generator | None = None,
    resamples: int = 200,
) -> dict[str, Any]:
    """Evaluate predictions (n, K) against numbers (n, K); None for undefined metrics.

    ``mse`` and ``mae`` are means over samples and targets; ``r2`` is the mean coefficient of
    determination over the targets that vary; ``targets`` has the same for each target, lists of
    length K. ``intervals`` has the 95 % confidence intervals of all three by the bootstrap over
    samples, None for fewer than ``FEW`` samples.

    Args:
        predictions: in the unit of the targets.
        targets: true values.
        generator: random generator of the bootstrap; None for no bootstrap.
        resamples: number of bootstrap resamples.

    Raises:
        DivergedError: predictions that are not finite.
    """
    predicted, truth = np.asarray(predictions, dtype=float), np.asarray(targets, dtype=float)
    require_finite(predicted)
    squared, absolute = (
        measures.squared_error(predicted, truth),
        measures.absolute_error(predicted, truth),
    )
    n = len(truth)

    def statistics(weights: Array) -> dict[str, Array]:
        return {
            "mse": divide(weights @ squared, weights.sum(axis=1)),
            "mae": divide(weights @ absolute, weights.sum(axis=1)),
            "r2": measures.r2(predicted, truth, weights),
        }

    drawn = intervals(statistics, np.zeros(n, np.int64), resamples, generator) if n >= FEW else {}
    columns = [
        _numbers(predicted[:, k : k + 1], truth[:, k : k + 1]) for k in range(truth.shape[1])
    ]
    each = {name: [column[name] for column in columns] for name in ("mse", "mae", "r2")}
    return {
        "samples": n,
        **_numbers(predicted, truth),
        "targets": each,
        "intervals": {name: drawn.get(name) for name in each},
    }


def _numbers(predicted: Array, truth: Array) -> dict[str, float | None]:
    return {
        "mse": _mean(measures.squared_error(predicted, truth)),
        "mae": _mean(measures.absolute_error(predicted, truth)),
        "r2": defined(measures.r2(predicted, truth, np.ones((1, len(truth))))[0]),
    }


def evaluate_multilabel(
    probabilities: NDArray[np.floating], labels: NDArray[np.generic]
) -> dict[str, Any]:
    """Evaluate probabilities (n, K) against zeros and ones (n, K); None for undefined metrics.

    ``loss`` is the mean binary cross-entropy, ``accuracy`` the share of right flags;
    ``subset_accuracy`` the share of samples with every flag right, at a threshold of 0.5;
    ``auroc``, ``auprc`` and ``balanced_accuracy`` are means over the labels that have both values,
    ``macro_f1`` over those that occur or are predicted; ``brier`` is the mean squared distance of a
    probability from its flag. ``labels`` has metrics of each label, lists of K: how many samples
    have it (``positives``), ``accuracy``, ``auroc``, ``auprc``, ``sensitivity``, ``specificity``
    and ``f1``. Raises DivergedError if the probabilities are not finite.
    """
    p, truth = np.asarray(probabilities, dtype=float), np.asarray(labels) > 0.5
    require_finite(p)
    once, flags = np.ones((1, len(p))), truth.astype(float)
    return {
        "samples": len(p),
        "loss": _mean(measures.flag_surprise(p, flags)),
        "accuracy": _mean(measures.right_flags(p, flags)),
        "balanced_accuracy": defined(measures.balanced_flags(p, flags, once)[0]),
        "auroc": defined(measures.AUROC_LABELS(p, flags, once)[0]),
        "auprc": defined(measures.AUPRC_LABELS(p, flags, once)[0]),
        "brier": _mean(measures.flag_brier(p, flags)),
        "subset_accuracy": float((truth == (p > 0.5)).all(axis=1).mean()) if len(p) else None,
        "macro_f1": defined(measures.flags_f1(p, flags, once)[0]),
        "labels": _by_label(p, truth),
    }


def _by_label(p: Array, truth: NDArray[np.bool_]) -> dict[str, list[Any]]:
    guess, once = p > 0.5, np.ones((1, len(p)))
    hits, actual, claimed = (truth & guess).sum(axis=0), truth.sum(axis=0), guess.sum(axis=0)
    figures: dict[str, Sequence[float] | Array] = {
        "accuracy": divide((truth == guess).sum(axis=0), len(p)),
        "auroc": [auroc(p[:, k], truth[:, k], once)[0] for k in range(p.shape[1])],
        "auprc": [average_precision(p[:, k], truth[:, k], once)[0] for k in range(p.shape[1])],
        "sensitivity": divide(hits, actual),
        "specificity": divide((~truth & ~guess).sum(axis=0), (~truth).sum(axis=0)),
        "f1": divide(2 * hits, actual + claimed),
    }
    return {
        "positives": actual.tolist(),
        **{name: [defined(v) for v in row] for name, row in figures.items()},
    }


def _mean(samples: Array) -> float | None:
    return float(samples.mean()) if len(samples) else None
