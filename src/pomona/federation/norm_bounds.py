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

from pomona.methods.base import Downlink
from pomona.methods.card import is_model
from pomona.storage.mapped_tensor import slices

UNBOUNDED = torch.finfo(torch.float64).max  # as a bound of norms, it excludes infinities
FACTOR = 100.0
"""Maximum ratio of a model's norm to the median of those accepted before."""
FACTOR_EARLY = 1e3
"""The same while too few are known, for all tensors but single numbers: a start close to zero grows
by more in its first round than a trained model in any later one.
"""
FACTOR_AUXILIARY = 1e6
"""The same for what is sent in addition to a model. An honest client may have a thousand times the
samples of the others, or the loss of one who joins where the others have none left.
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

    max_norm: float
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
        if norm <= self.max_norm:
            return ""
        return f"has norm {norm:.3g}, the bound is {self.max_norm:.3g}"


@dataclass(frozen=True)
class Unconfirmed:
    """A bound that no other client has to confirm: ``factor`` times ``reference``, at least
    ``minimum``.
    """

    reference: float
    factor: float
    minimum: float = 0.0

    def confirmed_by(self, confirmed: float = 0.0) -> float:
        """Return the bound if others confirm this norm."""
        return max(self.minimum, self.factor * max(self.reference, confirmed))


@dataclass(frozen=True)
class Measure:
    """What a bound is computed from while too few norms are known.

    Attributes:
        downlink: what the server sent in this round.
        initial: the run's initial model, if it may be computed.
        samples: the largest registered number of training samples.
    """

    downlink: Downlink
    initial: Callable[[], Tensor] | None = None
    samples: int = 1

    def unconfirmed(self, name: str, example: Tensor, auxiliary: bool) -> Unconfirmed:
        """Return the bound of a tensor as far as it follows from what was sent and registered."""
        if auxiliary and example.numel() == 1:  # a loss, a number of steps
            return Unconfirmed(max(FLOOR, self.samples), FACTOR_AUXILIARY)
        sent_norm = max(FLOOR, self._sent_norm(name, example))
        return Unconfirmed(sent_norm, FACTOR_EARLY, 2.0 * self.samples * auxiliary)

    def _sent_norm(self, name: str, example: Tensor) -> float:
        """Return the largest norm of the models of this shape that were sent; ``FLOOR`` for
        none.
        """
        models = [
            rows
            for entry, rows in self.downlink.items()
            if is_model(entry) and rows.bank.shape[1:] == example.shape
        ]
        if models:
            return max(norm(rows.bank[k]) for rows in models for k in rows.index.unique().tolist())
        if self.initial and is_model(name) and (row := self.initial()).shape == example.shape:
            return norm(row)
        return FLOOR


def bounds(
    earlier: Mapping[str, Sequence[float]],
    current: Mapping[int, Mapping[str, float]],
    spec: Mapping[str, Tensor],
    auxiliary: Collection[str],
    measure: Measure,
) -> dict[str, Bound]:
    """Return the bound of each float tensor.

    Args:
        earlier: accepted norms by tensor.
        current: this round's norms by client and tensor.
        spec: examples of an uplink's tensors.
        auxiliary: the tensors that are not models.
        measure: see ``Measure``.
    """
    limits = {}
    for name, example in spec.items():
        if example.is_floating_point():
            accepted = earlier.get(name, ())
            candidates = [norms[name] for norms in current.values()]
            counted_norms = accepted if len(accepted) >= ENOUGH else (*accepted, *candidates)
            median_norm = median(counted_norms) if len(counted_norms) >= ENOUGH else 0.0
            if median_norm > 0:
                limits[name] = _finite_bound(
                    (FACTOR_AUXILIARY if name in auxiliary else FACTOR) * median_norm
                )
            else:
                unconfirmed = measure.unconfirmed(name, example, name in auxiliary)
                limits[name] = _early_bound(accepted, candidates, unconfirmed)
    return limits


def _early_bound(
    accepted: Sequence[float], current: Sequence[float], unconfirmed: Unconfirmed
) -> Bound:
    """Return the bound of a tensor of which too few norms are known."""
    positive = sorted(norm for norm in (*accepted, *current) if norm > 0)
    if len(positive) < PAIR:
        return _finite_bound(unconfirmed.confirmed_by())
    if len(positive) > PAIR:
        return _finite_bound(unconfirmed.confirmed_by(median(positive)))
    low, high = positive
    max_norm = unconfirmed.confirmed_by(low)
    if low > unconfirmed.confirmed_by() and high > max_norm and not any(accepted):
        return Bound(UNBOUNDED, (low, high))
    return _finite_bound(max_norm)


def _finite_bound(norm: float) -> Bound:
    return Bound(norm if isfinite(norm) else UNBOUNDED)


@dataclass(frozen=True)
class Largest:
    """The client whose last accepted uplink was the largest, by the tensor in which it differs most
    from the ``second`` client's.

    Attributes:
        factor: ratio of both norms.
        outlier: whether honest clients rarely differ by as much.
    """

    client: int
    tensor: str
    norm: float
    second: int
    factor: float
    outlier: bool


def largest(
    latest: Mapping[int, Mapping[str, float]], auxiliary: Collection[str]
) -> Largest | None:
    """Return the client with the largest last accepted uplink; None if there is no second one.

    Args:
        latest: the norms of each client's last accepted uplink.
        auxiliary: the tensors that are not models.
    """
    compared = []
    for name in {name: None for norms in latest.values() for name in norms}:
        order = sorted((norms[name], client) for client, norms in latest.items() if name in norms)
        if len(order) >= PAIR and order[-2][0] > 0:
            (low, second), (high, first) = order[-2:]
            max_factor = FACTOR_AUXILIARY if name in auxiliary else FACTOR
            outlier = high > OUTSTANDING * max_factor * low
            compared.append(
                (high / low / max_factor, Largest(first, name, high, second, high / low, outlier))
            )
    return max(compared, key=lambda pair: pair[0])[1] if compared else None


def norm(tensor: Tensor) -> float:
    """Return the L2 norm, summed in float64; infinite on overflow."""
    return hypot(
        *(float(torch.linalg.vector_norm(chunk, dtype=torch.float64)) for chunk in slices(tensor))
    )


def norms(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the norm of each float tensor."""
    return {name: norm(t) for name, t in tensors.items() if t.is_floating_point()}
