"""Survival: the time to an event that may be censored; outputs are logits of hazards in K intervals
of time.

Targets (n, 2) are a time above 0 and whether the event was observed then (1) or the sample was
censored (0). Interval k ends at edge t_k, inclusive: an event at t in (t_(k-1), t_k] is in interval
k. A sample censored at t has survived the intervals that end at t or before, and gives no
information on the interrupted one. Events beyond the last edge count as its survival.

Cox's model is not used: its partial likelihood compares each event with all samples at risk at that
moment, so it is not a sum over samples. Each minibatch or client would have its own risk sets,
which is another model, and the gradient of one sample, which differential privacy clips, does not
exist. The likelihood of a sequence of intervals is a sum over samples (``hazard_surprise``), so
every method works on it as on any other loss.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pomona.metrics import survival as m
from pomona.metrics.nan_safe import Array, require_finite
from pomona.tasks.task import Resample, Task

if TYPE_CHECKING:
    from torch import Tensor

MEDIAN = 0.5
DIGITS = 10  # of a decimal that somebody wrote; a float32 is told apart by nine


def curves(outputs: NDArray[Any]) -> Array:
    """Convert logits of hazards (n, K) to probabilities of surviving beyond each edge (n, K),
    float64.

    S(t_k) is the product of 1 - h_j over j <= k, computed as exp(-sum of softplus(z_j)).
    """
    return np.asarray(
        np.exp(-np.cumsum(np.logaddexp(0.0, np.asarray(outputs, dtype=float)), axis=1))
    )


def sequences(targets: NDArray[Any], edges: Sequence[float]) -> NDArray[np.float32]:
    """Convert times and events (n, 2) to (n, 2, K) float32 sequences.

    The first row is 1 if the interval was reached and its end or the event in it was observed, the
    second 1 if the event was in it.
    """
    passed, observed = m.passages(targets, np.asarray(edges, dtype=float))
    interval = np.arange(len(edges))
    event = (interval == passed[:, np.newaxis]) & observed[:, np.newaxis]
    return np.stack([(interval < passed[:, np.newaxis]) | event, event], axis=1).astype(np.float32)


def hazards(targets: NDArray[Any], edges: Sequence[float]) -> Array:
    """Return logits (K,) of the samples' hazards (the life table).

    One sample of each outcome is added per interval (Laplace's rule), so that no hazard is 0 or 1.
    """
    reached, events = sequences(targets, edges).sum(axis=0, dtype=float)
    return np.asarray(np.log(events + 1) - np.log(reached - events + 1))


def _soften(outputs: "Tensor", temperature: float) -> "Tensor":
    """Return (n, 2, K) the probabilities that an interval is reached, and that the event is in
    it.
    """
    from torch import stack

    hazard = (outputs / temperature).sigmoid()
    beyond = (1 - hazard).cumprod(1)
    reached = beyond.roll(1, 1)
    reached[:, 0] = 1
    return stack([reached, reached * hazard], 1)


def _details(survival: Array, targets: NDArray[Any], _: Resample) -> dict[str, Any]:
    """Return the number of observed ``events``."""
    require_finite(survival)
    return {"events": int(targets[:, 1].sum())}


def edge_name(edge: float) -> str:
    """Return an interval's end in full: close ones differ.

    Ends that are learned are times of the data, float32: 1.55, not 1.5499999523162842.
    """
    text, single = str(float(edge)), np.float32(edge)
    rounded = float(single) == edge and not float(edge).is_integer()
    many_digits = sum(map(str.isdigit, text)) > DIGITS
    return (str(single) if rounded and many_digits else text).removesuffix(".0")


def _predict(
    edges: Sequence[float], outputs: "Tensor", _names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return ``survival`` beyond each edge, the ``median``, as edges are named, and ``risk``.

    The median is the first edge beyond which no more than half survive; None if there is none.
    """
    names = [edge_name(edge) for edge in edges]
    beyond = curves(outputs.numpy())
    rows = zip(beyond, m.risk(beyond).tolist(), strict=True)
    return [
        {
            "survival": dict(zip(names, row.tolist(), strict=True)),
            "median": next(
                (float(name) for name, value in zip(names, row, strict=True) if value <= MEDIAN),
                None,
            ),
            "risk": risk,
        }
        for row, risk in rows
    ]


@lru_cache(32)
def within(edges: tuple[float, ...]) -> Task:
    """Return the task of a run whose intervals end at these edges (K,), ascending and above 0."""
    times = np.array(edges, dtype=float)
    return Task(
        targets="survival",
        title="times to an event",
        output="interval",
        loss="pomona.models.losses:hazard_surprise",
        no_target=lambda width, _shape: np.zeros((2, width), np.float32),
        stored_target=lambda _width, _shape: np.zeros(2, np.float32),
        learned=lambda stored, dataset: sequences(stored, dataset.edges),
        natural=curves,
        measures={
            "c_index": m.c_index,
            "uno_c": m.uno_c,
            "dynamic_auroc": partial(m.dynamic_auroc, times=times),
            "integrated_brier": partial(m.integrated_brier, times=times),
            "loss": partial(m.surprise, times=times),
        },
        usual="c_index",
        constant=lambda targets, _width: hazards(targets, edges),
        constantly="the life table of its training samples",
        details=_details,
        predict=partial(_predict, edges),
        soften=_soften,
        strata=lambda targets: targets[:, 1].astype(np.int64),
        informative=lambda targets: int((targets[:, 1] > 0).sum()),
        within=within,
    )


TASK = within(())
