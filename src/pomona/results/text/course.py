"""Trend at the end of a run's curve: still improving, or better before."""

from collections.abc import Sequence

import numpy as np

from pomona.metrics.nan_safe import mean_of_known
from pomona.results.run_numbers import Run

REMEDY = "run all with keep=best, which compares every run in its round best on validation"
SHORTEST = 8
"""Minimum number of evaluated rounds for assessing a curve's end."""
FEWEST = 4
"""Minimum number of rounds for fitting a trend."""


def still_rising(run: Run) -> str:
    """Describe where a run was still improving when it ended; empty if it was not.

    A curve is rising if its last third rises by more than twice its scatter; uses validation if available. A run that
    was better before, see ``worse_since``, only recovers.
    """
    if worse_since(run) is not None:
        return ""
    known, what = _validation(run), f"{run.metric.title} on validation"
    if len(known) < SHORTEST:
        known = [(r.round, -v) for r in run.result.rounds if (v := mean_of_known(r.loss)) is not None]
        what = "training loss"
    if len(known) < SHORTEST:
        return ""
    values = [v for _, v in known]
    tail = values[-max(len(values) // 3, FEWEST) :]
    rise, scatter = _trend(tail)
    if not (rise > 2 * scatter and rise > 0.1 * (max(values) - values[0]) > 0):
        return ""
    return f"{what}, last {len(tail)} of {len(known)} evaluated rounds"


def worse_since(run: Run) -> int | None:
    """Return the round since which a run got worse on validation; None if it did not, or if that round is compared.

    That is its best round there, if the curve then falls by more than twice its scatter; for several seeds, the first
    such round.
    """
    if run.seeds:
        return min((since for one in run.seeds if (since := worse_since(one)) is not None), default=None)
    known = [(number, v) for number, v in _validation(run) if number > 0]
    if not known or run.kept is None:
        return None
    best = max(range(len(known)), key=lambda k: (known[k][1], -k))
    after = [v for _, v in known[best:]]
    if len(after) < FEWEST or run.kept.round <= known[best][0]:
        return None
    rise, scatter = _trend(after)
    return known[best][0] if -rise > 2 * scatter else None


def _validation(run: Run) -> list[tuple[int, float]]:
    """Return (round, mean over clients on validation, more is better)."""
    return [(e.round, run.metric.goodness(e.mean)) for e in run.validation if e.mean is not None]


def _trend(values: Sequence[float]) -> tuple[float, float]:
    """Return the rise of a line through equally spaced values, and their scatter around it."""
    steps = np.arange(len(values))
    slope, start = np.polyfit(steps, values, 1)
    return float(slope * (len(values) - 1)), float(np.std(np.asarray(values) - (slope * steps + start)))
