"""A client's side of a round: stores states, trains copies of them, evaluates, and commits on
request.

The same object serves one silo, or a worker process with many clients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pomona.core.bounds import LABEL
from pomona.core.errors import ConfigError, DivergedError
from pomona.core.rng import number
from pomona.core.round import Roster
from pomona.core.state import Lazy, Named, apply, flatten, form, forms, rebuild, row
from pomona.federation.client_states import Hold, as_is, file_bytes, in_file, in_memory, working
from pomona.federation.copies import KeptCopies, SharedRows
from pomona.federation.exchange import ClientRequest, Groups, Reply, cut
from pomona.federation.kept_models import KeptModels, ModelChoice, Observed
from pomona.federation.scoring import EVALUATED, Examination, Figures, Model, Scoring
from pomona.methods.base import Client, Copies, Info, Initial, Received, Rows, Uplink
from pomona.metrics.metric import Score
from pomona.metrics.nan_safe import Array
from pomona.objective.objective import Objective
from pomona.objective.private import PrivateObjective
from pomona.objective.training import STATISTICS, LocalTraining
from pomona.record.predictions import Answers

K = TypeVar("K")


class _Trained(NamedTuple):
    """A client's results of training in a visit, until the round is committed: its state, and
    models to keep.
    """

    state: Any
    observed: Observed | None


class _Called(NamedTuple):
    """Results of one call for some clients; tensors have a leading axis in their order."""

    ids: tuple[int, ...]
    training: LocalTraining
    state: Any
    uplink: Uplink
    info: Info


class ClientRuntime:
    """The clients of one process: their states, and the round in progress.

    Args:
        client: the method's client half.
        objective: over the clients' data.
        initial: the models that training starts from.
        groups: clients that train as rows of one call, each group's longest pass first; see
            ``calls``.
        seed: of the run.
        hold: where states are stored.
        scoring: how models are scored.
        choice: which models are written.
        copies: stored copies of other clients' models, if shared with other runtimes.
    """

    def __init__(
        self,
        client: Client,
        objective: Objective,
        initial: Initial,
        groups: Groups,
        seed: int,
        hold: Hold = as_is,
        scoring: Scoring | None = None,
        choice: ModelChoice | None = None,
        copies: KeptCopies | None = None,
    ) -> None:
        self.client, self.objective, self.initial = client, objective, initial
        self.groups, self.seed, self.hold = groups, seed, hold
        self.scoring, self.kept = scoring or Scoring(), KeptModels(choice or ModelChoice())
        self.copies = copies or KeptCopies.alone(client.keeps, initial)
        self._states: dict[int, Any] = {}
        self._pending: dict[int, _Trained] = {}
        self._rows = SharedRows()

    def begin(self, ids: tuple[int, ...], roster: Roster, w: Tensor | None) -> None:
        """Create the initial states of clients that join; they start from ``w`` (d,), or the run's
        initial models.
        """
        for client in ids:
            self._states[client] = self.hold(
                self.client.start(self.initial.instead(w), roster, (client,), self.seed)
            )
        self.copies.begin(ids, roster, w)

    def visit(self, visit: ClientRequest, down: Mapping[str, Rows | Copies]) -> list[Reply]:
        """Serve these clients, one group per call.

        The results of training are kept only by ``commit``.
        """
        self._pending = {}
        down = self.copies.received(visit, down)
        place = {client: k for k, client in enumerate(visit.ids)}
        calls = [tuple(i for i in group if i in place) for group in self.groups]
        replies = [r for ids in calls if ids for r in self._try(visit, ids, down, place)]
        return sorted(replies, key=lambda r: place[r.client])

    def commit(self, ids: Sequence[int]) -> None:
        """Commit the last visit's training for these clients; all others are unchanged.

        This includes states, copies, and the models for the record. A client whose round does not
        count therefore has those of its last committed round in which models were kept, and none
        before.
        """
        wanted = set(ids)
        kept = {i: made for i, made in self._pending.items() if i in wanted}
        self._states |= {i: made.state for i, made in kept.items()}
        self.copies.commit(kept)
        for client, made in kept.items():
            if made.observed:
                self.kept.keep(client, made.observed)
        self._pending = {}

    def stored(self, client: int) -> dict[str, Tensor]:
        """Return all that a checkpoint needs of a client besides its ``copies``, by dotted path."""
        return flatten(self.state(client), f"client.{client}") | self.kept.stored(client)

    def at_hand(self, client: int) -> dict[str, Tensor]:
        """Return ``stored``, with tensors in files as shapes and dtypes only (meta device)."""
        return {path: form(t) if in_file(t) else t for path, t in self.stored(client).items()}

    def tensor(self, client: int, path: str) -> Tensor:
        """Return one of the ``stored`` tensors."""
        return in_memory(self.stored(client)[path])

    def restore(self, ids: Sequence[int], named: Named, roster: Roster) -> None:
        """Restore clients that have begun, the inverse of ``stored`` and ``copies.stored``.

        Raises CheckpointError for other tensors.
        """
        self.copies.restore(ids, named, roster)
        states: dict[int, dict[str, Tensor]] = {client: {} for client in ids}
        for path, shape in forms(named).items():
            if path.startswith("client.") and owner(path) in states:
                states[owner(path)][path] = shape
        for client, shapes in states.items():
            template = apply(form, self.client.start(self.initial, roster, (client,), self.seed))
            own = Lazy(shapes, named.__getitem__)
            self._states[client] = self.hold(rebuild(template, own, f"client.{client}"))
        for path in named:
            if path.startswith(("kept.", "chosen.")) and owner(path) in states:
                self.kept.restore(path, self._rows.shared(named[path]))

    def models(self, client: int, best: int = -1) -> dict[Model, dict[str, Tensor]]:
        """Return a client's kept models by (model, when), as named tensors; for the headline model,
        the chosen one.

        ``best``: the best common validation round.
        """
        return {
            named: self.objective.tensors(w, client)
            for named, w in self.kept.chosen(client, best).items()
        }

    def has(self, client: int, of: Model) -> bool:
        """Return whether a client keeps a model."""
        return of in self.kept.last(client)

    def handed_over(self, client: int, of: Model, best: int = -1) -> dict[str, Tensor] | None:
        """Return one model as ``models`` does, or None; the client then drops all its models."""
        found = self.models(client, best).get(of)
        self.kept.drop(client)
        return found

    def private(self, client: int) -> dict[str, Tensor]:
        """Return the tensors of a client's state that its method declares private."""
        named = {
            path.rpartition(".")[2]: t for path, t in flatten(self.state(client), "state").items()
        }
        return {name: in_memory(t) for name, t in named.items() if name in self.client.private}

    def filed(self, client: int) -> int:
        """Return the bytes of the file with a client's state; 0 in memory."""
        return file_bytes(self.state(client))

    def spent(self, client: int) -> float:
        """Return a client's epsilon so far."""
        return self.objective.spent(client)

    def spent_alone(self, client: int) -> float:
        """Return a client's epsilon so far by its own noise alone."""
        return self.objective.spent_alone(client)

    def spent_by_groups(self, client: int) -> float:
        """Return a client's epsilon so far for all training samples of any one of its groups."""
        return self.objective.spent_by_groups(client)

    def position(self, client: int) -> list[Any]:
        """Return the position of a client's privacy ledger: [entries, chain]; empty without one."""
        return list(self.objective.position(client))

    def agree(self, client: int, positions: Mapping[int, Sequence[Any]]) -> None:
        """Raise PrivacyError unless a client's ledger continues from a checkpoint's position."""
        self.objective.require(client, positions[client])

    def final(self, client: int, of: Model, best: int = -1) -> tuple[Answers | None, list[Figures]]:
        """Return the record's final data: answers of one kept model, and figures of all, as
        ``Examination``.

        ``best``: the best common validation round, whose models are examined if those are written.
        """
        return self._examined(client, best).final(of)

    def metrics(self, client: int, of: Model) -> list[Figures]:
        """Return full metrics of a kept model, one record per split with samples; none without
        it.
        """
        return self._examined(client).metrics([of])

    def extremes(
        self, client: int, of: Model, best: int = -1
    ) -> tuple[NDArray[np.int64], NDArray[np.uint8], Array] | None:
        """Return a kept model's best and worst predicted masks, as ``Examination``; ``best`` as in
        ``final``.
        """
        return self._examined(client, best).extremes(of)

    def _examined(self, client: int, best: int = -1) -> Examination:
        models, scoring = self.kept.examined(client, best), self.scoring
        return Examination(
            self.objective, scoring.metric, self.seed, client, models, scoring.specificity
        )

    def state(self, client: int) -> Any:
        """Return a client's committed state; None before it has begun."""
        return self._states.get(client)

    def _try(
        self,
        visit: ClientRequest,
        ids: tuple[int, ...],
        down: Mapping[str, Rows | Copies],
        place: Mapping[int, int],
    ) -> list[Reply]:
        """Serve a group; if a client's numbers diverge, its round is discarded and its state
        unchanged.

        ``place``: of each client in the downlink.
        """
        try:
            return self._serve(visit, ids, cut(down, [place[i] for i in ids]))
        except DivergedError as fault:
            if len(ids) == 1:
                too = f"; {self.client.rate} may be too high, too" if self.client.rate else ""
                return [Reply(ids[0], fault=f"{fault}{too}")]
        return [reply for i in ids for reply in self._try(visit, (i,), down, place)]

    def _serve(self, visit: ClientRequest, ids: tuple[int, ...], received: Received) -> list[Reply]:
        """Serve a group in one call; the results of training wait for ``commit``."""
        began = perf_counter()
        called = self._call(visit, ids, received)
        losses = called.training.training_losses()
        return [
            replace(
                self._reply(visit, called, k),
                loss=losses[k],
                seconds=(perf_counter() - began) / len(ids),
            )
            for k in range(len(ids))
        ]

    def _reply(self, visit: ClientRequest, called: _Called, k: int) -> Reply:
        """Score the models of a call's k-th client, set its results aside, and return what it
        answers.
        """
        client, alone = called.ids[k], len(called.ids) == 1
        # One tensor for all splits of a model, so that additional data for its evaluation is
        # computed once.
        models: dict[Model, Tensor] = {named: W[k] for named, W in called.training.observed.items()}
        scores = [
            self.scoring.score(self.objective, *named, split, client, w)
            for named, w in models.items()
            for split in EVALUATED
        ]
        # what a fault tells of training samples is not covered by their noise
        if visit.trains and not isinstance(self.objective, PrivateObjective):
            self._require_finite(client, models, scores)
        sent = {n: v[k] for n, v in called.uplink.items()} if visit.trains else {}  # not requested
        state = self.state(client)
        if visit.trains:
            state = called.state if alone else row(called.state, k)
        observed: Observed | None = None
        if visit.keep:
            state = apply(self._rows.shared, state)
            # A view of several clients' rows would keep all of them in memory.
            rows = {named: w if alone else w.clone() for named, w in models.items()}
            observed = Observed(visit, self._same(rows), scores)
            sent = self._same(sent)
        if visit.trains:
            self._pending[client] = _Trained(self.hold(state), observed)
        elif observed:
            self.kept.keep(client, observed)
        return Reply(client, sent, {n: v[k].clone() for n, v in called.info.items()}, scores=scores)

    def _require_finite(
        self, client: int, models: Mapping[Model, Tensor], scores: list[Score]
    ) -> None:
        """Raise DivergedError if a trained model without a score has no finite loss on its own
        training samples either: then the model is broken, and not one of the samples it is
        evaluated on.
        """
        broken = dict.fromkeys(
            (s.model, s.when) for s in scores if s.broken and s.when == "trained"
        )
        for model, when in broken:
            w = models[model, when]
            if self.scoring.score(self.objective, model, when, "train", client, w).broken:
                raise DivergedError(
                    f"client {client}: the {model} model's loss on its training samples is not "
                    "finite after training; lower lr"
                )

    def _call(self, visit: ClientRequest, ids: tuple[int, ...], received: Received) -> _Called:
        """Call the method's client half for some clients, on copies of their states."""
        statistics = received.get(STATISTICS)
        training = LocalTraining(
            self.objective, ids, visit.roster, visit.round, visit.trains, visit.watched, statistics
        )
        train = self.client.adapt if visit.adapts and self.client.adapt else self.client.train
        with torch.random.fork_rng():
            # Dropout draws from PyTorch's global generators; here they are seeded by address too.
            seed(number(self.seed, "forward", visit.round.number, *ids))
            own = working([self.state(i) for i in ids])
            state, uplink, info = train(own, received, training, visit.round)
        if odd := [name for name in info if not LABEL.fullmatch(name)]:
            raise ConfigError(
                f"the method's info has a quantity named {odd[0]!r}, which no record can keep; "
                "name it with 1 to 40 letters, digits, spaces, '_', '.', '+' or '-'"
            )
        if training.measured is not None:
            uplink = {**uplink, STATISTICS: training.measured}
        return _Called(ids, training, state, uplink, info)

    def _same(self, rows: dict[K, Tensor]) -> dict[K, Tensor]:
        """Share the memory of tensors with identical bytes.

        A client's kept, sent and evaluated models are often the same.
        """
        return {name: self._rows.shared(tensor) for name, tensor in rows.items()}


def seed(value: int) -> None:
    """Seed PyTorch's global generators: all once a GPU is in use, else only the CPU's, which is
    1000 times faster.
    """
    if torch.cuda.is_initialized():
        torch.manual_seed(value)
    else:
        torch.default_generator.manual_seed(value)


def owner(path: str) -> int:
    """Return the client whose tensor of ``stored`` this is."""
    return int(path.split(".")[1])
