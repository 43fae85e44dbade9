"""Numbers of the committed rounds, from the names of their files.

Apart from ``storage.checkpoint``, which reads the files and needs PyTorch for it: supervisors and status commands do
not load that.
"""

import re
from pathlib import Path

FOLDER = "checkpoints"
NAME = re.compile(r"round-(\d{6,})-([0-9a-f]{64})\.safetensors")
"""Round and SHA-256 of the content."""


def committed(folder: Path) -> list[tuple[int, Path]]:
    """(round, file) of every checkpoint in a folder, oldest first, none of them read yet."""
    try:
        names = [(NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    except OSError:
        return []
    return sorted((int(name[1]), path) for name, path in names if name)


def last_round(out: Path) -> int:
    """Number of the last committed round in a run's folder; 0 before the first."""
    return max((number for number, _ in committed(out / FOLDER)), default=0)
