"""What a kit installs, by file and hash: Pomona's two wheels, and a locked list of all
libraries.
"""

from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import MAX_LOG_BYTES, content, sha256

SUMS, LOCK = "SHA256SUMS", "requirements.lock"
Libraries = Literal["cpu", "cuda"]


def own_wheels() -> tuple[str, str]:
    """File names of the running Pomona's wheels: its core, and this package."""
    core, federation = (
        f"{name}-{version(name)}-py3-none-any.whl" for name in ("pomona", "pomona_federation")
    )
    return core, federation


def locked(libraries: Libraries) -> Mapping[str, bytes]:
    """The ``requirements.lock`` of this release, with names, versions and SHA-256."""
    return {
        LOCK: (files("pomona_federation.provision") / "locks" / f"{libraries}.lock").read_bytes()
    }


def installed(folder: Path | None, libraries: Libraries | None) -> Mapping[str, bytes]:
    """Files of a kit's folder ``wheels``, without a README: the lead's, if there is a folder, and a
    list of libraries.

    Raises ConfigError for two lists of libraries, or as ``of_folder``.
    """
    wheel_files = of_folder(folder) if folder else {}
    if libraries and LOCK in wheel_files:
        raise ConfigError(f"{folder} has a {LOCK}; remove it, or ask for no other libraries")
    return {**locked(libraries or "cpu"), **wheel_files}


def described(lock: bytes) -> str:
    """A lock's purpose, from its first line."""
    return lock.partition(b"\n")[0].decode(errors="replace").removeprefix("# ")


def index(lock: bytes) -> str:
    """The option of pip for the index that has PyTorch for CPU, if a lock names that; not in the
    lock itself, so that a mirror of PyPI which has it can do without.
    """
    return "--extra-index-url https://download.pytorch.org/whl/cpu " if b"+cpu" in lock else ""


def of_folder(folder: Path) -> Mapping[str, bytes]:
    """Files of a kit's folder ``wheels`` from the lead's folder of that name.

    Pomona's wheels, their SHA-256 as ``sha256sum`` writes it, and a ``requirements.lock`` if there
    is one.

    Raises:
        ConfigError: a wheel of this version of Pomona is missing, or the lock has no hashes.
        StorageError: a file cannot be read.
    """
    names = own_wheels()
    for name, source in zip(names, (".", "./federation"), strict=True):
        if not (folder / name).is_file():
            raise ConfigError(
                f"{folder} has no {name}; build it: pip wheel --no-deps --wheel-dir {folder} "
                f"{source}"
            )
    lock = folder / LOCK
    try:
        wheel_files = {name: content(folder / name, MAX_LOG_BYTES) for name in names}
        wheel_files |= {LOCK: content(lock)} if lock.exists() else {}
        sums = "".join(f"{sha256(folder / name)}  {name}\n" for name in names)
    except OSError as fault:
        raise StorageError(
            f"{fault.filename}: cannot be read ({fault.strerror}); fetch the file again"
        ) from None
    if b"--hash=sha256:" not in wheel_files.get(LOCK, b"--hash=sha256:"):
        raise ConfigError(f"{lock} has no hashes; kits install libraries by hash alone")
    return wheel_files | {SUMS: sums.encode()}
