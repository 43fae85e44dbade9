"""Hashes of a finished run's files, to detect later changes."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pomona.core.files import sha256

LEFT = (  # derived files can be regenerated, and model cards are edited by people
    "config.toml",
    "events.jsonl",
    "partition.json",
    "predictions.npz",
    "mask_examples.npz",
    "models/*.safetensors",
    "private/*.safetensors",
)


def sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 in hex of a run's files by relative path. Raises OSError."""
    return {str(path.relative_to(folder)): sha256(path) for pattern in LEFT for path in sorted(folder.glob(pattern))}


def changed(folder: Path, then: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Return the named files that exist and have changed. Raises OSError."""
    return [name for name in names if name in then and (folder / name).exists() and sha256(folder / name) != then[name]]
