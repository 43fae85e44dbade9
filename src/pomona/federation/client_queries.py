"""Queries of a client, wherever it runs: functions for ``Transport.collect``."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pomona.core.state import meta_tensor
from pomona.federation.client import ClientRuntime
from pomona.federation.client_states import file_bytes, in_memory
from pomona.federation.scoring import Examination, Figures, Model
from pomona.metrics.nan_safe import Array
from pomona.record.predictions import Answers
from pomona.storage.mapped_tensor import in_file


def models(clients: ClientRuntime, client: int, best: int = -1) -> dict[Model, dict[str, Tensor]]:
    """Return a client's kept models by (model, when), as named tensors; for the headline model, the
    chosen one.

    ``best``: the best common validation round.
    """
    return {
        key: clients.objective.tensors(w, client)
        for key, w in clients.store.recorded.chosen(client, best).items()
    }


def has_model(clients: ClientRuntime, client: int, model: Model) -> bool:
    """Return whether a client keeps a model."""
    return model in clients.store.recorded.last(client)


def hand_over_model(
    clients: ClientRuntime, client: int, model: Model, best: int = -1
) -> dict[str, Tensor] | None:
    """Return one model as ``models`` does, or None; the client then drops all its models."""
    tensors = models(clients, client, best).get(model)
    clients.store.recorded.drop(client)
    return tensors


def private(clients: ClientRuntime, client: int) -> dict[str, Tensor]:
    """Return the tensors of a client's state that its method declares private."""
    return clients.store.private(client)


def at_hand(clients: ClientRuntime, client: int) -> dict[str, Tensor]:
    """Return what is stored, with tensors in files as shapes and dtypes only (meta device)."""
    return {
        path: meta_tensor(t) if in_file(t) else t
        for path, t in clients.store.stored(client).items()
    }


def tensor(clients: ClientRuntime, client: int, path: str) -> Tensor:
    """Return one of the stored tensors."""
    return in_memory(clients.store.stored(client)[path])


def filed(clients: ClientRuntime, client: int) -> int:
    """Return the bytes of the file with a client's state; 0 in memory."""
    return file_bytes(clients.store.state(client))


def epsilon(clients: ClientRuntime, client: int) -> float:
    """Return a client's epsilon so far."""
    return clients.objective.epsilon(client)


def epsilon_alone(clients: ClientRuntime, client: int) -> float:
    """Return a client's epsilon so far by its own noise alone."""
    return clients.objective.epsilon_alone(client)


def epsilon_by_groups(clients: ClientRuntime, client: int) -> float:
    """Return a client's epsilon so far for all training samples of any one of its groups."""
    return clients.objective.epsilon_by_groups(client)


def position(clients: ClientRuntime, client: int) -> list[Any]:
    """Return the position of a client's privacy ledger: [entries, chain]; empty without one."""
    return list(clients.objective.position(client))


def agree(clients: ClientRuntime, client: int, positions: Mapping[int, Sequence[Any]]) -> None:
    """Raise PrivacyError unless a client's ledger continues from a checkpoint's position."""
    clients.objective.require(client, positions[client])


def final_metrics(
    clients: ClientRuntime, client: int, model: Model, best: int = -1
) -> tuple[Answers | None, list[Figures]]:
    """Return the record's final data: answers of one kept model, and figures of all, as
    ``Examination``.

    ``best``: the best common validation round, whose models are examined if those are written.
    """
    return _examined(clients, client, best).final_metrics(model)


def metrics(clients: ClientRuntime, client: int, model: Model) -> list[Figures]:
    """Return full metrics of a kept model, one record per split with samples; none without it."""
    return _examined(clients, client).metrics([model])


def best_worst_masks(
    clients: ClientRuntime, client: int, model: Model, best: int = -1
) -> tuple[NDArray[np.int64], NDArray[np.uint8], Array] | None:
    """Return a kept model's best and worst predicted masks, as ``Examination``; ``best`` as in
    ``final_metrics``.
    """
    return _examined(clients, client, best).best_worst_masks(model)


def _examined(clients: ClientRuntime, client: int, best: int = -1) -> Examination:
    examined, scoring = clients.store.recorded.examined(client, best), clients.scoring
    return Examination(
        clients.objective, scoring.metric, clients.seed, client, examined, scoring.target
    )
