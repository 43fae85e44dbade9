"""Atomic writes: a file is complete or absent, even after a kill.

Disk errors become StorageError.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePath

from safetensors import SafetensorError

from pomona.core.errors import StorageError

UNFINISHED = (
    ".unfinished"  # one name per folder: the next write overwrites what a killed process left
)


def publish(
    folder: Path,
    pieces: Iterable[bytes | memoryview],
    name: Callable[[str], str],
    unfinished: str = UNFINISHED,
    mode: int = 0o666,
) -> Path:
    """Write a file durably and only then rename it to its final name, replacing any older one.

    Args:
        folder: created if missing.
        pieces: the content, in order.
        name: creates the file name from the content's SHA-256 in hex.
        unfinished: temporary file name; no other process may use it in this folder.
        mode: permissions of the file from its creation on, less the umask.

    Returns:
        The path; the file is durable on return.

    Raises:
        OSError: any step failed. Before the rename nothing has changed; after it the new file is
            complete.
    """
    if not folder.is_dir():
        folder.mkdir(parents=True)
        sync(folder.parent)
    temporary, content = folder / unfinished, hashlib.sha256()
    try:
        with open(anew(temporary), "xb", opener=partial(os.open, mode=mode)) as file:
            for piece in pieces:
                content.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        path = temporary.replace(folder / name(content.hexdigest()))
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)  # frees the space on a full disk
        raise
    sync(folder)
    return path


def anew(path: Path) -> Path:
    """Return the path after removing any file there, so that the next write creates a new file.

    A folder from somebody else may contain links, and writing through one would overwrite a file
    elsewhere. Raises OSError if the path is a folder or cannot be removed.
    """
    path.unlink(missing_ok=True)
    return path


def own(root: Path, *names: str | Path) -> Path:
    """Return a path inside an output folder, with no links below ``root``; ``root`` itself may be a
    link.

    A folder from somebody else may contain links to other folders, whose files would be
    overwritten. Raises StorageError for a link, and for a path outside the folder.
    """
    path = root
    for part in PurePath(*names).parts:
        path = path / part
        if part in {"..", "/"} or path.is_symlink():
            what = (
                "is a link; remove it"
                if path.is_symlink()
                else "leads elsewhere; give another name"
            )
            raise StorageError(f"{path} {what}: files are written into a folder of their own")
    return path


def sync(folder: Path) -> None:
    """Make a folder's directory entries durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def probe(folder: Path) -> None:
    """Check before any computation that files can be published in a folder; leaves no file behind.

    Raises:
        OSError: writing is not possible.
    """
    publish(folder, [b"\0" * 4096], lambda _: ".probe").unlink()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn disk errors into StorageError with the path."""
    try:
        yield
    except (OSError, SafetensorError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault)
        raise StorageError(
            f"cannot write {path} ({reason}); free some space, or give another folder"
        ) from fault
