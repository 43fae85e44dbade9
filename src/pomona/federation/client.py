"""A client's side of a round: stores states, trains copies of them, evaluates, and commits on
request.

The same object serves one silo, or a worker process with many clients.
"""

from collections.abc import Mapping, Sequence
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
from pomona.core.state import (
    Lazy,
    NamedTensors,
    apply,
    flatten,
    meta_tensor,
    meta_tensors,
    rebuild,
    row,
)
from pomona.federation.client_states import PlaceState, file_bytes, in_memory, unchanged, working
from pomona.federation.exchange import ClientRequest, Groups, Reply, downlink_part
from pomona.federation.recorded_models import ModelChoice, Observed, RecordedModels
from pomona.federation.scoring import Examination, Figures, Model, Scoring
from pomona.federation.stale_models import StaleModels
from pomona.methods.base import Client, Copies, Info, Initial, Received, Rows, Uplink
from pomona.metrics.metric import Score
from pomona.metrics.nan_safe import Array
from pomona.objective.objective import Objective
from pomona.objective.private import PrivateObjective
from pomona.objective.training import STATISTICS, LocalTraining
from pomona.record.predictions import Answers
from pomona.storage.equal_tensors import SharedRows
from pomona.storage.mapped_tensor import in_file

K = TypeVar("K")


class _Trained(NamedTuple):
    """A client's results of training in a visit, until the round is committed: its state, and
    models to keep.
    """

    state: Any
    observed: Observed | None


class _CallResult(NamedTuple):
    """Results of one call for some clients; tensors have a leading axis in their order, as have the
    evaluated models and their scores.
    """

    ids: tuple[int, ...]
    state: Any
    uplink: Uplink
    info: Info
    losses: list[float | None]
    models: Mapping[Model, Tensor]
    scores: list[list[Score]]


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
        place_state: PlaceState = unchanged,
        scoring: Scoring | None = None,
        choice: ModelChoice | None = None,
        copies: StaleModels | None = None,
    ) -> None:
        self.client, self.objective, self.initial = client, objective, initial
        self.groups, self.seed, self.place_state = groups, seed, place_state
        self.scoring, self.recorded = scoring or Scoring(), RecordedModels(choice or ModelChoice())
        self.copies = copies or StaleModels.in_memory(client.keeps, initial)
        # a class of a protocol, whose check takes as long as a step of a tiny model
        self._is_private = isinstance(objective, PrivateObjective)
        self._states: dict[int, Any] = {}
        self._pending: dict[int, _Trained] = {}
        self._rows = SharedRows()

    def add_clients(self, ids: tuple[int, ...], roster: Roster, w: Tensor | None) -> None:
        """Create the initial states of clients that join; they start from ``w`` (d,), or the run's
        initial models.
        """
        for client in ids:
            self._states[client] = self.place_state(
                self.client.start(self.initial.instead(w), roster, (client,), self.seed)
            )
        self.copies.add_clients(ids, roster, w)

    def visit(self, visit: ClientRequest, downlink: Mapping[str, Rows | Copies]) -> list[Reply]:
        """Serve these clients, one group per call.

        The results of training are kept only by ``commit``.
        """
        self._pending = {}
        downlink = self.copies.received(visit, downlink)
        position = {client: k for k, client in enumerate(visit.ids)}
        id_groups = [tuple(i for i in group if i in position) for group in self.groups]
        replies = [r for ids in id_groups if ids for r in self._try(visit, ids, downlink, position)]
        return sorted(replies, key=lambda r: position[r.client])

    def commit(self, ids: Sequence[int]) -> None:
        """Commit the last visit's training for these clients; all others are unchanged.

        This includes states, copies, and the models for the record. A client whose round does not
        count therefore has those of its last committed round in which models were kept, and none
        before.
        """
        accepted = set(ids)
        committed = {i: trained for i, trained in self._pending.items() if i in accepted}
        self._states |= {i: trained.state for i, trained in committed.items()}
        self.copies.commit(committed)
        for client, trained in committed.items():
            if trained.observed:
                self.recorded.update(client, trained.observed)
        self._pending = {}

    def stored(self, client: int) -> dict[str, Tensor]:
        """Return all that a checkpoint needs of a client besides its ``copies``, by dotted path."""
        return flatten(self.state(client), f"client.{client}") | self.recorded.stored(client)

    def at_hand(self, client: int) -> dict[str, Tensor]:
        """Return ``stored``, with tensors in files as shapes and dtypes only (meta device)."""
        return {
            path: meta_tensor(t) if in_file(t) else t for path, t in self.stored(client).items()
        }

    def tensor(self, client: int, path: str) -> Tensor:
        """Return one of the ``stored`` tensors."""
        return in_memory(self.stored(client)[path])

    def restore(self, ids: Sequence[int], tensors: NamedTensors, roster: Roster) -> None:
        """Restore clients that have begun, the inverse of ``stored`` and ``copies.stored``.

        Raises CheckpointError for other tensors.
        """
        self.copies.restore(ids, tensors, roster)
        states: dict[int, dict[str, Tensor]] = {client: {} for client in ids}
        for path, shape in meta_tensors(tensors).items():
            if path.startswith("client.") and owner(path) in states:
                states[owner(path)][path] = shape
        for client, shapes in states.items():
            template = apply(
                meta_tensor, self.client.start(self.initial, roster, (client,), self.seed)
            )
            state = Lazy(shapes, tensors.__getitem__)
            self._states[client] = self.place_state(rebuild(template, state, f"client.{client}"))
        for path in tensors:
            if path.startswith(("kept.", "chosen.")) and owner(path) in states:
                self.recorded.restore(path, self._rows.shared(tensors[path]))

    def models(self, client: int, best: int = -1) -> dict[Model, dict[str, Tensor]]:
        """Return a client's kept models by (model, when), as named tensors; for the headline model,
        the chosen one.

        ``best``: the best common validation round.
        """
        return {
            key: self.objective.tensors(w, client)
            for key, w in self.recorded.chosen(client, best).items()
        }

    def has_model(self, client: int, model: Model) -> bool:
        """Return whether a client keeps a model."""
        return model in self.recorded.last(client)

    def hand_over_model(
        self, client: int, model: Model, best: int = -1
    ) -> dict[str, Tensor] | None:
        """Return one model as ``models`` does, or None; the client then drops all its models."""
        tensors = self.models(client, best).get(model)
        self.recorded.drop(client)
        return tensors

    def private(self, client: int) -> dict[str, Tensor]:
        """Return the tensors of a client's state that its method declares private."""
        tensors = {
            path.rpartition(".")[2]: t for path, t in flatten(self.state(client), "state").items()
        }
        return {name: in_memory(t) for name, t in tensors.items() if name in self.client.private}

    def filed(self, client: int) -> int:
        """Return the bytes of the file with a client's state; 0 in memory."""
        return file_bytes(self.state(client))

    def epsilon(self, client: int) -> float:
        """Return a client's epsilon so far."""
        return self.objective.epsilon(client)

    def epsilon_alone(self, client: int) -> float:
        """Return a client's epsilon so far by its own noise alone."""
        return self.objective.epsilon_alone(client)

    def epsilon_by_groups(self, client: int) -> float:
        """Return a client's epsilon so far for all training samples of any one of its groups."""
        return self.objective.epsilon_by_groups(client)

    def position(self, client: int) -> list[Any]:
        """Return the position of a client's privacy ledger: [entries, chain]; empty without one."""
        return list(self.objective.position(client))

    def agree(self, client: int, positions: Mapping[int, Sequence[Any]]) -> None:
        """Raise PrivacyError unless a client's ledger continues from a checkpoint's position."""
        self.objective.require(client, positions[client])

    def final_metrics(
        self, client: int, model: Model, best: int = -1
    ) -> tuple[Answers | None, list[Figures]]:
        """Return the record's final data: answers of one kept model, and figures of all, as
        ``Examination``.

        ``best``: the best common validation round, whose models are examined if those are written.
        """
        return self._examined(client, best).final_metrics(model)

    def metrics(self, client: int, model: Model) -> list[Figures]:
        """Return full metrics of a kept model, one record per split with samples; none without
        it.
        """
        return self._examined(client).metrics([model])

    def best_worst_masks(
        self, client: int, model: Model, best: int = -1
    ) -> tuple[NDArray[np.int64], NDArray[np.uint8], Array] | None:
        """Return a kept model's best and worst predicted masks, as ``Examination``; ``best`` as in
        ``final_metrics``.
        """
        return self._examined(client, best).best_worst_masks(model)

    def _examined(self, client: int, best: int = -1) -> Examination:
        models, scoring = self.recorded.examined(client, best), self.scoring
        return Examination(
            self.objective, scoring.metric, self.seed, client, models, scoring.target
        )

    def state(self, client: int) -> Any:
        """Return a client's committed state; None before it has begun."""
        return self._states.get(client)

    def _try(
        self,
        visit: ClientRequest,
        ids: tuple[int, ...],
        downlink: Mapping[str, Rows | Copies],
        position: Mapping[int, int],
    ) -> list[Reply]:
        """Serve a group; if a client's numbers diverge, its round is discarded and its state
        unchanged.

        ``position``: of each client in the downlink.
        """
        try:
            return self._serve(visit, ids, downlink_part(downlink, [position[i] for i in ids]))
        except DivergedError as fault:
            if len(ids) == 1:
                remedy = f"; {self.client.rate} may be too high, too" if self.client.rate else ""
                return [Reply(ids[0], fault=f"{fault}{remedy}")]
        return [reply for i in ids for reply in self._try(visit, (i,), downlink, position)]

    def _serve(self, visit: ClientRequest, ids: tuple[int, ...], received: Received) -> list[Reply]:
        """Serve a group in one call; the results of training wait for ``commit``."""
        began = perf_counter()
        result = self._call(visit, ids, received)
        seconds = (perf_counter() - began) / len(ids)
        return [self._reply(visit, result, k, seconds) for k in range(len(ids))]

    def _reply(self, visit: ClientRequest, result: _CallResult, k: int, seconds: float) -> Reply:
        """Set the results of a call's k-th client aside, and return what it answers."""
        client, single, scores = result.ids[k], len(result.ids) == 1, result.scores[k]
        models = {key: W[k] for key, W in result.models.items()}
        uplink, state = dict[str, Tensor](), self.state(client)
        if visit.trains:
            # what a fault tells of training samples is not covered by their noise
            if not self._is_private:
                self._require_finite(client, models, scores)
            uplink = {n: v[k] for n, v in result.uplink.items()}
            state = result.state if single else row(result.state, k)
        observed: Observed | None = None
        if visit.keep_models:
            state, uplink = apply(self._rows.shared, state), self._shared(uplink)
            # A view of several clients' rows would keep all of them in memory.
            rows = models if single else {key: w.clone() for key, w in models.items()}
            observed = Observed(visit, self._shared(rows), scores)
        if visit.trains:
            self._pending[client] = _Trained(self.place_state(state), observed)
        elif observed:
            self.recorded.update(client, observed)
        info = {n: v[k].clone() for n, v in result.info.items()}
        return Reply(client, uplink, info, result.losses[k], scores, seconds)

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
        for model, stage in broken:
            W = models[model, stage].unsqueeze(0)
            scored = self.scoring.scores(self.objective, (model, stage), [client], W, ["train"])
            if scored[0][0].broken:
                raise DivergedError(
                    f"client {client}: the {model} model's loss on its training samples is not "
                    "finite after training; lower lr"
                )

    def _call(self, visit: ClientRequest, ids: tuple[int, ...], received: Received) -> _CallResult:
        """Call the method's client half for some clients, on copies of their states."""
        statistics = received.get(STATISTICS)
        training = LocalTraining(
            self.objective, ids, visit.roster, visit.round, visit.trains, visit.watched, statistics
        )
        train = self.client.adapt if visit.adapts and self.client.adapt else self.client.train
        with torch.random.fork_rng():
            # Dropout draws from PyTorch's global generators; here they are seeded by address too.
            seed(number(self.seed, "forward", visit.round.number, *ids))
            states = working([self.state(i) for i in ids])
            state, uplink, info = train(states, received, training, visit.round)
        _require_labels(info)
        if training.measured is not None:
            uplink = {**uplink, STATISTICS: training.measured}
        observed, losses = training.observed, training.training_losses()
        by_model = [
            self.scoring.scores(self.objective, model, ids, W) for model, W in observed.items()
        ]
        scores = [[s for scores in by_model for s in scores[k]] for k in range(len(ids))]
        return _CallResult(ids, state, uplink, info, losses, observed, scores)

    def _shared(self, rows: dict[K, Tensor]) -> dict[K, Tensor]:
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


def _require_labels(info: Mapping[str, Any]) -> None:
    """Raise ConfigError for a quantity with a name that no record can keep."""
    if invalid := [name for name in info if not LABEL.fullmatch(name)]:
        raise ConfigError(
            f"the method's info has a quantity named {invalid[0]!r}, which no record can keep; "
            "name it with 1 to 40 letters, digits, spaces, '_', '.', '+' or '-'"
        )
