"""The basis of the means of some runs, for a terminal: clients, test rows, events, and names of excluded clients."""

from collections.abc import Sequence

from pomona.results.gain_presentation import evidence, gained_over, measured, named
from pomona.results.run_numbers import Run, baseline
from pomona.results.seeds import over_seeds
from pomona.results.wording import counted, listing


def rests_on(runs: Sequence[Run]) -> list[str]:
    """Return a sentence for runs whose means are over the same clients, then one for each gain over local training."""
    alike: dict[str, list[str]] = {}
    for run in runs:
        if text := _mean(run):
            alike.setdefault(text, []).append(run.label)
    known = [run for run in over_seeds(runs) if run.mean is not None]
    base = baseline(known, known[0]) if known else None
    return [
        *(f"{listing(labels)}: {text}" for text, labels in alike.items()),
        *(
            f"{found.run.label} against {found.base.label}, training alone: {measured(found.run.metric, found.over)}. "
            f"{evidence(found.run, found.over)}"
            for found in gained_over(known, base)
            if found.over
        ),
    ]


def _mean(run: Run) -> str:
    """Format ``mean over 2 of 3 clients, 40 test rows; left out, without a value: B.``; empty without an evaluation."""
    kept = run.kept
    if kept is None:
        return ""
    rows = dict(zip(kept.clients, kept.samples, strict=True))
    of = len(run.result.about.get("clients") or kept.clients)
    missing = [client for client in range(of) if client not in run.values]
    over = f"{len(run.values)} of {counted(of, 'client')}" if missing else counted(of, "client")
    tested = counted(sum(rows.get(client) or 0 for client in run.values), "test row")
    left = f"; left out, without a value: {named(run, missing)}" if missing else ""
    return f"mean over {over}, {tested}{left}."
