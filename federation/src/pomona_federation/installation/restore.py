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
from pomona_federation.installation.backup import KEY, MANIFEST, MAX_FILES, Backup, SavedFile, saved
from pomona_federation.installation.contents import FEDERATION_FILE, RULES, STATE, Item, Role, rule
from pomona_federation.json_store import read_json
from pomona_federation.provision import kit_files, wheels
from pomona_federation.provision.kit_files import appearing
from pomona_federation.server.member_registry import ROSTER, RegistryFile
from pomona_federation.silo import own_state
from pomona_federation.silo.consent_rules import FILE as POLICY
from pomona_federation.silo.consent_rules import policy_sha256
from pomona_federation.silo.noise_stores import Restored, mark, reseal_key
from pomona_federation.silo.privacy_budget import Cost, PrivacyBudget
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.study_decisions import StudyDecisions
from pomona_federation.versions import installed

# files that start a kit
START_FILES = ("start.sh", "Dockerfile", "compose.yaml", ".dockerignore", "*.service")
CODE = tuple(all_suffixes())  # suffixes of files that Python imports, also from folders of the kit
# sections whose values may name code
CODE_SECTIONS = {FEDERATION_FILE: ("run", "search"), "silo.toml": ("data", "views", "code")}


def deciding(kit: Path, role: Role) -> list[str]:
    """Names of everything that runs or decides in a kit and may come from elsewhere: code, rules,
    accepted studies.

    Nothing is imported. Raises ConfigError, StorageError or OSError for files that cannot be read.
    """
    findings = [
        *_code(kit),
        *(f"{path.name}, which is not that of a kit" for path in _foreign(kit, role)),
        *_named_code(kit),
    ]
    return findings + (_members(kit) if role == "server" else _accepted(kit))


def _code(kit: Path) -> list[str]:
    """Files of code that are not the app's."""
    app = kit_files.app()
    files = sorted((str(path.relative_to(kit)), path) for path in kit.rglob("*") if path.is_file())
    code = ((name, path) for name, path in files if name.endswith(CODE))
    return [
        f"code in {name}" for name, path in code if name not in app or app[name] != content(path)
    ]


def _named_code(kit: Path) -> list[str]:
    """Code that settings name."""
    findings = []
    for file, sections in CODE_SECTIONS.items():
        tree = read_file(kit / file) if (kit / file).exists() else {}
        names = {name for section in sections for name in _texts(tree.get(section)) if ":" in name}
        findings += [
            f"{file}, which names the code {name}" for name in sorted(names) if not package(name)
        ]
    return findings


def _accepted(kit: Path) -> list[str]:
    """A silo's rules, and the studies that it has accepted."""
    rules = (
        [f"{POLICY}, the rules by which studies are accepted"] if (kit / POLICY).exists() else []
    )
    accepted = [
        decision
        for decision in StudyDecisions(kit, foreign=True).all
        if decision.status == "accepted"
    ]
    return rules + [
        f"study {decision.study.name}, accepted by {decision.by or 'an unnamed person'}"
        for decision in accepted
    ]


def _members(kit: Path) -> list[str]:
    """Return the name of a server's registry with the members that it admits, if there is one."""
    registry = read_json(RegistryFile, kit / "run" / ROSTER)
    names = [silo.name for silo in registry.silos if not silo.revoked] if registry else []
    return [f"run/{ROSTER}, by which the members are {', '.join(names)}"] if names else []


def _foreign(kit: Path, role: Role) -> list[Path]:
    """Files that start a kit, or list what it installs, and differ from what this release
    generates.
    """
    paths = [path for pattern in START_FILES for path in sorted(kit.glob(pattern))]
    generated = _generated(kit, role) if paths else {}
    lock = kit / "wheels" / wheels.LOCK
    locks = [wheels.locked(libraries)[wheels.LOCK] for libraries in ("cpu", "cuda")]
    foreign_locks = [lock] if lock.exists() and content(lock) not in locks else []
    return [path for path in paths if generated.get(path.name) != content(path)] + foreign_locks


def _generated(kit: Path, role: Role) -> kit_files.Files:
    """The files that this release generates from a kit's settings; only the script if it cannot
    read them.
    """
    try:
        with own_code_barred():
            federation = Federation.read(kit / FEDERATION_FILE)
            lists = (kit / "wheels" / name for name in (wheels.SUMS, wheels.LOCK))
            installed = {
                **wheels.locked("cpu"),
                **{path.name: content(path) for path in lists if path.is_file()},
            }
            if role == "server":
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
        return {"start.sh": kit_files.start_script(role)}


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


def restore(file: Path, folder: Path, role: Role, statements: Restoring = Restoring()) -> Backup:
    """Restore a kit from its backup, in a new folder.

    Args:
        file: the backup.
        folder: new, or empty.
        role: the expected role of the kit.
        statements: the administrator's statements about it.

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
    with appearing(folder) as kit:
        try:
            backup = _unpacked(file, kit)
        except BROKEN as fault:
            raise ConfigError(
                f"{file} is not a whole backup ({fault}); take another copy of it"
            ) from None
        _require_fitting(file, backup, role)
        _require_saved(file, backup)
        _require_statements(file, backup, kit, statements)
        token = secrets.token_hex(8)
        for name in backup.files:
            if PurePosixPath(name).match(LEDGER):
                mark(kit / name, Restored(token=token, until=statements.trained_until))
        (kit / STATE[role]).mkdir(mode=0o700, exist_ok=True)
        if role == "silo":
            (kit / "data").mkdir(mode=0o700, exist_ok=True)
            _seal(kit)
        fields = {"made": backup.made, "token": token, "trained_until": statements.trained_until}
        write_line(kit / STATE[role], "restored", **fields)
        if role == "silo" and statements.spent:
            PrivacyBudget(kit).enter_unknown(token, statements.spent)
    return backup


def _seal(kit: Path) -> None:
    """Seal the state of a silo's restored kit as this machine's."""
    own_state.mark(kit, policy_sha256(kit))
    PrivacyBudget(kit).reseal()
    StudyDecisions(kit).reseal()
    for key in sorted((kit / STATE["silo"]).rglob("private/dp/client-*/key")):
        reseal_key(key.parent)


def _require_statements(file: Path, backup: Backup, kit: Path, statements: Restoring) -> None:
    """Raise ConfigError for all statements about a backup that its administrator must make and has
    not.
    """
    lines: list[str] = []
    if backup.role == "silo" and statements.spent is None:
        lines += [
            f"{file} cannot know how much privacy this silo spent after {backup.made}: "
            "give --spent, the sum of epsilon over all runs since that are not listed here (0 if "
            "none was private, inf if unknown)",
            *(privacy_known(kit) or ["it knows of no private run"]),
        ]
    if (deciding_files := deciding(kit, backup.role)) and not statements.trusted:
        lines += [
            f"{file} holds what runs or decides in a kit, and no signature: check it, and give "
            "--trust if it is yours",
            *deciding_files,
        ]
    if lines:
        raise ConfigError(*lines)


def needs_key(folder: Path, backup: Backup) -> bool:
    """Whether a silo's private key must be put into the kit by hand."""
    return (
        backup.role == "silo"
        and not backup.key
        and (folder / "certs").is_dir()
        and not (folder / KEY).exists()
    )


def _require_fitting(file: Path, backup: Backup, role: Role) -> None:
    if backup.role != role:
        raise ConfigError(
            f"{file} is the backup of a {backup.role}; use `pomona {backup.role} restore`"
        )
    if not backup.versions.works_with(installed()):
        raise ConfigError(
            f"{file} was made by {backup.versions}, this is {installed()}; restore it with a "
            "release of that line"
        )


def _require_saved(file: Path, backup: Backup) -> None:
    """Raise ConfigError for files that never belong in a backup: data, libraries, files that a silo
    rebuilds.
    """
    rules = RULES[backup.role]
    for path in map(PurePosixPath, backup.files):
        if not saved(Item(path, rule(path, rules), 0, plain=True)):
            raise ConfigError(
                f"{file} holds {_quoted(str(path))}, which no backup takes; take another copy of it"
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
                raise ValueError(
                    f"{_quoted(member.name)} is not a plain file of a kit, or too large"
                )
            source = tar.extractfile(member)
            assert source
            if member.name == MANIFEST and backup is None:
                backup = _manifest(source.read(MOST_BYTES + 1))
            else:
                name = _name(member.name)
                files[name] = _copied(source, folder, name)
    os.sync()  # one sync for all: syncing each of 60,000 files takes minutes
    if backup is None or backup.files != files:
        raise ValueError("its files differ from those it was made with")
    return backup


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
        raise ValueError(f"{_quoted(name)} is not a path in a kit") from None
    if not PLAIN.fullmatch(path) or str(PurePosixPath(path)) != path or len(path) > 400:
        raise ValueError(f"{_quoted(name)} is not a path in a kit")
    return path


def _quoted(name: str) -> str:
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
        raise ValueError(f"{_quoted(name)} comes twice, or as a file and as a folder") from None
    content, size = hashlib.sha256(), 0
    with os.fdopen(handle, "wb") as target:
        while piece := source.read(BLOCK):
            content.update(piece)
            size += target.write(piece)
    return SavedFile(size=size, sha256=content.hexdigest())
