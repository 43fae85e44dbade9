"""The server's side of the exchange: a transport for the round loop that goes through messages and waits for silos.

It carries downlinks as tasks and brings uplinks back, and knows nothing of what is in them. What a silo keeps, it
keeps itself; a checkpoint of the server holds which round of each silo the federation has used, and who made which row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from torch import Tensor

from pomona.core.errors import ProtocolError
from pomona.core.round import Roster
from pomona.deploy.agreement import Federation
from pomona.deploy.audit import Audit
from pomona.deploy.message_bus import Message, MessageBus, Undelivered
from pomona.deploy.messages import EntryForm, Introduction, Offer, Origin, Refusal, Task
from pomona.deploy.server.answer_reader import AnswerReader
from pomona.deploy.server.handshake import GREETING, Handshake
from pomona.deploy.server.member_registry import MemberRegistry
from pomona.deploy.server.outgoing import OutgoingTask, PackedRows
from pomona.deploy.server.refusals import foreign
from pomona.deploy.server.upload_limit import announce
from pomona.federation.exchange import Arrival, ClientRequest, Reply
from pomona.methods.base import Downlink, Server
from pomona.storage.tensor_validation import largest

ATTEMPTS = 3  # times that one task is sent to a silo whose node was lost on the way


@dataclass
class FlowerTransport:
    """The transport of a deployment.

    Attributes:
        run: id of the run, the same after every restart of the server.
        absent: why silos did not take part in the last visit, by name.
        refused: those of them that answered with something that cannot be used, or would not do what was asked.
        pause: seconds between looks for answers.
    """

    federation: Federation
    run: str
    server: Server
    book: MemberRegistry
    post: MessageBus
    audit: Audit
    pause: float = 1.0
    absent: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    _held: dict[int, frozenset[str]] = field(default_factory=dict)
    _settled: dict[int, int] = field(default_factory=dict)
    _starts: dict[int, Tensor] = field(default_factory=dict)
    _origins: dict[str, Origin] = field(default_factory=dict)  # of rows in the bank, by hash
    _fresh: dict[int, list[tuple[str, Origin]]] = field(default_factory=dict)
    _visited: int = 0
    _reader: AnswerReader = field(init=False)
    _reception: Handshake = field(init=False)

    def __post_init__(self) -> None:
        """Nobody has been met yet."""
        relays = tuple(self.server.relays.values())
        self._reader = AnswerReader(self.federation, self.run, self.book, relays)
        self._reception = Handshake(self.federation, self.run, self.book, self.post, self.audit)

    # What the loop asks for.

    def begin(self, ids: tuple[int, ...], roster: Roster, row: Tensor | None) -> None:  # noqa: ARG002 - a Transport
        """Remember what newcomers start from; they make their states themselves."""
        if row is not None:
            self._starts |= dict.fromkeys(ids, row)

    def visit(self, visit: ClientRequest, down: Downlink) -> list[Arrival]:
        """Send every silo its task, and wait for the answers until all are there or the deadline is over."""
        self.absent, self.refused, self._fresh, self._visited = {}, set(), {}, visit.round.number
        if visit.trains:
            announce(self.book.path.parent, largest(visit.expects))
        errands, packed = {}, PackedRows(down, self.federation)
        for k, place in enumerate(visit.ids):
            errands[place] = OutgoingTask(self._task(visit, k, packed), packed.rows)
        replies = self._exchange(errands, visit)
        for place, errand in errands.items():
            if place not in replies:
                self.absent[self._name(place)] = errand.reason
                self.audit.write("absent", silo=self._name(place), round=visit.round.number, reason=errand.reason)
        return [replies[i] for i in visit.ids if i in replies]

    def commit(self, ids: Sequence[int]) -> None:
        """The round counts for these silos; they learn of it with their next task."""
        for place in ids:
            self._settled[place], silo = self._visited, self._name(place)
            others = {digest: origin for digest, origin in self._origins.items() if origin.silo != silo}
            self._origins = others | dict(self._fresh.get(place, []))
            self._starts.pop(place, None)

    def save(self, ids: Sequence[int]) -> tuple[dict[str, Tensor], Any]:
        """Which round of each silo counts, who made the rows at hand, and what newcomers start from."""
        origins = {digest: origin.model_dump() for digest, origin in self._origins.items()}
        starts = {f"start.{place}": row for place, row in self._starts.items()}
        return starts, {"settled": {str(i): self._settled.get(i, 0) for i in ids}, "origins": origins, "run": self.run}

    def restore(self, ids: Sequence[int], tensors: Mapping[str, Tensor], note: Any, roster: Roster) -> None:  # noqa: ARG002
        """The inverse of ``save``; silos have kept their states."""
        self._settled = {int(i): number for i, number in note["settled"].items() if number}
        self._origins = {digest: Origin(**origin) for digest, origin in note["origins"].items()}
        self._starts = {int(path.partition(".")[2]): row for path, row in tensors.items()}

    # Who is there.

    @property
    def known(self) -> frozenset[int]:
        """The places whose nodes have said who they are."""
        return frozenset(self._reception.nodes)

    def greet(self, seconds: float = 0.0, until: Callable[[], bool] = lambda: True) -> None:
        """Ask every node that nobody knows yet who it is; go on for so long, or until that is enough."""
        limit = monotonic() + seconds
        while True:
            self._reception.ask()
            for ticket, got in self.post.fetch(self._reception.tickets).items():
                self.absent |= self._reception.meet(ticket, got)
            asked_out = not self._reception.tickets and (until() or monotonic() > limit)
            if asked_out or monotonic() > limit + GREETING:
                return
            sleep(self.pause)

    # A round's messages.

    def _exchange(self, errands: dict[int, OutgoingTask], visit: ClientRequest) -> dict[int, Arrival]:
        replies: dict[int, Arrival] = {}
        began = monotonic()
        last_seen = dict.fromkeys(errands, began)
        waiting: dict[str, int] = {}
        nodes = self._reception.nodes
        open_ = set(errands)
        while open_ and monotonic() < began + self.federation.deadline:
            online, now = self.post.online(), monotonic()
            left = began + self.federation.deadline - now
            if any(nodes.get(place) not in online for place in open_):
                self._reception.ask()  # a silo may be back under another node
            for place in open_ - set(waiting.values()):
                if nodes.get(place) in online and errands[place].attempts < ATTEMPTS:
                    waiting[self._send(place, errands[place], left)] = place
            got = self.post.fetch([*waiting, *self._reception.tickets])
            for ticket, parcel in got.items():
                if ticket in waiting:
                    place = waiting.pop(ticket)
                    reply = self._receive(place, errands[place], parcel, visit)
                    if reply:
                        replies[place] = reply
                    if reply or errands[place].over:
                        open_.discard(place)
                else:
                    self.absent |= self._reception.meet(ticket, parcel)
            last_seen |= {place: now for place in open_ if nodes.get(place) in online}
            patient = {place for place in open_ if now - last_seen[place] <= self.federation.patience}
            open_ &= patient | set(waiting.values())
            if open_ and not got:
                sleep(self.pause)
        return replies

    def _task(self, visit: ClientRequest, k: int, packed: PackedRows) -> Task:
        """What receiver ``k`` of a visit is asked."""
        place, entries = visit.ids[k], self.book.entries
        offers = {}
        for key, rows in packed.down.items():
            index = rows.index[k].tolist() if rows.index.dim() == 2 else [int(rows.index[k])]
            wanted = [j for j in dict.fromkeys(index) if rows.index.dim() == 1 or j != place]
            digests = {j: packed.digest(key, j) for j in wanted}
            made = {j: self._origins[d] for j, d in digests.items() if d in self._origins}
            form = EntryForm.of(rows)
            offers[key] = Offer(
                form=form,
                index=tuple(index) if form.many else (0,),
                rows=digests if form.many else {0: digests[index[0]]},
                origins=made if key in self.server.relays else {},
            )
        start = self._starts.get(place)
        return Task(
            agreement=self.federation.agreement,
            run=self.run,
            number=visit.round.number,
            place=place,
            trains=visit.trains,
            watched=tuple(sorted(visit.watched)),
            sizes=visit.roster.sizes,
            settled=self._settled.get(place, 0),
            start=None if start is None else packed.add(start),
            offers=offers,
            introductions=tuple(
                Introduction(place=i, silo=e.name, key=e.key, certificate=e.certificate)
                for i, e in enumerate(entries)
                if i >= len(self.federation.silo)
            ),
        )

    def _send(self, place: int, errand: OutgoingTask, seconds: float) -> str:
        errand.attempts += 1
        held = self._held.get(place, frozenset()) if errand.attempts == 1 and not errand.asked_for else frozenset()
        enclosed = {digest: errand.rows[digest] for digest in errand.task.needs - held}
        parcel = Message("task", errand.task.model_dump_json(), enclosed=enclosed)
        errand.down += parcel.size
        silo, number = self._name(place), errand.task.number
        self.audit.write("sent", silo=silo, round=number, task=errand.task.digest, bytes=parcel.size)
        return self.post.send(self._reception.nodes[place], parcel, seconds)

    def _receive(
        self, place: int, errand: OutgoingTask, got: Message | Undelivered, visit: ClientRequest
    ) -> Arrival | None:
        """One answer, whatever it holds; None where the silo counts as absent, or is asked again."""
        if isinstance(got, Undelivered):
            errand.reason, errand.over = got.reason, not got.again or errand.attempts >= ATTEMPTS
            return None
        try:
            with foreign():
                return self._answered(place, errand, got, visit)
        except ProtocolError as fault:
            silo = self._name(place)
            self.refused.add(silo)
            errand.reason, errand.over = str(fault), True
            if not visit.trains:
                return None
            self.audit.write("refused", silo=silo, round=visit.round.number, reason=errand.reason)
            unread = ProtocolError(f"{silo}: {fault}")
            return Arrival(Reply(place), self.run, visit.round.number, visit.roster.sizes[place], unread=unread)

    def _answered(self, place: int, errand: OutgoingTask, got: Message, visit: ClientRequest) -> Arrival | None:
        """What a silo answers. Raises ProtocolError, or anything else, for what cannot be used."""
        answer = self._reader.signed(place, errand, got)
        if isinstance(answer, Refusal):
            self.refused.add(self._name(place))
            errand.reason, errand.over = answer.fault, True
            return None
        self._held[place] = frozenset(answer.held)
        errand.up += got.size
        if answer.missing:
            errand.asked_for, errand.reason = True, "it lacks rows that were sent"
            errand.over = errand.attempts >= ATTEMPTS
            return None
        fields = {"uplink": answer.uplink, "bytes": got.size}
        self.audit.write("received", silo=answer.silo, round=answer.number, **fields)
        errand.over = True
        if answer.fault and not visit.trains:
            errand.reason = answer.fault
            return None
        reply, self._fresh[place] = self._reader.reply(place, errand, answer, got, visit)
        return reply

    def _name(self, place: int) -> str:
        return self.book.entries[place].name
