"""Reading a table of 100 numbers a row, as CSV and as Parquet, next to another build.

    python benchmarks/read_tables.py [--quick] [FOLDER/src]

Fresh processes take turns, in processor seconds of the process and its children; FOLDER is a
checkout of another version, which has to read the same data.
"""

import tempfile
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet

from pomona.core.rng import stream
from timing import Table, Times, answered, builds, chosen

QUICK, FULL = (500, 1), (100_000, 3)  # rows, turns
COLUMNS = 100
WARM_UP = 100  # rows of the file that is read first, so that all modules are imported
READ = """
import sys
from pomona.data import data_settings, read

def settings(path):
    try:
        return data_settings(name="table", path=path, label_column="y")
    except Exception:  # a build in which each format was a name
        return data_settings(name=path.rsplit(".", 1)[1], path=path, label_column="y")

read(settings(sys.argv[1]))
began = cpu_seconds()
dataset = read(settings(sys.argv[2]))
print(cpu_seconds() - began, dataset.fingerprint)
"""


def write(folder: Path, rows: int) -> list[Path]:
    """Write a table of random numbers in both formats."""
    draw = stream(0, "benchmark")
    columns = {f"x{k}": draw.normal(size=rows).round(4) for k in range(COLUMNS)}
    table = pa.table({**columns, "y": draw.integers(0, 2, rows)})
    paths = [folder / f"{rows}.csv", folder / f"{rows}.parquet"]
    csv.write_csv(table, paths[0])
    parquet.write_table(table, paths[1])
    return paths


def processor(source: str, small: Path, path: Path, fingerprints: set[str]) -> float:
    """Processor seconds of reading a file by the package in ``source``; notes its fingerprint."""
    seconds, fingerprint = answered(source, READ, str(small), str(path))
    fingerprints.add(fingerprint)
    return float(seconds)


def main(size: tuple[int, int], arguments: list[str]) -> list[Table]:
    """Measure and print."""
    rows, turns = size
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        files = zip(*(write(Path(folder), n) for n in (WARM_UP, rows)), strict=True)
        for small, path in files:
            fingerprints: set[str] = set()
            readers = {
                name: partial(processor, source, small, path, fingerprints)
                for name, source in builds(arguments).items()
            }
            times = Times.interleaved(readers, turns)
            title = f"Reading {rows} rows of {COLUMNS} numbers from {path.suffix}"
            identical = "yes" if len(fingerprints) == 1 else "NO"
            tables.append(times.report(title, seconds="processor", same_data=identical))
    return tables


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
