"""A bench's results as plain data: ``results.json``, derived only from the cells' folders, without
timing.

results.json   searched, chosen and measured values; the same bytes after interruptions
table.md, .csv views of it                 timing.json    seconds, which differ between runs
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pomona.config import merge
from pomona.config.machine import LOCAL
from pomona.core.bounds import first, parse, plain
from pomona.core.errors import StorageError
from pomona.core.files import content, publish
from pomona.core.notes import Note, distinct
from pomona.core.toml import Tree, branch, flat
from pomona.experiments import bench_gains, bench_table
from pomona.experiments.grid import RULE, Cell, Group
from pomona.experiments.job import JobState
from pomona.experiments.results_schema import SavedResults, Timing
from pomona.experiments.suite import Size, Suite
from pomona.methods import is_registered, resolve
from pomona.record.result import as_frame

SCHEMA = 1
RESULTS, TIMING = "results.json", "timing.json"


@dataclass(frozen=True, repr=False)
class Bench:
    """A bench's results; in a notebook a table.

    Attributes:
        folder: its folder.
        results: ``results.json``.
        timing: ``timing.json``: elapsed seconds after each round, by a cell's folder.
    """

    folder: Path
    results: dict[str, Any]
    timing: dict[str, list[float]]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One flat record per scenario and method, as in ``table.csv``."""
        return bench_table.rows(self.results)

    def to_frame(self, base: str = "separate") -> Any:
        """Return a pandas DataFrame with a row per scenario and method: its test values in the
        round best on validation and in the last (mean over clients, then mean and deviation over
        seeds, named as in ``table.csv``), and its gain over the method ``base`` with a 95 %
        interval (``low``, ``high``), p-value and verdict; NaN or None if undefined, and why
        (``reason``). The gain is of the models that the runs keep (``keep``), by default the last.

        Raises PomonaError if pandas is not installed.
        """
        gained = bench_gains.gained(self.folder, self.results, base)
        records = bench_gains.rows(self.results, gained)
        names = records[0] if records else ()
        return as_frame({name: [row[name] for row in records] for name in names})

    def __repr__(self) -> str:
        runs = ", ".join(f"{count} {state}" for state, count in self.counts.items())
        return f"<bench {self.results['title']}\n runs: {runs or 'none'}\n {self.folder}>"

    def _repr_html_(self) -> str:
        return bench_gains.html(self.folder, self.results, "separate")

    @property
    def counts(self) -> dict[str, int]:
        """The number of runs in each state, including those of the search."""
        cells = {
            c["folder"]: c["state"]
            for r in self.results["results"]
            for c in (*r["search"], *r["cells"])
        }
        return {state: list(cells.values()).count(state) for state in sorted(set(cells.values()))}

    @property
    def failures(self) -> dict[str, str]:
        """Return why cells have no result, by their folders."""
        cells = [c for r in self.results["results"] for c in (*r["search"], *r["cells"])]
        return {c["folder"]: c["reason"] for c in cells if c["state"] in ("failed", "data missing")}

    @property
    def notes(self) -> list[Note]:
        """The distinct notes of the finished runs on data and partition; for others see the
        ``Result`` of a run's folder.
        """
        cells = [c for r in self.results["results"] for c in r["cells"] if c["figures"]]
        return distinct(Note(**note) for c in cells for note in c["figures"].get("notes", ()))

    def select(self, scenarios: Collection[str] = (), methods: Collection[str] = ()) -> "Bench":
        """Return the results of some scenarios and methods; an empty selection includes all."""
        selected = [
            r
            for r in self.results["results"]
            if (not scenarios or r["scenario"] in scenarios)
            and (not methods or r["method"] in methods)
        ]
        headers = {}
        for key, field in ("scenarios", "scenario"), ("methods", "method"):
            names = {r[field] for r in selected}
            headers[key] = {n: head for n, head in self.results[key].items() if n in names}
        return replace(self, results={**self.results, **headers, "results": selected})


def collect(
    suite: Suite,
    size: Size,
    groups: Sequence[Group],
    verdicts: Mapping[Path, JobState],
    folder: Path,
) -> Bench:
    """Collect the results of a bench, finished or not."""
    sized = suite.sized(size)
    states = {v.folder: verdicts[v.folder] for g in groups for v in g.ready(verdicts)}
    versions = {json.dumps(v.figures["versions"]) for v in states.values() if v.figures}
    results = {
        "schema": SCHEMA,
        **{key: getattr(suite, key) for key in ("title", "note", "own")},
        "reference": suite.reference
        and suite.reference.model_dump(mode="json", exclude_unset=True),
        "size": size,
        "seeds": list(sized.seeds or ()),
        "tuning": {"points": sized.points, "seed": suite.search_seed, "rule": RULE},
        "scenarios": _scenarios(suite, groups),
        "methods": _methods(suite, size, groups),
        "versions": [json.loads(text) for text in sorted(versions)],
        "results": [_result(group, verdicts) for group in groups],
    }
    timing = {str(cell): list(v.seconds) for cell, v in sorted(states.items()) if v.seconds}
    return Bench(folder, json.loads(json.dumps(results, allow_nan=False)), timing)


def _scenarios(suite: Suite, groups: Sequence[Group]) -> Tree:
    columns, names = suite.scenario.items(), {g.scenario for g in groups}
    return {name: {"title": column.title} for name, column in columns if name in names}


def _methods(suite: Suite, size: Size, groups: Sequence[Group]) -> Tree:
    names = {g.method for g in groups}
    return {
        name: {
            "row": row.row,
            "presentation": _presentation(name),
            "space": {key: list(values) for key, values in suite.space(size, name).items()},
        }
        for name, row in suite.method.items()
        if name in names
    }


def _presentation(method: str) -> dict[str, str]:
    """Return the default label of a row: the method's title, if the row has a method's name."""
    if is_registered(method):
        return {"title": resolve(method)().method().card.presentation.title}
    return {"title": method}


def _result(group: Group, verdicts: Mapping[Path, JobState]) -> dict[str, Any]:
    chosen = group.chosen(verdicts)
    cells = () if chosen is None else group.finals[chosen]
    finals = [_cell(c, verdicts[c.folder]) for c in cells]
    trials = [_cell(c, verdicts[c.folder]) for c in group.trials]
    return {
        "scenario": group.scenario,
        "method": group.method,
        "state": _state(finals or trials),
        "search": [_tried(trial, cell) for trial, cell in zip(trials, group.trials, strict=True)],
        "chosen": None if chosen is None else dict(group.points[chosen]),
        "settings": _settings(cells[0]) if cells else None,
        "cells": finals,
    }


def _state(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the state of several cells: the first that any has."""
    states = {cell["state"] for cell in cells}
    return next((s for s in ("waiting", "failed", "data missing") if s in states), "finished")


def _cell(cell: Cell, verdict: JobState) -> dict[str, Any]:
    figures = verdict.figures
    return {
        "seed": cell.seed,
        "folder": str(cell.folder),
        "state": verdict.state,
        "reason": verdict.failure.reason if verdict.failure else "",
        "figures": {k: v for k, v in figures.items() if k != "versions"} if figures else None,
    }


def _tried(trial: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """Return the result of one point of the search."""
    figures = trial["figures"]
    record = {k: v for k, v in trial.items() if k != "figures"}
    return {
        "point": dict(cell.point),
        **record,
        "validation": figures["validation"] if figures else None,
    }


def _settings(cell: Cell) -> Tree:
    """Return the settings shared by the cells of all seeds, as in a TOML file."""
    tree: Tree = {}
    for key, value in flat(cell.config.tree()).items():
        if key not in (*LOCAL, "seed"):
            merge(tree, branch(key, value))
    return tree


def save(bench: Bench) -> None:
    """Write the four files, each atomically."""
    texts = {
        RESULTS: json.dumps(bench.results, indent=1, ensure_ascii=False) + "\n",
        TIMING: json.dumps(bench.timing, indent=1) + "\n",
        "table.md": bench_table.markdown(bench.results),
        "table.csv": bench_table.csv(bench.results),
    }
    for name, text in texts.items():
        publish(bench.folder / name, [text.encode()])


def require_same(suite: Suite, folder: Path) -> None:
    """Refuse a folder with the table of another suite, which this one would replace.

    A suite that has grown has the same title and all scenarios and methods of the table. Results
    that cannot be read are written anew from the cells.
    """
    try:
        stored = load(folder).results
    except StorageError:
        return
    lost = [
        f"{axis} {', '.join(missing)}"
        for axis, names in (("scenario", suite.scenario), ("method", suite.method))
        if (missing := [name for name in stored[f"{axis}s"] if name not in names])
    ]
    if stored["title"] != suite.title or lost:
        problem = f"has no {' and no '.join(lost)}" if lost else f"is {suite.title!r}"
        raise StorageError(
            f"{folder} holds the table of the suite {stored['title']!r}, and this one {problem}; "
            f"give another folder (--out){'' if lost else ', or that title'}"
        )


def load(folder: Path | str) -> Bench:
    """Read a bench's results. Raises StorageError if the folder has no readable ones."""
    folder = Path(folder)

    def unreadable(reason: str) -> StorageError:
        return StorageError(
            f"{folder} holds no readable bench ({reason}); give a folder that `pomona bench` wrote"
        )

    try:
        results, timing = (parse(content(folder / name), unreadable) for name in (RESULTS, TIMING))
        schema = results.get("schema") if isinstance(results, dict) else None
        if schema != SCHEMA:
            raise unreadable(f"schema {plain(str(schema), 40)}, this version reads {SCHEMA}")
        saved, passed = SavedResults.model_validate(results), Timing.model_validate(timing)
        return Bench(folder, saved.model_dump(exclude_unset=True), passed.model_dump())
    except OSError as fault:
        raise unreadable(str(fault.strerror)) from None
    except ValidationError as fault:
        raise unreadable(first(fault)) from None
