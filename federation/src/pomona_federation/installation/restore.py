"""Restoring a kit from its backup, into a new folder: fully checked before it appears there.

Members must be plain files with paths inside the kit, no more and no larger than the backup
declares and its own size allows; links, devices and absolute paths are refused. Nothing is unpacked
by ``tarfile``: contents are read, hashed and written here.

A backup holds the key and everything that a silo decides by, and has no signature: anyone who can
write to its location may have added code, rules or decisions. They take effect only after they have
been listed and the administrator has confirmed them.
"""

import hashlib
import os
import re
import secrets
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import all_suffixes
from pathlib import Path, PurePosixPath
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from pomona.core.bounds import MOST_BYTES, Within, first
from pomona.core.errors import ConfigError, PomonaError, StorageError
from pomona.core.files import content, opened, regular
from pomona.core.registry import own_code_barred
from pomona.core.toml import read_file
from pomona.models.packages import package
from pomona_federation.agreement import Federation
from pomona_federation.audit_log import write_line
from pomona_federation.installation.backup import KEY, MANIFEST, MOST, Backup, SavedFile, saved
from pomona_federation.installation.contents import AGREED, RULES, STATE, Item, Role, rule
from pomona_federation.json_store import read_json
from pomona_federation.provision import kit_files, wheels
from pomona_federation.provision.kit_files import appearing
from pomona_federation.server.member_registry import ROSTER, RegistryFile
from pomona_federation.silo import own_state
from pomona_federation.silo.consent_rules import FILE as POLICY
from pomona_federation.silo.consent_rules import policy_sha256
from pomona_federation.silo.known_studies import KnownStudies
from pomona_federation.silo.noise_stores import Restored, mark, reseal_key
from pomona_federation.silo.privacy_budget import Cost, PrivacyBudget
from pomona_federation.silo.settings import SiloFile
from pomona_federation.versions import own

# files that start a kit
STARTED = (
    "start.sh",
    "Dockerfile",
    "compose.yaml",
    ".dockerignore",
    "*.service",
)
CODE = tuple(all_suffixes())  # suffixes of files that Python imports, also from folders of the kit
# sections whose values may name code
NAMING = {
    AGREED: ("run", "search"),
    "silo.toml": ("data", "views", "code"),
}


def deciding(kit: Path, whose: Role) -> list[str]:
    """Names of everything that runs or decides in a kit and may come from elsewhere: code, rules,
    accepted studies.

    Nothing is imported. Raises ConfigError, StorageError or OSError for files that cannot be read.
    """
    found = [
        *_code(kit),
        *(f"{path.name}, which is not that of a kit" for path in _foreign(kit, whose)),
        *_named(kit),
    ]
    return found + (_members(kit) if whose == "server" else _accepted(kit))


def _code(kit: Path) -> list[str]:
    """Files of code that are not the app's."""
    app = kit_files.app()
    files = sorted((str(path.relative_to(kit)), path) for path in kit.rglob("*") if path.is_file())
    code = ((name, path) for name, path in files if name.endswith(CODE))
    return [
        f"code in {name}" for name, path in code if name not in app or app[name] != content(path)
    ]


def _named(kit: Path) -> list[str]:
    """Code that settings name."""
    found = []
    for file, sections in NAMING.items():
        tree = read_file(kit / file) if (kit / file).exists() else {}
        named = {name for section in sections for name in _texts(tree.get(section)) if ":" in name}
        found += [
            f"{file}, which names the code {name}" for name in sorted(named) if not package(name)
        ]
    return found


def _accepted(kit: Path) -> list[str]:
    """A silo's rules, and the studies that it has accepted."""
    rules = (
        [f"{POLICY}, the rules by which studies are accepted"] if (kit / POLICY).exists() else []
    )
    accepted = [
        known for known in KnownStudies(kit, foreign=True).all if known.status == "accepted"
    ]
    return rules + [
        f"study {known.study.name}, accepted by {known.by or 'an unnamed person'}"
        for known in accepted
    ]


def _members(kit: Path) -> list[str]:
    """Return the name of a server's registry with the members that it admits, if there is one."""
    registry = read_json(RegistryFile, kit / "run" / ROSTER)
    names = [silo.name for silo in registry.silos if not silo.revoked] if registry else []
    return [f"run/{ROSTER}, by which the members are {', '.join(names)}"] if names else []


def _foreign(kit: Path, whose: Role) -> list[Path]:
    """Files that start a kit, or list what it installs, and differ from what this release
    generates.
    """
    found = [path for pattern in STARTED for path in sorted(kit.glob(pattern))]
    own = _made(kit, whose) if found else {}
    lock = kit / "wheels" / wheels.LOCK
    ours = [wheels.locked(libraries)[wheels.LOCK] for libraries in ("cpu", "cuda")]
    strange = [lock] if lock.exists() and content(lock) not in ours else []
    return [path for path in found if own.get(path.name) != content(path)] + strange


def _made(kit: Path, whose: Role) -> kit_files.Files:
    """The files that this release generates from a kit's settings; only the script if it cannot
    read them.
    """
    try:
        with own_code_barred():
            federation = Federation.read(kit / AGREED)
            there = (kit / "wheels" / name for name in (wheels.SUMS, wheels.LOCK))
            installed = {
                **wheels.locked("cpu"),
                **{path.name: content(path) for path in there if path.is_file()},
            }
            if whose == "server":
                return kit_files.server(federation, None, installed)
            return kit_files.silo(
                federation,
                SiloFile.load(kit / "silo.toml").name,
                "",
                installed,
                own_key=False,
                digits="",
            )
    except PomonaError:
        return {"start.sh": kit_files.start_script(whose)}


def _texts(value: Any) -> Iterator[str]:
    """All strings among the values of a tree."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def privacy_known(kit: Path) -> list[str]:
    """A line for each privacy reservation in a silo's kit. Raises PrivacyError, StorageError."""
    return [
        f"study {r.study}: {r.cost}, since {r.when}"
        for r in PrivacyBudget(kit, foreign=True).reservations
    ]


BLOCK = 2**20
LEDGER = "private/dp/*/ledger.jsonl"  # only inside the state of a study
BROKEN = (tarfile.TarError, EOFError, LookupError, OverflowError, RecursionError, ValueError)
PLAIN = re.compile(r"[^\x00-\x1f\\]+")  # file names of a kit
WITHIN: TypeAdapter[str] = TypeAdapter(Within)


@dataclass(frozen=True)
class Restoring:
    """The administrator's statements about a backup that is restored.

    Attributes:
        spent: privacy spent since, by runs that the backup does not know; None if not stated.
        trained_until: the last round that the silo has trained since, in runs that the backup
            knows; None if unknown.
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
        ConfigError: not a backup, a changed or damaged one, another role's or another version's; or
            the privacy spent since was not stated, or the code and decisions in it are not trusted:
            the error names both.
        StorageError: the folder is not empty, or cannot be written.
    """
    regular(file, ConfigError)
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise StorageError(
            f"{folder} holds something already; give a new folder, and put its data there "
            "afterwards"
        )
    with appearing(folder) as made:
        try:
            told = _unpacked(file, made)
        except BROKEN as fault:
            raise ConfigError(
                f"{file} is not a whole backup ({fault}); take another copy of it"
            ) from None
        _require_fitting(file, told, whose)
        _require_saved(file, told)
        _require_said(file, told, made, said)
        token = secrets.token_hex(8)
        for name in told.files:
            if PurePosixPath(name).match(LEDGER):
                mark(made / name, Restored(token=token, until=said.trained_until))
        (made / STATE[whose]).mkdir(mode=0o700, exist_ok=True)
        if whose == "silo":
            (made / "data").mkdir(mode=0o700, exist_ok=True)
            _seal(made)
        about = {"made": told.made, "token": token, "trained_until": said.trained_until}
        write_line(made / STATE[whose], "restored", **about)
        if whose == "silo" and said.spent:
            PrivacyBudget(made).enter_unknown(token, said.spent)
    return told


def _seal(kit: Path) -> None:
    """Seal the state of a silo's restored kit as this machine's."""
    own_state.mark(kit, policy_sha256(kit))
    PrivacyBudget(kit).reseal()
    KnownStudies(kit).reseal()
    for key in sorted((kit / STATE["silo"]).rglob("private/dp/client-*/key")):
        reseal_key(key.parent)


def _require_said(file: Path, told: Backup, kit: Path, said: Restoring) -> None:
    """Raise ConfigError for all statements about a backup that its administrator must make and has
    not.
    """
    lines: list[str] = []
    if told.role == "silo" and said.spent is None:
        lines += [
            f"{file} cannot know how much privacy this silo spent after {told.made}: give --spent, "
            "the sum of epsilon over all runs since that are not listed here (0 if none was "
            "private, inf if unknown)",
            *(privacy_known(kit) or ["it knows of no private run"]),
        ]
    if (deciding_files := deciding(kit, told.role)) and not said.trusted:
        lines += [
            f"{file} holds what runs or decides in a kit, and no signature: check it, and give "
            "--trust if it is yours",
            *deciding_files,
        ]
    if lines:
        raise ConfigError(*lines)


def needs_key(folder: Path, told: Backup) -> bool:
    """Whether a silo's private key must be put into the kit by hand."""
    return (
        told.role == "silo"
        and not told.key
        and (folder / "certs").is_dir()
        and not (folder / KEY).exists()
    )


def _require_fitting(file: Path, told: Backup, whose: Role) -> None:
    if told.role != whose:
        raise ConfigError(
            f"{file} is the backup of a {told.role}; use `pomona {told.role} restore`"
        )
    if not told.versions.works_with(own()):
        raise ConfigError(
            f"{file} was made by {told.versions}, this is {own()}; restore it with a release of "
            "that line"
        )


def _require_saved(file: Path, told: Backup) -> None:
    """Raise ConfigError for files that never belong in a backup: data, libraries, files that a silo
    rebuilds.
    """
    rules = RULES[told.role]
    for path in map(PurePosixPath, told.files):
        if not saved(Item(path, rule(path, rules), 0, plain=True)):
            raise ConfigError(
                f"{file} holds {_shown(str(path))}, which no backup takes; take another copy of it"
            )


def _unpacked(file: Path, folder: Path) -> Backup:
    """Write a backup's files into a folder, and compare them with its list. Raises ValueError."""
    found: dict[str, SavedFile] = {}
    told: Backup | None = None
    with opened(file) as raw, tarfile.open(fileobj=raw, mode="r:") as tar:
        room = os.fstat(raw.fileno()).st_size
        for member in tar:
            room -= member.size
            if not member.isreg() or member.issparse() or room < 0 or len(found) >= MOST:
                raise ValueError(
                    f"{_shown(member.name)} is not a plain file of a kit, or too large"
                )
            source = tar.extractfile(member)
            assert source
            if member.name == MANIFEST and told is None:
                told = _manifest(source.read(MOST_BYTES + 1))
            else:
                name = _name(member.name)
                found[name] = _copied(source, folder, name)
    os.sync()  # one sync for all: syncing each of 60,000 files takes minutes
    if told is None or told.files != found:
        raise ValueError("its files differ from those it was made with")
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


def _copied(source: IO[bytes], folder: Path, name: str) -> SavedFile:
    path = folder / name
    mode = 0o700 if path.name == "start.sh" else 0o600
    try:
        for parent in reversed(path.parents):
            if not parent.is_dir():
                parent.mkdir(mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise ValueError(f"{_shown(name)} comes twice, or as a file and as a folder") from None
    content, size = hashlib.sha256(), 0
    with os.fdopen(handle, "wb") as out:
        while piece := source.read(BLOCK):
            content.update(piece)
            size += out.write(piece)
    return SavedFile(size=size, sha256=content.hexdigest())
