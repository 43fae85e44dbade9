"""Origin of a silo's state, ``state/origin.json``, written when the silo first works on a machine;
its sealed files; and the rules in force, which ``check`` and ``start`` show with their origin.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pomona.core.bounds import Sha256, plain
from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import writing
from pomona.core.settings import Settings
from pomona.storage.lock import LOCK
from pomona_federation.json_store import (
    UNSEALED_REMEDY,
    is_sealed,
    read_json,
    seal,
    sealed_file,
    write_json,
)
from pomona_federation.silo.consent_rules import FILE as POLICY
from pomona_federation.silo.consent_rules import ConsentPolicy, policy_sha256
from pomona_federation.silo.settings import SiloFile

FILE = "origin.json"
STATE_SEAL = "silo state"
MAX_LISTED = 5  # files named in a refusal
LIMIT_KEYS = (
    "accept_epsilon",
    "accept_epsilon_total",
    "accept_delta_total",
    "limits",
    "max_upload_mb",
    "max_download_mb",
    "code",
)
MAX_RULE_LENGTH = 600  # characters
DISCLOSED = "disclosed"  # folder of what surveys have reported
# files that decide what a silo may still release, and to whom
SEALED = {"agreement", "asked", "budget", "member", "renewed", "seen", "sums", "survey"}


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
    if recorded and is_sealed(recorded.mark, STATE_SEAL, recorded.policy or ""):
        return recorded
    if foreign := list(islice(_foreign_files(state), MAX_LISTED + 1)):
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
    origin = Origin(mark=seal(STATE_SEAL, policy or ""), policy=policy)
    with writing(kit / "state"):
        write_json(kit / "state" / FILE, origin)
    return origin


def _foreign_files(state: Path) -> Iterator[str]:
    """Files of a state by path in the kit, and folders that cannot be listed; without locks, empty
    folders, and what a kill has left of the mark itself.
    """
    if state.exists() and not state.is_dir():
        yield state.name
    elif state.exists():
        for path in state_files(state):
            name = str(path.relative_to(state.parent))
            unfinished = path == state / f".{Path(FILE).stem}" and not path.is_symlink()
            if name != f"{state.name}/{LOCK}" and not unfinished:
                yield name


def require_sealed_files(kit: Path) -> None:
    """Raise StorageError for a file of a silo's state that was not written on this machine, and
    for a link; libraries, whose home the state is in services, may have links in ``.cache``.
    """
    for path in state_files(kit / "state"):
        if path.is_symlink() and not re.match(r"\.[^/]+/", str(path.relative_to(kit / "state"))):
            raise StorageError(f"{path} is a link; put a copy in its place, or {UNSEALED_REMEDY}")
        if path.suffix == ".json" and (path.stem in SEALED or path.parent.name == DISCLOSED):
            sealed_file(path)


def state_files(state: Path) -> list[Path]:
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
        if origin is None or current == origin.policy:
            provenance = (
                "unless someone here wrote it before the silo's first start, it came with the kit: "
                "read it"
            )
        else:
            provenance = (
                "not that of the silo's first start; unless somebody here wrote it, a kit that was "
                "unpacked over this folder brought it: read it"
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
    return plain(
        ", ".join(f"{key} = {_literal(v)}" for key, v in settings.items()), MAX_RULE_LENGTH
    )


def _literal(value: Any) -> str:
    """A setting nearly as TOML writes it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_literal(v)}' for key, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value, ensure_ascii=False)
