"""A bench whose suite is written in Python, over any data, also in memory."""

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pomona.core.errors import ConfigError, StorageError
from pomona.core.notes import CallerWarnings
from pomona.data import read
from pomona.data.axes import InMemory
from pomona.experiments.bench_results import Bench, load
from pomona.experiments.runner import Watch, run
from pomona.experiments.suite import Suite, read_suite


def bench(
    methods: Collection[str] | Mapping[str, Mapping[str, Any]],
    out: Path | str,
    *,
    seeds: Sequence[int] = (0,),
    scenarios: Mapping[str, Mapping[str, Any]] | None = None,
    search: Mapping[str, Sequence[Any]] | None = None,
    points: int = 1,
    jobs: int | None = None,
    retry: bool = False,
    watch: Watch | None = None,
    **settings: Any,
) -> Bench:
    """Run methods on the same data with the same seeds, each tuned with the same budget.

    What is finished in ``out`` stays; the same call continues. Runs are spread over processes,
    which import the caller's main module: guard a script by ``if __name__ == "__main__"``.

    Args:
        methods: names; or rows by name, with settings of their own, and ``search``, as ``[method]``
            in a suite's file.
        out: folder of the bench.
        seeds: of the runs.
        scenarios: columns by name, with settings of their own, such as several partitions; one if
            None.
        search: dotted keys and the values to try with every method.
        points: settings tried for a method, at most.
        jobs: number of processes; one per core if None.
        retry: whether to run failed cells again.
        watch: as for ``pomona.experiments.run``.
        settings: of every run, as for ``pomona.run``.

    Returns:
        The results: ``rows``, ``to_frame()``, and a table in a notebook.

    Warns:
        PomonaWarning: each of ``Bench.notes``.

    Raises:
        ConfigError: an invalid key or value.
        StorageError: ``out`` cannot be written, or has runs over other data in memory, or a table
            with other scenarios or methods.
    """
    rows = methods if isinstance(methods, Mapping) else {name: {} for name in methods}
    for name in rows:
        if ":" in name:
            row = {"mine": {"method": name}}
            raise ConfigError(f"methods: {name!r} needs a short name, such as {row}")
    suite = read_suite(
        {
            "title": _title(Path(out)),
            "seeds": tuple(seeds),
            "search": dict(search or {}),
            "points": points,
            "base": settings,
            "scenario": dict(scenarios or {"all": {}}),
            "method": dict(rows),
        }
    )
    finished = run(suite, Path(out), jobs=jobs, retry=retry, watch=watch)
    _require_same_data(finished, suite)
    warner = CallerWarnings(sys._getframe(1))
    for note in finished.notes:
        warner.on_note(note.text)
    return finished


def _title(folder: Path) -> str:
    """Return the title of the bench in a folder, whatever the folder is called; else its name."""
    try:
        return str(load(folder).results["title"])
    except StorageError:
        return folder.absolute().name or "bench"


def _require_same_data(finished: Bench, suite: Suite) -> None:
    """Refuse results of other data in memory: settings do not tell them apart."""
    for result in finished.results["results"]:
        data = {**suite.base.run, **suite.scenario[result["scenario"]].run}.get("data")
        fingerprints = {cell["figures"]["data"] for cell in result["cells"] if cell["figures"]}
        if isinstance(data, InMemory) and fingerprints - {read(data).fingerprint}:
            raise StorageError(
                f"{finished.folder} has runs over different data of the same form; give another "
                "folder"
            )
