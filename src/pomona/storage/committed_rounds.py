"""Committed rounds, listed by file name.

Separate from ``storage.checkpoint``, which needs PyTorch to read the files, so that supervisors and status commands do
not have to import it.
"""

import re
from pathlib import Path

FOLDER = "checkpoints"
NAME = re.compile(r"round-(\d{6,})-([0-9a-f]{64})\.safetensors")
"""Round number and SHA-256 of the content."""


def committed(folder: Path) -> list[tuple[int, Path]]:
    """Return (round, file) of every checkpoint in a folder, oldest first, without reading the files."""
    try:
        names = [(NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    except OSError:
        return []
    return sorted((int(name[1]), path) for name, path in names if name)


def last_round(out: Path) -> int:
    """Return the number of the last committed round in a run folder; 0 if there is none."""
    return max((number for number, _ in committed(out / FOLDER)), default=0)
