"""All metrics of one model on one client's samples: of class probabilities, of numbers, of labels.

Bootstrapped metrics are functions of sample weights, so that point estimates and resamples share
one computation (see ``intervals``).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import DataError
from pomona.metrics import measures
from pomona.metrics.influence import FEW
from pomona.metrics.intervals import CONFIDENCE, Interval, intervals
from pomona.metrics.measures import auroc, average_precision
from pomona.metrics.nan_safe import Array, defined, divide, require_finite

BINS = 15


def evaluate(
    probabilities: NDArray[np.floating],
    labels: NDArray[np.integer],
    generator: np.random.Generator | None = None,
    resamples: int = 200,
) -> dict[str, Any]:
    """Evaluate class probabilities; returns JSON values, with None for undefined metrics.

    The predicted class is the first of the most likely ones. The keys:

    - ``samples``: n.
    - ``loss``: mean of -log p(label), with p no less than the smallest normal number.
    - ``accuracy``; ``balanced_accuracy``: mean sensitivity over the classes that occur among the
      labels; None if there is only one.
    - ``macro_f1``: mean F1 over the classes that occur among labels or predictions; None if only
      one class occurs.
    - ``auroc``: of class 1 if C = 2; else the mean of one-vs-rest over the classes that have
      positives and negatives.
    - ``auprc``: the area under the precision-recall curve, of the same classes.
    - ``brier``: the mean squared distance of the probabilities from the truth; if C = 2, of the
      probability of class 1.
    - ``ece``: expected calibration error, sum over bins B of |B|/n * |accuracy(B) - mean
      confidence(B)|, with 15 bins of equal width, (k/15, (k+1)/15] (Guo et al., "On Calibration of
      Modern Neural Networks", ICML 2017, eq. 3). It is biased upwards, and its resamples more so:
      its interval can lie above it.
    - ``sensitivity``: (C,) share of each class's samples that are predicted as such.
    - ``confusion``: (C, C) counts, rows are labels, columns are predictions.
    - ``intervals``: 95 % confidence intervals [low, high]: ``accuracy`` by Wilson's score,
      ``balanced_accuracy``, ``macro_f1``, ``auroc``, ``auprc``, ``brier`` and ``ece`` by the
      bootstrap within classes.

    Args:
        probabilities: (n, C), rows that sum to 1.
        labels: (n,) class numbers in [0, C).
        generator: random generator of the bootstrap; None for no bootstrap.
        resamples: number of bootstrap resamples.

    Raises:
        DataError: labels that are not classes of the model.
        DivergedError: probabilities that are not finite.
    """
    p, labels = np.asarray(probabilities, dtype=float), np.asarray(labels, dtype=np.int64)
    n, classes = p.shape
    require_finite(p)
    if n and not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(
            f"labels run from {labels.min()} to {labels.max()}, but the model has classes 0 to "
            f"{classes - 1}"
        )
    predicted = p.argmax(axis=1)
    confusion = np.bincount(labels * classes + predicted, minlength=classes**2).reshape(
        classes, classes
    )
    hits = int(np.trace(confusion))
    statistics = partial(weighted, p, labels)
    point = {name: defined(value[0]) for name, value in statistics(np.ones((1, n))).items()}
    drawn = intervals(statistics, labels, resamples, generator)
    return {
        "samples": n,
        "loss": float(measures.class_surprise(p, labels).mean()) if n else None,
        "accuracy": hits / n if n else None,
        **point,
        "sensitivity": [
            defined(value) for value in divide(np.diag(confusion), confusion.sum(axis=1))
        ],
        "confusion": confusion.tolist(),
        "intervals": {"accuracy": wilson(hits, n), **dict.fromkeys(point), **drawn},
    }


def weighted(probabilities: Array, labels: NDArray[np.integer], weights: Array) -> dict[str, Array]:
    """Return the bootstrapped metrics for sample weights (R, n): (R,) each, NaN where undefined."""
    predicted, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    bins = np.digitize(confidence, np.arange(1, BINS) / BINS, right=True)
    gap = ((predicted == labels) - confidence)[:, np.newaxis] * (
        bins[:, np.newaxis] == np.arange(BINS)
    )
    whole = weights.sum(axis=1)
    return {
        "balanced_accuracy": measures.balanced_accuracy(probabilities, labels, weights),
        "macro_f1": measures.macro_f1(probabilities, labels, weights),
        "auroc": measures.AUROC_CLASSES(probabilities, labels, weights),
        "auprc": measures.AUPRC_CLASSES(probabilities, labels, weights),
        "brier": divide(weights @ measures.class_brier(probabilities, labels), whole),
        "ece": divide(np.abs(weights @ gap).sum(axis=1), whole),
    }


def wilson(hits: int, n: int) -> Interval:
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
