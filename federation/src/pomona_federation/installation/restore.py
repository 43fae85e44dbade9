"""Restoring a kit from its backup, in a new folder, which appears once all is checked.

A backup has no signature and holds the key and everything that a silo decides by: whoever keeps it
notes its SHA-256, and compares it before it is restored. Restoring names each file that runs or
decides. Privacy that was spent after it was made has to be stated, since a ledger never goes back.
"""

import hashlib
import os
import re
import secrets
import tarfile
import warnings
from contextlib import suppress
from importlib.machinery import all_suffixes
from pathlib import Path, PurePosixPath
from typing import IO

from pydantic import TypeAdapter, ValidationError

from pomona.core.bounds import MOST_BYTES, Within, first
from pomona.core.errors import ConfigError, PomonaWarning, StorageError
from pomona.core.files import opened, regular
from pomona_federation import json_store
from pomona_federation.audit_log import write_line
from pomona_federation.installation import contents
from pomona_federation.installation.backup import KEY, MANIFEST, MAX_FILES, Backup, SavedFile, saved
from pomona_federation.provision.kit_files import app, appearing
from pomona_federation.silo import state_origin
from pomona_federation.silo.consent_rules import policy_sha256
from pomona_federation.silo.noise_stores import Restored, mark, reseal_key
from pomona_federation.silo.privacy_budget import Cost, PrivacyBudget
from pomona_federation.silo.study_decisions import StudyDecisions
from pomona_federation.versions import installed

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


def privacy_known(kit: Path) -> list[str]:
    """A line for each privacy reservation in a silo's kit. Raises PrivacyError, StorageError."""
    return [f"study {r.study}: {r.cost}, since {r.when}" for r in PrivacyBudget(kit).reservations]


def effective(manifest: Backup) -> list[str]:
    """Names of a backup's files that run or decide in a kit, without the app of this release."""
    release = {name: hashlib.sha256(data).hexdigest() for name, data in app().items()}
    names = [name for name, entry in manifest.files.items() if release.get(name) != entry.sha256]
    paths = {name: contents.without_study(PurePosixPath(name)) for name in names}

    def takes_effect(name: str) -> bool:
        return any(contents.fits(paths[name], pattern) for pattern in EFFECTIVE)

    return [name for name in names if name.endswith(CODE) or takes_effect(name)]


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
    state_origin.mark(kit, policy_sha256(kit))
    json_store.reseal_files(kit / contents.STATE["silo"])
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
    path = ""
    with suppress(ValidationError):
        path = WITHIN.validate_python(name)
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
