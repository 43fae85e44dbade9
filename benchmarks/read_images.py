"""Reading many small PNG files from class folders, beside another build.

    python benchmarks/read_images.py [--quick] [FOLDER/src]

Fresh processes take turns, in processor seconds of the process and its children; FOLDER is a
checkout of another version, whose time is the measure.
"""

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from pomona.core.rng import stream
from timing import Table, Times, chosen, publish

QUICK, FULL = (200, 1), (20_000, 5)  # files, turns
READ = """
import resource, sys
from pomona.data import DATASETS, data_settings, read

def spent():
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)

before = spent()
name = "folder" if "folder" in DATASETS else "images"  # as builds of before call it
dataset = read(data_settings(name=name, path=sys.argv[1]))
assert len(dataset) == int(sys.argv[2])
print(spent() - before)
"""


def write(folder: Path, files: int) -> None:
    """Write gray PNG files of 28 x 28 random pixels in two class folders."""
    draw = stream(0, "benchmark")
    for k in range(files):
        path = folder / "ab"[k % 2] / f"{k}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (28, 28), np.uint8)).save(path, compress_level=1)


def processor(source: str, folder: Path, files: int) -> float:
    """Processor seconds of reading the folder by the package in ``source``."""
    return float(
        subprocess.run(
            [sys.executable, "-c", READ, str(folder), str(files)],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": source},
        ).stdout
    )


def main(size: tuple[int, int], words: list[str]) -> list[Table]:
    """Measure and print."""
    files, turns = size
    sources = {Path(word).parent.name: word for word in words}
    sources["this build"] = str(Path(__file__).parents[1] / "src")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), files)
        times = Times.interleaved(
            {n: partial(processor, s, Path(folder), files) for n, s in sources.items()}, turns
        )
    rows = {
        name: {
            "median processor s": times.median(name),
            "min s": min(times.of[name]),
            "times the first": times.cost(name),
        }
        for name in times.of
    }
    return [publish(f"Reading {files} PNG files", rows, turns)]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
