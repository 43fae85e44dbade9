"""A client's side of a round: keeps states, trains copies of them, evaluates, and commits when told to.

The same object serves one silo, or a worker process that stands for many clients.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from math import isfinite
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pomona.core.errors import DivergedError
from pomona.core.lazy_tensors import Named, form
from pomona.core.rng import number
from pomona.core.round import Roster
from pomona.core.state import apply, flatten, rebuild, row
from pomona.federation.calls import Groups
from pomona.federation.examination import EVALUATED, Examination, Figures, Model
from pomona.federation.exchange import ClientRequest, Reply, Score, cut, one
from pomona.federation.kept_copies import KeptCopies
from pomona.federation.model_choice import ModelChoice
from pomona.federation.shared_rows import SharedRows
from pomona.federation.state_store import Hold, as_is, file_bytes, in_file, in_memory, working
from pomona.methods.base import Client, Copies, Initial, Received, Rows
from pomona.metrics.metric import ACCURACY, Metric
from pomona.metrics.nan_safe import Array
from pomona.objective.interface import Guarded, Objective
from pomona.objective.local_training import STATISTICS, LocalTraining
from pomona.privacy.ledger import Position
from pomona.record.predictions import Answers
from pomona.tasks.scores import compute

K = TypeVar("K")
Surety = Callable[[tuple[Tensor, Tensor], int], tuple[float, float] | None]  # of answers and a client: an interval


def told(split: str, samples: int) -> bool:
    """Whether others see scores on so many samples of a split: all of them, where nothing else was agreed on."""
    return True


def unsure(answers: tuple[Tensor, Tensor], client: int) -> None:
    """No interval: the scores of a round are many, and are looked at together."""


class _Observed(NamedTuple):
    """The models that a visit has seen of a client, and their scores."""

    visit: ClientRequest
    rows: Mapping[Any, Tensor]
    scores: Sequence[Score]


class _Trained(NamedTuple):
    """What a visit's training has made of a client, until the round counts: its state, and models to keep."""

    state: Any
    observed: _Observed | None


@dataclass
class ClientRuntime:
    """The clients of one process: their states, and the round in flight.

    ``groups``: clients that train as rows of one call, each group's longest pass first; see ``calls``.
    ``hold``: where states are kept. ``metric``: what models are judged by. ``choice``: which models are written.
    ``specificity``: see ``Examination``. ``surety``: how sure a score is. ``tells``: which scores others see.
    ``keeping``: what clients keep of each other's models, if it is not theirs alone.
    """

    client: Client
    objective: Objective
    initial: Initial
    groups: Groups
    seed: int
    hold: Hold = as_is
    metric: Metric = ACCURACY
    choice: ModelChoice = field(default_factory=ModelChoice)
    specificity: float | None = None
    surety: Surety = unsure
    tells: Callable[[str, int], bool] = told
    keeping: InitVar[KeptCopies | None] = None
    copies: KeptCopies = field(init=False)
    _states: dict[int, Any] = field(default_factory=dict)
    _pending: dict[int, _Trained] = field(default_factory=dict)
    _models: dict[int, dict[Model, Tensor]] = field(default_factory=dict)
    _rows: SharedRows = field(default_factory=SharedRows)

    def __post_init__(self, keeping: KeptCopies | None) -> None:
        self.copies = keeping or KeptCopies.alone(self.client.keeps, self.initial)

    def begin(self, ids: tuple[int, ...], roster: Roster, w: Tensor | None) -> None:
        """Make the first states of clients that join; they start from ``w`` (d,), or the run's initial models."""
        for client in ids:
            self._states[client] = self.hold(self.client.start(self.initial.instead(w), roster, (client,), self.seed))
        self.copies.begin(ids, roster, w)

    def visit(self, visit: ClientRequest, down: Mapping[str, Rows | Copies]) -> list[Reply]:
        """Serve these clients, a group a call. What training makes of them they keep with ``commit`` only."""
        self._pending = {}
        down = self.copies.received(visit, down)
        place = {client: k for k, client in enumerate(visit.ids)}
        calls = [tuple(i for i in group if i in place) for group in self.groups]
        replies = [r for ids in calls if ids for r in self._try(visit, ids, cut(down, [place[i] for i in ids]))]
        return sorted(replies, key=lambda r: place[r.client])

    def commit(self, ids: Sequence[int]) -> None:
        """Keep what the last visit's training made of these clients; all others stay as they were.

        That is states, copies, and the models for the record. So one whose round does not count has those of its last
        round that did and in which models were kept, and none before there is one.
        """
        kept = {i: made for i, made in self._pending.items() if i in ids}
        self._states |= {i: made.state for i, made in kept.items()}
        self.copies.commit(kept)
        for client, made in kept.items():
            if made.observed:
                self._keep(client, made.observed)
        self._pending = {}

    def stored(self, client: int) -> dict[str, Tensor]:
        """All that a checkpoint needs of a client beside its ``copies``, by dotted path."""
        kept = {f"kept.{client}.{model}.{when}": w for (model, when), w in self._models.get(client, {}).items()}
        return flatten(self.state(client), f"client.{client}") | kept | self.choice.stored(client)

    def at_hand(self, client: int) -> dict[str, Tensor]:
        """As ``stored``, with tensors in files as shapes and dtypes only (meta device)."""
        return {path: form(t) if in_file(t) else t for path, t in self.stored(client).items()}

    def tensor(self, client: int, path: str) -> Tensor:
        """One of the tensors that are ``stored``."""
        return in_memory(self.stored(client)[path])

    def restore(self, ids: Sequence[int], named: Named, roster: Roster) -> None:
        """The inverse of ``stored`` and ``copies.stored`` for clients that have begun.

        Raises CheckpointError for other tensors.
        """
        self.copies.restore(ids, named, roster)
        for client in ids:
            template = apply(form, self.client.start(self.initial, roster, (client,), self.seed))
            self._states[client] = self.hold(rebuild(template, named, f"client.{client}"))
        for path in named:
            kind, _, *rest = path.split(".")
            if kind == "kept" and owner(path) in ids:
                model, when = rest
                self._models.setdefault(owner(path), {})[model, when] = self._rows.shared(named[path])
            elif kind == "chosen" and owner(path) in ids:
                self.choice.restore(owner(path), rest[0], named[path])

    def models(self, client: int, best: int = -1) -> dict[Model, dict[str, Tensor]]:
        """The kept models of a client by (model, when), as named tensors; of the one it is judged by, the chosen one.

        ``best``: the best common round on validation.
        """
        return {named: self.objective.tensors(w, client) for named, w in self._chosen(client, best).items()}

    def handed_over(self, client: int, of: Model, best: int = -1) -> dict[str, Tensor] | None:
        """As ``models`` of one kept model, None without it; the client keeps none of its models any more."""
        found = self.models(client, best).get(of)
        self._models.pop(client, None)
        self.choice.forget(client)
        return found

    def private(self, client: int) -> dict[str, Tensor]:
        """The tensors of a client's state that its method names private."""
        named = {path.rpartition(".")[2]: t for path, t in flatten(self.state(client), "state").items()}
        return {name: in_memory(t) for name, t in named.items() if name in self.client.private}

    def filed(self, client: int) -> int:
        """Bytes of the file that a client's state lies in; 0 in memory."""
        return file_bytes(self.state(client))

    def spent(self, client: int) -> float:
        """A client's epsilon so far."""
        assert isinstance(self.objective, Guarded)
        return self.objective.spent(client)

    def position(self, client: int) -> list[Any]:
        """Position of a client's privacy ledger: [entries, chain]; empty without one."""
        return list(self.objective.position(client)) if isinstance(self.objective, Guarded) else []

    def agree(self, client: int, positions: Mapping[int, Sequence[Any]]) -> None:
        """Raise PrivacyError unless a client's ledger goes on from where a checkpoint saw it."""
        if isinstance(self.objective, Guarded):
            self.objective.require(client, Position(*positions[client]))

    def final(self, client: int, of: Model, best: int = -1) -> tuple[Answers | None, list[Figures]]:
        """What the record says at the end: answers of one kept model, and figures of all, as ``Examination``.

        ``best``: the best common round, whose models are examined where those are written.
        """
        return self._examined(client, best).final(of)

    def metrics(self, client: int, of: Model) -> list[Figures]:
        """Full metrics of a kept model on each split that has samples, one record a split; none without it."""
        return self._examined(client).metrics([of])

    def extremes(
        self, client: int, of: Model, best: int = -1
    ) -> tuple[NDArray[np.int64], NDArray[np.uint8], Array] | None:
        """The best and the worst mask that a kept model predicts, as ``Examination``; ``best`` as in ``final``."""
        return self._examined(client, best).extremes(of)

    def _examined(self, client: int, best: int = -1) -> Examination:
        common = self.choice.keep == "best"  # clients' own best rounds differ: no figure over clients is of them
        models = self._chosen(client, best) if common else self._models.get(client, {})
        return Examination(self.objective, self.metric, self.seed, client, models, self.specificity)

    def _chosen(self, client: int, best: int) -> dict[Model, Tensor]:
        """The kept rows of a client; of the model it is judged by, the one that is written."""
        kept, headline = dict(self._models.get(client, {})), self.choice.headline
        return kept | {headline: self.choice.of(client, kept[headline], best)} if headline in kept else kept

    def state(self, client: int) -> Any:
        """A client's committed state; None before it has begun."""
        return self._states.get(client)

    def _try(self, visit: ClientRequest, ids: tuple[int, ...], received: Received) -> list[Reply]:
        """Serve a group; a client whose numbers diverge has its round discarded, and its state stays."""
        try:
            return self._serve(visit, ids, received)
        except DivergedError as fault:
            if len(ids) == 1:
                too = f"; {self.client.rate} may be too high, too" if self.client.rate else ""
                return [Reply(ids[0], fault=f"{fault}{too}")]
        alone = [self._try(visit, (i,), one(received, k)) for k, i in enumerate(ids)]
        return [reply for replies in alone for reply in replies]

    def _serve(self, visit: ClientRequest, ids: tuple[int, ...], received: Received) -> list[Reply]:
        began = perf_counter()
        statistics = received.get(STATISTICS)
        training = LocalTraining(
            self.objective, ids, visit.roster, visit.round, visit.trains, visit.watched, statistics
        )
        train = self.client.adapt if visit.adapts and self.client.adapt else self.client.train
        with torch.random.fork_rng():
            # Dropout draws from PyTorch's global generators; here they have an address too.
            seed(number(self.seed, "forward", visit.round.number, *ids))
            own = working([self.state(i) for i in ids])
            state, uplink, info = train(own, received, training, visit.round)
        if training.measured is not None:
            uplink = {**uplink, STATISTICS: training.measured}
        losses, replies = training.training_losses(), []
        for k, client in enumerate(ids):
            # One tensor for all splits of a model: what its evaluation needs beside it is then computed once.
            models = {named: W[k] for named, W in training.observed.items()}
            scores = [self._score(*named, split, client, w) for named, w in models.items() for split in EVALUATED]
            kept = state if len(ids) == 1 else row(state, k)
            sent = {n: v[k] for n, v in uplink.items()} if visit.trains else {}  # nobody asks for it
            observed: _Observed | None = None
            if visit.keep:
                kept = apply(self._rows.shared, kept if visit.trains else self.state(client))
                seen = {named: W[k] if len(ids) == 1 else W[k].clone() for named, W in training.observed.items()}
                observed = _Observed(visit, self._same(seen), scores)
                sent = self._same(sent)
            if visit.trains:
                self._pending[client] = _Trained(self.hold(kept), observed)
            elif observed:
                self._keep(client, observed)
            said = {n: v[k].clone() for n, v in info.items()}
            replies.append(Reply(client, sent, said, losses[k], scores, (perf_counter() - began) / len(ids)))
        return replies

    def _keep(self, client: int, observed: _Observed) -> None:
        """Keep a client's observed models for the record."""
        visit, rows, scores = observed
        held, judged = self._models.setdefault(client, {}), self.choice.headline
        if judged in rows:
            self.choice.before(client, held.get(judged), visit.best)
            self.choice.after(client, visit.round.number, rows[judged], scores)
        held.update(rows)

    def _same(self, rows: dict[K, Tensor]) -> dict[K, Tensor]:
        """Tensors; those of the same bytes as another one here lie in its memory.

        What a client keeps, what it sends and what it is judged by are often one model.
        """
        return {name: self._rows.shared(tensor) for name, tensor in rows.items()}

    def _score(self, model: str, when: str, split: str, client: int, w: Tensor) -> Score:
        """A model's score, without figures where it has no finite ones and nobody else may learn of them.

        A fault, or an uplink that does not come, would tell others what they have agreed not to see: whoever sends
        huge weights could ask by it whether some record holds a value.
        """
        samples = len(self.objective.data.rows[split][client])
        if not samples:
            return Score(model, when, split, 0, None, None, None)
        try:
            return self._measured(model, when, split, client, w)
        except DivergedError:
            if self.tells(split, samples):
                raise
            return Score(model, when, split, samples, None, None, None)

    def _measured(self, model: str, when: str, split: str, client: int, w: Tensor) -> Score:
        data, task = self.objective.data, self.objective.data.task

        def judged(outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
            return (self.objective.criterion(outputs, targets), *task.reduce(outputs, targets))

        losses, outputs, targets = self.objective.batchwise(w, client, split, judged)
        loss = float(losses.double().mean())
        if not isfinite(loss):
            raise DivergedError(f"client {client}: the {model} model's loss on {split} is {loss}; lower lr")
        accuracy = task.accuracy(outputs, targets) if task.accuracy else None
        match self.metric.name:
            case "accuracy":
                value = accuracy
            case "loss":
                value = loss
            case name:
                value = compute(name, *data.in_units(outputs, targets, client, split), task)
        sure = self.surety(data.in_units(outputs, targets, client, split), client)
        return Score(model, when, split, len(targets), loss, accuracy, value, sure)


def seed(value: int) -> None:
    """Seed PyTorch's global generators: all of them once a GPU is in use, else the CPU's, a thousand times as fast."""
    if torch.cuda.is_initialized():
        torch.manual_seed(value)
    else:
        torch.default_generator.manual_seed(value)


def owner(path: str) -> int:
    """Whose a tensor of ``stored`` is."""
    return int(path.split(".")[1])
