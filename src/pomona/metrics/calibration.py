"""Calibration: agreement of predicted probabilities with observed frequencies."""

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.bootstrap import CONFIDENCE, Interval
from pomona.metrics.nan_safe import Array

BINS = 10
UNSETTLED = 1e-4  # relative to the score's possible sum: at the maximum of the likelihood it is 0
SURE = np.finfo(float).eps  # probabilities closer to 0 or 1 have no accurate logit
NEWTON_STEPS = 100  # maximum iterations of the fit
STILL = 1e-10  # slopes and steps below which the fit has converged


def curve(p: Array, positive: NDArray[np.bool_]) -> list[tuple[float, int, int]]:
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
    having, lacking = x[positive], x[~positive]
    if not (
        len(having)
        and len(lacking)
        and having.min() < lacking.max()
        and lacking.min() < having.max()
    ):
        return None
    # imported late, since every silo process loads this module
    from scipy.special import (
        expit,
        ndtri,
    )

    centre, scale = x.mean(), x.std()
    start, rise = _most_likely(np.stack([np.ones_like(x), (x - centre) / scale]), positive)
    slope = rise / scale
    intercept = start - slope * centre
    chance = expit(intercept + slope * x)
    design = np.stack([np.ones_like(x), x])
    if np.abs(design @ (chance - positive)).max() > UNSETTLED * np.abs(design).sum():
        return None
    covariance = np.linalg.pinv((design * chance * (1 - chance)) @ design.T)
    half = ndtri((1 + CONFIDENCE) / 2) * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    values = {"intercept": float(intercept), "slope": float(slope)}
    return {
        name: (value, [value - float(reach), value + float(reach)])
        for (name, value), reach in zip(values.items(), half, strict=True)
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
