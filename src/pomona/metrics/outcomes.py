"""Metrics of individual outcomes, as in diagnostic studies: at a threshold, over all thresholds,
and calibration.

An outcome is binary: the second of two classes, each of more classes against the rest, or each
label.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.bootstrap import Interval, intervals
from pomona.metrics.calibration import curve, recalibration
from pomona.metrics.classification import wilson
from pomona.metrics.measures import average_precision
from pomona.metrics.nan_safe import Array, defined, divide

MOST = 5  # outcomes; more are not read individually, and each needs a bootstrap
HALF = 0.5
ROUNDING = 1e-9  # tolerance when a share of samples is converted to a count
# probabilities (n, K), and targets: (n,) class numbers or (n, K) zeros and ones
Judged = tuple[Array, NDArray[Any]]


def evaluate_outcomes(
    tested: Judged,
    held_out: Judged | None,
    generator: Callable[[], np.random.Generator],
    resamples: int = 200,
    specificity: float | None = None,
) -> list[dict[str, Any]]:
    """Evaluate each outcome on test samples; returns JSON values, with None for undefined metrics.

    Empty for more than 5 classes or labels. The keys:

    - ``outcome``: the number of the class or label; ``samples``, ``positives``: test samples, and
      those with it.
    - ``threshold``: an outcome is predicted if its probability is at least this; ``chosen``:
      whether it was chosen on the validation samples, see ``youden`` and ``at_specificity``. It is
      0.5 otherwise.
    - ``sensitivity``, ``specificity``, ``ppv``, ``npv``: at the threshold.
    - ``auprc``, ``brier``: area under the precision-recall curve, and mean squared distance of the
      probability from the outcome.
    - ``calibration_intercept``, ``calibration_slope``: see ``calibration.recalibration``;
      ``calibration``: see ``calibration.curve``.
    - ``intervals``: 95 % confidence intervals [low, high]: of the four shares by Wilson's score, of
      the two others by the bootstrap within samples with and without the outcome, of the
      recalibration by Wald.

    Args:
        tested: predictions and targets of the test samples.
        held_out: those of the validation samples; None without any.
        generator: creates the bootstrap's generator, the same each time.
        resamples: number of bootstrap resamples.
        specificity: target specificity of the threshold on the validation samples; if None,
            Youden's index chooses it.
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
            _at(threshold, p, positive)
            | _over_all(p, positive, generator(), resamples)
            | _calibrated(p, positive)
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
    """Return the threshold with the largest sensitivity + specificity - 1, the highest in case of
    ties.

    None if no threshold exceeds 0, or one outcome is missing. Youden, "Index for rating diagnostic
    tests", Cancer 1950. ``p`` and ``positive``: (n,).
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
    # In integers, where equality is exact: sensitivity + specificity - 1, times both counts.
    index = above[0] * lacking - above[1] * having
    best = len(index) - 1 - int(index[::-1].argmax())  # the highest in case of ties
    return float(thresholds[best]) if index[best] > 0 else None


def at_specificity(p: Array, positive: NDArray[np.bool_], wanted: float) -> float | None:
    """Return the lowest probability that, as a threshold, has at least the specificity ``wanted``.

    None if all samples have the outcome, or no probability reaches it. ``p`` and ``positive``:
    (n,).
    """
    lacking = np.sort(p[~positive])
    thresholds = np.unique(p)
    below = np.searchsorted(lacking, thresholds, side="left")  # true negatives at each threshold
    enough = (
        thresholds[below >= wanted * len(lacking) - ROUNDING] if len(lacking) else thresholds[:0]
    )
    return float(enough[0]) if len(enough) else None


def outcome_numbers(judged: Judged) -> Sequence[int]:
    """Return the classes or labels that are outcomes; for two classes, only the second."""
    p, targets = judged
    return [1] if targets.ndim == 1 and p.shape[1] == 2 else range(p.shape[1])


def outcome(judged: Judged, k: int) -> tuple[Array, NDArray[np.bool_]]:
    """Return the probabilities (n,) of a class or label, and whether each sample has it (n,)."""
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


def _over_all(
    p: Array, positive: NDArray[np.bool_], generator: np.random.Generator, resamples: int
) -> Found:
    statistics = partial(_weighted, p, positive)
    drawn = intervals(statistics, positive.astype(np.int64), resamples, generator)
    return {
        name: (defined(v[0]), drawn[name]) for name, v in statistics(np.ones((1, len(p)))).items()
    }


def _weighted(p: Array, positive: NDArray[np.bool_], weights: Array) -> dict[str, Array]:
    return {
        "auprc": average_precision(p, positive, weights),
        "brier": divide(weights @ (p - positive) ** 2, weights.sum(axis=1)),
    }


def _calibrated(p: Array, positive: NDArray[np.bool_]) -> Found:
    line = recalibration(p, positive)
    names = ("intercept", "slope")
    return {f"calibration_{name}": line[name] if line else (None, None) for name in names}
