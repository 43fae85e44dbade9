"""Survival: the time to an event that is not always seen; outputs are logits of hazards in K intervals of time.

Targets (n, 2) are a time above 0 and whether the event was seen then (1) or the sample was last seen without it (0).
Interval k ends at edge t_k and holds its end: an event at t in (t_(k-1), t_k] is in interval k. Who is censored at t
has survived the intervals that end at t or before; nothing is said of the one that was broken off. Events beyond the
last edge count as its survival.

Why not Cox's model: its partial likelihood compares each event with all samples at risk at that moment, so that it is
no sum over samples. A minibatch or a client would see risk sets of its own, which is another model, and one sample's
gradient, which differential privacy clips, does not exist. The likelihood of a sequence of intervals is a sum over
samples (``hazard_surprise``), so every method works on it as on any other loss.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics import survival as m
from pomona.metrics.nan_safe import Array
from pomona.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor

MEDIAN = 0.5


def curves(outputs: NDArray[Any]) -> Array:
    """Logits of hazards (n, K) -> probabilities of surviving beyond each edge (n, K), float64.

    S(t_k) is the product of 1 - h_j over j <= k, computed as exp(-sum of softplus(z_j)).
    """
    return np.asarray(np.exp(-np.cumsum(np.logaddexp(0.0, np.asarray(outputs, dtype=float)), axis=1)))


def sequences(targets: NDArray[Any], edges: Sequence[float]) -> NDArray[np.float32]:
    """Times and events (n, 2) -> (n, 2, K) float32: whether each interval was reached and its end seen, or its event;
    and whether the event was in it.
    """
    passed, ended = m.passages(targets, np.asarray(edges, dtype=float))
    interval = np.arange(len(edges))
    event = (interval == passed[:, np.newaxis]) & ended[:, np.newaxis]
    return np.stack([(interval < passed[:, np.newaxis]) | event, event], axis=1).astype(np.float32)


def hazards(targets: NDArray[Any], edges: Sequence[float]) -> Array:
    """Logits (K,) of the hazards of the samples (the life table), with one sample more of either outcome in each
    interval (Laplace's rule): none is certain.
    """
    reached, events = sequences(targets, edges).sum(axis=0, dtype=float)
    return np.asarray(np.log(events + 1) - np.log(reached - events + 1))


def _soften(outputs: "Tensor", temperature: float) -> "Tensor":
    """(n, 2, K): how probable it is that an interval is reached, and that the event is in it."""
    from torch import stack

    hazard = (outputs / temperature).sigmoid()
    beyond = (1 - hazard).cumprod(1)
    reached = beyond.roll(1, 1)
    reached[:, 0] = 1
    return stack([reached, reached * hazard], 1)


def _predict(edges: Sequence[float], outputs: "Tensor", _names: Sequence[str]) -> list[dict[str, Any]]:
    """``survival`` beyond each edge, the ``median`` (the first edge beyond which no more than half survive; None if
    there is none) and ``risk``.
    """
    beyond = curves(outputs.numpy())
    given = zip(beyond, m.risk(beyond).tolist(), strict=True)
    return [
        {
            "survival": {f"{edge:g}": value for edge, value in zip(edges, row.tolist(), strict=True)},
            "median": next((edge for edge, value in zip(edges, row, strict=True) if value <= MEDIAN), None),
            "risk": risk,
        }
        for row, risk in given
    ]


@lru_cache(32)
def within(edges: tuple[float, ...]) -> Task:
    """The task of a run whose intervals end at these edges (K,), ascending and above 0."""
    at = np.array(edges, dtype=float)
    return Task(
        targets="survival",
        title="times to an event",
        output="interval",
        loss="pomona.models.losses:hazard_surprise",
        no_target=lambda width, _shape: np.zeros((2, width), np.float32),
        held=lambda _width, _shape: np.zeros(2, np.float32),
        learned=lambda held, dataset: sequences(held, dataset.edges),
        natural=curves,
        measures={
            "c_index": m.c_index,
            "uno_c": m.uno_c,
            "dynamic_auroc": partial(m.dynamic_auroc, at=at),
            "integrated_brier": partial(m.integrated_brier, at=at),
            "loss": partial(m.surprise, at=at),
        },
        usual="c_index",
        constant=lambda targets, _width: hazards(targets, edges),
        constantly="the life table of its training samples",
        evaluate=lambda predictions, targets, draws: m.evaluate_survival(predictions, targets, at, draws),
        predict=partial(_predict, edges),
        soften=_soften,
        strata=lambda targets: targets[:, 1].astype(np.int64),
        informative=lambda targets: int((targets[:, 1] > 0).sum()),
        within=within,
    )


TASK = within(())
