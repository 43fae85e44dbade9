"""Restoring a kit from its backup, into a new folder: fully checked before it appears there.

Members must be plain files with paths inside the kit, no more and no larger than the backup declares and its own size
allows; links, devices and absolute paths are refused. Nothing is unpacked by ``tarfile``: contents are read, hashed and
written here.
"""

import hashlib
import os
import re
import secrets
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from pydantic import TypeAdapter, ValidationError

from pomona.core.bounds import MOST_BYTES, Within, first
from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import opened, regular
from pomona_federation.audit import Audit
from pomona_federation.installation.backup import KEY, MANIFEST, MOST, Backup, SavedFile, saved
from pomona_federation.installation.contents import RULES, STATE, Item, Role, rule
from pomona_federation.installation.review import deciding, privacy_known
from pomona_federation.provision.new_files import appearing
from pomona_federation.silo.data.noise_stores import Restored, mark, reseal_key
from pomona_federation.silo.data.privacy_budget import Cost, PrivacyBudget
from pomona_federation.silo.studies import own_state
from pomona_federation.silo.studies.consent_rules import policy_sha256
from pomona_federation.silo.studies.known_studies import KnownStudies
from pomona_federation.versions import own

BLOCK = 2**20
LEDGER = "private/dp/*/ledger.jsonl"  # only inside the state of a study
BROKEN = (tarfile.TarError, EOFError, LookupError, OverflowError, ValueError)
PLAIN = re.compile(r"[^\x00-\x1f\\]+")  # file names of a kit
WITHIN: TypeAdapter[str] = TypeAdapter(Within)


@dataclass(frozen=True)
class Restoring:
    """The administrator's statements about a backup that is restored.

    Attributes:
        spent: privacy spent since, by runs that the backup does not know; None if not stated.
        trained_until: the last round that the silo has trained since, in runs that the backup knows; None if unknown.
        trusted: whether the code, rules and decisions in it take effect.
    """

    spent: Cost | None = None
    trained_until: int | None = None
    trusted: bool = False


def restore(file: Path, folder: Path, whose: Role, said: Restoring = Restoring()) -> Backup:
    """Restore a kit from its backup, in a new folder.

    Args:
        file: the backup.
        folder: new, or empty.
        whose: the expected role of the kit.
        said: the administrator's statements about it.

    Raises:
        ConfigError: not a backup, a changed or damaged one, another role's or another version's; or the privacy spent
            since was not stated, or the code and decisions in it are not trusted: the error names both.
        StorageError: the folder is not empty, or cannot be written.
    """
    regular(file, ConfigError)
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise StorageError(f"{folder} holds something already; give a new folder, and put its data there afterwards")
    with appearing(folder) as made:
        try:
            told = _unpacked(file, made)
        except BROKEN as fault:
            raise ConfigError(f"{file} is not a whole backup ({fault}); take another copy of it") from None
        _require_fitting(file, told, whose)
        _require_saved(file, told)
        _require_said(file, told, made, said)
        token = secrets.token_hex(8)
        for name in told.files:
            if PurePosixPath(name).match(LEDGER):
                mark(made / name, Restored(token=token, until=said.trained_until))
        (made / STATE[whose]).mkdir(mode=0o700, exist_ok=True)
        if whose == "silo":
            own_state.mark(made, policy_sha256(made))
            PrivacyBudget(made).reseal()
            KnownStudies(made).reseal()
            for key in sorted((made / STATE[whose]).rglob("private/dp/client-*/key")):
                reseal_key(key.parent)
        with Audit(made / STATE[whose] / "audit.jsonl") as audit:
            audit.write("restored", made=told.made, token=token, trained_until=said.trained_until)
        if whose == "silo" and said.spent:
            PrivacyBudget(made).enter_unknown(token, said.spent)
    return told


def _require_said(file: Path, told: Backup, kit: Path, said: Restoring) -> None:
    """Raise ConfigError for statements about a backup that its administrator must make and has not."""
    if told.role == "silo" and said.spent is None:
        raise ConfigError(
            f"{file} does not know what was spent of this silo's privacy after {told.made}: give --spent, the sum of "
            "epsilon over all runs since that are not listed here (0 if none was private, inf if unknown)",
            *(privacy_known(kit) or ["it knows of no private run"]),
        )
    if (found := deciding(kit, told.role)) and not said.trusted:
        raise ConfigError(
            f"{file} holds what runs or decides in a kit, and no signature: check it, and give --trust if it is yours",
            *found,
        )


def needs_key(folder: Path, told: Backup) -> bool:
    """Whether a silo's private key must be put into the kit by hand."""
    return told.role == "silo" and not told.key and (folder / "certs").is_dir() and not (folder / KEY).exists()


def _require_fitting(file: Path, told: Backup, whose: Role) -> None:
    if told.role != whose:
        raise ConfigError(f"{file} is the backup of a {told.role}; use `pomona {told.role} restore`")
    if not told.versions.works_with(own()):
        raise ConfigError(f"{file} was made by {told.versions}, this is {own()}; restore it with that line of releases")


def _require_saved(file: Path, told: Backup) -> None:
    """Raise ConfigError for files that never belong in a backup: data, libraries, files that a silo rebuilds."""
    rules = RULES[told.role]
    for path in map(PurePosixPath, told.files):
        if not saved(Item(path, rule(path, rules), 0, plain=True)):
            raise ConfigError(f"{file} holds {_shown(str(path))}, which no backup takes; take another copy of it")


def _unpacked(file: Path, folder: Path) -> Backup:
    """Write a backup's files into a folder, and compare them with its list. Raises ValueError."""
    found: dict[str, SavedFile] = {}
    told: Backup | None = None
    with opened(file) as raw, tarfile.open(fileobj=raw, mode="r:") as tar:
        room = os.fstat(raw.fileno()).st_size
        for member in tar:
            room -= member.size
            if not member.isreg() or member.issparse() or room < 0 or len(found) >= MOST:
                raise ValueError(f"{_shown(member.name)} is not a plain file of a kit, or too large")
            source = tar.extractfile(member)
            assert source
            if member.name == MANIFEST and told is None:
                told = _manifest(source.read(MOST_BYTES + 1))
            elif (name := _name(member.name)) in found:
                raise ValueError(f"{_shown(name)} comes twice")
            else:
                found[name] = _copied(source, folder / name)
    os.sync()  # one sync for all: syncing each of 60,000 files takes minutes
    if told is None or told.files != found:
        raise ValueError("its files are not those that it was made with")
    return told


def _manifest(text: bytes) -> Backup:
    try:
        return Backup.model_validate_json(text)
    except ValidationError as fault:
        raise ValueError(first(fault)) from None


def _name(name: str) -> str:
    """The path of a file in a kit. Raises ValueError for any other."""
    try:
        path = WITHIN.validate_python(name)
    except ValidationError:
        raise ValueError(f"{_shown(name)} is not a path in a kit") from None
    if not PLAIN.fullmatch(path) or str(PurePosixPath(path)) != path or len(path) > 400:
        raise ValueError(f"{_shown(name)} is not a path in a kit")
    return path


def _shown(name: str) -> str:
    return repr(name[:80])


def _copied(source: IO[bytes], path: Path) -> SavedFile:
    for parent in reversed(path.parents):
        if not parent.is_dir():
            parent.mkdir(mode=0o700)
    content, size = hashlib.sha256(), 0
    mode = 0o700 if path.name == "start.sh" else 0o600
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as out:
        while piece := source.read(BLOCK):
            content.update(piece)
            size += out.write(piece)
    return SavedFile(size=size, sha256=content.hexdigest())
