"""A kit's backup: one tar file with its settings, keys and states, and their hashes; possible while
a silo runs. And its restoration into a new folder, which appears once all is checked.

A silo's files are either replaced as a whole or only grow, so a copy needs no lock, only an order
of reading: first the rounds, then the files that must know at least as much (the privacy ledger,
the last tasks). Data, other silos' models, logs and Flower's files are left out; a silo works
without them.

A backup has no signature and holds the key and everything that a silo decides by: whoever keeps it
notes its SHA-256, and compares it before it is restored. Restoring names each file that runs or
decides. Privacy that was spent after it was made has to be stated, since a ledger never goes back.
"""

import hashlib
import io
import os
import re
import secrets
import tarfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from importlib.machinery import all_suffixes
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Literal

from pydantic import Field, TypeAdapter, ValidationError

from pomona.core.bounds import MOST_BYTES, Count, Line, Sha256, Within, first
from pomona.core.errors import ConfigError, PomonaWarning, StorageError, listed
from pomona.core.files import opened, regular, sync, writing
from pomona.core.settings import Settings
from pomona.storage.lock import locked
from pomona.storage.run_status import committed
from pomona_federation.agreement import Federation
from pomona_federation.audit_log import write_line
from pomona_federation.installation import contents
from pomona_federation.provision.kit_files import app, appearing
from pomona_federation.silo import own_state
from pomona_federation.silo.consent_rules import policy_sha256
from pomona_federation.silo.noise_stores import Restored, mark, reseal_key
from pomona_federation.silo.privacy_budget import Cost, PrivacyBudget
from pomona_federation.silo.study_decisions import StudyDecisions
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
NOTES = ("private/budget.json", "sums.json", f"{own_state.DISCLOSED}/*.json")
KEY = "keys/silo.key"
# attempts to find the rounds, since a running silo removes old ones as newer ones come
ATTEMPTS = 10
BLOCK = 2**20
CODE = tuple(all_suffixes())  # of files that Python imports, also from folders of the kit
# files that run, name code or decide, besides code
EFFECTIVE = (
    *("app/**", "start.sh", "Dockerfile", "compose.yaml", "*.service", "wheels/requirements.lock"),
    *("*.toml", "state/study.json", "run/study.json", "run/consents.json", "run/roster.json"),
)
LEDGER = "private/dp/*/ledger.jsonl"  # only inside the state of a study
BROKEN = (tarfile.TarError, EOFError, LookupError, OverflowError, RecursionError, ValueError)
PLAIN = re.compile(r"[^\x00-\x1f\\]+")  # file names of a kit
WITHIN: TypeAdapter[str] = TypeAdapter(Within)


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
        if role == "silo" and own_state.origin(folder):
            own_state.require_own_files(folder)  # restoring would seal what a kit brought
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
    excluded = any(contents.fits(path, pattern) for pattern in (*EXCLUDED, *FLOWERS))
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


def privacy_known(kit: Path) -> list[str]:
    """A line for each privacy reservation in a silo's kit. Raises PrivacyError, StorageError."""
    return [f"study {r.study}: {r.cost}, since {r.when}" for r in PrivacyBudget(kit).reservations]


def effective(manifest: Backup) -> list[str]:
    """Names of a backup's files that run or decide in a kit, without the app of this release."""
    release = {name: hashlib.sha256(data).hexdigest() for name, data in app().items()}
    return [
        name
        for name, entry in manifest.files.items()
        if name.endswith(CODE)
        or any(
            contents.fits(contents.without_study(PurePosixPath(name)), pattern)
            for pattern in EFFECTIVE
        )
        if release.get(name) != entry.sha256
    ]


def restore(
    file: Path,
    folder: Path,
    role: contents.Role,
    spent: Cost | None = None,
    trained_until: int | None = None,
) -> Backup:
    """Restore a kit from its backup, in a new folder.

    Args:
        file: the backup.
        folder: new, or empty.
        role: the expected role of the kit.
        spent: for a silo: privacy spent since, by runs that the backup does not know.
        trained_until: the last round that the silo has trained since, in runs that the backup
            knows; None if unknown.

    Warns:
        PomonaWarning: all that runs or decides in the kit, by ``effective``.

    Raises:
        ConfigError: not a backup, a changed or damaged one, another role's or another version's; or
            the privacy spent since was not stated.
        StorageError: the folder is not empty, or cannot be written.
    """
    regular(file, ConfigError)
    _require_new(folder)
    with appearing(folder) as kit:
        try:
            manifest = _unpacked(file, kit)
        except BROKEN as fault:
            reason = first(fault) if isinstance(fault, ValidationError) else fault
            raise ConfigError(
                f"{file} is not a complete backup ({reason}); use another copy of it"
            ) from None
        _require_fitting(file, manifest, role)
        (kit / contents.STATE[role]).mkdir(mode=0o700, exist_ok=True)
        if role == "silo":
            (kit / "data").mkdir(mode=0o700, exist_ok=True)
            _seal(kit)
            if spent is None:
                raise ConfigError(
                    f"{file} cannot know how much privacy this silo spent after {manifest.made}: "
                    "give --spent, the sum of epsilon over all runs since that are not listed here "
                    "(0 if none was private, inf if unknown)",
                    *(privacy_known(kit) or ["it knows of no private run"]),
                )
        token = secrets.token_hex(8)
        for ledger in sorted(kit.rglob(LEDGER)):
            mark(ledger, Restored(token=token, until=trained_until))
        fields = {"made": manifest.made, "token": token, "trained_until": trained_until}
        write_line(kit / contents.STATE[role], "restored", **fields)
        if role == "silo" and spent:
            PrivacyBudget(kit).enter_unknown(token, spent)
    text = f"{file} has no signature; it brings what runs or decides in the kit: "
    warnings.warn(text + ", ".join(effective(manifest)), PomonaWarning, stacklevel=2)
    return manifest


def _require_new(folder: Path) -> None:
    """Raise StorageError unless a folder is missing or empty."""
    empty = folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())
    if os.path.lexists(folder) and not empty:
        raise StorageError(
            f"{folder} is not empty; give a new folder, and put the data there afterwards"
        )


def _seal(kit: Path) -> None:
    """Seal the state of a silo's restored kit as this machine's."""
    own_state.mark(kit, policy_sha256(kit))
    own_state.reseal_files(kit / contents.STATE["silo"])
    StudyDecisions(kit).reseal()
    for key in sorted((kit / contents.STATE["silo"]).rglob("private/dp/client-*/key")):
        reseal_key(key.parent)


def needs_key(folder: Path, backup: Backup) -> bool:
    """Whether a silo's private key must be put into the kit by hand."""
    return (
        backup.role == "silo"
        and not backup.key
        and (folder / "certs").is_dir()
        and not (folder / KEY).exists()
    )


def _require_fitting(file: Path, backup: Backup, role: contents.Role) -> None:
    """Raise ConfigError for another role's or version's backup, and for files that never belong in
    one: data, libraries, files that a silo rebuilds.
    """
    if backup.role != role:
        raise ConfigError(
            f"{file} is the backup of a {backup.role}; use `pomona {backup.role} restore`"
        )
    if not backup.versions.works_with(installed()):
        raise ConfigError(
            f"{file} was made by {backup.versions}, this is {installed()}; restore it with a "
            "release of that line"
        )
    for path in map(PurePosixPath, backup.files):
        if not saved(
            contents.Item(path, contents.rule(path, contents.RULES[backup.role]), 0, plain=True)
        ):
            raise ConfigError(
                f"{file} contains {str(path)[:80]!r}, which backups leave out; use another copy "
                "of it"
            )


def _unpacked(file: Path, folder: Path) -> Backup:
    """Write a backup's files into a folder, and compare them with its list. Raises ValueError."""
    files: dict[str, SavedFile] = {}
    backup: Backup | None = None
    with opened(file) as raw, tarfile.open(fileobj=raw, mode="r:") as tar:
        room = os.fstat(raw.fileno()).st_size
        for member in tar:
            room -= member.size
            if not member.isreg() or member.issparse() or room < 0 or len(files) >= MAX_FILES:
                raise ValueError(f"{member.name[:80]!r} is not a plain file of a kit, or too large")
            source = tar.extractfile(member)
            assert source
            if member.name == MANIFEST and backup is None:
                backup = Backup.model_validate_json(source.read(MOST_BYTES + 1))
            else:
                name = _name(member.name)
                files[name] = _copied(source, folder, name)
    os.sync()  # one sync for all: syncing each of 60,000 files takes minutes
    if backup is None or backup.files != files:
        raise ValueError("its files differ from those it was made with")
    return backup


def _name(name: str) -> str:
    """The path of a file in a kit. Raises ValueError for any other."""
    try:
        path = WITHIN.validate_python(name)
    except ValidationError:
        raise ValueError(f"{name[:80]!r} is not a path in a kit") from None
    if not PLAIN.fullmatch(path) or str(PurePosixPath(path)) != path or len(path) > 400:
        raise ValueError(f"{name[:80]!r} is not a path in a kit")
    return path


def _copied(source: IO[bytes], folder: Path, name: str) -> SavedFile:
    path = folder / name
    mode = 0o700 if path.name == "start.sh" else 0o600
    try:
        for parent in reversed(path.parents):
            if not parent.is_dir():
                parent.mkdir(mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise ValueError(f"{name[:80]!r} comes twice, or as a file and as a folder") from None
    content, size = hashlib.sha256(), 0
    with os.fdopen(handle, "wb") as target:
        while piece := source.read(BLOCK):
            content.update(piece)
            size += target.write(piece)
    return SavedFile(size=size, sha256=content.hexdigest())
