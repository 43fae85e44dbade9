"""Introductory text of a page: title, setup and progress."""

from datetime import datetime

from pomona.results.run_numbers import Run
from pomona.results.wording import counted, listing


def title(runs: list[Run]) -> str:
    """Return the title of the page."""
    names = listing([run.label for run in runs]) if len(runs) <= 6 else f"{len(runs)} runs"
    places = sorted({place for run in runs if (place := run.source)})
    return names + (f" on {listing(places)}" if places else "")


def setup(runs: list[Run]) -> str:
    """Describe the setup of a run: model, data and clients."""
    first = runs[0]
    n = len(first.result.about.get("clients") or ())
    who = counted(n, "client") if n else "the clients"
    partition = first.setting("partition.name")
    details = ", ".join(filter(None, [f"{partition} partition" if partition else "", _seeds(runs)]))
    own = first.setting("data.name") == "clients"
    held = "files of their own" if own else f"parts of {first.source or 'the same data'}"
    return (
        f"{listing([run.label for run in runs])} trained {_models(first)}{_length(runs)} for {who} that "
        f"hold{'s' if n == 1 else ''} {held}{f' ({details})' if details else ''}."
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
    return f" over {listing(list(map(str, rounds)))} round{'s' if rounds != [1] else ''}" if rounds else ""


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
    return f"round {done}{f' of {planned}' if planned is not None else ''} is done, written at {now:%H:%M:%S} UTC"
