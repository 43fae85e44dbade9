"""Where a silo's state and rules come from: ``state/origin.json``, written when the silo first
works on a machine.

A kit comes from someone else, and everything in ``state/`` takes effect: noise keys, ledgers,
budgets, decisions. A seal is a keyed hash by which a silo recognises what was written on its own
machine: the mark of its state, decisions on studies, noise keys, and the files that say what was
spent, asked, summed, disclosed and pinned, which a kit unpacked over a working silo could replace.
The key is the machine's id, which the maker of a kit does not know. The mark does not travel: a
restored backup is marked on the machine where it is restored. ``check`` and ``start`` show the
rules in force, and their origin.
"""

import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pomona.core.bounds import Sha256, first, plain
from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import content, writing
from pomona.core.settings import Settings
from pomona.storage.lock import LOCK
from pomona_federation.json_store import read_json, write_json
from pomona_federation.silo.consent_rules import FILE as POLICY
from pomona_federation.silo.consent_rules import ConsentPolicy, policy_sha256
from pomona_federation.silo.settings import SiloFile

MACHINE = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


def seal(purpose: str, text: str = "") -> str:
    """The seal of a text, 64 hex digits; ``purpose`` is its kind.

    Raises StorageError without a machine id.
    """
    return hmac.new(_machine(), f"pomona {purpose}\n{text}".encode(), hashlib.sha256).hexdigest()


def sealed(value: object, purpose: str, text: str = "") -> bool:
    """Whether a value is the seal of a text. Raises as ``seal``."""
    return hmac.compare_digest(str(value).encode(), seal(purpose, text).encode())


def _machine() -> bytes:
    for path in MACHINE:
        try:
            machine_id = content(path, 100).strip()
        except OSError:
            continue
        if re.fullmatch(rb"[0-9a-f]{32}", machine_id):
            return machine_id
    raise StorageError(
        f"{MACHINE[0]} is missing: a silo needs it to recognise its own state; in a container, "
        "mount the machine's read-only (as compose.yaml does)"
    )


FILE, STATE = "origin.json", "silo state"
MAX_LISTED = 5  # most files named in a refusal
LIMIT_KEYS = (
    "accept_epsilon",
    "accept_epsilon_total",
    "accept_delta_total",
    "limits",
    "max_upload_mb",
    "max_download_mb",
    "code",
)
LONGEST_LINE = 600  # most characters of a line of rules
M = TypeVar("M", bound=BaseModel)
DISCLOSED = "disclosed"  # folder of what surveys have reported
# files that decide what a silo may still release, and to whom
SEALED = {"agreement", "asked", "budget", "member", "renewed", "seen", "sums", "survey"}
REMEDY = (
    "restore it from an earlier backup (`pomona silo restore` into a new folder): a kit that was "
    "unpacked over this folder may have brought it"
)


class SealedFile(Settings):
    """A file of a silo's state: its content, and this machine's seal of it and of its path."""

    content: dict[str, Any]
    seal: Sha256


def write_own(path: Path, value: BaseModel) -> None:
    """Write a file of a silo's state, sealed. Raises as ``write_json`` and ``seal``."""
    content = value.model_dump(mode="json")
    write_json(path, SealedFile(content=content, seal=seal("file", _sealed_text(path, content))))


def read_own(model: type[M], path: Path) -> M | None:
    """A file's content as ``write_own`` has written it; None if it is missing.

    Raises StorageError for a file that cannot be read, or was not written on this machine.
    """
    stored = _sealed_file(path)
    try:
        return model.model_validate_json(json.dumps(stored.content)) if stored else None
    except ValidationError as fault:
        raise StorageError(f"{path} cannot be read ({first(fault)}); {REMEDY}") from None


def require_own_files(kit: Path) -> None:
    """Raise StorageError for a file of a silo's state that was not written on this machine, and
    for a link; libraries, whose home the state is in services, may have links in ``.cache``.
    """
    for path in _content(kit / "state"):
        if path.is_symlink() and not re.match(r"\.[^/]+/", str(path.relative_to(kit / "state"))):
            raise StorageError(f"{path} is a link; put a copy in its place, or {REMEDY}")
        if path.suffix == ".json" and (path.stem in SEALED or path.parent.name == DISCLOSED):
            _sealed_file(path)


def _sealed_file(path: Path) -> SealedFile | None:
    """A sealed file, None if it is missing. Raises StorageError for any other one."""
    stored = read_json(SealedFile, path, REMEDY)
    if stored and not sealed(stored.seal, "file", _sealed_text(path, stored.content)):
        raise StorageError(f"{path} was not written by this silo on this machine; {REMEDY}")
    return stored


def reseal_files(state: Path) -> None:
    """Seal the files of a restored state as this machine's. Raises StorageError, OSError."""
    for path in state.rglob("*.json"):
        with suppress(StorageError):  # of another form
            if stored := read_json(SealedFile, path):
                text = _sealed_text(path, stored.content)
                write_json(path, stored.model_copy(update={"seal": seal("file", text)}))


def _sealed_text(path: Path, content: dict[str, Any]) -> str:
    """What is sealed of a file: its path in the kit, and its content."""
    return json.dumps([f"/{path}".rpartition("/state/")[2], content], sort_keys=True)


class Origin(Settings):
    """The mark of a state made on this machine.

    ``policy``: SHA-256 of the consent rules in the kit at that time; None for none.
    """

    mark: Sha256
    policy: Sha256 | None = None


def ensure_origin(kit: Path) -> Origin:
    """The origin of a kit's state, marked as made here if the state is empty.

    Raises:
        ConfigError: the state contains files not made on this machine; the error names them.
        StorageError: it cannot be read or marked.
    """
    if existing := origin(kit):
        return existing
    state = kit / "state"
    with writing(state):
        state.mkdir(mode=0o700, exist_ok=True)
    return mark(kit, policy_sha256(kit))


def origin(kit: Path) -> Origin | None:
    """The origin of a kit's state; None if the state is empty. Raises as ``ensure_origin``."""
    state = kit / "state"
    if state.is_symlink():
        raise ConfigError(f"{state} is a link; move the whole kit to that disk, and link the kit")
    recorded = read_json(Origin, state / FILE) if state.is_dir() else None
    if recorded and sealed(recorded.mark, STATE, recorded.policy or ""):
        return recorded
    if foreign := list(islice(_strange(state), MAX_LISTED + 1)):
        names = ", ".join(plain(name, 120) for name in foreign[:MAX_LISTED]) + (
            ", ..." if len(foreign) > MAX_LISTED else ""
        )
        raise ConfigError(
            f"{state} contains files that were not made on this machine ({names}) and do not "
            "belong in a kit: remove them. If they are this silo's, from another machine: run "
            "`pomona silo backup` there, then `pomona silo restore` into a new folder"
        )
    return None


def mark(kit: Path, policy: str | None = None) -> Origin:
    """Mark a kit's state as made here. Raises StorageError."""
    origin = Origin(mark=seal(STATE, policy or ""), policy=policy)
    with writing(kit / "state"):
        write_json(kit / "state" / FILE, origin)
    return origin


def _strange(state: Path) -> Iterator[str]:
    """Files of a state by path in the kit, and folders that cannot be listed; without locks, empty
    folders, and what a kill has left of the mark itself.
    """
    if state.exists() and not state.is_dir():
        yield state.name
    elif state.exists():
        for path in _content(state):
            name = str(path.relative_to(state.parent))
            unfinished = path == state / f".{Path(FILE).stem}" and not path.is_symlink()
            if name != f"{state.name}/{LOCK}" and not unfinished:
                yield name


def _content(state: Path) -> list[Path]:
    """Files and links in a folder and all below it, and folders there that cannot be listed."""
    closed: list[OSError] = []  # folders that can be entered by name
    inside = [
        Path(folder, name)
        for folder, folders, files in os.walk(state, onerror=closed.append)
        for name in (*files, *(name for name in folders if Path(folder, name).is_symlink()))
    ]
    return sorted([*inside, *(Path(fault.filename) for fault in closed)])


@dataclass(frozen=True)
class RuleLine:
    """A line of rules; ``foreign``: they may come from the maker of a kit, the first or one
    unpacked over it.
    """

    text: str
    foreign: bool = False


def rules(kit: Path, silo: SiloFile, origin: Origin | None) -> Iterator[RuleLine]:
    """The lines of a kit's ``policy.toml`` and ``silo.toml``.

    Args:
        kit: the silo's.
        silo: its settings.
        origin: of its state; None before the silo first works here.

    Raises:
        ConfigError: ``policy.toml`` cannot be read.
        StorageError: likewise.
    """
    policy = ConsentPolicy.load(kit)
    if policy is None:
        yield RuleLine(f"there is no {POLICY}: a person accepts each study")
    else:
        current = policy_sha256(kit)
        assert current, "the file is there"
        provenance = (
            (
                "unless someone here wrote it before the silo's first start, it came with the "
                "kit: read it"
            )
            if origin is None or current == origin.policy
            else "not that of the silo's first start; unless somebody here wrote it, a kit that "
            "was unpacked over this folder brought it: read it"
        )
        text = _worded(policy.model_dump(mode="json", exclude_unset=True))
        yield RuleLine(
            f"{POLICY} (SHA-256 {current[:16]}; {provenance}) accepts studies by itself: {text}",
            foreign=True,
        )
    settings = silo.model_dump(mode="json", include=set(LIMIT_KEYS), exclude_defaults=True)
    bounds = {key: settings[key] for key in LIMIT_KEYS if settings.get(key)}
    yield RuleLine(
        f"silo.toml: {_worded(bounds)}"
        if bounds
        else "silo.toml bounds neither privacy loss nor traffic"
    )


def _worded(settings: dict[str, Any]) -> str:
    return plain(", ".join(f"{key} = {_literal(v)}" for key, v in settings.items()), LONGEST_LINE)


def _literal(value: Any) -> str:
    """A setting nearly as TOML writes it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_literal(v)}' for key, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value, ensure_ascii=False)
