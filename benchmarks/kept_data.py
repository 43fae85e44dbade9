"""Savings from keeping data in a silo's worker: one message's reading with and without it.

    python benchmarks/kept_data.py [--quick]

A CSV of random numbers and a kit that reads it. For every message a process is forked, as the
worker does, which makes the silo's scenario (``own_scenario``: the data read, checked and split)
and ends; "s" is from the fork to its end. "anew" reads the file in each process, "kept" inherits
the data from the forking process. The two take turns. "kept MB" is the arrays' size.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import tomli_w
import torch

from pomona.core.rng import stream
from pomona_federation.agreement import Federation
from pomona_federation.silo import kept_data
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.silo_scenario import own_scenario
from timing import Table, Times, chosen, measured, publish

FULL, QUICK = ((1_000, 10_000, 50_000), 30, 5), ((100,), 3, 1)  # rows, columns, turns


def kit(folder: Path, rows: int, columns: int) -> Path:
    """A silo's folder with a two-class table of this many rows and columns."""
    (folder / "state").mkdir(parents=True)
    draw = stream(0, "noise")
    table = np.column_stack(
        [draw.standard_normal((rows, columns)).round(6), draw.integers(0, 2, rows)]
    )
    names = [*(f"c{k}" for k in range(columns)), "label"]
    np.savetxt(folder / "rows.csv", table, "%.6g", ",", header=",".join(names), comments="")
    data = {"name": "table", "path": "rows.csv", "label_column": "label", "classes": ["0", "1"]}
    (folder / "silo.toml").write_text(tomli_w.dumps({"name": "north", "data": data}))
    federation = {
        "name": "bench",
        "server": "127.0.0.1:1",
        "run": {"method": "fedavg", "rounds": 1, "lr": 0.1, "model": {"name": "logistic"}},
        "task": {"kind": "table", "input_shape": [columns], "classes": ["0", "1"]},
        "silo": [{"name": "north"}, {"name": "south"}],
    }
    (folder / "federation.toml").write_text(tomli_w.dumps(federation))
    return folder


def message(folder: Path, keeper: kept_data.DataCache | None) -> None:
    """The process of one message, up to its data."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            kept_data.use(keeper)
            own_scenario(
                SiloFile.load(folder / "silo.toml"),
                Federation.load(folder / "federation.toml").kit_terms,
                0,
            )
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def measure(rows: int, columns: int, turns: int) -> Table:
    """One row."""
    with tempfile.TemporaryDirectory() as name:
        folder = kit(Path(name) / "kit", rows, columns)
        keeper = kept_data.DataCache(folder)
        message(folder, keeper)
        kept_data.SETTLED = 0.0  # nobody writes the file any more
        assert keeper.refresh()
        assert keeper.cached, "it fits into keep_data_mb"
        works: dict[str, Callable[[], object]] = {
            "anew": partial(message, folder, None),
            "kept": partial(message, folder, keeper),
        }
        wall: Times = measured(works, turns)[0]
        return {
            "file MB": (folder / "rows.csv").stat().st_size / 1e6,
            "kept MB": kept_data.size(keeper.cached[2]) / 1e6,
            **{f"{name} s": wall.median(name) for name in works},
        }


def main(size: tuple[tuple[int, ...], int, int], arguments: list[str]) -> list[Table]:
    """Measure and print."""
    assert not arguments, arguments
    torch.set_num_threads(1)
    heights, columns, turns = size
    rows = {f"{n} rows, {columns} columns": measure(n, columns, turns) for n in heights}
    return [publish("The data of one message", rows, turns)]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
