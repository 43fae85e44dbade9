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
from pomona_federation.server.gate import publish_uplink_limit
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

    terms: StudyAgreement
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
    _held_rows: dict[int, frozenset[str]] = field(default_factory=dict)
    _settled: dict[int, int] = field(default_factory=dict)
    _initial_models: dict[int, Tensor] = field(default_factory=dict)
    _join_sizes: dict[int, tuple[int, ...]] = field(default_factory=dict)  # sizes, until settled
    _origins: dict[int, Origins] = field(default_factory=dict)  # of each silo's row in the bank
    _fresh: dict[int, Origins] = field(default_factory=dict)
    _round: int = 0
    _spool: UplinkSpool = field(init=False)  # of the current visit
    _reader: AnswerReader = field(init=False)
    exchange: MessageExchange = field(init=False)
    _sums: MaskedSums | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.exchange = MessageExchange(
            self.terms, self.kit_run, self.run, self.registry, self.bus, self.audit, self.pause
        )
        self._reader = AnswerReader(self.exchange, tuple(self.server.relays.values()))
        if terms := self.terms.config.secure_aggregation:
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
        self._join_sizes |= dict.fromkeys(ids, roster.sizes)
        if row is not None:
            self._initial_models |= dict.fromkeys(ids, row)

    def visit(self, request: ClientRequest, down: Downlink) -> list[Arrival]:
        """Send every silo its task, and wait until all answers have come or the deadline has
        passed.
        """
        self.unused, self._fresh, self._round = {}, {}, request.round.number
        self.exchange.handshake.round = self._round
        self.readmitted = []
        if request.trains:
            at_round(self._round)
            uplink_bytes = largest(request.expects)  # twice that with 64 bits in place of 32
            publish_uplink_limit(self.kit_run, 2 * uplink_bytes if self._sums else uplink_bytes)
        self._spool = UplinkSpool.allocate(request, self.scratch)
        packed = PackedRows(down, self._encoding)
        members = self.registry.entries
        introduced = introductions(members, len(self.terms.federation.silo))
        tasks = {
            client: OutgoingTask(
                members[client].name,
                self._task(request, k, packed, *introduced),
                packed.rows,
                self._held_rows.get(client, frozenset()),
            )
            for k, client in enumerate(request.ids)
        }
        arrivals: dict[int, Arrival] = {}

        def on_answer(client: int, message: Message) -> None:
            if arrival := self._receive(client, tasks[client], message, request):
                tasks[client].answered, arrivals[client] = True, arrival

        stage = f"round {self._round}" if request.trains else "last evaluation"
        self.exchange.send_all(stage, tasks, on_answer)
        arrivals = self._with_mean(arrivals, tasks, request, down)
        declined = self.declined()
        for client, task in tasks.items():
            if client not in arrivals:
                unused = self.unused.setdefault(task.silo, task.unused(self._round))
                if task.silo in declined:
                    unused = unused.model_copy(update={"reason": Reason.DECLINED, "detail": ""})
                self.unused[task.silo] = unused
                self.audit.write(UNUSED, **unused.fields)
        return [arrivals[i] for i in request.ids if i in arrivals]

    def _with_mean(
        self,
        arrivals: dict[int, Arrival],
        tasks: Mapping[int, OutgoingTask],
        request: ClientRequest,
        downlink: Downlink,
    ) -> dict[int, Arrival]:
        """The arrivals of a round, with the mean as every uplink where silos mask theirs."""
        if not self._sums or not request.trains:
            return arrivals
        summed = self._sums.aggregate(arrivals, tasks, request, downlink)
        self.unused |= self._sums.unused
        return {i: replace(a, reply=self._spool.store(a.reply)) for i, a in summed.items()}

    def commit(self, ids: Sequence[int]) -> None:
        """Count the round for these silos; they learn of it with their next task."""
        for client in ids:
            self._settled[client] = self._round
            self._origins[client] = self._fresh.get(client, {})
            self._initial_models.pop(client, None)
            self._join_sizes.pop(client, None)

    def save(self, ids: Sequence[int]) -> tuple[dict[str, Tensor], Any]:
        """State for the checkpoint: each silo's committed round, origins of rows, and what silos
        without one start from.
        """
        origins = {
            str(client): {digest: origin.model_dump() for digest, origin in of_rows.items()}
            for client, of_rows in self._origins.items()
        }
        tensors = {f"start.{client}": row for client, row in self._initial_models.items()}
        return tensors, {
            "settled": {str(i): self._settled.get(i, 0) for i in ids},
            "origins": origins,
            "joined": [
                [sizes, [i for i, join_sizes in self._join_sizes.items() if join_sizes == sizes]]
                for sizes in dict.fromkeys(self._join_sizes.values())
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
        self._origins = {
            int(client): {digest: RowOrigin(**origin) for digest, origin in of_rows.items()}
            for client, of_rows in note["origins"].items()
        }
        self._initial_models = {int(path.partition(".")[2]): row for path, row in tensors.items()}
        self._join_sizes = {i: tuple(sizes) for sizes, clients in note["joined"] for i in clients}

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
        client = request.ids[k]
        join_sizes, settled = self._join_sizes.get(client, ()), self._settled.get(client, 0)
        readmitted = 0 < settled < (self.registry.entries[client].readmitted_in or 0)
        downlink = {
            key: downlink_entry(
                packed, key, k, client, self._origins if key in self.server.relays else {}
            )
            for key in packed.downlink
        }
        return Task(
            agreement=self.terms.agreement,
            run=self.run,
            number=request.round.number,
            place=client,
            trains=request.trains,
            watched=tuple(sorted(request.watched)),
            sizes=request.roster.sizes,
            settled=settled,
            joined=() if join_sizes == request.roster.sizes else join_sizes,
            start=self._last_model(client, k, packed)
            if readmitted
            else self._starting_row(client, k, packed),
            readmitted=readmitted,
            downlink=downlink,
            newcomers=newcomers,
            renewals=renewals,
        )

    def _starting_row(self, client: int, k: int, packed: PackedRows) -> str | None:
        """The hash of a newcomer's starting model; in sums the one that all receive now."""
        starting_model = self._initial_models.get(client)
        if starting_model is None or not self._sums:
            return None if starting_model is None else packed.add(starting_model)
        return packed.digest("model", int(packed.downlink["model"].index[k]))

    def _last_model(self, client: int, k: int, packed: PackedRows) -> str | None:
        """The hash of the model from which a silo that was taken again begins if it has no state:
        its own last one, if others get it, else the one that it receives now.
        """
        for key, entry in packed.downlink.items():
            is_model = entry.bank.shape[1] == self.width
            if is_model and key in self.server.relays:
                return packed.digest(key, client)
            if is_model and key == "model" and entry.index.dim() == 1:
                return packed.digest(key, int(entry.index[k]))
        return None

    def _receive(
        self, client: int, task: OutgoingTask, message: Message, request: ClientRequest
    ) -> Arrival | None:
        """Process one answer; None if the silo counts as absent, or is asked again."""
        try:
            with untrusted(Reason.UNREADABLE):
                return self._read_answer(client, task, message, request)
        except UnusableError as fault:
            task.fail(fault.reason, str(fault))
            if not request.trains:
                return None
            self.unused[task.silo] = task.unused(self._round)
            unread = ProtocolError(f"{task.silo}: {fault}")
            return Arrival(
                Reply(client), self.run, self._round, request.roster.sizes[client], unread=unread
            )

    def _read_answer(
        self, client: int, task: OutgoingTask, message: Message, request: ClientRequest
    ) -> Arrival | None:
        """A verified answer. Raises ProtocolError, or any other exception, for an unusable one."""
        answer = self._reader.verified(client, task, message)
        if isinstance(answer, Refusal):
            refusal = message.refused(answer)
            task.fail(refusal.reason, str(refusal))
            return None
        self._held_rows[client] = frozenset(answer.held)
        task.bytes_up += message.size
        if answer.missing:
            task.fail(Reason.ROWS_MISSING, retry=True)
            return None
        fields = {"uplink": answer.uplink, "bytes": message.size}
        self.audit.write("received", silo=answer.silo, round=answer.number, **fields)
        task.finished = True
        if answer.continued is not None:
            self._record_readmission(task, answer.continued)
        if answer.fault and not request.trains:
            task.fail(Reason.DIVERGED, answer.fault)
            return None
        uplink = bytes(message.enclosed.get("uplink", b""))
        arrival, self._fresh[client] = self._reader.arrival(client, task, answer, uplink, request)
        return replace(arrival, reply=self._spool.store(arrival.reply))

    def _record_readmission(self, task: OutgoingTask, continued: int) -> None:
        """Record what a silo that was taken again has continued from."""
        settled = task.body.settled
        rounds = {"round": self._round, "settled": settled, "continued": continued}
        self.audit.write("readmitted", silo=task.silo, **rounds)
        origin = "starts as a newcomer does"
        if continued:
            origin = f"continues from its state of round {continued}, as a backup had it"
        self.readmitted.append(
            f"{task.silo}, readmitted in round {self._round}, {origin}: the private state that it "
            f"has formed since, up to round {settled}, is lost"
        )

    @property
    def _encoding(self) -> Encoding:
        return Encoding(self.terms.run_study.wire, self.terms.federation.places)
