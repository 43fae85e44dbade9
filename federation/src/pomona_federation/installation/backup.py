"""A kit's backup: one tar file with its settings, keys and states, and their hashes; possible while
a silo runs.

A silo's files are either replaced as a whole or only grow, so a copy needs no lock, only an order
of reading: first the rounds, then the files that must know at least as much (the privacy ledger,
the last tasks). Data, other silos' models, logs and Flower's files are left out; a silo works
without them.
"""

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import Field

from pomona.core.bounds import Count, Line, Sha256, Within
from pomona.core.errors import ConfigError, StorageError, listed
from pomona.core.files import opened, sync, writing
from pomona.core.settings import Settings
from pomona.storage.lock import locked
from pomona.storage.run_status import committed
from pomona_federation.agreement import Federation
from pomona_federation.installation import contents
from pomona_federation.silo import state_origin
from pomona_federation.versions import Versions, installed

MANIFEST = "backup.json"
MAX_FILES = 10**5  # files in a backup
EXCLUDED = (
    *("data/**", "wheels/*.whl", "**/__pycache__/**", "state/cache/**", "state/logs/**"),
    *("run/logs/**", "run/arrivals", "**.unfinished", "**/.lock", "**/.roster.lock"),
    "state/origin.json",
    "run/page.json",  # a token that was revoked since would be valid again
)
FLOWERS = ("state/flwr/**", "state/node/**", "run/flwr/**", "run/scratch/**")
ORDER = ("ledger.jsonl", "seen.json", "asked.json", "agreement.json", "audit.jsonl")
# notes of what left a silo, written before it does: read, and looked for, after all others
NOTES = ("private/budget.json", "sums.json", f"{state_origin.DISCLOSED}/*.json")
KEY, CACHES = "keys/silo.key", ("*/.*/**",)  # of libraries, whose links are left out
# attempts to find the rounds, since a running silo removes old ones as newer ones come
ATTEMPTS = 10


class SavedFile(Settings):
    """A file in a backup."""

    size: Count
    sha256: Sha256


class Backup(Settings):
    """The backup's last member: whose kit it is, when and by which versions it was made, its files.

    ``key``: whether the silo's private key is included.
    """

    format: Literal[1] = 1
    role: contents.Role
    federation: Line
    made: Line
    key: bool
    versions: Versions
    files: dict[Within, SavedFile] = Field(max_length=MAX_FILES)


def backup(folder: Path, file: Path, without_key: bool = False) -> Backup:
    """Write a kit's backup to a new file, readable by its owner alone.

    Raises:
        ConfigError: the folder is not a kit.
        LockedError: the server is running; Flower's files can be copied only while it is stopped.
        StorageError: the file already exists or cannot be written, or the kit cannot be read, or a
            file that belongs in it is a link or has a second name, or was not written by this silo.
    """
    role = contents.role_of(folder)
    if os.path.lexists(file):
        raise StorageError(
            f"{file} already exists, and no backup is overwritten; give another name"
        )
    with suppress(ConfigError):  # of a whole state from another machine, which a backup moves
        if role == "silo" and state_origin.origin(folder):
            state_origin.require_sealed_files(folder)  # restoring would seal what a kit brought
    with ExitStack() as resting, writing(file):
        if role == "server":
            resting.enter_context(locked(folder / contents.STATE[role]))
        temporary = file.with_name(f".{file.name}.unfinished")
        temporary.unlink(missing_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as raw:
                manifest = _written(folder, role, raw, without_key)
                raw.flush()
                os.fsync(raw.fileno())
            temporary.rename(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(file.absolute().parent)
    return manifest


def saved(item: contents.Item, without_key: bool = False) -> bool:
    """Whether a file of a kit belongs in its backup; of the owner's own files, only code does."""
    private_file = item.rule.kind == "own" and not (
        item.path.suffix == ".py" and len(item.path.parts) == 1
    )
    path = contents.without_study(item.path)
    links = () if item.plain else CACHES
    excluded = any(contents.fits(path, pattern) for pattern in (*EXCLUDED, *FLOWERS, *links))
    return not private_file and not excluded and not (without_key and str(item.path) == KEY)


def _written(folder: Path, role: contents.Role, raw: BinaryIO, without_key: bool) -> Backup:
    files: dict[str, SavedFile] = {}
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, file in _opened(folder, without_key):
            size, content = _size(name, file), hashlib.sha256()
            _add(tar, name, size, _Hashed(file, content))
            files[name] = SavedFile(size=size, sha256=content.hexdigest())
        timestamp = datetime.now(UTC).isoformat(timespec="seconds")
        name, key = Federation.read(folder / contents.FEDERATION_FILE).name, KEY in files
        manifest = Backup(
            role=role, federation=name, made=timestamp, key=key, versions=installed(), files=files
        )
        text = manifest.model_dump_json().encode()
        _add(tar, MANIFEST, len(text), io.BytesIO(text))
    return manifest


def _opened(folder: Path, without_key: bool) -> Iterator[tuple[str, BinaryIO]]:
    """The files of a backup in the order in which they must be read."""
    round_folders, remaining = _split(folder, without_key)
    for round_folder in round_folders:
        yield from _rounds(folder, round_folder)
    notes = (note for pattern in NOTES for note in sorted((folder / "state").glob(pattern)))
    for name in chain(remaining, (str(note.relative_to(folder)) for note in notes)):
        with suppress(FileNotFoundError), opened(folder / name, follow=False) as file:
            yield name, file


def _rounds(folder: Path, round_folder: Path) -> Iterator[tuple[str, BinaryIO]]:
    """The rounds in one folder of a kit, opened at once.

    An open file can be read to its end even if it is removed for a newer round.
    """
    for attempt in range(ATTEMPTS):
        with ExitStack() as stack:
            try:
                at_once = [
                    (str(path.relative_to(folder)), stack.enter_context(opened(path, follow=False)))
                    for _, path in committed(folder / round_folder)
                ]
            except FileNotFoundError:
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            yield from at_once
            return


def _split(folder: Path, without_key: bool) -> tuple[list[Path], list[str]]:
    """The folders of rounds, and all other files."""
    items = [item for item in contents.contents(folder) if saved(item, without_key)]
    if strange := [str(item.path) for item in items if not item.plain]:
        raise StorageError(
            f"{folder}: {listed(strange)}: a link, a pipe, or a file with a second name "
            "elsewhere, which backups leave out; put a copy in its place (cp, then mv)"
        )
    names = {str(item.path) for item in items}
    rounds = {name for name in names if "/checkpoints/round-" in name}
    notes = {name for name in names for note in NOTES if contents.fits(name, f"state/{note}")}
    return sorted({Path(name).parent for name in rounds}), sorted(names - rounds - notes, key=_rank)


def _rank(name: str) -> tuple[int, str]:
    """Sort key of a file: files that depend on others' contents come after them."""
    last = name.rpartition("/")[2]
    return ORDER.index(last) + 1 if last in ORDER else 0, name


def _size(name: str, file: BinaryIO) -> int:
    """Number of bytes to copy; for a file that grows by lines, only complete lines."""
    size = os.fstat(file.fileno()).st_size
    if name.endswith(".jsonl"):
        size = file.read(size).rfind(b"\n") + 1
        file.seek(0)
    return size


def _add(tar: tarfile.TarFile, name: str, size: int, source: "io.BytesIO | _Hashed") -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    tar.addfile(member, source)


class _Hashed:
    """A file that is hashed as it is read."""

    def __init__(self, file: BinaryIO, content: "hashlib._Hash") -> None:
        self._file, self._content = file, content

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._content.update(data)
        return data
