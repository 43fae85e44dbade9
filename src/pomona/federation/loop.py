"""The round loop: plan, exchange, aggregate, commit, evaluate, record.

The transport only carries messages.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Protocol

from pomona.config import Config
from pomona.core.errors import BudgetError, DivergedError, QuorumError, listed
from pomona.core.round import Ids, Roster
from pomona.core.state import flatten, merged, only, rebuild
from pomona.federation.admission import VALUES_REMEDY, Admission, History
from pomona.federation.batchnorm_statistics import with_statistics
from pomona.federation.callbacks import Callback, Models, StoppingCallback
from pomona.federation.checkpointing import Checkpointing
from pomona.federation.early_stopping import Scoreboard, ValidationCurve
from pomona.federation.exchange import ClientRequest, Reply, stack
from pomona.federation.round_exchange import AcceptedReplies, RoundExchange, RoundNotes
from pomona.federation.round_plan import RoundPlan, is_evaluated, plan_of, round_of
from pomona.federation.transport import Transport
from pomona.methods.base import Downlink, Initial, Server
from pomona.metrics.best_round import reason
from pomona.metrics.metric import ACCURACY, Metric
from pomona.record.rows import Evaluation, RoundRow
from pomona.record.run_folder import RunRecord

NOTHING_SHARED = "{} shares no layer: each client trains alone; take a deeper network (model=mlp)"


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
    _notes: RoundNotes = field(init=False)
    _exchange: RoundExchange = field(init=False)

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
        self._notes = RoundNotes(self.record, self.callback, self.client_name)
        self._exchange = RoundExchange(
            self.config,
            self.server,
            self.initial,
            self.transport,
            self._notes,
            self.quorum,
            self.on_admission,
        )

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
            self._notes.add(reason(best, self.last) if best else by_callback, self.last)
        if remark := self.server.closing(
            state, self._roster(self.last), round_of(self.config, self.last)
        ):
            self._notes.add(remark, self.last)
        self._evaluate_only(state, self.last + 1, self._roster(self.last).members, keep_models=True)
        self._evaluate(self.last, "received")
        for client in self.config.membership.unseen:
            try:
                self._adapt(state, client)
            except (BudgetError, DivergedError) as fault:
                self._notes.add(
                    f"{self._notes.fault(str(fault), client)}; {self.client_name(client)}, which "
                    "never trained, is left without a model",
                    self.last,
                )
        return state

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
        self._exchange.history = History.from_json(checkpoint.meta["history"])
        self._scores.restore(checkpoint.meta["known"])
        self.curve.restore(self.record.events)
        # else more have been asked for since
        if checkpoint.meta.get("ended") == self.config.rounds:
            self.last = checkpoint.number
        return rebuild(state, checkpoint.tensors, "server"), checkpoint.number

    def _commit(self, state: Any, number: int) -> None:
        """Make the round durable, with all that the next one needs."""
        if self.checkpoints.needs_checkpoint(number, self.last):
            clients, note = self.transport.save(self.schedule.members_until(number))
            meta = {
                "known": self._scores.as_json(),
                "history": self._exchange.history.as_json(),
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
        state, answers, limited = self._train(state, plan)
        self._store_scores(number, plan.cohort, answers.replies)
        evaluations = self._evaluate(number - 1, "received") if "received" in plan.watched else []
        row = answers.row(number, perf_counter() - start, limited)
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
            self._exchange.history.quarantined(),
            has_leavers,
            isinstance(self.callback, StoppingCallback),
        )

    def _train(self, state: Any, plan: RoundPlan) -> tuple[Any, AcceptedReplies, tuple[str, ...]]:
        """Exchange and aggregate; returns the server's next state, what the accepted clients
        answered, and whose weight is limited.
        """
        if len(plan.cohort) < self.quorum:
            quarantined = [
                self.client_name(i) for i in sorted(self._exchange.history.quarantined())
            ]
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
        uplink, answers = self._exchange.collect(
            visit, self._downlink(state, plan), self.server.uplink_form(state)
        )
        context = answers.ids, plan.roster, plan.round
        limits = self.server.capped_clients(state, uplink, *context)
        limited = self._notes.add_new("limited weight", limits, plan.number)
        return self.server.aggregate(state, uplink, *context), answers, limited

    def _downlink(self, state: Any, plan: RoundPlan) -> Downlink:
        """Return what the server sends, with a note in round 1 if that is nothing."""
        downlink = self.server.downlink(state, plan.cohort, plan.roster, plan.round)
        if plan.number == 1 and downlink and not any(d.bank.numel() for d in downlink.values()):
            self._notes.add(NOTHING_SHARED.format(self.config.method.name), 1)
        return downlink

    def _evaluate_only(self, state: Any, number: int, ids: Ids, keep_models: bool) -> None:
        """Let clients receive and evaluate without training."""
        if ids:
            round_, roster = round_of(self.config, number), self._roster(number)
            best = self.curve.best_round
            visit = ClientRequest(
                round_, roster, ids, False, frozenset({"received"}), keep_models, best
            )
            downlink = self.server.downlink(state, ids, roster, round_)
            arrivals = self._exchange.visit(visit, downlink)
            for arrival in arrivals:
                if arrival.reply.fault:
                    client = arrival.reply.client
                    self._notes.add(
                        self._notes.fault(arrival.reply.fault, client), min(number, self.last)
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

    def _store_scores(self, number: int, cohort: Ids, replies: Sequence[Reply]) -> None:
        """Keep the scores of a round's replies, and report those that have become undefined."""
        for (model, stage, split), ids in self._scores.note(cohort, replies).items():
            self._notes.add(
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
                self._notes.add_new("overruled", self.curve.overruled, number)
        return evaluations
