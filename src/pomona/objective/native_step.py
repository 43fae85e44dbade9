"""The native engine: what plain chains of layers compute, in one call of the optional package pomona-native.

PyTorch's operators cost about as much to call as a small step takes to compute, and know nothing of the zeros that
pooling and ReLU leave in gradients. The package knows convolutions with pooling and ReLU, and linear layers with ReLU.
"""

from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from pomona.core.round import Round
from pomona.models.losses import cross_entropy
from pomona.models.parameter_space import ParameterSlice, ParameterSpace
from pomona.objective.device_dataset import DeviceDataset

PACKAGE = "pomona_native"


def release() -> str:
    """Version of pomona-native and the kind of processor that it computes for; empty where it cannot be used."""
    if find_spec(PACKAGE) is None:
        return ""
    import pomona_native

    return f"{pomona_native.__version__} {pomona_native.kinds()[0]}" if pomona_native.kinds() else ""


@dataclass(frozen=True)
class NativeStep:
    """A chain over resident samples.

    Attributes:
        network: of the package; it holds working memory, so one call at a time.
        data: the resident data.
        shift, scale: as in ``DeviceDataset``, 0 and 1 where it has none.
        ends: for each layer with parameters, where they end in a row of it and of all before it.
        bf16: convolutions multiply numbers rounded to bf16 and add in float32; all else is float32.
        width: number of outputs.
    """

    network: Any
    data: DeviceDataset
    shift: Tensor
    scale: Tensor
    ends: tuple[int, ...]
    bf16: bool
    width: int

    @classmethod
    def of(
        cls, module: nn.Module, space: ParameterSpace, data: DeviceDataset, criterion: Any, bf16: bool, kind: str = ""
    ) -> "NativeStep | str":
        """The step of a module on data, or why the package does not know it.

        Args:
            module: the architecture.
            space: its parameter space.
            data: the resident data.
            criterion: per-sample loss; the package knows ``losses.cross_entropy``.
            bf16: round factors of convolutions to bf16.
            kind: of processor to compute for; the fastest if empty.
        """
        if why := _unknown(data, criterion):
            return why
        layers = _layers(module, space, data)
        if isinstance(layers, str):
            return layers
        import pomona_native

        shape = tuple(data.x.shape[1:])
        native = pomona_native.load(kind or pomona_native.kinds()[0])
        try:
            network = native.Network(*(shape if len(shape) == 3 else (1, 1, *shape)))
            for layer in layers:
                layer.add(network)
        except ValueError as fault:  # sizes out of bounds
            return f"pomona-native: {fault}"
        shift, scale = (torch.full((1,), v) for v in (0.0, 1.0))
        if data.shift is not None and data.scale is not None:
            shift, scale = (v.float().reshape(-1).contiguous() for v in (data.shift, data.scale))
        ends = tuple(accumulate((each.end for each in layers), max))
        return cls(network, data, shift, scale, ends, bf16, layers[-1].outputs)

    def gradient(self, row: Tensor, g: Tensor, batch: tuple[Tensor, Tensor, Tensor], above: int = 0) -> float:
        """Write the gradient of the mean loss at ``row`` (d,) into ``g`` (d,); return the loss.

        ``batch``: samples, indices into them, and the targets. Backpropagation stops above ``above``, see ``Chain``.
        """
        x, index, y = batch
        skipped = sum(end <= above for end in self.ends[:-1])
        loss: float = self.network.gradient(row, g, x, index, y, *self._of(x), self.bf16, skipped)
        return loss

    def step(self, row: Tensor, moments: Tensor, batch: tuple[Tensor, Tensor, Tensor], round_: Round) -> float:
        """Take one step of plain SGD on ``row`` (d,), in place; return the mean loss before it.

        ``moments`` (d,) or, without momentum, anything: what momentum remembers, in place.
        """
        x, index, y = batch
        rates = round_.lr, round_.momentum, round_.weight_decay
        loss: float = self.network.step(row, moments, x, index, y, *self._of(x), self.bf16, *rates)
        return loss

    def outputs(self, row: Tensor, index: Tensor) -> Tensor:
        """Outputs (b, K) of resident samples ``index`` (b,) under ``row`` (d,)."""
        made = torch.empty(len(index), self.width)
        self.network.outputs(row, made, self.data.x, index, self.shift, self.scale, self.bf16)
        return made

    def resident(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A batch of resident samples: they are gathered and normalised in the call."""
        return self.data.x, index, self.data.target(index)

    def _of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """How samples are normalised: those that are not the resident ones come as the network takes them."""
        return (self.shift, self.scale) if x is self.data.x else (torch.zeros(1), torch.ones(1))


def prepared(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A batch of samples (b, C, H, W) or (b, F) that were changed on the way."""
    return (x.movedim(1, -1) if x.dim() > 2 else x).contiguous(), torch.arange(len(x)), y


@dataclass(frozen=True)
class _Layer:
    """A layer with parameters, and the pooling and ReLU behind it."""

    part: nn.Conv2d | nn.Linear
    weight: int
    bias: int
    end: int
    window: tuple[int, int] = (1, 1)
    hop: tuple[int, int] = (1, 1)
    rectified: bool = False

    @property
    def outputs(self) -> int:
        return self.part.out_features if isinstance(self.part, nn.Linear) else self.part.out_channels

    def add(self, network: Any) -> None:
        if isinstance(self.part, nn.Linear):
            network.linear(self.part.out_features, self.rectified, self.weight, self.bias)
        else:
            part, pair = self.part, nn.modules.utils._pair
            sizes = (pair(part.kernel_size), pair(part.stride), pair(part.padding), self.window, self.hop)
            network.convolution(part.out_channels, *sizes, self.rectified, self.weight, self.bias)


def _unknown(data: DeviceDataset, criterion: Any) -> str:
    """Why the package is not there, or does not know what is computed beside the network; empty if it does."""
    if find_spec(PACKAGE) is None:
        return "the package pomona-native is not installed"
    if not release():
        return "this processor has neither AVX2 nor NEON"
    if data.x.device.type != "cpu":
        return "it computes on CPUs only"
    if criterion is not cross_entropy or data.weights is not None or data.y.dim() != 1 or data.y.is_floating_point():
        return "the loss is not the plain cross-entropy of classes"
    if data.patch is not None or data.x.dim() not in {2, 4} or not data.x.is_contiguous():
        return "samples are neither images nor vectors, or are cut into patches"
    if data.x.dtype not in {torch.uint8, torch.float32}:
        return f"samples are {str(data.x.dtype).removeprefix('torch.')}, neither uint8 nor float32"
    return ""


def _layers(module: nn.Module, space: ParameterSpace, data: DeviceDataset) -> list[_Layer] | str:
    """The layers of a chain that the package knows; or a line about the first that it does not."""
    children = dict(module.named_children())
    if type(module) is not nn.Sequential or len(children) < len(module):
        return "the network is no plain sequence of layers"
    places = {e.name: e for e in space.parameters}
    flat, made = data.x.dim() == 2, list[_Layer]()
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


def _continued(behind: _Layer, part: nn.Module, flat: bool) -> _Layer | None:
    """A layer with pooling or ReLU behind it; None for what does not follow so. The two commute."""
    if type(part) is nn.ReLU:
        return replace(behind, rectified=True)
    plain = type(part) is nn.MaxPool2d and not part.return_indices and not part.ceil_mode and not flat
    if not plain or not isinstance(behind.part, nn.Conv2d) or behind.window != (1, 1):
        return None
    pair = nn.modules.utils._pair
    if pair(part.padding) != (0, 0) or pair(part.dilation) != (1, 1):
        return None
    return replace(behind, window=pair(part.kernel_size), hop=pair(part.stride))


def _begun(part: nn.Module, name: str, places: dict[str, ParameterSlice], flat: bool) -> _Layer | None:
    """A layer with parameters; None for another, or a subclass, which may compute anything."""
    weight, bias = places.get(f"{name}.weight"), places.get(f"{name}.bias")
    if weight is None or (bias is None) != (getattr(part, "bias", None) is None):  # frozen, or tied to another
        return None
    begin, end = -1 if bias is None else bias.start, max(e.stop for e in (weight, bias) if e)
    if type(part) is nn.Linear and flat:
        return _Layer(part, weight.start, begin, end)
    if type(part) is not nn.Conv2d or part.padding_mode != "zeros" or isinstance(part.padding, str):
        return None
    if flat or part.groups != 1 or nn.modules.utils._pair(part.dilation) != (1, 1):
        return None
    return _Layer(part, weight.start, begin, end)
