"""Parcels between the server and silos, and who carries them: Flower in a federation, a stand-in in tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Message:
    """A message: text in JSON, its sender's signature, and rows or an uplink as bytes by name."""

    kind: str
    body: str
    signature: str = ""
    enclosed: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.body) + len(self.signature) + sum(len(k) + len(v) for k, v in self.enclosed.items())


@dataclass(frozen=True)
class Undelivered:
    """No answer will come; ``again``: because the node is gone, so that the message may be sent once more."""

    reason: str
    again: bool


class MessageBus(Protocol):
    """Who carries parcels to nodes. A node's number says nothing about whose it is."""

    def online(self) -> frozenset[int]:
        """The nodes that are connected."""

    def send(self, node: int, parcel: Message, seconds: float) -> str:
        """Send a parcel that is worth answering for so long. Returns a ticket."""

    def fetch(self, tickets: Sequence[str]) -> dict[str, Message | Undelivered]:
        """The answers that have come since, by ticket."""
