"""The book of a server's kit, as its administrator changes it and its supervisor follows it.

Before the first round there may be no book yet: then the members are those whose keys lie in the kit.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pomona.deploy import keys
from pomona.deploy.control import pem
from pomona.deploy.federation import Federation
from pomona.errors import ConfigError, ProtocolError

LASTING = (
    "what other silos have already mixed of its models into their own stays in them, and backups of the server's and "
    "of silos' folders keep what they hold."
)


@dataclass(frozen=True)
class Member:
    """A silo as the server knows it; ``left`` is the first round without it, None while it is a member."""

    name: str
    key: str
    size: int | None = None
    joined: int | None = None
    left: int | None = None


def entries(folder: Path) -> list[Member]:
    """All silos that are or were members, by place. Raises ConfigError or StorageError."""
    federation = Federation.load(folder / "federation.toml")
    book = _book(folder)
    if book is not None:
        return [Member(e.name, e.key, e.size, e.joined, e.left) for e in book.entries]
    places = [silo.name for silo in federation.silo]
    return [
        Member(n, "" if federation.insecure else keys.public(folder / "keys" / f"{n}.pub").decode()) for n in places
    ]


def members(folder: Path) -> dict[str, bytes]:
    """Public keys (PEM) by silo of those that are members now."""
    return {m.name: pem(m.key) for m in entries(folder) if m.left is None and m.key}


def admit(folder: Path, name: str, key: Path | None) -> int:
    """Give a newcomer a place. Returns it.

    Args:
        folder: the server's kit.
        name: as the authority certified it.
        key: its public key; the authority's signature lies beside it, with .sig behind the name. None only without TLS.

    Raises:
        ConfigError: no such file, no free place, or a name that is taken.
        ProtocolError: the authority did not sign this name and key.
    """
    federation = Federation.load(folder / "federation.toml")
    if federation.insecure:
        return int(_required(folder).add(name, "", ""))
    if key is None:
        raise ConfigError(f"give the public key of {name}: --key {name}.pub")
    public = keys.public(key)
    beside = key.with_name(f"{key.name}.sig")
    try:
        signature = beside.read_bytes()
    except OSError as fault:
        raise ConfigError(
            f"{beside}: cannot be read ({fault.strerror}); `pomona deploy provision --add` made it"
        ) from None
    if not keys.certified((folder / "certs" / "ca.crt").read_bytes(), name, public, signature):
        raise ProtocolError(
            f"{key} is not certified as {name}'s by this federation's authority; take its own two files"
        )
    return int(_required(folder).add(name, public.decode(), signature.hex()))


def dismiss(folder: Path, name: str) -> None:
    """Revoke a silo from the next round on. Raises ConfigError if it is no member."""
    _required(folder).revoke(name)


def _required(folder: Path) -> Any:
    book = _book(folder)
    if book is None:
        raise ConfigError(f"{folder / 'run'} has no book yet; start the server once, then add or revoke")
    return book


def _book(folder: Path) -> Any:
    if not (folder / "run" / "roster.json").exists():
        return None
    return import_module("pomona.deploy.book").Book.load(folder / "run")
