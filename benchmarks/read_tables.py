"""Processor time of reading a table of 100,000 rows and 100 numbers, next to another build.

    python benchmarks/read_tables.py [--before FOLDER] [--repeat 3]

``--before``: ``src`` of another checkout, read with the same Python. Seconds are those of the
process and of its children; of several repetitions, in turns, the smallest.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

ROWS, COLUMNS = 100_000, 100
READ = """
import resource, sys
from pomona.data import data_settings, read

def seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)

def settings(path):
    try:
        return data_settings(name="table", path=path, label_column="y")
    except Exception:  # a build before data had three axes
        return data_settings(name=path.rsplit(".", 1)[1], path=path, label_column="y")

read(settings(sys.argv[2]))  # a small file, so that modules are imported
start = seconds()
data = read(settings(sys.argv[1]))
print(seconds() - start, data.fingerprint)
"""


def written(folder: Path, rows: int) -> list[Path]:
    """Write a table as CSV and as Parquet."""
    generator = np.random.Generator(np.random.Philox(0))
    columns = {f"x{k}": generator.normal(size=rows).round(4) for k in range(COLUMNS)}
    table = pa.table({**columns, "y": generator.integers(0, 2, rows)})
    csv.write_csv(table, folder / f"{rows}.csv")
    parquet.write_table(table, folder / f"{rows}.parquet")
    return [folder / f"{rows}.csv", folder / f"{rows}.parquet"]


def timed(source: Path, path: Path, small: Path) -> tuple[float, str]:
    """Return the seconds that a build needs to read a file, and what it read."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", READ, str(path), str(small)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, fingerprint = answer.stdout.split()
    return float(seconds), fingerprint


def main() -> None:
    """Print seconds for each file and build, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    builds = [Path(__file__).parents[1] / "src", *filter(None, [options.before])]
    with tempfile.TemporaryDirectory() as folder:
        files = zip(*(written(Path(folder), rows) for rows in (ROWS, 100)), strict=True)
        for path, small in files:
            runs = [[timed(build, path, small) for build in builds] for _ in range(options.repeat)]
            best = [min(run[k][0] for run in runs) for k in range(len(builds))]
            same = len({fingerprint for run in runs for _, fingerprint in run}) == 1
            line = " ".join(f"{seconds:.2f} s" for seconds in best)
            ratio = f", ratio {best[0] / best[-1]:.2f}" if options.before else ""
            print(f"{path.suffix}: {line}{ratio}, {'same data' if same else 'OTHER DATA'}")


if __name__ == "__main__":
    main()
