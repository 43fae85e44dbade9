"""The round loop's transport in a deployment: tasks to the silos as messages, and their answers
back.

Silos keep their own states. A checkpoint of the server records which round of each silo the
federation has used, and the origin of each row.
"""

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from pomona.core.errors import ProtocolError
from pomona.core.round import Roster
from pomona.federation.exchange import Arrival, ClientRequest, Reply, UplinkSpool
from pomona.methods.base import Downlink, Server
from pomona.storage.tensor_validation import largest
from pomona_federation.agreement import StudyAgreement
from pomona_federation.audit_log import Audit
from pomona_federation.messages.message_bodies import Newcomer, Refusal, Renewal, RowOrigin, Task
from pomona_federation.messages.message_bus import Message, MessageBus, untrusted
from pomona_federation.messages.tensor_bytes import Encoding, PackedRows
from pomona_federation.server.auth_proxy import announce
from pomona_federation.server.masked_sums import MaskedSums
from pomona_federation.server.member_registry import MemberRegistry
from pomona_federation.server.message_exchange import MessageExchange
from pomona_federation.server.round_messages import (
    AnswerReader,
    Origins,
    OutgoingTask,
    downlink_entry,
    introductions,
)
from pomona_federation.supervision.process_logs import at_round
from pomona_federation.unused_uplinks import UNUSED, Reason, UnusableError, UnusedUplink

SCRATCH = "scratch"  # in the folder run/


@dataclass
class FlowerTransport:
    """The transport of a deployment.

    Attributes:
        kit_run: the kit's folder ``run/``, where the gate looks for published values.
        run: id of the run, the same after every restart of the server.
        pause: seconds between looks for answers.
        declined: the silos that have declined the study.
        unused: why silos' uplinks of the last visit are not used, by name.
        width: numbers of a model.
        readmitted: a line for each silo that was taken again in the last visit.
    """

    agreed: StudyAgreement
    kit_run: Path
    run: str
    server: Server
    registry: MemberRegistry
    bus: MessageBus
    audit: Audit
    pause: float = 1.0
    declined: Callable[[], Collection[str]] = frozenset
    unused: dict[str, UnusedUplink] = field(default_factory=dict)
    width: int = 0
    readmitted: list[str] = field(default_factory=list)
    _held: dict[int, frozenset[str]] = field(default_factory=dict)
    _settled: dict[int, int] = field(default_factory=dict)
    _starts: dict[int, Tensor] = field(default_factory=dict)
    _joined: dict[int, tuple[int, ...]] = field(default_factory=dict)  # sizes, until settled
    _origins: dict[str, RowOrigin] = field(default_factory=dict)  # of rows in the bank, by hash
    _fresh: dict[int, Origins] = field(default_factory=dict)
    _round: int = 0
    _spool: UplinkSpool = field(init=False)  # of the current visit
    _reader: AnswerReader = field(init=False)
    exchange: MessageExchange = field(init=False)
    _sums: MaskedSums | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.exchange = MessageExchange(
            self.agreed,
            self.kit_run,
            self.run,
            self.registry,
            self.bus,
            self.audit,
            self.pause,
        )
        self._reader = AnswerReader(self.exchange, tuple(self.server.relays.values()))
        if terms := self.agreed.config.secure_aggregation:
            self._sums = MaskedSums(terms, self.exchange, self._reader, self._encoding)
        # left by a server that was killed at the wrong moment
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()

    @property
    def scratch(self) -> Path:
        """The folder of files for large tensors, which are unlinked right after they are opened."""
        return self.registry.path.parent / SCRATCH

    # Implementation of the round loop's Transport.

    def add_clients(self, ids: tuple[int, ...], roster: Roster, row: Tensor | None) -> None:
        """Remember what newcomers start from; they create their states themselves."""
        self._joined |= dict.fromkeys(ids, roster.sizes)
        if row is not None:
            self._starts |= dict.fromkeys(ids, row)

    def visit(self, request: ClientRequest, down: Downlink) -> list[Arrival]:
        """Send every silo its task, and wait until all answers have come or the deadline has
        passed.
        """
        self.unused, self._fresh, self._round = {}, {}, request.round.number
        self.exchange.handshake.round = self._round
        self.readmitted = []
        if request.trains:
            at_round(self._round)
            most = largest(request.expects)  # twice that with 64 bits in place of 32
            announce(self.kit_run, 2 * most if self._sums else most)
        self._spool = UplinkSpool.allocate(request, self.scratch)
        packed = PackedRows(down, self._encoding)
        members = self.registry.entries
        shown = introductions(members, len(self.agreed.federation.silo))
        tasks = {
            place: OutgoingTask(
                members[place].name,
                self._task(request, k, packed, *shown),
                packed.rows,
                self._held.get(place, frozenset()),
            )
            for k, place in enumerate(request.ids)
        }
        arrivals: dict[int, Arrival] = {}

        def hear(place: int, message: Message) -> None:
            if arrival := self._receive(place, tasks[place], message, request):
                tasks[place].answered, arrivals[place] = True, arrival

        stage = f"round {self._round}" if request.trains else "last evaluation"
        self.exchange.send_all(stage, tasks, hear)
        arrivals = self._summed(arrivals, tasks, request, down)
        declined = self.declined()
        for place, sent in tasks.items():
            if place not in arrivals:
                unused = self.unused.setdefault(sent.silo, sent.unused(self._round))
                if sent.silo in declined:
                    unused = unused.model_copy(update={"reason": Reason.DECLINED, "detail": ""})
                self.unused[sent.silo] = unused
                self.audit.write(UNUSED, **unused.fields)
        return [arrivals[i] for i in request.ids if i in arrivals]

    def _summed(
        self,
        arrivals: dict[int, Arrival],
        tasks: Mapping[int, OutgoingTask],
        request: ClientRequest,
        down: Downlink,
    ) -> dict[int, Arrival]:
        """The arrivals of a round, with the mean as every uplink where silos mask theirs."""
        if not self._sums or not request.trains:
            return arrivals
        made = self._sums.of_round(arrivals, tasks, request, down)
        self.unused |= self._sums.unused
        return {i: replace(a, reply=self._spool.store(a.reply)) for i, a in made.items()}

    def commit(self, ids: Sequence[int]) -> None:
        """Count the round for these silos; they learn of it with their next task."""
        members = self.registry.entries
        for place in ids:
            self._settled[place], silo = self._round, members[place].name
            others = {
                digest: origin for digest, origin in self._origins.items() if origin.silo != silo
            }
            self._origins = others | dict(self._fresh.get(place, []))
            self._starts.pop(place, None)
            self._joined.pop(place, None)

    def save(self, ids: Sequence[int]) -> tuple[dict[str, Tensor], Any]:
        """State for the checkpoint: each silo's committed round, origins of rows, and what silos
        without one start from.
        """
        origins = {digest: origin.model_dump() for digest, origin in self._origins.items()}
        starts = {f"start.{place}": row for place, row in self._starts.items()}
        return starts, {
            "settled": {str(i): self._settled.get(i, 0) for i in ids},
            "origins": origins,
            "joined": [
                [sizes, [i for i, own in self._joined.items() if own == sizes]]
                for sizes in dict.fromkeys(self._joined.values())
            ],
            "run": self.run,
        }

    def restore(
        self,
        ids: Sequence[int],  # noqa: ARG002 - silos have their states
        tensors: Mapping[str, Tensor],
        note: Any,
        roster: Roster,  # noqa: ARG002
    ) -> None:
        """The inverse of ``save``; silos have kept their states."""
        self._settled = {int(i): number for i, number in note["settled"].items() if number}
        self._origins = {digest: RowOrigin(**origin) for digest, origin in note["origins"].items()}
        self._starts = {int(path.partition(".")[2]): row for path, row in tensors.items()}
        self._joined = {i: tuple(sizes) for sizes, own in note["joined"] for i in own}

    def greet(self) -> None:
        """Ask every unknown node for its identity, and process the replies that have come, without
        waiting.
        """
        self.exchange.handshake.greet()

    # Messages of a round.

    def _task(
        self,
        request: ClientRequest,
        k: int,
        packed: PackedRows,
        newcomers: tuple[Newcomer, ...],
        renewals: tuple[Renewal, ...],
    ) -> Task:
        """The task of receiver ``k`` of a request."""
        place = request.ids[k]
        joined, settled = self._joined.get(place, ()), self._settled.get(place, 0)
        again = 0 < settled < (self.registry.entries[place].again or 0)
        downlink = {
            key: downlink_entry(
                packed, key, k, place, self._origins if key in self.server.relays else {}
            )
            for key in packed.down
        }
        return Task(
            agreement=self.agreed.agreement,
            run=self.run,
            number=request.round.number,
            place=place,
            trains=request.trains,
            watched=tuple(sorted(request.watched)),
            sizes=request.roster.sizes,
            settled=settled,
            joined=() if joined == request.roster.sizes else joined,
            start=self._last(place, k, packed) if again else self._start(place, k, packed),
            again=again,
            downlink=downlink,
            newcomers=newcomers,
            renewals=renewals,
        )

    def _start(self, place: int, k: int, packed: PackedRows) -> str | None:
        """The hash of a newcomer's starting model; in sums the one that all receive now."""
        start = self._starts.get(place)
        if start is None or not self._sums:
            return None if start is None else packed.add(start)
        return packed.digest("model", int(packed.down["model"].index[k]))

    def _last(self, place: int, k: int, packed: PackedRows) -> str | None:
        """The hash of the model from which a silo that was taken again begins if it has no state:
        its own last one, if others get it, else the one that it receives now.
        """
        for key, entry in packed.down.items():
            whole = entry.bank.shape[1] == self.width
            if whole and key in self.server.relays:
                return packed.digest(key, place)
            if whole and key == "model" and entry.index.dim() == 1:
                return packed.digest(key, int(entry.index[k]))
        return None

    def _receive(
        self, place: int, sent: OutgoingTask, got: Message, request: ClientRequest
    ) -> Arrival | None:
        """Process one answer; None if the silo counts as absent, or is asked again."""
        try:
            with untrusted(Reason.UNREADABLE):
                return self._answered(place, sent, got, request)
        except UnusableError as fault:
            sent.fail(fault.reason, str(fault))
            if not request.trains:
                return None
            self.unused[sent.silo] = sent.unused(self._round)
            unread = ProtocolError(f"{sent.silo}: {fault}")
            return Arrival(
                Reply(place), self.run, self._round, request.roster.sizes[place], unread=unread
            )

    def _answered(
        self, place: int, sent: OutgoingTask, got: Message, request: ClientRequest
    ) -> Arrival | None:
        """A verified answer. Raises ProtocolError, or any other exception, for an unusable one."""
        answer = self._reader.verified(place, sent, got)
        if isinstance(answer, Refusal):
            refusal = got.refused(answer)
            sent.fail(refusal.reason, str(refusal))
            return None
        self._held[place] = frozenset(answer.held)
        sent.bytes_up += got.size
        if answer.missing:
            sent.fail(Reason.ROWS_MISSING, again=True)
            return None
        fields = {"uplink": answer.uplink, "bytes": got.size}
        self.audit.write("received", silo=answer.silo, round=answer.number, **fields)
        sent.done = True
        if answer.continued is not None:
            self._readmitted(sent, answer.continued)
        if answer.fault and not request.trains:
            sent.fail(Reason.DIVERGED, answer.fault)
            return None
        uplink = bytes(got.enclosed.get("uplink", b""))
        arrival, self._fresh[place] = self._reader.arrival(place, sent, answer, uplink, request)
        return replace(arrival, reply=self._spool.store(arrival.reply))

    def _readmitted(self, sent: OutgoingTask, continued: int) -> None:
        """Record what a silo that was taken again has continued from."""
        settled = sent.body.settled
        rounds = {"round": self._round, "settled": settled, "continued": continued}
        self.audit.write("readmitted", silo=sent.silo, **rounds)
        begins = (
            f"continues from its state of round {continued}, as a backup had it"
            if continued
            else "starts as a newcomer does"
        )
        self.readmitted.append(
            f"{sent.silo}, taken again in round {self._round}, {begins}: what it has kept to "
            f"itself in the rounds up to {settled} since is lost"
        )

    @property
    def _encoding(self) -> Encoding:
        return Encoding(self.agreed.run_study.wire, self.agreed.federation.places)
