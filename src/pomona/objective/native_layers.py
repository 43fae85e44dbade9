"""Chains of layers that the package pomona-native supports, read from a module."""

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from pomona.models.parameter_space import ParameterSlice, ParameterSpace


@dataclass(frozen=True)
class Layer:
    """A layer with parameters, and the pooling and ReLU after it."""

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
    """Return the chain's layers if the package supports them all; otherwise a line on the first unsupported one.

    ``flat``: whether samples are vectors, not images.
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
    """Add pooling or ReLU to a layer, in either order, since they commute; None if another layer follows."""
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
    """Return a layer with parameters; None for any other, including subclasses, which may compute anything."""
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
