"""Hashes of a finished run's files, by which later changes are found."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pomona.core.files import sha256

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
    """SHA-256 in hex of a run's files, by their path in its folder. Raises OSError."""
    return {str(path.relative_to(folder)): sha256(path) for pattern in LEFT for path in sorted(folder.glob(pattern))}


def changed(folder: Path, then: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Those of the named files that are there, and are not what they were. Raises OSError."""
    return [name for name in names if name in then and (folder / name).exists() and sha256(folder / name) != then[name]]
