"""The round loop, once: plan, exchange, aggregate, commit, evaluate, record. A transport only carries."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from pomona.config import Config
from pomona.federation.clients import Reply, Visit, stack
from pomona.federation.round import Roster, Round
from pomona.methods.base import Downlink, Initial, Server
from pomona.record import Evaluation, Record, RoundRow
from pomona.rng import stream


class Transport(Protocol):
    """How downlinks and uplinks travel."""

    def visit(self, visit: Visit, down: Downlink) -> list[Reply]:
        """Serve the clients of a visit; replies in the order of its ids."""

    def commit(self) -> None:
        """Tell the clients of the last visit to keep what it made."""


class Watcher(Protocol):
    """Whoever looks on while a run goes (a progress bar)."""

    def begin(self) -> None:
        """Called when everything is ready for round 1."""

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Called after each committed round."""


def round_of(config: Config, number: int) -> Round:
    """The settings of round ``number`` (1 to rounds; rounds + 1 is the closing visit)."""
    decay = config.lr_decay ** (number - 1)
    return Round(
        number=number,
        total=config.rounds,
        lr=config.lr * decay,
        decay=decay,
        epochs=config.local_epochs,
        batch_size=config.batch_size,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        seed=config.seed,
    )


def select(config: Config, number: int) -> tuple[int, ...]:
    """The cohort of a round: a uniform draw without replacement, ids ascending."""
    size = max(1, round(config.participation * config.clients))
    if size >= config.clients:
        return tuple(range(config.clients))
    draw = stream(config.seed, "selection", number).choice(config.clients, size, replace=False)
    return tuple(sorted(int(i) for i in draw))


def due(config: Config, number: int) -> bool:
    """Whether round ``number`` is evaluated; 0 is the initial model."""
    return number % config.eval_every == 0 or number == config.rounds


@dataclass
class Loop:
    """One run of a method over a transport."""

    config: Config
    server: Server
    roster: Roster
    initial: Initial
    transport: Transport
    record: Record
    watcher: Watcher
    _known: dict[tuple[str, str, str], dict[int, tuple[int, float | None, float | None]]] = field(default_factory=dict)

    def run(self) -> Any:
        """All rounds and the closing evaluation. Returns the server's last state."""
        self.watcher.begin()
        state = self.server.start(self.initial, self.roster, self.config.seed)
        for number in range(1, self.config.rounds + 1):
            state = self._round(state, number)
        self._look(state, self.config.rounds + 1, tuple(range(self.config.clients)), keep=True)
        self._evaluate(self.config.rounds, "received")
        return state

    def _round(self, state: Any, number: int) -> Any:
        began = perf_counter()
        config, round_, ids = self.config, round_of(self.config, number), select(self.config, number)
        partial = len(ids) < config.clients
        moments = {"received": due(config, number - 1), "trained": due(config, number) or partial}
        watched = frozenset(moment for moment, wanted in moments.items() if wanted)
        # A client may not be drawn again before its trained model is asked for.
        keep = number == config.rounds or partial
        if "received" in watched:
            self._look(state, number, tuple(i for i in range(config.clients) if i not in ids), keep=False)
        down = self.server.down(state, ids, round_)
        replies = self.transport.visit(Visit(round_, ids, True, watched, keep), down)
        state = self.server.aggregate(state, stack(replies, lambda r: r.uplink), ids, self.roster, round_)
        self.transport.commit()
        self._note(replies)
        evaluations = self._evaluate(number - 1, "received") if "received" in watched else []
        row = RoundRow(
            number,
            perf_counter() - began,
            ids,
            tuple(r.loss for r in replies),
            received_bytes(down, ids),
            tuple(sum(t.nbytes for t in r.uplink.values()) for r in replies),
            {k: v.double().cpu().numpy() for k, v in stack(replies, lambda r: r.info).items()},
        )
        self.record.round(row)
        if due(config, number):
            evaluations += self._evaluate(number, "trained")
        self.watcher.round(row, evaluations)
        return state

    def _look(self, state: Any, number: int, ids: tuple[int, ...], keep: bool) -> None:
        """Let clients receive and evaluate without training."""
        if ids:
            round_ = round_of(self.config, number)
            visit = Visit(round_, ids, trains=False, watched=frozenset({"received"}), keep=keep)
            self._note(self.transport.visit(visit, self.server.down(state, ids, round_)))

    def _note(self, replies: list[Reply]) -> None:
        for reply in replies:
            for s in reply.scores:
                per_client = self._known.setdefault((s.model, s.when, s.split), {})
                per_client[reply.client] = (s.samples, s.loss, s.accuracy)

    def _evaluate(self, number: int, when: str) -> list[Evaluation]:
        """Record what is known of each named model.

        An absent client's trained model is the one it last had; a client that never took part has none yet.
        """
        made = []
        for (model, moment, split), per_client in self._known.items():
            if moment != when or not any(samples for samples, _, _ in per_client.values()):
                continue
            clients = tuple(sorted(per_client))
            samples, loss, accuracy = zip(*(per_client[c] for c in clients), strict=True)
            made.append(Evaluation(number, model, when, split, clients, samples, loss, accuracy))
            self.record.evaluation(made[-1])
        return made


def received_bytes(down: Downlink, ids: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes of models that each receiver of a downlink downloads: those of a bank that its index names."""
    totals = [0] * len(ids)
    for rows in down.values():
        for k, client in enumerate(ids):
            names = rows.index[k]
            totals[k] += rows.bank[0].nbytes * (int((names != client).sum()) if names.dim() else 1)
    return tuple(totals)
