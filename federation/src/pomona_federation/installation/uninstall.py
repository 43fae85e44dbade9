"""Uninstalling a kit: kept files go into one folder, secrets are overwritten and removed, the rest is removed.

Each step can be killed and repeated: a kept file is moved by one rename, never copied, and an erased file is simply
erased again. Keys go first, so that a partly erased kit cannot be started. Folders are opened without following links,
from the kit's own folder down: a link is removed, never its target.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from pomona.core.errors import StorageError
from pomona.storage.lock import LOCK, locked
from pomona_federation.installation.contents import KEPT, MANAGED, STATE, Item, Role, contents

BLOCK = 2**20  # bytes overwritten at a time
CAVEAT = (
    "overwriting reaches the file as it lies now; an SSD, a file system that copies on write or keeps snapshots, and "
    "backups may hold older copies: an encrypted disk whose key is destroyed is the sure way"
)


def uninstall(folder: Path, whose: Role) -> list[Item]:
    """Apply its rule to each file of a kit; a repeated call continues where the last one stopped.

    Returns:
        The files that were there.

    Raises:
        LockedError: the silo or server is running.
        StorageError: a file cannot be moved or removed, or one with its name has been kept before.
    """
    found = contents(folder, whose)
    state = folder / STATE[whose]
    if not state.is_dir() and all(item.rule.fate == "stays" for item in found):
        _sweep(folder)
        return found
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with locked(state):
            found = contents(folder, whose)  # files that a process may have written just before it ended
            _keep(root, folder, [item for item in found if item.rule.fate == "keep"])
            secrets = [item for item in found if item.rule.fate == "erase"]
            for item in sorted(secrets, key=lambda item: item.path.suffix != ".key"):
                _erase(root, item)
            for item in found:
                if item.rule.fate == "remove":
                    _unlink(root, item.path)
        _unlink(root, PurePosixPath(STATE[whose], LOCK))
        _sweep(folder)
        os.fsync(root)
    except OSError as fault:
        raise StorageError(f"{folder}: {fault.strerror} ({fault.filename}); mend that, then do it again") from None
    finally:
        os.close(root)
    return found


def notes(found: Sequence[Item]) -> list[str]:
    """Warnings to show before a kit is uninstalled."""
    names = {str(item.path) for item in found}
    lines = [
        f"{item.path} is a link, or has another name elsewhere: it is removed here, and its content stays there"
        for item in found
        if item.rule.fate == "erase" and not item.plain
    ]
    if "state/rounds.jsonl" in names and "state/report.md" not in names:
        lines.append("there is no report yet: `pomona silo report` makes it, as long as the states are here")
    return lines


def _keep(root: int, folder: Path, items: Sequence[Item]) -> None:
    """Move files to the same path below ``kept``, replacing nothing."""
    for item in items:
        there = PurePosixPath(KEPT) / item.path
        if os.path.lexists(folder / there):
            raise StorageError(f"{folder / there} was kept before; move the folder {KEPT} elsewhere, then do it again")
    for item in items:
        there = PurePosixPath(KEPT) / item.path
        with _parent(root, item.path) as source, _parent(root, there, make=True) as target:
            os.rename(item.path.name, there.name, src_dir_fd=source, dst_dir_fd=target)
            os.fsync(target)
            os.fsync(source)


def _erase(root: int, item: Item) -> None:
    """Overwrite a plain file with random bytes, durably, and remove it; remove anything else without writing to it."""
    with _parent(root, item.path) as folder:
        if item.plain:
            how = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = os.open(item.path.name, how, dir_fd=folder)
            try:
                info = os.fstat(handle)
                if stat.S_ISREG(info.st_mode) and info.st_nlink == 1:
                    for start in range(0, info.st_size, BLOCK):
                        _fill(handle, min(BLOCK, info.st_size - start))
                    os.fsync(handle)
            finally:
                os.close(handle)
        os.unlink(item.path.name, dir_fd=folder)
        os.fsync(folder)


def _fill(handle: int, size: int) -> None:
    left = memoryview(os.urandom(size))
    while left:
        left = left[os.write(handle, left) :]


def _unlink(root: int, path: PurePosixPath) -> None:
    with suppress(FileNotFoundError), _parent(root, path) as folder:
        os.unlink(path.name, dir_fd=folder)


@contextmanager
def _parent(root: int, path: PurePosixPath, make: bool = False) -> Iterator[int]:
    """The folder of a path in the kit, opened step by step so that no link leads out of it; created if asked."""
    handle = os.dup(root)
    try:
        for part in path.parts[:-1]:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=handle)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def _sweep(folder: Path) -> None:
    """Remove the kit's own folders if they are empty."""
    for place in _deepest_first(folder / name for name in MANAGED if name != KEPT):
        with suppress(OSError):
            place.rmdir()


def _deepest_first(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        for place, _, _ in os.walk(folder, topdown=False):
            yield Path(place)
