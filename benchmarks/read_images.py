"""Reading many small PNG files from class folders, next to another build.

    python benchmarks/read_images.py [--quick] [FOLDER/src]

Fresh processes take turns, in processor seconds of the process and its children; FOLDER is a
checkout of another version, whose time is compared.
"""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from pomona.core.rng import stream
from timing import Table, Times, answered, builds, chosen

QUICK, FULL = (200, 1), (20_000, 5)  # files, turns
READ = """
import sys
from pomona.data import DATASETS, data_settings, read

began = cpu_seconds()
name = "folder" if "folder" in DATASETS else "images"  # as builds of before call it
dataset = read(data_settings(name=name, path=sys.argv[1]))
assert len(dataset) == int(sys.argv[2])
print(cpu_seconds() - began)
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
    return float(*answered(source, READ, str(folder), str(files)))


def main(size: tuple[int, int], arguments: list[str]) -> list[Table]:
    """Measure and print."""
    files, turns = size
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), files)
        readers = {
            name: partial(processor, source, Path(folder), files)
            for name, source in builds(arguments).items()
        }
        times = Times.interleaved(readers, turns)
    return [times.report(f"Reading {files} PNG files", seconds="processor")]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
