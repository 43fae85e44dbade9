"""Hashes of a finished run's files, by which later changes are found."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pomona.core.bounds import regular
from pomona.core.errors import StorageError

LEFT = (  # what is a view of these is made again by whoever misses it; in models' cards people write
    "config.toml",
    "events.jsonl",
    "partition.json",
    "predictions.npz",
    "mask_examples.npz",
    "models/*.safetensors",
    "private/*.safetensors",
)


def sums(folder: Path) -> dict[str, str]:
    """SHA-256 in hex of a run's files, by their path in its folder. Raises OSError or StorageError."""
    return {str(path.relative_to(folder)): _sum(path) for pattern in LEFT for path in sorted(folder.glob(pattern))}


def changed(folder: Path, then: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Those of the named files that are there, and are not what they were. Raises OSError, StorageError."""
    return [name for name in names if name in then and (folder / name).exists() and _sum(folder / name) != then[name]]


def _sum(path: Path) -> str:
    with regular(path, StorageError).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
