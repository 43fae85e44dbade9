"""Intervals at 95 % of one AUROC, and of the difference of two on the same samples, that hold near
1, where DeLong's are symmetric and too short.

One AUROC A of m events and n others: the union of two intervals.

- DeLong's on the scale of the logit: logit(A) -+ z S / (A (1 - A)) (Pepe, The Statistical
  Evaluation of Medical Tests, 2003, section 5.2.5). If S or 1 - A is 0 it is undefined.
- Newcombe's: all values t with (A - t)^2 <= z^2 V(t), V of Hanley and McNeil's exponential model
  with (m + n) / 2 for m and n (Newcombe, Statistics in Medicine 2006, part 2, method 5). It is
  defined for A = 1. Alone it is too short where few events' scores vary more than the others'.

The difference of two: its range over the ellipse of both logits with their standard errors, the
AUROCs' correlation, and radius z. So the limits follow the curve of the scale, along which two
models that agree on most samples move together; combining their separate limits instead (Zou and
Donner, Statistics in Medicine 2008) would make such differences undetectable.
"""

from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics.nan_safe import Array

Z = 1.959963984540054  # of 95 %
ANGLES = np.linspace(0, 2 * np.pi, 181)
TINY = 1e-12  # an AUROC this near to 0 or 1 is 0 or 1 but for rounding
Interval = tuple[float, float]


@dataclass(frozen=True)
class Components:
    """DeLong's structural components: of each event (m,) the share of the non-events below it, and
    of each non-event (n,) the share of events above it; ties count half.
    """

    events: Array
    non_events: Array

    @classmethod
    def of(cls, scores: Array, positive: NDArray[np.bool_]) -> "Components | None":
        """Compute them for scores (n,); None without events or non-events."""
        high, low = scores[positive], scores[~positive]
        if not len(high) or not len(low):
            return None
        return cls(_below(high, low), 1 - _below(low, high))

    @classmethod
    def of_answers(cls, predictions: Array, targets: NDArray[Any]) -> "Components | None":
        """Compute them for predictions (n, 2) of two classes, or (n, 1) of one label; None for
        more, whose AUROC is a mean.
        """
        if targets.ndim == 1 and predictions.shape[1] == 2:
            return cls.of(predictions[:, 1], targets == 1)
        if targets.ndim == 2 and predictions.shape[1] == 1:
            return cls.of(predictions[:, 0], targets[:, 0] > 0.5)
        return None

    @property
    def area(self) -> float:
        """The AUROC."""
        return float(self.events.mean())

    def covariance(self, second: "Components") -> float:
        """Return DeLong's covariance of two AUROCs on the same samples; NaN for a single event or
        non-event.
        """
        return sum(
            float((a - a.mean()) @ (b - b.mean())) / (len(a) - 1) / len(a) if len(a) > 1 else np.nan
            for a, b in ((self.events, second.events), (self.non_events, second.non_events))
        )

    def newcombe(self) -> Interval:
        """Return Newcombe's interval."""
        from scipy.optimize import brentq  # late, as all of SciPy: silos load this module

        area, m, n = self.area, len(self.events), len(self.non_events)
        mean = (m + n) / 2

        def excess(t: float) -> float:
            shape = 2 * mean - 1 - (3 * mean - 3) / ((2 - t) * (1 + t))
            return float((area - t) ** 2 - Z**2 * t * (1 - t) * shape / (m * n))

        inside = min(max(area, TINY), 1 - TINY)
        low = brentq(excess, 0.0, inside) if area > TINY else 0.0
        high = brentq(excess, inside, 1.0) if area < 1 - TINY else 1.0
        return low, high

    def on_logit_scale(self) -> tuple[float, float]:
        """Return logit(A) and its standard error; of an A without a variance, or of 0 or 1 moved by
        half a pair, the error that leads to Newcombe's limit on the side of 1/2.
        """
        half_pair = 1 / (2 * len(self.events) * len(self.non_events))
        area = min(max(self.area, half_pair), 1 - half_pair)
        variance = self.covariance(self)
        if variance > 0 and TINY < self.area < 1 - TINY:
            return _logit(area), sqrt(variance) / (area * (1 - area))
        low, high = self.newcombe()
        limit = low if self.area > 0.5 else high
        return _logit(area), abs(_logit(area) - _logit(limit)) / Z

    def interval(self) -> Interval:
        """Return the union of both intervals."""
        low, high = self.newcombe()
        centre, error = self.on_logit_scale()
        return min(low, _area(centre - Z * error)), max(high, _area(centre + Z * error))


def _logit(area: float) -> float:
    return log(area / (1 - area))


def _area(logit: Any) -> Any:
    return 1 / (1 + np.exp(-logit))


def _below(scores: Array, reference: Array) -> Array:
    """Return for each score the share of the reference below it; ties count half."""
    ordered = np.sort(reference)
    counts = np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right")
    shares: Array = counts / (2 * len(reference))
    return shares


def difference_margins(a: Components, b: Components) -> Interval:
    """Return how far the interval of the difference a - b reaches below and above it; a negative
    correlation counts as none.
    """
    spread = sqrt(max(0.0, a.covariance(a) * b.covariance(b)))
    correlation = min(1.0, max(0.0, a.covariance(b) / spread)) if spread > 0 else 0.0
    (centre_a, error_a), (centre_b, error_b) = a.on_logit_scale(), b.on_logit_scale()
    x, y = np.cos(ANGLES), np.sin(ANGLES)
    mixed = correlation * x + sqrt(1 - correlation**2) * y
    ellipse = _area(centre_a + Z * error_a * x) - _area(centre_b + Z * error_b * mixed)
    value = a.area - b.area
    return max(0.0, value - float(ellipse.min())), max(0.0, float(ellipse.max()) - value)
