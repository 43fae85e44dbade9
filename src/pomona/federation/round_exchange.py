"""The exchange of a round: ask the clients, admit what arrives, ask again if too little can be
used; and the notes of the rounds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from pomona.config import Config
from pomona.core.errors import DivergedError, QuorumError
from pomona.core.notes import Note
from pomona.core.round import Ids
from pomona.federation.admission import Admission, Expected, History, Rejection, admit
from pomona.federation.callbacks import Callback, ModelObserver
from pomona.federation.exchange import Arrival, ClientRequest, Reply, stack, with_name
from pomona.federation.norm_bounds import largest
from pomona.federation.secure_sum import summed
from pomona.federation.transport import SIMULATION, Transport
from pomona.methods.base import Downlink, Initial, Server, Uplink
from pomona.objective.training import STATISTICS
from pomona.record.rows import RoundRow
from pomona.record.run_folder import RunRecord
from pomona.storage.safetensors_stream import quoted

MAX_NAMED = 3
"""Refused clients that an error names."""


@dataclass(frozen=True)
class RoundNotes:
    """Writes the notes of a run's rounds.

    ``client_name``: a client's name in notes.
    """

    record: RunRecord
    callback: Callback
    client_name: Callable[[int], str]
    _affected: dict[str, frozenset[int]] = field(default_factory=dict)

    def add(self, text: str, number: int) -> None:
        """Record a note of a round, and pass it on."""
        note = Note(text, "training", number)
        self.record.note(note)
        self.callback.on_note(note.text)

    def add_new(self, topic: str, reasons: Mapping[int, str], number: int) -> tuple[str, ...]:
        """Return a line for each client with a reason; those that had none in the last call of this
        topic get a note.
        """
        lines = {i: f"{self.client_name(i)}, round {number}: {reasons[i]}" for i in sorted(reasons)}
        for client in sorted(reasons.keys() - self._affected.get(topic, frozenset())):
            self.add(lines[client], number)
        self._affected[topic] = frozenset(reasons)
        return tuple(lines.values())

    def fault(self, text: str, client: int) -> str:
        """Return a fault that a client reports of itself, by the client's name."""
        return with_name(text, client, self.client_name(client))

    def rejection(self, rejection: Rejection, number: int) -> str:
        """Return why a client's reply is not used; a fault of its own has its round already."""
        if rejection.line == rejection.reason:
            return self.fault(rejection.line, rejection.client)
        return f"{self.client_name(rejection.client)}, round {number}: {rejection.reason}"


class AcceptedReplies(NamedTuple):
    """The accepted clients of a round with their replies, without uplinks, and why others were
    refused.
    """

    ids: Ids
    replies: list[Reply]
    bytes_down: tuple[int, ...]
    bytes_up: tuple[int, ...]
    refused: tuple[str, ...]

    def row(self, number: int, seconds: float, limited: tuple[str, ...]) -> RoundRow:
        """Return the round's row of the record; ``limited``: whose weight is, with the reason."""
        info = {
            k: v.double().cpu().numpy() for k, v in stack(self.replies, lambda r: r.info).items()
        }
        losses = tuple(r.loss for r in self.replies)
        sizes = self.bytes_down, self.bytes_up
        return RoundRow(number, seconds, self.ids, losses, *sizes, info, self.refused, limited)


@dataclass
class RoundExchange:
    """Exchanges messages with the clients.

    ``quorum``: uplinks that a round needs; one with fewer is repeated once, then the run stops.
    ``on_admission``: called after each exchange with the admitted and refused clients.
    ``history``: of what has been admitted and refused so far.
    """

    config: Config
    server: Server
    initial: Initial
    transport: Transport
    notes: RoundNotes
    quorum: int
    on_admission: Callable[[int, Admission], None]
    history: History = field(default_factory=History)
    _clipped: bool = False

    def collect(
        self, visit: ClientRequest, downlink: Downlink, uplink_form: dict[str, Tensor]
    ) -> tuple[Uplink, AcceptedReplies]:
        """Return the accepted uplinks as one tensor per name, and the answers without them.

        The downlink and the single uplinks are local here, so that they are freed before
        aggregation.

        Raises QuorumError if too few uplinks can be used, DivergedError if all clients diverged.
        """
        arrivals, refused = self._admitted(visit, downlink, uplink_form)
        ids = tuple(a.reply.client for a in arrivals)
        # before the uplinks become one tensor, to free the states that they replace
        self.transport.commit(ids)
        uplink = stack([a.reply for a in arrivals], lambda r: r.uplink)
        replies = [replace(a.reply, uplink={}) for a in arrivals]
        sizes = tuple(a.bytes_down for a in arrivals), tuple(a.bytes_up for a in arrivals)
        return uplink, AcceptedReplies(ids, replies, *sizes, refused)

    def visit(self, visit: ClientRequest, downlink: Downlink) -> Sequence[Arrival]:
        """Return what arrives, unchecked; a callback sees it as the server does."""
        arrivals = self.transport.visit(visit, downlink)
        self._notify_observer(visit, downlink, arrivals)
        return arrivals

    def _admitted(
        self, visit: ClientRequest, downlink: Downlink, uplink_form: dict[str, Tensor]
    ) -> tuple[tuple[Arrival, ...], tuple[str, ...]]:
        """Return the replies that are used, and the reasons for refusing the others; those clients
        count as absent.

        With a quorum, too few uplinks are asked for again: a silo may have been away for a moment.
        """
        number = visit.round.number
        visit = replace(visit, expects={name: t.to("meta") for name, t in uplink_form.items()})
        expected = Expected(
            self.transport.run,
            number,
            {i: visit.roster.sizes[i] for i in visit.ids},
            uplink_form,
            len(visit.roster),
            self.server.invalid,
            self._auxiliary,
            downlink,
            self.initial,
        )
        verdict = self._attempt(visit, downlink, expected)
        if len(verdict.accepted) < self.quorum and self.quorum > 1:
            self.notes.add(f"{self._shortage(verdict, number)}; asking again", number)
            verdict = self._attempt(visit, downlink, expected)
        refused = tuple(self.notes.rejection(r, number) for r in verdict.rejected)
        if len(verdict.accepted) < self.quorum:
            messages = [*refused[:MAX_NAMED], verdict.rejected[0].remedy] if refused else []
            reason = "; ".join(filter(None, messages)) or "see who is absent, then resume"
            raise QuorumError(f"{self._shortage(verdict, number)}: {reason}")
        for client in sorted(verdict.history.quarantined() - self.history.quarantined()):
            self.notes.add(
                f"{self.notes.client_name(client)}, round {number}: refused too often in a row; "
                "quarantined",
                number,
            )
        self.history = verdict.history
        return verdict.accepted, refused

    def _attempt(self, visit: ClientRequest, downlink: Downlink, expected: Expected) -> Admission:
        """Ask the clients once, and check what arrives.

        Raises DivergedError if all that answer report a fault, and they are a quorum.
        """
        arrivals, number = self.transport.visit(visit, downlink), visit.round.number
        terms = self.config.secure_aggregation
        if terms and self.transport.run == SIMULATION:  # silos mask and sum by themselves
            arrivals, clipped_norms = summed(arrivals, visit, downlink, self.config)
            if clipped_norms and not self._clipped:
                self.notes.add(
                    f"round {number}: {len(clipped_norms)} of {len(arrivals)} clients' changes are "
                    "longer than secure_aggregation.max_norm, up to "
                    f"{max(clipped_norms):.3g}, and clipped",
                    number,
                )
                self._clipped = True
        self._notify_observer(visit, downlink, arrivals)
        verdict = admit(arrivals, expected, self.history)
        self.on_admission(number, verdict)
        lines = [self.notes.rejection(r, number) for r in verdict.rejected]
        for line in lines:
            self.notes.add(line, number)
        if len(arrivals) >= self.quorum and all(a.reply.fault for a in arrivals):
            raise DivergedError(
                f"all clients of round {number} diverged: {lines[0]}{self._largest()}"
            )
        return verdict

    @property
    def _auxiliary(self) -> frozenset[str]:
        """Entries of an uplink that are no model's."""
        return self.config.method.method().card.exchange.non_model_entries() | {STATISTICS}

    def _largest(self) -> str:
        """Name the client whose last used uplink was the largest; empty if there is no other to
        compare it with, as in a sum.
        """
        sums = self.config.secure_aggregation
        top = None if sums else largest(self.history.latest, self._auxiliary)
        if top is None:
            return ""
        name = self.notes.client_name
        lead = "look first at" if top.outlier else "none of the uplinks used before stands out:"
        return (
            f"; {lead} {name(top.client)}, whose last one used was the largest: tensor "
            f"{quoted(top.tensor)} has norm {top.norm:.3g}, {top.factor:.3g} times the second "
            f"largest, of {name(top.second)}"
        )

    def _notify_observer(
        self, visit: ClientRequest, downlink: Downlink, arrivals: Sequence[Arrival]
    ) -> None:
        """Let a callback see an exchange, as the server does."""
        if isinstance(self.notes.callback, ModelObserver):
            self.notes.callback.on_exchange(visit, downlink, arrivals)

    def _shortage(self, verdict: Admission, number: int) -> str:
        """Describe that a round has too few uplinks."""
        accepted = len(verdict.accepted)
        uplinks = f"{accepted or 'no'} uplink{'s' * (accepted > 1)} of round {number} can be used"
        return f"{uplinks}, but {self.quorum} are needed" if self.quorum > 1 else uplinks
