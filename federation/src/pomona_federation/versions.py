"""Compatibility of releases: one minor line of Pomona ("0.1"), one protocol and one line of Flower.

A release's last number changes neither messages, nor files of a study, nor numbers; the one before
may. So both ends of a message must be of one line, and so must the beginning and the end of a
study. The version is sent with a message's body and checked before anything in the body, whatever
a later version makes of that.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from pomona.core.bounds import MAX_CLIENTS, Count, plain
from pomona.core.errors import CheckpointError, ProtocolError, StorageError
from pomona.core.settings import Settings
from pomona.storage.lock import waiting_lock
from pomona_federation.agreement import PROTOCOL
from pomona_federation.json_store import read_json, write_json

FILE = "versions.json"
REMEDY = "install releases of Pomona and Flower with the same first two numbers at both ends"
Name = Annotated[str, AfterValidator(lambda text: plain(text, 100))]
Number = Annotated[str, Field(max_length=40), AfterValidator(plain)]


class Versions(Settings):
    """The versions at one end: Pomona, the message protocol, and Flower."""

    pomona: Number
    protocol: Count
    flower: Number

    def __str__(self) -> str:
        return f"Pomona {self.pomona} (protocol {self.protocol}, Flower {self.flower})"

    def works_with(self, peer: "Versions") -> bool:
        """Whether two ends understand each other and compute the same numbers."""
        ours, theirs = (line(v.pomona) + line(v.flower) + (str(v.protocol),) for v in (self, peer))
        return ours == theirs


@cache
def installed() -> Versions:
    """The versions of this installation."""
    return Versions(pomona=version("pomona"), protocol=PROTOCOL, flower=version("flwr"))


def line(number: str) -> tuple[str, ...]:
    """The first two parts of a version, which identify its line of releases."""
    return tuple(number.split(".")[:2])


def require_understood(sender: Versions | None) -> None:
    """Raise ProtocolError for a message from an incompatible version; None if the message has no
    version.
    """
    if sender is None:
        raise ProtocolError(
            f"a message does not say its version, and this is {installed()}; {REMEDY}"
        )
    if not sender.works_with(installed()):
        raise ProtocolError(f"the sender has {sender}, the receiver {installed()}; {REMEDY}")


def require_begun(previous: Versions | None, subject: str) -> None:
    """Raise CheckpointError if a study was started by another line of releases; None if nothing was
    started.
    """
    if previous and not previous.works_with(installed()):
        raise CheckpointError(
            f"{subject} was begun by {previous}, this is {installed()}; finish it with a Pomona "
            f"{'.'.join(line(previous.pomona))} and the Flower that it names, or start over"
        )


class KnownVersions(Settings):
    """The last versions of each peer, by name."""

    peers: dict[Name, Versions] = Field({}, max_length=MAX_CLIENTS)


def note(state: Path, peer: str, peer_versions: Versions | None) -> None:
    """Record a peer's versions if they have changed; the server waits for no silo of another line.

    The lock is for the processes and threads that write the same file.
    """
    with suppress(OSError, StorageError):
        if peer_versions and noted(state).get(peer) != peer_versions:
            with waiting_lock(state / ".versions.lock"):
                write_json(state / FILE, KnownVersions(peers={**noted(state), peer: peer_versions}))


def noted(state: Path) -> Mapping[str, Versions]:
    """The last versions of peers, by name. Raises StorageError."""
    record = read_json(KnownVersions, state / FILE, remedy="remove it; it is rewritten")
    return record.peers if record else {}


def warning(state: Path, peer: str) -> str:
    """A warning about a peer's last known version; empty if it is unknown or compatible."""
    peer_versions = noted(state).get(peer)
    return mismatch(peer_versions, peer) if peer_versions else ""


def mismatch(peer_versions: Versions, peer: str) -> str:
    """Why a peer with these versions does not work with this end; empty if it does."""
    if peer_versions.works_with(installed()):
        return ""
    return f"the {peer} has {peer_versions}, here is {installed()}; {REMEDY}"
