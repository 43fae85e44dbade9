"""Wheels that a kit installs, by file and hash: Pomona's two, and a locked list of all libraries."""

import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Literal

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import LONG, content, sha256

SUMS, LOCK = "SHA256SUMS", "requirements.lock"
Libraries = Literal["cpu", "cuda", "unlocked"]


def own_wheels() -> tuple[str, str]:
    """File names of the running Pomona's wheels: its core, and this package."""
    core, federation = (f"{name}-{version(name)}-py3-none-any.whl" for name in ("pomona", "pomona_federation"))
    return core, federation


def locked(libraries: Libraries) -> Mapping[str, bytes]:
    """The ``requirements.lock`` of this release, with names, versions and SHA-256; no file for "unlocked"."""
    if libraries == "unlocked":
        return {}
    return {LOCK: (files("pomona_federation.provision") / "locks" / f"{libraries}.lock").read_bytes()}


def described(lock: bytes | None) -> str:
    """A lock's purpose, from its first line; "" without a lock."""
    return lock.partition(b"\n")[0].decode().removeprefix("# ") if lock else ""


def of_folder(folder: Path) -> Mapping[str, bytes]:
    """Files of a kit's folder ``wheels`` for a folder of wheels, as ``pip download`` fills it.

    Pomona's wheels, their SHA-256 as ``sha256sum`` writes it, and, if there are other wheels, ``requirements.lock``
    with their names, versions and SHA-256, instead of the release's. The other wheels themselves are not included.

    Raises:
        ConfigError: a wheel of this version of Pomona is missing, or a file name is not a wheel's.
        StorageError: a wheel cannot be read.
    """
    names = own_wheels()
    for name, source in zip(names, (".", "./federation"), strict=True):
        if not (folder / name).is_file():
            raise ConfigError(f"{folder} has no {name}; build it: pip wheel --no-deps --wheel-dir {folder} {source}")
    try:
        found = {name: content(folder / name, LONG) for name in names}
        sums = [f"{hashlib.sha256(whole).hexdigest()}  {name}\n" for name, whole in found.items()]
        found[SUMS] = "".join(sums).encode()
        lines = _locked([path for path in sorted(folder.glob("*.whl")) if path.name not in names])
    except OSError as fault:
        raise StorageError(f"{fault.filename}: cannot be read ({fault.strerror}); fetch the wheel again") from None
    return found | {LOCK: "".join(["# wheels that the lead has fetched\n", *lines]).encode()} if lines else found


def _locked(paths: list[Path]) -> list[str]:
    """A line for each library and version, with the hash of each of its wheels (one per system and Python version)."""
    hashes: dict[str, list[str]] = {}
    for path in paths:
        try:
            name, number, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            raise ConfigError(f"{path} is not named as a wheel is; take it out") from None
        hashes.setdefault(f"{name}=={number}", []).append(sha256(path))
    return [" ".join([pin, *(f"--hash=sha256:{one}" for one in found)]) + "\n" for pin, found in hashes.items()]
