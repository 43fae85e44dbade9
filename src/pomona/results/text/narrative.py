"""What a page is about, in words: its title, what was trained, how far a run has come."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import PurePath

from pomona.data.catalogue import CATALOGUE
from pomona.results.run_numbers import Run


def listing(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def capital(text: str) -> str:
    """As at the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def source(run: Run) -> str:
    """What a run's data are called: own data by the file or folder that they were read from; empty if unknown."""
    name = str(run.setting("data.name") or "")
    entry, path = CATALOGUE.get(name), run.setting("data.path")
    return (entry and entry.own and path and PurePath(str(path)).name) or name


def title(runs: list[Run]) -> str:
    """The name of the page."""
    names = listing([run.label for run in runs]) if len(runs) <= 6 else f"{len(runs)} runs"
    places = sorted({place for run in runs if (place := source(run))})
    return names + (f" on {listing(places)}" if places else "")


def setup(runs: list[Run]) -> str:
    """What was trained, on what, for whom."""
    first = runs[0]
    about = first.result.about
    n = len(about.get("clients") or ())
    model = about.get("model")
    model = model.get("name") if isinstance(model, dict) else model
    parameters = about.get("parameters")
    size = f" ({parameters:,} parameters)" if isinstance(parameters, int) else ""
    partition = first.setting("partition.name")
    seeds = sorted({s for run in runs if (s := run.setting("seed")) is not None})
    seeding = f"seed{'s' if len(seeds) > 1 else ''} {listing([str(s) for s in seeds])}" if seeds else ""
    detail = ", ".join(text for text in (f"{partition} partition" if partition else "", seeding) if text)
    rounds = sorted({r for run in runs if (r := run.setting("rounds")) is not None})
    length = f" over {listing([str(r) for r in rounds])} round{'s' if rounds != [1] else ''}" if rounds else ""
    who = f"{n} client{'s' if n != 1 else ''}" if n else "the clients"
    data = source(first) or "the same data"
    return (
        f"{listing([run.label for run in runs])} trained {f'{model} models' if model else 'models'}{size}{length} "
        f"for {who} that hold{'s' if n == 1 else ''} parts of {data}{f' ({detail})' if detail else ''}."
    )


def progress(run: Run, now: datetime) -> str:
    """How far a run is that goes on, ``now`` in UTC."""
    done, planned = len(run.result.rounds), run.setting("rounds")
    return f"round {done}{f' of {planned}' if planned is not None else ''} is done, written at {now:%H:%M:%S} UTC"
