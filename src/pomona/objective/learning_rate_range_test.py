"""Learning rate range test: brief federated averaging at several rates, compared by training loss.

A range test (Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017, section 3.3)
trains briefly at growing rates and watches the loss. Here each rate starts from the run's initial
model and gets a few short rounds of FedAvg on a few clients, so that the rate is tested as in a
federation: local steps, then averaging. Only training samples are used. The best rate over a few
steps can diverge later, so a rate next to one that diverged is not chosen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isinf

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.training_settings import Passes
from pomona.objective.batches import Pass, View, ordinary
from pomona.objective.objective import Objective

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # for SGD
# for Adam, whose step length is the rate
ADAPTIVE_RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
CLIENTS = 6  # maximum number of clients, evenly spaced by their number of samples
ROUNDS = 6
STEPS = 6  # local steps per client and round
DIVERGED = 10.0  # times the size of the first round's loss, which may be negative
PURPOSE = "range test"


@dataclass(frozen=True)
class RangeTest:
    """Rates tried, ascending, with their final training loss; infinite if training diverged."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def chosen(self) -> float:
        """Rate with the lowest loss that is not next to a diverged one; the smallest rate if there
        is none.
        """
        above = (*self.losses[1:], self.losses[-1])
        safe = [
            (loss, rate)
            for rate, loss, next_ in zip(self.rates, self.losses, above, strict=True)
            if not isinf(next_)
        ]
        return min(safe)[1] if safe else self.rates[0]

    def __str__(self) -> str:
        tried = ", ".join(
            f"{rate:g}: {loss:.3g}" for rate, loss in zip(self.rates, self.losses, strict=True)
        )
        return f"lr = {self.chosen:g}, chosen by a range test on training loss ({tried})"


@dataclass(frozen=True)
class StepRule:
    """A run's local steps, which determine a good rate.

    Attributes:
        batch_size: samples per step.
        moments: creates the optimizer state of rows (n, d).
        descend: a step on rows (n, d), in place, with gradients (n, d), moments and a rate.
        seed: root of the batches' streams.
    """

    batch_size: int
    moments: Callable[[Tensor], Tensor]
    descend: Callable[[Tensor, Tensor, Tensor, float], None]
    seed: int = 0


def range_test(
    objective: Objective,
    w0: Tensor,
    sizes: Sequence[int],
    steps: StepRule,
    rates: Sequence[float] = RATES,
) -> RangeTest:
    """Try learning rates for local steps, in ascending order until one diverges.

    Args:
        objective: over the clients' data.
        w0: (d,) the initial model.
        sizes: (n,) training samples of each client; those without any do not take part.
        steps: those of the run. All rates use the same batches.
        rates: ascending.
    """
    clients = sorted((i for i, n in enumerate(sizes) if n), key=lambda i: (sizes[i], i))
    subset = {i: sizes[i] for i in _spaced(clients, CLIENTS)}
    losses: list[float] = []
    for rate in rates:
        losses.append(
            inf if losses and isinf(losses[-1]) else _loss(objective, w0, subset, steps, rate)
        )
    return RangeTest(tuple(rates), tuple(losses))


def _spaced(ordered: Sequence[int], count: int) -> Sequence[int]:
    """Return at most ``count`` items, evenly spaced and including the first and the last."""
    if len(ordered) <= count:
        return ordered
    return [ordered[round(k * (len(ordered) - 1) / (count - 1))] for k in range(count)]


def _loss(
    objective: Objective, w0: Tensor, sizes: Mapping[int, int], steps: StepRule, rate: float
) -> float:
    """Return the mean training loss per sample in the last round; infinite if training diverged."""
    weights = torch.tensor(list(sizes.values()), dtype=torch.float64)
    shares = (weights / weights.sum()).to(w0)
    w, losses = w0, []
    for number in range(1, ROUNDS + 1):
        trained = [_local(objective, w, client, steps, rate, number) for client in sizes]
        w = shares @ torch.stack([row for row, _ in trained])
        losses.append(float(shares @ torch.stack([loss for _, loss in trained])))
        if not (isfinite(losses[-1]) and bool(torch.isfinite(w).all())):
            return inf
    return losses[-1] if losses[-1] <= DIVERGED * abs(losses[0]) else inf


def _local(
    objective: Objective, w: Tensor, client: int, steps: StepRule, rate: float, number: int
) -> tuple[Tensor, Tensor]:
    """Take a client's few steps from w (d,); return its row (d,) and the mean loss ()."""
    row = w.clone().unsqueeze(0)
    moments, losses = steps.moments(row), []
    passes, min_batch = Passes(steps=STEPS), objective.least_batch
    address = Pass(
        steps.seed, PURPOSE, number, client, passes, steps.batch_size, min_batch=min_batch
    )
    for step, index in enumerate(ordinary(objective.data.rows["train"][client], address)):
        loss, g = objective.gradient(
            row, [index], views=[View(client, steps.seed, number, PURPOSE, step)]
        )
        steps.descend(row, g, moments, rate)
        losses.append(loss[0])
    return row[0], torch.stack(losses).mean()
