"""A bench's cells in SQLite, for whoever wants to ask while it runs: an index of the folders, made anew from them."""

import json
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pomona.core.errors import StorageError
from pomona.experiments.grid import Cell
from pomona.experiments.job import JobState

INDEX = "bench.sqlite"
COLUMNS = {
    "folder": "TEXT PRIMARY KEY",
    "scenario": "TEXT NOT NULL",
    "method": "TEXT NOT NULL",
    "seed": "INTEGER NOT NULL",
    "point": "TEXT NOT NULL",  # JSON
    "state": "TEXT NOT NULL",
    "code": "INTEGER",
    "reason": "TEXT",
    "model": "TEXT",  # the one that the method is judged by
    "metric": "TEXT",
    "validation": "REAL",  # more is better: with its sign turned for a metric that should be low
    "round_best_validation": "INTEGER",
    "value_best_validation": "REAL",  # the metric on test data, means over clients; so are accuracies
    "accuracy_best_validation": "REAL",
    "round_last": "INTEGER",
    "value_last": "REAL",
    "accuracy_last": "REAL",
    "std": "REAL",  # over clients, in the last round; so are the next three
    "worst": "REAL",
    "percentile_10": "REAL",
    "loss": "REAL",
    "bytes_down": "INTEGER",
    "bytes_up": "INTEGER",
    "seconds": "REAL",
    "versions": "TEXT",  # JSON
}


class Index:
    """The open index of a bench. A file that cannot be used is replaced: nothing is in it alone."""

    def __init__(self, out: Path) -> None:
        self._path = out / INDEX
        try:
            try:
                self._open()
            except sqlite3.DatabaseError:
                for suffix in ("", "-wal", "-shm"):
                    self._path.with_name(INDEX + suffix).unlink(missing_ok=True)
                self._open()
        except (OSError, sqlite3.Error) as fault:
            raise StorageError(f"cannot write {self._path} ({fault}); remove it, or give another --out") from None

    def _open(self) -> None:
        self._database = sqlite3.connect(self._path, isolation_level=None)
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("DROP TABLE IF EXISTS cells")
            columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            self._database.execute(f"CREATE TABLE cells ({columns})")
        except sqlite3.Error:
            self._database.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        with suppress(sqlite3.Error):
            self._database.close()

    def put(self, rows: Iterable[tuple[Cell, JobState]]) -> None:
        """Insert or replace cells, all in one transaction. Raises StorageError."""
        places = ", ".join("?" * len(COLUMNS))
        try:
            self._database.execute("BEGIN")
            values = [[row.get(c) for c in COLUMNS] for row in (_row(cell, verdict) for cell, verdict in rows)]
            self._database.executemany(f"INSERT OR REPLACE INTO cells VALUES ({places})", values)  # noqa: S608
            self._database.execute("COMMIT")
        except sqlite3.Error as fault:
            raise StorageError(f"cannot write {self._path} ({fault}); remove it, then start again") from None


def _row(cell: Cell, verdict: JobState) -> dict[str, Any]:
    row = {
        "folder": str(cell.folder),
        "scenario": cell.scenario,
        "method": cell.method,
        "seed": cell.seed,
        "point": json.dumps(cell.point),
        "state": verdict.state,
        "code": verdict.failure.code if verdict.failure else None,
        "reason": verdict.failure.reason if verdict.failure else None,
    }
    own = verdict.figures
    if not own:
        return row
    row |= {key: own[key] for key in ("bytes_down", "bytes_up")}
    row |= {
        "model": own["headline"],
        "metric": own["metric"],
        "versions": json.dumps(own["versions"]),
        "seconds": verdict.seconds[-1],
    }
    if own["validation"]:
        row |= {"validation": own["validation"]["value"], "round_best_validation": own["validation"]["round"]}
    moments = own["models"].get(own["headline"])
    if moments:
        last, best = moments["last"], moments["best_validation"]
        row |= {key: last["summary"][key] for key in ("std", "worst", "percentile_10", "loss")}
        row |= {"round_last": last["round"]}
        for when, moment in (("last", last), ("best_validation", best)):
            summary = moment["summary"] if moment else {}
            row |= {f"value_{when}": summary.get("mean"), f"accuracy_{when}": summary.get("accuracy")}
    return row
