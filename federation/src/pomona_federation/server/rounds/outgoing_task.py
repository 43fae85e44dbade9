"""One silo's task of a round: its parts, and the message."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pomona_federation.messages.message_bodies import CertifiedKey, DownlinkEntry, Newcomer, Renewal, RowOrigin, Task
from pomona_federation.messages.message_bus import Message
from pomona_federation.messages.tensor_bytes import PackedRows, form_of
from pomona_federation.server.members.member_registry import RegisteredMember
from pomona_federation.server.rounds.message_exchange import OutgoingMessage


@dataclass
class OutgoingTask(OutgoingMessage):
    """One silo's task in transit.

    Attributes:
        rows: the bytes of all rows that it may have to include, by hash.
        held: hashes of the rows that the silo presumably holds.
        bytes_down, bytes_up: so far.
    """

    task: Task
    rows: Mapping[str, memoryview]
    held: frozenset[str] = frozenset()
    bytes_down: int = 0
    bytes_up: int = 0

    @property
    def about(self) -> Mapping[str, object]:
        """Its round, and its hash."""
        return {"round": self.task.number, "task": self.task.digest}

    def message(self) -> Message:
        """The task, with its rows; only the first attempt omits those that the silo presumably holds."""
        absent = self.task.needs - self.held if self.attempts == 1 else self.task.needs
        message = Message.of(self.task, enclosed={digest: self.rows[digest] for digest in absent})
        self.bytes_down += message.size
        return message


def downlink_entry(packed: PackedRows, key: str, k: int, place: int, origins: Mapping[str, RowOrigin]) -> DownlinkEntry:
    """An entry of the downlink for one silo; its rows are packed.

    Args:
        packed: the rows of all receivers.
        key: of the entry.
        k: the silo's number among the receivers.
        place: the silo's.
        origins: the origins of relayed rows, by hash.
    """
    rows = packed.down[key]
    form = form_of(rows)
    index = rows.index[k].tolist() if form.many else [int(rows.index[k])]
    digests = {j: packed.digest(key, j) for j in dict.fromkeys(index) if not form.many or j != place}
    return DownlinkEntry(
        form=form,
        index=tuple(index) if form.many else (0,),
        rows=digests if form.many else {0: digests[index[0]]},
        origins={j: origins[digest] for j, digest in digests.items() if digest in origins},
    )


def introductions(
    members: Sequence[RegisteredMember], founders: int
) -> tuple[tuple[Newcomer, ...], tuple[Renewal, ...]]:
    """The silos that a task introduces: those that joined after the founders, and those whose key was renewed.

    Args:
        members: all present and past ones, by place.
        founders: number of founders.
    """
    newcomers = (
        Newcomer(place=i, silo=e.name, key=e.key, certificate=e.certificate)
        for i, e in enumerate(members)
        if i >= founders
    )
    renewed = (
        Renewal(silo=e.name, keys=(*e.earlier, CertifiedKey(key=e.key, certificate=e.certificate)))
        for e in members
        if e.earlier
    )
    return tuple(newcomers), tuple(renewed)
