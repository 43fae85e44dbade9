"""The round loop: plan, exchange, aggregate, commit, evaluate, record.

The transport only carries messages.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

from pomona.config import Config
from pomona.core.errors import BudgetError, DivergedError, QuorumError, listed
from pomona.core.notes import Note
from pomona.core.round import Roster
from pomona.core.state import flatten, merged, only, rebuild
from pomona.federation.admission import (
    VALUES_REMEDY,
    Admission,
    Expected,
    History,
    Rejection,
    admit,
)
from pomona.federation.batchnorm_statistics import with_statistics
from pomona.federation.callbacks import Callback, ModelObserver, Models, StoppingCallback
from pomona.federation.checkpointing import Checkpointing
from pomona.federation.early_stopping import Scoreboard, ValidationCurve
from pomona.federation.exchange import Arrival, ClientRequest, Reply, stack, with_name
from pomona.federation.norm_bounds import largest
from pomona.federation.round_plan import RoundPlan, is_evaluated, plan_of, round_of
from pomona.federation.secure_sum import summed
from pomona.federation.transport import SIMULATION, Transport
from pomona.methods.base import Downlink, Initial, Server, Uplink
from pomona.metrics.best_round import reason
from pomona.metrics.metric import ACCURACY, Metric
from pomona.objective.training import STATISTICS
from pomona.record.rows import Evaluation, RoundRow
from pomona.record.run_folder import RunRecord
from pomona.storage.safetensors_stream import quoted

MAX_NAMED = 3
"""Refused clients that an error names."""


class MembershipSchedule(Protocol):
    """Schedule of members."""

    def roster(self, number: int, guest: int | None = None) -> Roster:
        """Return the roster of round ``number``, with the guest added if given.

        Past rosters do not change.
        """

    def members_until(self, number: int) -> tuple[int, ...]:
        """Return the clients that have been members in any round up to ``number``, ascending."""

    def has_leavers(self, number: int) -> bool:
        """Return whether round ``number`` is a client's last."""


@dataclass(frozen=True)
class _AcceptedReplies:
    """The accepted clients of a round with their replies, without uplinks, and why others were
    refused, or their weight limited.
    """

    ids: tuple[int, ...]
    replies: list[Reply]
    bytes_down: tuple[int, ...]
    bytes_up: tuple[int, ...]
    refused: tuple[str, ...]
    limited: tuple[str, ...] = ()

    def row(self, number: int, seconds: float) -> RoundRow:
        """Return the round's row of the record."""
        info = {
            k: v.double().cpu().numpy() for k, v in stack(self.replies, lambda r: r.info).items()
        }
        losses = tuple(r.loss for r in self.replies)
        return RoundRow(
            number,
            seconds,
            self.ids,
            losses,
            self.bytes_down,
            self.bytes_up,
            info,
            self.refused,
            self.limited,
        )


@dataclass
class Loop:
    """One run of a method over a transport.

    ``quorum``: uplinks that a round needs; one with fewer is repeated once, then the run stops.
    ``metric``: of the clients' scores. ``on_admission``: called after each exchange with the
    admitted and refused clients. ``client_name``: a client's name in notes. ``models``: returns
    those that clients keep, for a callback. ``last``: the last round; early stopping and callbacks
    reduce it.
    """

    config: Config
    server: Server
    schedule: MembershipSchedule
    initial: Initial
    transport: Transport
    record: RunRecord
    callback: Callback
    checkpoints: Checkpointing
    quorum: int = 1
    metric: Metric = ACCURACY
    on_admission: Callable[[int, Admission], None] = lambda *_: None
    client_name: Callable[[int], str] = "client {}".format
    models: Callable[[], Models] = dict
    last: int = field(init=False)
    curve: ValidationCurve = field(init=False)
    _scores: Scoreboard = field(init=False)
    _history: History = field(default_factory=History)
    _limited: frozenset[int] = frozenset()
    _overruled: frozenset[int] = frozenset()
    _clipped: bool = False

    def __post_init__(self) -> None:
        self.server = with_statistics(self.server, self.initial)
        self._scores = Scoreboard(self.metric)
        self.curve = ValidationCurve(
            self.config.method.method().card.headline,
            self.metric,
            self.config.stop,
            self.config.stop is not None or self.config.keep == "best",
        )
        self.last = self.config.rounds
        if terms := self.config.secure_aggregation:
            self.quorum = max(self.quorum, terms.minimum)

    def run(self) -> Any:
        """Run all rounds that are not committed yet, and the closing evaluation.

        Returns the server's last state.
        """
        self.callback.on_run_begin()
        state, number = self._start_or_resume()
        while not self._is_final_round(number):
            number += 1
            state = self._round(self._join(state, number), number)
        if self.last < self.config.rounds:
            best = self.curve.best if self.curve.should_stop else None
            by_callback = f"ended after round {self.last} by the callback"
            self._add_note(reason(best, self.last) if best else by_callback, self.last)
        if remark := self.server.closing(
            state, self._roster(self.last), round_of(self.config, self.last)
        ):
            self._add_note(remark, self.last)
        self._evaluate_only(state, self.last + 1, self._roster(self.last).members, keep_models=True)
        self._evaluate(self.last, "received")
        for client in self.config.membership.unseen:
            try:
                self._adapt(state, client)
            except (BudgetError, DivergedError) as fault:
                self._add_note(
                    f"{self._with_name(str(fault), client)}; {self.client_name(client)}, which "
                    "never trained, is left without a model",
                    self.last,
                )
        return state

    def _add_note(self, text: str, number: int) -> None:
        """Record a note of a round, and pass it on."""
        note = Note(text, "training", number)
        self.record.note(note)
        self.callback.on_note(note.text)

    def _with_name(self, fault: str, client: int) -> str:
        """Return a client's own fault, by the client's name."""
        return with_name(fault, client, self.client_name(client))

    def _start_or_resume(self) -> tuple[Any, int]:
        """Return the server's state and the number of the round to resume after, 0 at the start."""
        roster, checkpoint = self._roster(1), self.checkpoints.resume_from
        state = self.server.start(self.initial, roster, self.config.seed)
        if not checkpoint:
            self.transport.add_clients(roster.members, roster, None)
            return state, 0
        clients = only(checkpoint.tensors, lambda path: path.partition(".")[0] != "server")
        self.transport.restore(
            self.schedule.members_until(checkpoint.number),
            clients,
            checkpoint.meta["clients"],
            roster,
        )
        self._history = History.from_json(checkpoint.meta["history"])
        self._scores.restore(checkpoint.meta["known"])
        self.curve.restore(self.record.events)
        if (
            checkpoint.meta.get("ended") == self.config.rounds
        ):  # else more have been asked for since
            self.last = checkpoint.number
        return rebuild(state, checkpoint.tensors, "server"), checkpoint.number

    def _commit(self, state: Any, number: int) -> None:
        """Make the round durable, with all that the next one needs."""
        if self.checkpoints.needs_checkpoint(number, self.last):
            clients, note = self.transport.save(self.schedule.members_until(number))
            meta = {
                "known": self._scores.as_json(),
                "history": self._history.as_json(),
                "clients": note,
            }
            if self.last < self.config.rounds and not self.curve.should_stop:
                meta["ended"] = self.config.rounds
            self.checkpoints.commit(
                number,
                merged(flatten(state, "server"), clients),
                {**meta, "events": asdict(self.record.sync())},
            )

    def _roster(self, number: int) -> Roster:
        """Return the roster of round ``number``; after the last round, that of the last."""
        return self.schedule.roster(min(number, self.last))

    def _is_final_round(self, number: int) -> bool:
        """Return whether a round is the last, because all are done or because of early stopping."""
        if self.curve.should_stop:
            self.last = min(number, self.last)
        return number >= self.last

    def _callback_stops(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> bool:
        """Return whether the callback ends the run here."""
        return isinstance(self.callback, StoppingCallback) and self.callback.should_stop(
            row, evaluations, self.models()
        )

    def _join(self, state: Any, number: int) -> Any:
        """Add the clients that join in this round."""
        previous, current = self._roster(number - 1), self._roster(number)
        new = tuple(i for i in current.members if not previous.sizes[i])
        if number == 1 or not new:
            return state
        state, row = self.server.add_clients(state, new, previous)
        self.transport.add_clients(new, current, row)
        return state

    def _round(self, state: Any, number: int) -> Any:
        """Play one round; returns the server's next state."""
        start = perf_counter()
        plan = self._plan(number)
        if "received" in plan.watched:
            self._evaluate_only(state, number, plan.idle, keep_models=self.config.keep != "last")
        state, answers = self._train(state, plan)
        self._store_scores(number, plan.cohort, answers.replies)
        evaluations = self._evaluate(number - 1, "received") if "received" in plan.watched else []
        row = answers.row(number, perf_counter() - start)
        self.record.round(row)
        evaluated = is_evaluated(self.config, number) or self._is_final_round(number)
        if evaluated:
            evaluations += self._evaluate(number, "trained")
        # these evaluations may end the run here, and a last round is always committed
        if not self._is_final_round(number) and self._callback_stops(row, evaluations):
            self.last = number
            evaluations += [] if evaluated else self._evaluate(number, "trained")
        self.callback.on_before_commit(number)
        self._commit(state, number)
        self.callback.on_round_end(row, evaluations)
        return state

    def _plan(self, number: int) -> RoundPlan:
        """Draw the round's cohort, and decide what is evaluated and kept."""
        has_leavers = self.schedule.has_leavers(number)
        return plan_of(
            self.config,
            number,
            self._roster(number),
            self._history.quarantined(),
            has_leavers,
            isinstance(self.callback, StoppingCallback),
        )

    def _train(self, state: Any, plan: RoundPlan) -> tuple[Any, _AcceptedReplies]:
        """Exchange and aggregate; returns the server's next state, and what the accepted clients
        answered.
        """
        if len(plan.cohort) < self.quorum:
            quarantined = [self.client_name(i) for i in sorted(self._history.quarantined())]
            remedy = (
                f"{listed(quarantined, 10)}, refused too often in a row, are quarantined: correct "
                "the causes that earlier rounds record, and start a new run, since a resumed one "
                "keeps the quarantine"
                if quarantined
                else "raise participation, or lower absence"
            )
            raise QuorumError(
                f"round {plan.number} asks {len(plan.cohort)} of {len(plan.roster.members)} "
                f"clients, but {self.quorum} are needed; {remedy}"
            )
        best = self.curve.best_round
        visit = ClientRequest(
            plan.round, plan.roster, plan.cohort, True, plan.watched, plan.keep_models, best
        )
        uplink, answers = self._collect(
            visit, self.server.downlink(state, plan.cohort, plan.roster, plan.round), state
        )
        context = answers.ids, plan.roster, plan.round
        limited = self._name_limited(
            self.server.capped_clients(state, uplink, *context), plan.number
        )
        return self.server.aggregate(state, uplink, *context), replace(answers, limited=limited)

    def _collect(
        self, visit: ClientRequest, downlink: Downlink, state: Any
    ) -> tuple[Uplink, _AcceptedReplies]:
        """Return the accepted uplinks as one tensor per name, and the answers without them.

        The downlink and the single uplinks are local here, so that they are freed before
        aggregation.
        """
        arrivals, refused = self._exchange(visit, downlink, state)
        ids = tuple(a.reply.client for a in arrivals)
        # before the uplinks become one tensor, to free the states that they replace
        self.transport.commit(ids)
        uplink = stack([a.reply for a in arrivals], lambda r: r.uplink)
        replies = [replace(a.reply, uplink={}) for a in arrivals]
        sizes = tuple(a.bytes_down for a in arrivals), tuple(a.bytes_up for a in arrivals)
        return uplink, _AcceptedReplies(ids, replies, *sizes, refused)

    def _name_limited(self, reasons: Mapping[int, str], number: int) -> tuple[str, ...]:
        """Return a line for each client whose weight is limited; report them whenever that
        changes.
        """
        lines = {i: f"{self.client_name(i)}, round {number}: {reasons[i]}" for i in sorted(reasons)}
        for client in sorted(reasons.keys() - self._limited):
            self._add_note(lines[client], number)
        self._limited = frozenset(reasons)
        return tuple(lines.values())

    def _exchange(
        self, visit: ClientRequest, downlink: Downlink, state: Any
    ) -> tuple[tuple[Arrival, ...], tuple[str, ...]]:
        """Return the replies that are used, and the reasons for refusing the others; those clients
        count as absent.

        With a quorum, too few uplinks are asked for again: a silo may have been away for a moment.
        """
        spec, number = self.server.uplink_form(state), visit.round.number
        visit = replace(visit, expects={name: t.to("meta") for name, t in spec.items()})
        expected = Expected(
            self.transport.run,
            number,
            {i: visit.roster.sizes[i] for i in visit.ids},
            spec,
            len(visit.roster),
            self.server.invalid,
            self.config.method.method().card.exchange.non_model_entries() | {STATISTICS},
            downlink,
            self.initial,
        )
        verdict = self._exchange_once(visit, downlink, expected)
        if len(verdict.accepted) < self.quorum and self.quorum > 1:
            self._add_note(f"{self._shortage(verdict, number)}; asking again", number)
            verdict = self._exchange_once(visit, downlink, expected)
        refused = tuple(self._line(r, number) for r in verdict.rejected)
        if len(verdict.accepted) < self.quorum:
            messages = [*refused[:MAX_NAMED], verdict.rejected[0].remedy] if refused else []
            reason = "; ".join(filter(None, messages)) or "see who is absent, then resume"
            raise QuorumError(f"{self._shortage(verdict, number)}: {reason}")
        for client in sorted(verdict.history.quarantined() - self._history.quarantined()):
            self._add_note(
                f"{self.client_name(client)}, round {number}: refused too often in a row; "
                "quarantined",
                number,
            )
        self._history = verdict.history
        return verdict.accepted, refused

    def _exchange_once(
        self, visit: ClientRequest, downlink: Downlink, expected: Expected
    ) -> Admission:
        """Ask the clients once, and check what arrives.

        Raises DivergedError if all that answer report a fault, and they are a quorum.
        """
        arrivals, number = self.transport.visit(visit, downlink), visit.round.number
        terms = self.config.secure_aggregation
        if terms and self.transport.run == SIMULATION:  # silos mask and sum by themselves
            arrivals, clipped_norms = summed(arrivals, visit, downlink, self.config)
            if clipped_norms and not self._clipped:
                self._add_note(
                    f"round {number}: {len(clipped_norms)} of {len(arrivals)} clients' changes are "
                    "longer than secure_aggregation.max_norm, up to "
                    f"{max(clipped_norms):.3g}, and clipped",
                    number,
                )
                self._clipped = True
        self._notify_observer(visit, downlink, arrivals)
        verdict = admit(arrivals, expected, self._history)
        self.on_admission(number, verdict)
        for rejection in verdict.rejected:
            self._add_note(self._line(rejection, number), number)
        if len(arrivals) >= self.quorum and all(a.reply.fault for a in arrivals):
            raise DivergedError(
                f"all clients of round {number} diverged: "
                f"{self._line(verdict.rejected[0], number)}{self._largest()}"
            )
        return verdict

    def _largest(self) -> str:
        """Name the client whose last used uplink was the largest; empty if there is no other to
        compare it with, as in a sum.
        """
        auxiliary = self.config.method.method().card.exchange.non_model_entries() | {STATISTICS}
        top = None if self.config.secure_aggregation else largest(self._history.latest, auxiliary)
        if top is None:
            return ""
        lead = "look first at" if top.outlier else "none of the uplinks used before stands out:"
        return (
            f"; {lead} {self.client_name(top.client)}, whose last one used was the largest: tensor "
            f"{quoted(top.tensor)} has norm {top.norm:.3g}, {top.factor:.3g} times the second "
            f"largest, of {self.client_name(top.second)}"
        )

    def _notify_observer(
        self, visit: ClientRequest, downlink: Downlink, arrivals: Sequence[Arrival]
    ) -> None:
        """Let a callback see an exchange, as the server does."""
        if isinstance(self.callback, ModelObserver):
            self.callback.on_exchange(visit, downlink, arrivals)

    def _line(self, rejection: Rejection, number: int) -> str:
        """A rejection, by its client's name; a client's own fault has its round already."""
        if rejection.line == rejection.reason:
            return self._with_name(rejection.line, rejection.client)
        return f"{self.client_name(rejection.client)}, round {number}: {rejection.reason}"

    def _shortage(self, verdict: Admission, number: int) -> str:
        """Describe that a round has too few uplinks."""
        accepted = len(verdict.accepted)
        uplinks = f"{accepted or 'no'} uplink{'s' * (accepted > 1)} of round {number} can be used"
        return f"{uplinks}, but {self.quorum} are needed" if self.quorum > 1 else uplinks

    def _evaluate_only(
        self, state: Any, number: int, ids: tuple[int, ...], keep_models: bool
    ) -> None:
        """Let clients receive and evaluate without training."""
        if ids:
            round_, roster = round_of(self.config, number), self._roster(number)
            best = self.curve.best_round
            visit = ClientRequest(
                round_,
                roster,
                ids,
                trains=False,
                watched=frozenset({"received"}),
                keep_models=keep_models,
                best=best,
            )
            downlink = self.server.downlink(state, ids, roster, round_)
            arrivals = self.transport.visit(visit, downlink)
            self._notify_observer(visit, downlink, arrivals)
            for arrival in arrivals:
                if arrival.reply.fault:
                    client = arrival.reply.client
                    self._add_note(
                        self._with_name(arrival.reply.fault, client), min(number, self.last)
                    )
            self._store_scores(number, ids, [a.reply for a in arrivals if not a.reply.fault])

    def _adapt(self, state: Any, client: int) -> None:
        """Personalize for a client that did not train, on a private copy of the server state."""
        rounds, last = self.config.adapt_rounds, self.last
        state, row = self.server.add_clients(state, (client,), self._roster(last))
        roster = self.schedule.roster(last, guest=client)
        self.transport.add_clients((client,), roster, row)
        for number in range(last + 1, last + rounds + 1):
            round_, final = round_of(self.config, number), number == last + rounds
            watched = frozenset({"received", "trained"} if final else ())
            visit = ClientRequest(
                round_, roster, (client,), True, watched, keep_models=final, adapts=True
            )
            (arrival,) = self.transport.visit(
                visit, self.server.downlink(state, (client,), roster, round_)
            )
            reply = arrival.reply
            if reply.fault:
                raise DivergedError(reply.fault)
            self.transport.commit((client,))
            if self.server.separable:
                uplink = stack([reply], lambda r: r.uplink)
                state = self.server.aggregate(state, uplink, (client,), roster, round_)
        for evaluation in self._scores.unseen(last, reply):
            self.record.evaluation(evaluation, "unseen")

    def _store_scores(self, number: int, cohort: tuple[int, ...], replies: Sequence[Reply]) -> None:
        """Keep the scores of a round's replies, and report those that have become undefined."""
        for (model, stage, split), ids in self._scores.note(cohort, replies).items():
            self._add_note(
                f"{listed([self.client_name(i) for i in ids], 10)}, round {number}: the {model} "
                f"model's loss on {split}, {stage}, is not finite; {VALUES_REMEDY}",
                min(number, self.last),
            )

    def _evaluate(self, number: int, stage: str) -> list[Evaluation]:
        """Record the known evaluations of each named model."""
        evaluations = self._scores.evaluations(number, stage, self._roster(max(number, 1)).members)
        for evaluation in evaluations:
            self.record.evaluation(evaluation)
            if self.curve.note(evaluation):
                self._name_overruled(number)
        return evaluations

    def _name_overruled(self, number: int) -> None:
        """Report the clients whose scores would decide against the others', whenever that
        changes.
        """
        reasons = self.curve.overruled
        for client in sorted(reasons.keys() - self._overruled):
            self._add_note(f"{self.client_name(client)}, round {number}: {reasons[client]}", number)
        self._overruled = frozenset(reasons)
