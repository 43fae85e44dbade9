"""The largest norm that admission accepts of a tensor in an uplink.

Once ``ENOUGH`` norms of a tensor were accepted, their median is the measure. Before, in the first
rounds of up to four clients, it is the largest of

- ``FLOOR``;
- the norm of the model of this shape that the server sent, or of the run's initial model: a client
  changes what it received. Changes of a model (SCAFFOLD's) have its shape too;
- what other clients confirm: the median of at least three norms above zero, of two the smaller.

Counts of samples may always reach the largest registered number of samples.

What was sent may be near zero (the matrix B of LoRA, prototypes). Then two clients whose norms both
exceed the measure and contradict each other cannot be told apart, and neither counts. Zeros say
nothing about what is too large.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, isfinite
from statistics import median

import torch
from torch import Tensor

from pomona.methods.base import Downlink, is_model
from pomona.storage.mapped_tensor import slices

UNBOUNDED = torch.finfo(torch.float64).max  # as a bound of norms, it excludes infinities
FACTOR = 100.0
"""Maximum ratio of a model's norm to the median of those accepted before."""
FACTOR_EARLY = 1e3
"""The same while too few are known, for all tensors but single numbers: a start close to zero grows
by more in its first round than a trained model in any later one.
"""
FACTOR_BESIDE = 1e6
"""The same for what is sent beside a model. An honest client may have a thousand times the samples
of the others, or the loss of one who joins where the others have none left.
"""
FLOOR = 1.0
"""A norm that is no larger says nothing about a scale: models begin at zero, or close to it."""
ENOUGH = 5
"""Number of norms needed for a median. Until as many were accepted, the round's own uplinks count
as well.
"""
PAIR = 2
OUTSTANDING = 0.1
"""Share of a factor from which a norm is worth a look, if everybody has diverged since."""


@dataclass(frozen=True)
class Bound:
    """The largest norm to accept of one tensor; the largest float, which excludes infinities, where
    there is none.

    Attributes:
        split: two norms of the round that exceed what was sent and contradict each other, in
            ascending order: none is accepted. Empty otherwise.
    """

    most: float
    split: tuple[float, ...] = ()

    def excess(self, norm: float) -> str:
        """Describe why a norm is not accepted, NaN included; empty if it is."""
        if norm in self.split:
            low, high = self.split
            return (
                f"has norm {norm:.3g}; the two norms of this round are {low:.3g} and {high:.3g}, "
                "and nothing that was sent before tells which of them is too large, so that "
                "neither counts"
            )
        return "" if norm <= self.most else f"has norm {norm:.3g}, the bound is {self.most:.3g}"


@dataclass(frozen=True)
class Alone:
    """The bound that no other client has to confirm: ``factor`` times ``sent``, or ``least``."""

    sent: float
    factor: float
    least: float = 0.0

    def with_others(self, confirmed: float = 0.0) -> float:
        """Return the bound if others confirm this norm."""
        return max(self.least, self.factor * max(self.sent, confirmed))


@dataclass(frozen=True)
class Measure:
    """What a bound is computed from while too few norms are known.

    Attributes:
        down: what the server sent in this round.
        initial: the run's initial model, if it may be computed.
        samples: the largest registered number of training samples.
    """

    down: Downlink
    initial: Callable[[], Tensor] | None = None
    samples: int = 1

    def of(self, name: str, example: Tensor, beside: bool) -> Alone:
        """Return the bound of a tensor as far as it follows from what was sent and registered."""
        if beside and example.numel() == 1:  # a loss, a number of steps
            return Alone(max(FLOOR, self.samples), FACTOR_BESIDE)
        sent = max(FLOOR, self._sent(name, example))
        return Alone(sent, FACTOR_EARLY, 2.0 * self.samples if beside else 0.0)

    def _sent(self, name: str, example: Tensor) -> float:
        """Return the largest norm of the models of this shape that were sent; 0 for none."""
        models = [
            rows
            for entry, rows in self.down.items()
            if is_model(entry) and rows.bank.shape[1:] == example.shape
        ]
        if models:
            return max(norm(rows.bank[k]) for rows in models for k in rows.index.unique().tolist())
        if self.initial and is_model(name) and (row := self.initial()).shape == example.shape:
            return norm(row)
        return 0.0


def bounds(
    earlier: Mapping[str, Sequence[float]],
    now: Mapping[int, Mapping[str, float]],
    spec: Mapping[str, Tensor],
    beside: Collection[str],
    measure: Measure,
) -> dict[str, Bound]:
    """Return the bound of each float tensor.

    Args:
        earlier: accepted norms by tensor.
        now: this round's norms by client and tensor.
        spec: examples of an uplink's tensors.
        beside: the tensors that are not models.
        measure: see ``Measure``.
    """
    limits = {}
    for name, example in spec.items():
        if example.is_floating_point():
            before, candidates = earlier.get(name, ()), [norms[name] for norms in now.values()]
            counted = before if len(before) >= ENOUGH else (*before, *candidates)
            middle = median(counted) if len(counted) >= ENOUGH else 0.0
            if middle > 0:
                limits[name] = _at_most((FACTOR_BESIDE if name in beside else FACTOR) * middle)
            else:
                alone = measure.of(name, example, name in beside)
                limits[name] = _early(before, candidates, alone)
    return limits


def _early(before: Sequence[float], now: Sequence[float], alone: Alone) -> Bound:
    """Return the bound of a tensor of which too few norms are known."""
    positive = sorted(norm for norm in (*before, *now) if norm > 0)
    if len(positive) != PAIR:
        return _at_most(alone.with_others(median(positive) if len(positive) > PAIR else 0.0))
    low, high = positive
    most = alone.with_others(low)
    if low > alone.with_others() and high > most and not any(before):
        return Bound(UNBOUNDED, (low, high))
    return _at_most(most)


def _at_most(norm: float) -> Bound:
    return Bound(norm if isfinite(norm) else UNBOUNDED)


@dataclass(frozen=True)
class Largest:
    """The client whose last accepted uplink was the largest, by the tensor in which it differs most
    from the ``second`` client's.

    Attributes:
        factor: ratio of both norms.
        stands_out: whether honest clients rarely differ by as much.
    """

    client: int
    tensor: str
    norm: float
    second: int
    factor: float
    stands_out: bool


def largest(latest: Mapping[int, Mapping[str, float]], beside: Collection[str]) -> Largest | None:
    """Return the client with the largest last accepted uplink; None if there is no second one.

    Args:
        latest: the norms of each client's last accepted uplink.
        beside: the tensors that are not models.
    """
    compared = []
    for name in {name: None for norms in latest.values() for name in norms}:
        order = sorted((norms[name], client) for client, norms in latest.items() if name in norms)
        if len(order) >= PAIR and order[-2][0] > 0:
            (low, second), (high, first) = order[-2:]
            usual = FACTOR_BESIDE if name in beside else FACTOR
            stands_out = high > OUTSTANDING * usual * low
            compared.append(
                (high / low / usual, Largest(first, name, high, second, high / low, stands_out))
            )
    return max(compared, key=lambda pair: pair[0])[1] if compared else None


def norm(tensor: Tensor) -> float:
    """Return the L2 norm, summed in float64; infinite on overflow."""
    return hypot(
        *(float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in slices(tensor))
    )


def norms(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the norm of each float tensor."""
    return {name: norm(t) for name, t in tensors.items() if t.is_floating_point()}
