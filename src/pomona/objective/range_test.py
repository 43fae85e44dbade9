"""A learning rate from a range test: brief federated averaging at each of a few rates, judged by training loss.

A range test (Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017, section 3.3) trains briefly at
growing rates and watches the loss. Here each rate starts from the run's initial model and gets a few short rounds of
FedAvg on a few clients, so that it is judged by what a federation does with it: local steps, then their mean. Only
training samples are used. A rate that is best over a few steps can diverge later, so one that stands next to a rate
that diverged is not taken.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite, isinf

import torch
from torch import Tensor

from pomona.objective.batches import Pass, ordinary
from pomona.objective.interface import Objective
from pomona.objective.training_view import View

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # of SGD
ADAPTIVE_RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)  # of Adam, whose steps are as long as the rate
CLIENTS = 6  # at most so many take part, evenly spaced by their number of samples
ROUNDS = 6
STEPS = 6  # local steps a client and round
DIVERGED = 10.0  # times the first round's loss
PURPOSE = "range test"


@dataclass(frozen=True)
class RangeTest:
    """The rates tried, ascending, and the training loss that each ends with; infinite where it diverged."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def chosen(self) -> float:
        """Rate with the lowest loss that is not next to a diverged one; the smallest rate if there is none."""
        above = (*self.losses[1:], self.losses[-1])
        safe = [
            (loss, rate) for rate, loss, next_ in zip(self.rates, self.losses, above, strict=True) if not isinf(next_)
        ]
        return min(safe)[1] if safe else self.rates[0]

    def __str__(self) -> str:
        tried = ", ".join(f"{rate:g}: {loss:.3g}" for rate, loss in zip(self.rates, self.losses, strict=True))
        return f"lr = {self.chosen:g}, chosen by a range test on training loss ({tried})"


@dataclass(frozen=True)
class Steps:
    """A run's local steps, on which a good rate depends.

    Attributes:
        batch_size: samples a step.
        moments: of rows (n, d), what their optimizer remembers from step to step.
        descend: a step on rows (n, d), in place, with gradients (n, d), moments and a rate.
        seed: root of the batches' streams.
    """

    batch_size: int
    moments: Callable[[Tensor], Tensor]
    descend: Callable[[Tensor, Tensor, Tensor, float], None]
    seed: int = 0


def range_test(
    objective: Objective, w0: Tensor, sizes: Sequence[int], steps: Steps, rates: Sequence[float] = RATES
) -> RangeTest:
    """Try learning rates for local steps; rates above one that diverged are not tried.

    Args:
        objective: over the clients' data.
        w0: (d,) the model that training starts from.
        sizes: (n,) training samples of each client; those without any do not take part.
        steps: those of the run. All rates see the same batches.
        rates: ascending.
    """
    having = sorted((i for i, n in enumerate(sizes) if n), key=lambda i: (sizes[i], i))
    some = {i: sizes[i] for i in _spaced(having, CLIENTS)}
    losses: list[float] = []
    for rate in rates:
        losses.append(inf if losses and isinf(losses[-1]) else _loss(objective, w0, some, steps, rate))
    return RangeTest(tuple(rates), tuple(losses))


def _spaced(ordered: Sequence[int], most: int) -> Sequence[int]:
    """At most ``most`` of a sequence, evenly spaced, the first and the last among them."""
    if len(ordered) <= most:
        return ordered
    return [ordered[round(k * (len(ordered) - 1) / (most - 1))] for k in range(most)]


def _loss(objective: Objective, w0: Tensor, sizes: Mapping[int, int], steps: Steps, rate: float) -> float:
    """The training loss over the steps of the last round, mean over samples; infinite if training diverged."""
    weights = torch.tensor(list(sizes.values()), dtype=torch.float64)
    shares = (weights / weights.sum()).to(w0)
    w, losses = w0, []
    for number in range(1, ROUNDS + 1):
        trained = [_local(objective, w, client, steps, rate, number) for client in sizes]
        w = shares @ torch.stack([row for row, _ in trained])
        losses.append(float(shares @ torch.stack([loss for _, loss in trained])))
        if not (isfinite(losses[-1]) and bool(torch.isfinite(w).all())):
            return inf
    return losses[-1] if losses[-1] <= DIVERGED * losses[0] else inf


def _local(
    objective: Objective, w: Tensor, client: int, steps: Steps, rate: float, number: int
) -> tuple[Tensor, Tensor]:
    """A client's few steps from w (d,): its row (d,) and the mean loss ()."""
    row = w.clone().unsqueeze(0)
    moments, losses = steps.moments(row), []
    address = Pass(steps.seed, PURPOSE, number, client, STEPS, steps.batch_size, least=objective.least_batch)
    for step, index in enumerate(islice(ordinary(objective.data.rows["train"][client], address), STEPS)):
        loss, g = objective.gradient(row, [index], views=[View(client, steps.seed, number, PURPOSE, step)])
        steps.descend(row, g, moments, rate)
        losses.append(loss[0])
    return row[0], torch.stack(losses).mean()
