"""One silo's task of a round: its parts, and on its way what is sent, how often, and how it ended."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pomona.deploy.messages.message_bodies import CertifiedKey, DownlinkEntry, Newcomer, Renewal, RowOrigin, Task
from pomona.deploy.messages.message_bus import Message
from pomona.deploy.messages.tensor_bytes import PackedRows, form_of
from pomona.deploy.server.members.member_registry import RegisteredMember

ATTEMPTS = 3  # times that one task is sent to a silo whose node was lost on the way


@dataclass
class OutgoingTask:
    """One silo's task on its way.

    Attributes:
        silo: its name.
        rows: the bytes of all rows that it may have to bring, by hash.
        attempts: how often it was sent.
        done: nothing more is expected.
        reason: why there is no answer, as long as there is none.
        bytes_down, bytes_up: so far.
    """

    silo: str
    task: Task
    rows: Mapping[str, memoryview]
    attempts: int = 0
    done: bool = False
    reason: str = "it did not answer in time"
    bytes_down: int = 0
    bytes_up: int = 0

    def message(self, held: frozenset[str]) -> Message:
        """The message of the next attempt; only the first leaves out rows that the silo is thought to hold."""
        self.attempts += 1
        absent = self.task.needs - held if self.attempts == 1 else self.task.needs
        message = Message.of(self.task, enclosed={digest: self.rows[digest] for digest in absent})
        self.bytes_down += message.size
        return message

    def fail(self, reason: str, again: bool = False) -> None:
        """Note why there is no answer; ``again``: the task may be sent once more, as long as attempts are left."""
        self.reason, self.done = reason, not again or self.attempts >= ATTEMPTS


def standing(
    tasks: Mapping[int, OutgoingTask], answered: Collection[int], open_: Collection[int], sent: Collection[int]
) -> tuple[list[str], dict[str, str], list[str]]:
    """How a round's tasks stand, by place in, by name out.

    Args:
        tasks: all of the round.
        answered: the places of those that were answered.
        open_: of those that are waited for.
        sent: of those that are on their way, or at their silos.

    Returns:
        Who has answered; who is waited for, each with a word on why; and who is no longer.
    """
    silos = {place: tasks[place].silo for place in sorted(tasks)}
    missing = {silo: "has its task" if i in sent else "is not connected" for i, silo in silos.items() if i in open_}
    given_up = [silo for i, silo in silos.items() if i not in answered and i not in open_]
    return [silo for i, silo in silos.items() if i in answered], missing, given_up


def downlink_entry(packed: PackedRows, key: str, k: int, place: int, origins: Mapping[str, RowOrigin]) -> DownlinkEntry:
    """An entry of the downlink as one silo gets it; its rows are packed.

    Args:
        packed: the rows of all receivers.
        key: of the entry.
        k: the silo's number among the receivers.
        place: the silo's.
        origins: whose rows are passed on as they are, by hash.
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
    """Whom a task introduces: silos that came after the founders, and silos whose key was renewed.

    Args:
        members: all that are or were, by place.
        founders: how many of them there were at the beginning.
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
