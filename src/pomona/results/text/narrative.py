"""Sentences on single runs: their setup and progress, what their means rest on, how their curves
end.
"""

from collections.abc import Sequence
from datetime import datetime

import numpy as np

from pomona.metrics.nan_safe import mean_of_known
from pomona.results.gain_presentation import evidence, gained_over, measured, named
from pomona.results.run_numbers import Run, baseline
from pomona.results.seeds import over_seeds
from pomona.results.wording import counted, listing

REMEDY = "run all with keep=best, which compares every run in its round best on validation"
SHORTEST = 8
"""Minimum number of evaluated rounds for assessing a curve's end."""
FEWEST = 4
"""Minimum number of rounds for fitting a trend."""


def title(runs: list[Run]) -> str:
    """Return the title of the page."""
    names = listing([run.label for run in runs]) if len(runs) <= 6 else f"{len(runs)} runs"
    places = sorted({place for run in runs if (place := run.source)})
    return names + (f" on {listing(places)}" if places else "")


def setup(runs: list[Run]) -> str:
    """Describe the setup of a run: model, data and clients."""
    first = runs[0]
    n = first.result.clients
    who = counted(n, "client")
    partition = first.setting("partition.name")
    details = ", ".join(filter(None, [f"{partition} partition" if partition else "", _seeds(runs)]))
    own = bool(first.setting("data.clients"))
    held = "files of their own" if own else f"parts of {first.source or 'the same data'}"
    return (
        f"{listing([run.label for run in runs])} trained {_models(first)}{_length(runs)} for {who} "
        f"that hold{'s' if n == 1 else ''} {held}{f' ({details})' if details else ''}."
    )


def _models(run: Run) -> str:
    """Format ``lenet models (1,234 parameters)``."""
    about = run.result.about
    model, parameters = about.get("model"), about.get("parameters")
    name = model.get("name") if isinstance(model, dict) else model
    size = f" ({parameters:,} parameters)" if isinstance(parameters, int) else ""
    return (f"{name} models" if name else "models") + size


def _length(runs: list[Run]) -> str:
    """Format `` over 20 and 40 rounds``; empty if unknown."""
    rounds = _each(runs, "rounds")
    return (
        f" over {listing(list(map(str, rounds)))} round{'s' if rounds != [1] else ''}"
        if rounds
        else ""
    )


def _seeds(runs: list[Run]) -> str:
    """Format ``seeds 1 and 2``; empty if unknown."""
    seeds = _each(runs, "seed")
    return f"seed{'s' if len(seeds) > 1 else ''} {listing(list(map(str, seeds)))}" if seeds else ""


def _each(runs: list[Run], key: str) -> list[int]:
    """Return the values of a setting in the runs, ascending."""
    return sorted({value for run in runs if (value := run.setting(key)) is not None})


def progress(run: Run, now: datetime) -> str:
    """Describe the progress of a running run, ``now`` in UTC."""
    done, planned = len(run.result.rounds), run.setting("rounds")
    return (
        f"round {done}{f' of {planned}' if planned is not None else ''} is done, written at "
        f"{now:%H:%M:%S} UTC"
    )


def rests_on(runs: Sequence[Run]) -> list[str]:
    """Return a sentence for runs whose means are over the same clients, then one for each gain over
    local training.
    """
    alike: dict[str, list[str]] = {}
    for run in runs:
        if text := _mean(run):
            alike.setdefault(text, []).append(run.label)
    known = [run for run in over_seeds(runs) if run.mean is not None]
    base = baseline(known, known[0]) if known else None
    return [
        *(f"{listing(labels)}: {text}" for text, labels in alike.items()),
        *(
            f"{found.run.label} against {found.base.label}, training alone: "
            f"{measured(found.run.metric, found.mean)}. {evidence(found.run, found.mean)}"
            for found in gained_over(known, base)
            if found.mean
        ),
    ]


def _mean(run: Run) -> str:
    """Format ``mean over 2 of 3 clients, 40 test rows; left out, without a value: B.``; empty
    without an evaluation.
    """
    kept = run.reported
    if kept is None:
        return ""
    rows = dict(zip(kept.clients, kept.samples, strict=True))
    of = run.result.clients
    missing = [client for client in range(of) if client not in run.values]
    over = f"{len(run.values)} of {counted(of, 'client')}" if missing else counted(of, "client")
    tested = counted(sum(rows.get(client) or 0 for client in run.values), "test row")
    left = f"; left out, without a value: {named(run, missing)}" if missing else ""
    return f"mean over {over}, {tested}{left}."


def still_rising(run: Run) -> str:
    """Describe where a run was still improving when it ended; empty if it was not.

    A curve is rising if its last third rises by more than twice its scatter; uses validation if
    available. A run that was better before, see ``worse_since``, only recovers.
    """
    if worse_since(run) is not None:
        return ""
    known, what = _validation(run), f"{run.metric.title} on validation"
    if len(known) < SHORTEST:
        known = [
            (r.round, -v) for r in run.result.rounds if (v := mean_of_known(r.loss)) is not None
        ]
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
    """Return the round since which a run got worse on validation; None if it did not, or if that
    round is compared.

    That is its best round there, if the curve then falls by more than twice its scatter; for
    several seeds, the first such round.
    """
    if run.seeds:
        return min(
            (since for one in run.seeds if (since := worse_since(one)) is not None), default=None
        )
    known = [(number, v) for number, v in _validation(run) if number > 0]
    if not known or run.reported is None:
        return None
    best = max(range(len(known)), key=lambda k: (known[k][1], -k))
    after = [v for _, v in known[best:]]
    if len(after) < FEWEST or run.reported.round <= known[best][0]:
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
    return float(slope * (len(values) - 1)), float(
        np.std(np.asarray(values) - (slope * steps + start))
    )
