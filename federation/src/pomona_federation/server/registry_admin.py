"""Administration of the member registry: admission and revocation of silos, and the keys that may
connect.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pomona.core.errors import ConfigError, ProtocolError, suggestion
from pomona.core.files import content, reading, text
from pomona_federation import certificates, keys
from pomona_federation.agreement import Federation
from pomona_federation.audit_log import complete_lines
from pomona_federation.messages.message_bodies import CertifiedKey
from pomona_federation.server.member_registry import ROSTER, MemberRegistry, RegisteredMember
from pomona_federation.server.superlink_client import pem
from pomona_federation.study import KIT
from pomona_federation.unused_uplinks import REASONS, UNUSED, Reason

LASTING = (
    "what other silos have already mixed of its models into their own stays in them, and backups "
    "of the server's and of silos' folders keep what they hold."
)


def entries(folder: Path, study: Path | None = None) -> list[RegisteredMember]:
    """All silos that are or were members, by place; the founders if there is no registry yet.

    Writes nothing.

    Args:
        folder: the server's kit.
        study: the folder of a further study, for its sizes and rounds; None for the kit's own.

    Raises ConfigError or StorageError.
    """
    federation = Federation.read(folder / "federation.toml")
    if not (folder / "run" / ROSTER).exists():
        return [RegisteredMember(silo.name) for silo in federation.silo]
    registry = MemberRegistry(folder / "run", federation)
    if study is None:
        return registry.entries
    if not (study / ROSTER).exists():
        return [replace(entry, size=None, joined=None, left=None) for entry in registry.entries]
    return MemberRegistry(study, federation, members=registry).entries


def registry_mtime(folder: Path) -> int:
    """When the registry, which defines the members, was last written; 0 if there is none."""
    try:
        return (folder / "run" / ROSTER).stat().st_mtime_ns
    except OSError:
        return 0


def members(folder: Path) -> dict[str, bytes]:
    """Public keys (PEM) by silo of those that may connect now; starts the registry if there is
    none.
    """
    return {name: key for name, (key, revoked) in keys_of(folder).items() if not revoked}


def keys_of(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Public key (PEM) of each silo that has one, and whether it was revoked; starts the registry
    if there is none.
    """
    registry = MemberRegistry(folder / "run", Federation.read(folder / "federation.toml"))
    return {entry.name: (pem(entry.key), entry.revoked) for entry in registry.entries if entry.key}


def admit(folder: Path, name: str, key: Path | None) -> int:
    """Give a newcomer a place, and return it.

    Args:
        folder: the server's kit.
        name: the certified name.
        key: its public key; the authority's certificate is next to it, as NAME.cert. None only
            without TLS.

    Raises:
        ConfigError: no such file, no free place, or a name that is taken.
        ProtocolError: the authority has not certified this name and key.
    """
    federation = Federation.read(folder / "federation.toml")
    registry = MemberRegistry(folder / "run", federation)
    if federation.insecure:
        return registry.add(name, "", "")
    if key is None:
        raise ConfigError(f"give the public key of {name}: --key {name}.pub")
    return registry.add(name, *_certified(folder, federation, name, key))


def renew_key(folder: Path, name: str, key: Path) -> str:
    """Replace a silo's key; the previous key is refused from then on. Returns the new fingerprint.

    Args:
        folder: the server's kit.
        name: the silo.
        key: its new public key; the authority's certificate is next to it, as NAME.cert.

    Raises:
        ConfigError: no such file or silo, a revoked silo, or a key that is not newer than the
            current one.
        ProtocolError: the authority has not certified this name and key.
    """
    federation = Federation.read(folder / "federation.toml")
    if federation.insecure:
        raise ConfigError(
            "a federation with insecure = true has no keys; there is nothing to renew"
        )
    registry = MemberRegistry(folder / "run", federation)
    entry = registry.entries[registry.client_id(name)]
    if entry.revoked:
        raise ConfigError(f"{name} is revoked; have it added under a new name")
    public, certificate = _certified(folder, federation, name, key)
    previous = entry.certificate or text(folder / "keys" / f"{name}.cert").strip()
    if keys.serial(certificate.encode()) <= keys.serial(previous.encode()):
        raise ConfigError(
            f"{key} is not newer than the key that {name} has; take the key that `pomona deploy "
            "renew-key` made"
        )
    new = CertifiedKey(key=public, certificate=certificate)
    registry.renew(name, new, CertifiedKey(key=entry.key, certificate=previous))
    return keys.fingerprint(public.encode())


def _certified(folder: Path, federation: Federation, name: str, key: Path) -> tuple[str, str]:
    """A public key and the certificate next to it, as one line each. Raises as ``admit`` does."""
    public, path = keys.public(key), key.with_suffix(".cert")
    remedy = (
        "`pomona deploy provision --add` makes it (kits of an older Pomona have a .sig in its "
        "place: provision again)"
    )
    with reading(path, remedy, ConfigError):
        certificate = content(path)
    authority = certificates.content(folder / "certs" / "ca.crt")
    if not keys.certified(authority, federation.name, name, public, certificate):
        raise ProtocolError(
            f"{key} is not certified as {name}'s by this federation's authority; use the two "
            "files that belong to it"
        )
    return public.decode().strip(), certificate.decode().strip()


def dismiss(folder: Path, name: str) -> None:
    """Revoke a silo from the next round on. Raises ConfigError if it is not a member."""
    registry = MemberRegistry(folder / "run", Federation.read(folder / "federation.toml"))
    if registry.entries[registry.client_id(name)].revoked:
        raise ConfigError(f"{name} is revoked already")
    registry.revoke(name)


Row = dict[str, Any]
Key = tuple[str, str | None, int]  # study, trial, round


def uplinks(kit: Path, silo: str) -> Row:
    """The rounds of all studies in which a silo was a member, and a row for each that did not use
    its uplink.

    Raises ConfigError for a name that no silo has or had, StorageError for an unreadable log.
    """
    names = [entry.name for entry in entries(kit)]
    if silo not in names:
        raise ConfigError(f"no silo {silo!r}; {suggestion(silo, names)}")
    rounds: dict[Key, bool] = {}
    unused: dict[Key, Row] = {}
    for (study, trial, number), line in _lines_by_round(kit / "run" / "audit.jsonl"):
        event = line.get("event")
        if event == "start":
            _forget_later((study, trial, number), rounds, unused)
        elif event == UNUSED and line.get("silo") == silo:
            unused[study, trial, number] = _row(line, study, trial)
        elif event in {"round", "finished"}:  # a survey is finished without rounds
            present = line.get("present") or line.get("silos", ())
            key = study, trial, number or 1
            if silo in present:
                rounds[key] = True
                unused.pop(key, None)
            elif silo in line.get("absent", ()):
                rounds[key] = False
    return {
        "silo": silo,
        "rounds": len(rounds | unused),
        "used": sum(rounds.values()),
        "unused": list(unused.values()),
    }


def _lines_by_round(path: Path) -> Iterator[tuple[Key, Row]]:
    """The lines of an audit log, each with its study, trial and round."""
    study, trial = KIT, None
    for line in complete_lines(path) if path.exists() else ():
        if line.get("event") == "start":
            study, trial = line.get("study", KIT), line.get("trial")
        yield (study, trial, int(line.get("round", 0))), line


def _forget_later(last: Key, *by_round: dict[Key, Any]) -> None:
    """Remove a study's rounds after one, from which it starts again."""
    for values in by_round:
        for key in [key for key in values if key[:2] == last[:2] and key[2] > last[2]]:
            del values[key]


def _row(line: Row, study: str, trial: str | None) -> Row:
    """A line of the log as a row; a reason of another version has no remedy here."""
    reason = str(line.get("reason"))
    explanation = REASONS.get(Reason(reason)) if reason in set(Reason) else None
    return {
        "time": line.get("time"),
        "study": study,
        **({} if trial is None else {"trial": trial}),
        **{key: line.get(key) for key in ("round", "stage")},
        "reason": reason,
        "sentence": ": ".join(
            filter(None, (explanation and explanation.event, line.get("detail")))
        ),
        "remedy": explanation.remedy if explanation else "",
    }
