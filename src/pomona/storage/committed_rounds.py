"""Numbers of the committed rounds, from the names of their files."""

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
