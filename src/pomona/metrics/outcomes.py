"""Figures of each outcome by itself, as diagnostic studies report them: at a threshold, over all, and of calibration.

An outcome happens or does not: the second of two classes, each of more classes against the rest, each label.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.auroc import average_precision
from pomona.metrics.bootstrap import Interval, intervals
from pomona.metrics.calibration import curve, recalibration
from pomona.metrics.classification import wilson
from pomona.metrics.nan_safe import Array, defined, divide

MOST = 5  # outcomes: with more, nobody reads them one by one, and a bootstrap of each costs time
HALF = 0.5
ROUNDING = 1e-9  # of a count that a share of samples makes
Judged = tuple[Array, NDArray[Any]]  # probabilities (n, K), and targets: (n,) class numbers or (n, K) zeros and ones


def evaluate_outcomes(
    tested: Judged,
    held_out: Judged | None,
    generator: Callable[[], np.random.Generator],
    resamples: int = 200,
    specificity: float | None = None,
) -> list[dict[str, Any]]:
    """Evaluate each outcome on test samples; ready for JSON, with None for what the samples do not define.

    Empty for more than 5 classes or labels. The keys:

    - ``outcome``: the number of the class or label; ``samples``, ``positives``: test samples, and those with it.
    - ``threshold``: an outcome is predicted where its probability is at least this; ``chosen``: whether it is chosen on
      the validation samples, see ``youden`` and ``at_specificity``. It is 0.5 otherwise.
    - ``sensitivity``, ``specificity``, ``ppv``, ``npv``: at the threshold.
    - ``auprc``, ``brier``: the area under the precision-recall curve, and the mean squared distance of the probability
      from the outcome.
    - ``calibration_intercept``, ``calibration_slope``: see ``calibration.recalibration``; ``calibration``: see
      ``calibration.curve``.
    - ``intervals``: 95 % confidence intervals [low, high]: of the four shares by Wilson's score, of the two others by
      the bootstrap within samples with and without the outcome, of the recalibration by Wald.

    Args:
        tested: of the test samples.
        held_out: of the validation samples; None without any.
        generator: a new generator, the same each time, which the bootstrap draws from.
        resamples: number of bootstrap resamples.
        specificity: that the threshold is to have on the validation samples; the one of Youden's index if None.
    """
    rule = youden if specificity is None else partial(at_specificity, wanted=specificity)
    count = tested[0].shape[1]
    if count > MOST:
        return []
    found = []
    for k in outcome_numbers(tested):
        p, positive = outcome(tested, k)
        chosen = rule(*outcome(held_out, k)) if held_out else None
        threshold = HALF if chosen is None else chosen
        figures = (
            _at(threshold, p, positive) | _over_all(p, positive, generator(), resamples) | _calibrated(p, positive)
        )
        found.append(
            {
                "outcome": int(k),
                "samples": len(p),
                "positives": int(positive.sum()),
                "threshold": threshold,
                "chosen": chosen is not None,
                **{name: value for name, (value, _) in figures.items()},
                "calibration": curve(p, positive),
                "intervals": {name: interval for name, (_, interval) in figures.items()},
            }
        )
    return found


def youden(p: Array, positive: NDArray[np.bool_]) -> float | None:
    """The threshold of the largest sensitivity + specificity - 1, of equal ones the highest.

    None where no threshold has more than 0, or one outcome is missing. Youden, "Index for rating diagnostic tests",
    Cancer 1950. ``p`` and ``positive``: (n,).
    """
    having = int(positive.sum())
    lacking = len(positive) - having
    if not (having and lacking):
        return None
    thresholds = np.unique(p)
    above = [
        counts - np.searchsorted(np.sort(of), thresholds)
        for of, counts in ((p[positive], having), (p[~positive], lacking))
    ]
    # In whole samples, where equal is equal: sensitivity + specificity - 1, times both counts.
    index = above[0] * lacking - above[1] * having
    best = len(index) - 1 - int(index[::-1].argmax())  # the highest of equally good ones
    return float(thresholds[best]) if index[best] > 0 else None


def at_specificity(p: Array, positive: NDArray[np.bool_], wanted: float) -> float | None:
    """The lowest of the probabilities that as a threshold has at least the specificity ``wanted``.

    None where no sample lacks the outcome, or where none of the probabilities is such a threshold. ``p`` and
    ``positive``: (n,).
    """
    lacking = np.sort(p[~positive])
    thresholds = np.unique(p)
    below = np.searchsorted(lacking, thresholds, side="left")  # samples without the outcome that a threshold leaves out
    enough = thresholds[below >= wanted * len(lacking) - ROUNDING] if len(lacking) else thresholds[:0]
    return float(enough[0]) if len(enough) else None


def outcome_numbers(judged: Judged) -> Sequence[int]:
    """The classes or labels that are an outcome each: of two classes, the second alone."""
    p, targets = judged
    return [1] if targets.ndim == 1 and p.shape[1] == 2 else range(p.shape[1])


def outcome(judged: Judged, k: int) -> tuple[Array, NDArray[np.bool_]]:
    """Probabilities (n,) of a class or label, and whether it is that of each sample (n,)."""
    p, targets = judged
    return p[:, k], targets == k if targets.ndim == 1 else targets[:, k] > HALF


Found = dict[str, tuple[float | None, Interval]]


def _at(threshold: float, p: Array, positive: NDArray[np.bool_]) -> Found:
    said = p >= threshold
    shares = {
        "sensitivity": (said & positive, positive),
        "specificity": (~said & ~positive, ~positive),
        "ppv": (said & positive, said),
        "npv": (~said & ~positive, ~said),
    }
    counts = {name: (int(hits.sum()), int(all_.sum())) for name, (hits, all_) in shares.items()}
    return {name: (hits / n if n else None, wilson(hits, n)) for name, (hits, n) in counts.items()}


def _over_all(p: Array, positive: NDArray[np.bool_], generator: np.random.Generator, resamples: int) -> Found:
    statistics = partial(_weighted, p, positive)
    drawn = intervals(statistics, positive.astype(np.int64), resamples, generator)
    return {name: (defined(v[0]), drawn[name]) for name, v in statistics(np.ones((1, len(p)))).items()}


def _weighted(p: Array, positive: NDArray[np.bool_], weights: Array) -> dict[str, Array]:
    return {
        "auprc": average_precision(p, positive, weights),
        "brier": divide(weights @ (p - positive) ** 2, weights.sum(axis=1)),
    }


def _calibrated(p: Array, positive: NDArray[np.bool_]) -> Found:
    line = recalibration(p, positive)
    names = ("intercept", "slope")
    return {f"calibration_{name}": line[name] if line else (None, None) for name in names}
