"""Atomic writes: a file is whole or absent, also after a kill. A disk's refusal becomes a StorageError."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePath

from safetensors import SafetensorError

from pomona.core.errors import StorageError

UNFINISHED = ".unfinished"  # one name a folder: what a kill left behind is overwritten by the next file


def publish(
    folder: Path,
    pieces: Iterable[bytes | memoryview],
    name: Callable[[str], str],
    unfinished: str = UNFINISHED,
    mode: int = 0o666,
) -> Path:
    """Write a file, make it durable, and only then let it appear under its name, in place of any older one.

    Args:
        folder: made if absent.
        pieces: the content, in order.
        name: file name for the content's SHA-256 in hex.
        unfinished: what the file is called until then; no other process may use that name in the folder.
        mode: the file's permissions from the first moment on, less the umask's.

    Returns:
        The path, durable when this returns.

    Raises:
        OSError: from any step. Before the renaming nothing has changed; after it the new file is whole.
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
            temporary.unlink(missing_ok=True)  # a full disk needs the room
        raise
    sync(folder)
    return path


def anew(path: Path) -> Path:
    """The same path, with nothing there any more, so that what is written to it is a file of its own.

    A folder that somebody sent may hold links under the names that are written: through one, a file elsewhere would be
    overwritten. Raises OSError where there is a folder, or the name cannot be removed.
    """
    path.unlink(missing_ok=True)
    return path


def own(root: Path, *names: str | Path) -> Path:
    """A path within a folder that is written to, none of it below ``root`` a link; ``root`` itself may be one.

    A folder that somebody sent may hold links to others, whose files would be replaced. Raises StorageError for a link,
    and for a name that leads out of the folder.
    """
    path = root
    for part in PurePath(*names).parts:
        path = path / part
        if part in {"..", "/"} or path.is_symlink():
            what = "is a link; remove it" if path.is_symlink() else "leads elsewhere; give another name"
            raise StorageError(f"{path} {what}: files are written into a folder of their own")
    return path


def sync(folder: Path) -> None:
    """Make a folder's list of names durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def probe(folder: Path) -> None:
    """Find out before anything is computed whether files can be published in a folder; leaves no file.

    Raises:
        OSError: they cannot.
    """
    publish(folder, [b"\0" * 4096], lambda _: ".probe").unlink()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the disk into a StorageError that names the path."""
    try:
        yield
    except (OSError, SafetensorError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault)
        raise StorageError(f"cannot write {path} ({reason}); free some space, or give another folder") from fault
