"""Sentences on single runs: their setup and progress, the samples behind their means, the ends of
their curves.
"""

from collections.abc import Sequence
from datetime import datetime

import numpy as np

from pomona.core.table import grouped
from pomona.metrics.best_round import best
from pomona.metrics.nan_safe import mean_of_known
from pomona.results.gain_presentation import client_names, evidence, measured, over_training_alone
from pomona.results.run_numbers import Run
from pomona.results.wording import counted, listing

REMEDY = "run all with keep=best, which compares every run in its round best on validation"
MIN_ROUNDS = 8
"""Minimum number of evaluated rounds for assessing a curve's end."""
MIN_TREND = 4
"""Minimum number of rounds for fitting a trend."""


def title(runs: list[Run]) -> str:
    """Return the title of the page."""
    names = listing([run.label for run in runs]) if len(runs) <= 6 else f"{len(runs)} runs"
    sources = sorted({source for run in runs if (source := run.source)})
    return names + (f" on {listing(sources)}" if sources else "")


def setup(runs: list[Run]) -> str:
    """Describe the setup of a run: model, data and clients."""
    first = runs[0]
    n = first.result.clients
    clients = counted(n, "client")
    partition = first.setting("partition.name")
    details = ", ".join(filter(None, [f"{partition} partition" if partition else "", _seeds(runs)]))
    own_files = bool(first.setting("data.clients"))
    data = "files of their own" if own_files else f"parts of {first.source or 'the same data'}"
    return (
        f"{listing([run.label for run in runs])} trained {_models(first)}{_length(runs)} for "
        f"{clients} that hold{'s' if n == 1 else ''} {data}{f' ({details})' if details else ''}."
    )


def _models(run: Run) -> str:
    """Format ``lenet models (1,234 parameters)``."""
    metadata = run.result.about
    model, parameters = metadata.get("model"), metadata.get("parameters")
    name = model.get("name") if isinstance(model, dict) else model
    size = f" ({parameters:,} parameters)" if isinstance(parameters, int) else ""
    return (f"{name} models" if name else "models") + size


def _length(runs: list[Run]) -> str:
    """Format `` over 20 and 40 rounds``; empty if unknown."""
    rounds = _setting_values(runs, "rounds")
    if rounds:
        return f" over {listing(list(map(str, rounds)))} round{'s' if rounds != [1] else ''}"
    return ""


def _seeds(runs: list[Run]) -> str:
    """Format ``seeds 1 and 2``; empty if unknown."""
    seeds = _setting_values(runs, "seed")
    return f"seed{'s' if len(seeds) > 1 else ''} {listing(list(map(str, seeds)))}" if seeds else ""


def _setting_values(runs: list[Run], key: str) -> list[int]:
    """Return the values of a setting in the runs, ascending."""
    return sorted({value for run in runs if (value := run.setting(key)) is not None})


def progress(run: Run, written: datetime) -> str:
    """Describe the progress of a running run, ``written`` in UTC."""
    completed, planned = len(run.result.rounds), run.setting("rounds")
    return (
        f"round {completed}{f' of {planned}' if planned is not None else ''} is done, written at "
        f"{written:%H:%M:%S} UTC"
    )


def basis(runs: list[Run]) -> list[str]:
    """Return a sentence for runs whose means are over the same clients, then one for each gain over
    local training, with its verdict among all of them.
    """
    by_text = grouped((text, run.label) for run in runs if (text := _mean(run)))
    return [
        *(f"{listing(labels)}: {text}" for text, labels in by_text.items()),
        *(
            f"{gains.run.label} against {gains.base.label}, training alone: {gains.verdict}"
            f"{gains.correction}, {measured(gains.run.metric, gains.mean)}. "
            f"{evidence(gains.run, gains.mean)}"
            for gains in over_training_alone(runs)
            if gains.mean
        ),
    ]


def _mean(run: Run) -> str:
    """Format ``mean over 2 of 3 clients, 40 test rows; left out, without a value: B.``; empty
    without an evaluation.
    """
    evaluation = run.reported
    if evaluation is None:
        return ""
    rows = dict(zip(evaluation.clients, evaluation.samples, strict=True))
    total = run.result.clients
    missing = [client for client in range(total) if client not in run.values]
    averaged = (
        f"{len(run.values)} of {counted(total, 'client')}" if missing else counted(total, "client")
    )
    tested = counted(sum(rows.get(client) or 0 for client in run.values), "test row")
    left = f"; left out, without a value: {client_names(run, missing)}" if missing else ""
    return f"mean over {averaged}, {tested}{left}."


def still_rising(run: Run) -> str:
    """Describe where a run was still improving when it ended; empty if it was not.

    A curve is rising if its last third rises by more than twice its scatter; uses validation if
    available. A run that was better before, see ``worse_since``, is only recovering.
    """
    if worse_since(run) is not None:
        return ""
    points, curve = _validation(run), f"{run.metric.title} on validation"
    if len(points) < MIN_ROUNDS:
        points = [
            (r.round, -v) for r in run.result.rounds if (v := mean_of_known(r.loss)) is not None
        ]
        curve = "training loss"
    if len(points) < MIN_ROUNDS:
        return ""
    values = [v for _, v in points]
    tail = values[-max(len(values) // 3, MIN_TREND) :]
    rise, scatter = _trend(tail)
    if not (rise > 2 * scatter and rise > 0.1 * (max(values) - values[0]) > 0):
        return ""
    return f"{curve}, last {len(tail)} of {len(points)} evaluated rounds"


def worse_since(run: Run) -> int | None:
    """Return the round since which a run got worse on validation; None if it did not, or if that
    is the compared round.

    It is the best round on validation, if the curve then falls by more than twice its scatter; for
    several seeds, the first such round.
    """
    if run.seeds:
        return min(
            (best_round for r in run.seeds if (best_round := worse_since(r)) is not None),
            default=None,
        )
    best_point = best([e.point for e in run.validation], run.metric)
    if best_point is None or run.reported is None:
        return None
    tail = [v for number, v in _validation(run) if number >= best_point.round]
    if len(tail) < MIN_TREND or run.reported.round <= best_point.round:
        return None
    rise, scatter = _trend(tail)
    return best_point.round if -rise > 2 * scatter else None


def _validation(run: Run) -> list[tuple[int, float]]:
    """Return (round, mean over clients on validation, higher is better)."""
    return [(e.round, run.metric.goodness(e.mean)) for e in run.validation if e.mean is not None]


def _trend(values: Sequence[float]) -> tuple[float, float]:
    """Return the rise of a line through equally spaced values, and their scatter around it."""
    steps = np.arange(len(values))
    slope, start = np.polyfit(steps, values, 1)
    return float(slope * (len(values) - 1)), float(
        np.std(np.asarray(values) - (slope * steps + start))
    )
