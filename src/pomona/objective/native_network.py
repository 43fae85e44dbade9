"""Chains of layers computed in one call of the optional package pomona-native.

Calling PyTorch's operators costs about as much as computing a small step, and they do not use the
zeros that pooling and ReLU leave in gradients. The package supports convolutions with pooling and
ReLU, and linear layers with ReLU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from pomona.core.round import Round
from pomona.models.losses import cross_entropy
from pomona.models.parameter_space import ParameterSlice, ParameterSpace
from pomona.objective.dataset import DeviceDataset
from pomona.objective.native_package import native_package
from pomona.objective.objective import Pull

NEUTRAL = torch.zeros(1), torch.ones(1)  # identity shift and scale
PARTS = 8
"""Outputs are computed for this fraction of the maximum samples of a call: maps of 2^24 numbers, 64
MiB.
"""
Prepared = tuple[Tensor, Tensor, Tensor]  # samples, indices into them, their targets


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
            sizes = (
                pair(part.kernel_size),
                pair(part.stride),
                pair(part.padding),
                self.window,
                self.hop,
            )
            network.convolution(part.out_channels, *sizes, self.rectified, self.weight, self.bias)


def chain(module: nn.Module, space: ParameterSpace, flat: bool) -> list[Layer] | str:
    """Return the chain's layers if the package supports them all; otherwise a line on the first
    unsupported one.

    ``flat``: whether samples are vectors, not images.
    """
    children = dict(module.named_children())
    if type(module) is not nn.Sequential or len(children) < len(module):
        return "the network is not a plain sequence of layers"
    for name, part in module.named_modules():
        if _altered(part):
            what = f"layer {name}" if name else "the network"
            return f"{what} has a hook or a forward of its own"
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


def _altered(part: nn.Module) -> bool:
    """Return whether a module computes more than its type says."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" in vars(part) or any(getattr(part, kind) for kind in hooks)


def _continued(behind: Layer, part: nn.Module, flat: bool) -> Layer | None:
    """Add pooling or ReLU to a layer, in either order, since they commute; None if another layer
    follows.
    """
    if type(part) is nn.ReLU:
        return replace(behind, rectified=True)
    plain = (
        type(part) is nn.MaxPool2d and not part.return_indices and not part.ceil_mode and not flat
    )
    pooled = (behind.window, behind.hop) != (Layer.window, Layer.hop)
    if not plain or not isinstance(behind.part, nn.Conv2d) or pooled:
        return None
    pair = nn.modules.utils._pair
    if pair(part.padding) != (0, 0) or pair(part.dilation) != (1, 1):
        return None
    return replace(behind, window=pair(part.kernel_size), hop=pair(part.stride))


def _begun(
    part: nn.Module, name: str, places: dict[str, ParameterSlice], flat: bool
) -> Layer | None:
    """Return a layer with parameters; None for any other, including subclasses, which may compute
    anything.
    """
    weight, bias = places.get(f"{name}.weight"), places.get(f"{name}.bias")
    # frozen, or tied to another
    if weight is None or (bias is None) != (getattr(part, "bias", None) is None):
        return None
    begin, end = -1 if bias is None else bias.start, max(e.stop for e in (weight, bias) if e)
    if type(part) is nn.Linear and flat:
        return Layer(part, weight.start, begin, end)
    if type(part) is not nn.Conv2d or part.padding_mode != "zeros" or isinstance(part.padding, str):
        return None
    if flat or part.groups != 1 or nn.modules.utils._pair(part.dilation) != (1, 1):
        return None
    return Layer(part, weight.start, begin, end)


@dataclass(frozen=True)
class NativeNetwork:
    """A chain over resident samples.

    Attributes:
        package: the package's module for this kind of processor.
        layers: of the chain.
        network: the chain; it holds working memory, so calls must not overlap.
        data: the resident data.
        shift, scale: as in ``DeviceDataset``, 0 and 1 if it has none.
        ends: for each layer with parameters, their end in a row of it and of all before it.
        bf16: convolutions multiply numbers rounded to bf16 and add in float32; all else is float32.
    """

    package: Any
    layers: tuple[Layer, ...]
    network: Any
    data: DeviceDataset
    shift: Tensor
    scale: Tensor
    ends: tuple[int, ...]
    bf16: bool
    _halves: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        module: nn.Module,
        space: ParameterSpace,
        data: DeviceDataset,
        criterion: Any,
        bf16: bool,
        kind: str = "",
    ) -> "NativeNetwork | str":
        """Return the step of a module on data, or the reason why the package does not support it.

        Args:
            module: the architecture.
            space: its parameter space.
            data: the resident data.
            criterion: per-sample loss; the package supports ``losses.cross_entropy``.
            bf16: whether to round factors of convolutions to bf16.
            kind: kind of processor; the fastest if empty.
        """
        package = native_package(kind)
        if isinstance(package, str):
            return package
        if why := _unknown(data, criterion):
            return why
        layers = chain(module, space, flat=data.x.dim() == 2)
        if isinstance(layers, str):
            return layers
        try:
            network = _network(package.module, _image(data), layers)
        except ValueError as fault:  # sizes out of bounds
            return f"pomona-native: {fault}"
        shift, scale = NEUTRAL
        if data.shift is not None and data.scale is not None:
            shift, scale = (v.float().reshape(-1).contiguous() for v in (data.shift, data.scale))
        ends = tuple(accumulate((each.end for each in layers), max))
        return cls(package.module, tuple(layers), network, data, shift, scale, ends, bf16)

    @property
    def most(self) -> int:
        """The maximum samples of a gradient or a step: their largest maps have 2^27 numbers."""
        return int(self.network.most)

    def gradient(self, row: Tensor, g: Tensor, batch: Prepared, above: int = 0) -> float:
        """Write the gradient of the mean loss at ``row`` (d,) into ``g`` (d,); return the loss.

        ``batch``: samples, indices into them, and the targets. ``g`` may be 0 before the coordinate
        ``above``.
        """
        x, index, y = batch
        loss: float = self.network.gradient(
            row, g, x, index, y, *self._of(x), self.bf16, self.skipped(above)
        )
        return loss

    def step(
        self,
        row: Tensor,
        moments: Tensor,
        batch: Prepared,
        round_: Round,
        pull: Pull | None = None,
        part: slice | None = None,
    ) -> float:
        """Take one step of plain SGD on ``row`` (d,), in place; return the mean loss before it.

        ``moments``: the momentum buffer, updated in place; ignored without momentum. ``pull``, of
        one row, is added to the gradient. If ``part`` is given, only it moves, and moments are
        those of it.
        """
        x, index, y = batch
        rates = round_.lr, round_.momentum, round_.weight_decay
        beside = (pull.weight, pull.centre, pull.constant) if pull else (0.0, None, None)
        begin, end = (part.start, part.stop) if part else (0, len(row))
        moving = *beside, (begin, end), self.skipped(begin)
        loss: float = self.network.step(
            row, moments, x, index, y, *self._of(x), self.bf16, *rates, *moving
        )
        return loss

    def outputs(self, row: Tensor, index: Tensor) -> Tensor:
        """Return outputs (b, K) of resident samples ``index`` (b,) under ``row`` (d,)."""
        return self._through(self.network, row, self.resident(index))

    def skipped(self, above: int) -> int:
        """Return the number of leading layers without parameters from ``above`` on; never includes
        the last one.
        """
        return sum(end <= above for end in self.ends[:-1])

    def below(self, row: Tensor, batch: Prepared, above: int) -> Tensor:
        """Return the outputs of the layers that ``gradient`` skips for a batch (b, ...); there must
        be some.
        """
        return self._through(self._half(above)[0], row, batch)

    def gradient_above(
        self, features: Tensor, row: Tensor, g: Tensor, y: Tensor, above: int
    ) -> float:
        """Compute ``gradient`` from the result of ``below``."""
        at = features, torch.arange(len(features)), y
        loss: float = self._half(above)[1].gradient(row, g, *at, *NEUTRAL, self.bf16, 0)
        return loss

    def resident(self, index: Tensor) -> Prepared:
        """Return a batch of resident samples, which are gathered and normalised inside the call."""
        return self.data.x, index, self.data.target(index)

    def _of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shift and scale of samples; samples other than the resident ones are already
        network input.
        """
        return (self.shift, self.scale) if x is self.data.x else NEUTRAL

    def _through(self, network: Any, row: Tensor, batch: Prepared) -> Tensor:
        """Return a network's outputs for a batch: vectors (b, f), or maps (b, height, width,
        channels).
        """
        x, index, _ = batch
        *sides, channels = network.reached
        made = torch.empty(len(index), prod(sides) * channels)
        at_once = max(1, network.most // PARTS)
        for some, to in zip(index.split(at_once), made.split(at_once), strict=True):
            network.outputs(row, to, x, some, *self._of(x), self.bf16)
        return made if sides == [1, 1] else made.view(len(index), *sides, channels)

    def _half(self, above: int) -> tuple[Any, Any]:
        """Split the network before the layers that have parameters from ``above`` on."""
        count = self.skipped(above)
        if count not in self._halves:
            lower = _network(self.package, _image(self.data), self.layers[:count])
            self._halves[count] = lower, _network(self.package, lower.reached, self.layers[count:])
        return self._halves[count]


def _image(data: DeviceDataset) -> tuple[int, ...]:
    """Return the shape (height, width, channels) of a sample; (1, 1, F) for a vector."""
    shape = tuple(data.x.shape[1:])
    return shape if len(shape) == 3 else (1, 1, *shape)


def _network(package: Any, shape: tuple[int, ...], layers: Sequence[Layer]) -> Any:
    """Create a network of the package for samples (height, width, channels).

    Raises ValueError for invalid sizes.
    """
    network = package.Network(*shape)
    for layer in layers:
        layer.add(network)
    return network


def prepared(x: Tensor, y: Tensor) -> Prepared:
    """Return a batch of samples (b, C, H, W) or (b, F) that have been augmented."""
    return (x.movedim(1, -1) if x.dim() > 2 else x).contiguous(), torch.arange(len(x)), y


def _unknown(data: DeviceDataset, criterion: Any) -> str:
    """Return the reason why the package does not support the computation around the network; empty
    if it does.
    """
    if data.x.device.type != "cpu":
        return "it computes on CPUs only"
    if (
        criterion is not cross_entropy
        or data.weights is not None
        or data.y.dim() != 1
        or data.y.is_floating_point()
    ):
        return "the loss is not the plain cross-entropy of classes"
    if data.patch is not None or data.x.dim() not in {2, 4} or not data.x.is_contiguous():
        return "samples are neither images nor vectors, or are cut into patches"
    if data.x.dtype not in {torch.uint8, torch.float32}:
        return f"samples are {str(data.x.dtype).removeprefix('torch.')}, neither uint8 nor float32"
    return ""
