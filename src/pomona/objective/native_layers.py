"""What the package pomona-native knows, and how it is called: chains of layers, and mixtures of rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from pomona.core.round import Round
from pomona.models.parameter_space import ParameterSlice, ParameterSpace
from pomona.objective.mixture import Mixture
from pomona.objective.native_step import NativeStep, Prepared

Seen = tuple[Tensor, Tensor, Tensor, Tensor]  # weights (m, N), own places (m,), copies (N, d), own rows (m, d)


@dataclass
class NativeMixtures:
    """Passes over all rows that are mixed, each for all clients of a call.

    What is computed of a client does not depend, to the bit, on who else is in the call. A step's mixtures and
    gradients lie in memory that is kept from step to step.
    """

    _memory: Tensor = field(default_factory=lambda: torch.empty(2, 0, 0))

    def step(
        self, native: NativeStep, mixture: Mixture, batches: Sequence[Prepared], moments: Tensor, round_: Round
    ) -> tuple[Tensor, Tensor]:
        """Move the own rows by one step of plain SGD, in place. Returns losses (n,) and the weights' slopes (n, N).

        ``moments`` (n, d) are what momentum remembers, (n, 0) without.
        """
        W, G = self._room(*mixture.cores.shape)
        losses, slopes = torch.empty(len(W)), torch.empty_like(mixture.weights)
        rates = round_.lr, round_.momentum, round_.weight_decay
        for some, seen in self._calls(mixture):
            native.package.mix(*seen, W[some])
        for k, batch in enumerate(batches):
            losses[k] = native.gradient(W[k], G[k], batch)
        for some, seen in self._calls(mixture):
            native.package.move(*seen, G[some], moments[some], slopes[some], *rates)
        return losses, slopes

    def rows(self, native: NativeStep, mixture: Mixture) -> Tensor:
        """The mixtures (n, d)."""
        W = torch.empty_like(mixture.cores)
        for some, seen in self._calls(mixture):
            native.package.mix(*seen, W[some])
        return W

    def products(self, native: NativeStep, mixture: Mixture, G: Tensor) -> Tensor:
        """The products (n, N) of rows G (n, d) with the rows that are mixed."""
        slopes = torch.empty_like(mixture.weights)
        for some, seen in self._calls(mixture):
            native.package.products(*seen[1:], G[some], slopes[some])
        return slopes

    def _calls(self, mixture: Mixture) -> Iterator[tuple[slice, Seen]]:
        """What calls get, and of whom: one call, but for those who hold copies of their own one each."""
        own, shared = mixture.own.int().argmax(1), mixture.copies.dim() == 2
        for some in [slice(None)] if shared else [slice(k, k + 1) for k in range(len(own))]:
            copies = mixture.copies if shared else mixture.copies[some][0]
            yield some, (mixture.weights[some], own[some], copies, mixture.cores[some])

    def _room(self, n: int, d: int) -> Tensor:
        """Memory (2, n, d) for mixtures and gradients."""
        if self._memory.shape[1] < n or self._memory.shape[2] != d:
            self._memory = torch.zeros(2, n, d)
        return self._memory[:, :n]


@dataclass(frozen=True)
class Layer:
    """A layer with parameters, and the pooling and ReLU behind it."""

    part: nn.Conv2d | nn.Linear
    weight: int
    bias: int
    end: int
    window: tuple[int, int] = (1, 1)
    hop: tuple[int, int] = (1, 1)
    rectified: bool = False

    def add(self, network: Any) -> None:
        """Append it to a network of the package. Raises ValueError for sizes out of bounds."""
        if isinstance(self.part, nn.Linear):
            network.linear(self.part.out_features, self.rectified, self.weight, self.bias)
        else:
            part, pair = self.part, nn.modules.utils._pair
            sizes = (pair(part.kernel_size), pair(part.stride), pair(part.padding), self.window, self.hop)
            network.convolution(part.out_channels, *sizes, self.rectified, self.weight, self.bias)


def chain(module: nn.Module, space: ParameterSpace, flat: bool) -> list[Layer] | str:
    """The layers of a chain that the package knows; or a line about the first that it does not.

    ``flat``: samples are vectors, not images.
    """
    children = dict(module.named_children())
    if type(module) is not nn.Sequential or len(children) < len(module):
        return "the network is no plain sequence of layers"
    places = {e.name: e for e in space.parameters}
    made = list[Layer]()
    for name, part in children.items():
        behind = made[-1] if made else None
        found = _continued(behind, part, flat) if behind else None
        if type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
            flat = True
        elif found:
            made[-1] = found
        elif layer := _begun(part, name, places, flat):
            made.append(layer)
        else:
            return f"layer {name} ({type(part).__name__}) is none that it knows in this place"
    if not made or not isinstance(made[-1].part, nn.Linear) or made[-1].rectified:
        return "the last layer is not linear"
    return made


def _continued(behind: Layer, part: nn.Module, flat: bool) -> Layer | None:
    """A layer with pooling or ReLU behind it; None for what does not follow so. The two commute."""
    if type(part) is nn.ReLU:
        return replace(behind, rectified=True)
    plain = type(part) is nn.MaxPool2d and not part.return_indices and not part.ceil_mode and not flat
    pooled = (behind.window, behind.hop) != (Layer.window, Layer.hop)
    if not plain or not isinstance(behind.part, nn.Conv2d) or pooled:
        return None
    pair = nn.modules.utils._pair
    if pair(part.padding) != (0, 0) or pair(part.dilation) != (1, 1):
        return None
    return replace(behind, window=pair(part.kernel_size), hop=pair(part.stride))


def _begun(part: nn.Module, name: str, places: dict[str, ParameterSlice], flat: bool) -> Layer | None:
    """A layer with parameters; None for another, or a subclass, which may compute anything."""
    weight, bias = places.get(f"{name}.weight"), places.get(f"{name}.bias")
    if weight is None or (bias is None) != (getattr(part, "bias", None) is None):  # frozen, or tied to another
        return None
    begin, end = -1 if bias is None else bias.start, max(e.stop for e in (weight, bias) if e)
    if type(part) is nn.Linear and flat:
        return Layer(part, weight.start, begin, end)
    if type(part) is not nn.Conv2d or part.padding_mode != "zeros" or isinstance(part.padding, str):
        return None
    if flat or part.groups != 1 or nn.modules.utils._pair(part.dilation) != (1, 1):
        return None
    return Layer(part, weight.start, begin, end)
