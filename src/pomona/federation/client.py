"""A client's side of a round: trains copies of the stored states, evaluates, and commits on
request.

The same object serves one silo, or a worker process with many clients.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pomona.core.bounds import LABEL
from pomona.core.errors import ConfigError, DivergedError
from pomona.core.rng import number
from pomona.core.round import Ids, Roster
from pomona.core.state import NamedTensors, apply, row
from pomona.federation.client_states import PlaceState, unchanged, working
from pomona.federation.client_store import ClientStore
from pomona.federation.exchange import ClientRequest, Groups, Reply, downlink_part
from pomona.federation.recorded_models import ModelChoice, Observed
from pomona.federation.scoring import Model, Scoring
from pomona.federation.stale_models import StaleModels
from pomona.methods.base import Client, Copies, Info, Initial, Received, Rows, Uplink
from pomona.metrics.metric import Score
from pomona.objective.objective import Objective
from pomona.objective.private import PrivateObjective
from pomona.objective.training import STATISTICS, LocalTraining

K = TypeVar("K")


class _CallResult(NamedTuple):
    """Results of one call for some clients; tensors have a leading axis in their order, as have the
    evaluated models and their scores.
    """

    ids: Ids
    state: Any
    uplink: Uplink
    info: Info
    losses: list[float | None]
    models: Mapping[Model, Tensor]
    scores: list[list[Score]]


class ClientRuntime:
    """The clients of one process: trains and evaluates them on what ``store`` has of them.

    Args:
        client: the method's client half.
        objective: over the clients' data.
        initial: the models that training starts from.
        groups: clients that train as rows of one call, each group's longest pass first; see
            ``calls``.
        seed: of the run.
        place_state: where states are stored.
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
        self.groups, self.seed, self.scoring = groups, seed, scoring or Scoring()
        self.store = ClientStore(client, initial, seed, place_state, choice, copies)
        # a class of a protocol, whose check takes as long as a step of a tiny model
        self._is_private = isinstance(objective, PrivateObjective)

    def add_clients(self, ids: Ids, roster: Roster, w: Tensor | None) -> None:
        """Create the initial states of clients that join; they start from ``w`` (d,), or the run's
        initial models.
        """
        self.store.add_clients(ids, roster, w)

    def commit(self, ids: Sequence[int]) -> None:
        """Commit the last visit's training for these clients; all others are unchanged."""
        self.store.commit(ids)

    def restore(self, ids: Sequence[int], tensors: NamedTensors, roster: Roster) -> None:
        """Restore clients that have begun, as ``ClientStore.restore``."""
        self.store.restore(ids, tensors, roster)

    def visit(self, visit: ClientRequest, downlink: Mapping[str, Rows | Copies]) -> list[Reply]:
        """Serve these clients, one group per call.

        The results of training are kept only by ``commit``.
        """
        self.store.discard()
        downlink = self.store.copies.received(visit, downlink)
        position = {client: k for k, client in enumerate(visit.ids)}
        id_groups = [tuple(i for i in group if i in position) for group in self.groups]
        replies = [r for ids in id_groups if ids for r in self._try(visit, ids, downlink, position)]
        return sorted(replies, key=lambda r: position[r.client])

    def _try(
        self,
        visit: ClientRequest,
        ids: Ids,
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

    def _serve(self, visit: ClientRequest, ids: Ids, received: Received) -> list[Reply]:
        """Serve a group in one call; the results of training wait for ``commit``."""
        began = perf_counter()
        result = self._call(visit, ids, received)
        seconds = (perf_counter() - began) / len(ids)
        return [self._reply(visit, result, k, seconds) for k in range(len(ids))]

    def _reply(self, visit: ClientRequest, result: _CallResult, k: int, seconds: float) -> Reply:
        """Set the results of a call's k-th client aside, and return what it answers."""
        client, single, scores = result.ids[k], len(result.ids) == 1, result.scores[k]
        models = {key: W[k] for key, W in result.models.items()}
        uplink, state = dict[str, Tensor](), self.store.state(client)
        if visit.trains:
            # what a fault tells of training samples is not covered by their noise
            if not self._is_private:
                self._require_finite(client, models, scores)
            uplink = {n: v[k] for n, v in result.uplink.items()}
            state = result.state if single else row(result.state, k)
        observed: Observed | None = None
        if visit.keep_models:
            state, uplink = apply(self.store.shared, state), self._shared(uplink)
            # A view of several clients' rows would keep all of them in memory.
            rows = models if single else {key: w.clone() for key, w in models.items()}
            observed = Observed(visit, self._shared(rows), scores)
        if visit.trains:
            self.store.set_aside(client, state, observed)
        elif observed:
            self.store.recorded.update(client, observed)
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

    def _call(self, visit: ClientRequest, ids: Ids, received: Received) -> _CallResult:
        """Call the method's client half for some clients, on copies of their states."""
        statistics = received.get(STATISTICS)
        training = LocalTraining(
            self.objective, ids, visit.roster, visit.round, visit.trains, visit.watched, statistics
        )
        train = self.client.adapt if visit.adapts and self.client.adapt else self.client.train
        with torch.random.fork_rng():
            # Dropout draws from PyTorch's global generators; here they are seeded by address too.
            seed(number(self.seed, "forward", visit.round.number, *ids))
            states = working([self.store.state(i) for i in ids])
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
        return {name: self.store.shared(tensor) for name, tensor in rows.items()}


def seed(value: int) -> None:
    """Seed PyTorch's global generators: all once a GPU is in use, else only the CPU's, which is
    1000 times faster.
    """
    if torch.cuda.is_initialized():
        torch.manual_seed(value)
    else:
        torch.default_generator.manual_seed(value)


def _require_labels(info: Mapping[str, Any]) -> None:
    """Raise ConfigError for a quantity with a name that no record can keep."""
    if invalid := [name for name in info if not LABEL.fullmatch(name)]:
        raise ConfigError(
            f"the method's info has a quantity named {invalid[0]!r}, which no record can keep; "
            "name it with 1 to 40 letters, digits, spaces, '_', '.', '+' or '-'"
        )
