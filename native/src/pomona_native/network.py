"""Networks computed in one call of a compiled module.

Calling PyTorch's operators costs about as much as computing a small step, and they do not use the
zeros that pooling and ReLU leave in gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from pomona.core.round import Round
from pomona.models.losses import cross_entropy
from pomona.objective.dataset import DeviceDataset
from pomona.objective.engine import Computation, EngineError
from pomona.objective.objective import Criterion, Pull
from pomona_native.graph import layers_of
from pomona_native.layers import LARGE, Layer

NEUTRAL = torch.zeros(1), torch.ones(1)  # identity shift and scale
OUTPUT_DIVISOR = 8
"""Outputs are computed for this fraction of the maximum samples of a call: maps of 2^24 numbers, 64
MiB.
"""
PIXELS = 2**12
"""For larger images PyTorch is as fast or faster at convolutions with many weights."""
Prepared = tuple[Tensor, Tensor, Tensor]  # samples, indices into them, their targets


@dataclass(frozen=True)
class NativeNetwork:
    """A network over resident samples.

    Attributes:
        package: the compiled module for this kind of processor.
        layers: of the network.
        network: the module's; it holds working memory, so calls must not overlap.
        data: the resident data.
        shift, scale: as in ``DeviceDataset``, 0 and 1 if it has none.
        layer_ends: for each layer, the end in a row of its parameters and of all before it.
        bf16: convolutions multiply numbers rounded to bf16 and add in float32; all else is float32.
    """

    package: Any
    layers: tuple[Layer, ...]
    network: Any
    data: DeviceDataset
    shift: Tensor
    scale: Tensor
    layer_ends: tuple[int, ...]
    bf16: bool
    _halves: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    @classmethod
    def build(cls, package: Any, computation: Computation) -> "NativeNetwork":
        """Return the network of a computation, by a compiled module.

        Raises EngineError if the package does not support it.
        """
        data, bf16 = computation.data, computation.precision == "bf16"
        _require_supported(data, computation.criterion)
        flat, shape = data.x.dim() == 2, _image(data)
        layers = layers_of(computation.module, computation.space, flat, tokens(data))
        _require_faster(layers, bf16, shape[0] * shape[1])
        try:
            network = _network(package, shape, layers)
        except ValueError as fault:  # sizes out of bounds
            raise EngineError(f"pomona-native: {fault}") from fault
        shift, scale = NEUTRAL
        if data.shift is not None and data.scale is not None:
            shift, scale = (v.float().reshape(-1).contiguous() for v in (data.shift, data.scale))
        layer_ends = tuple(accumulate([layer.stop for layer in layers], max))
        return cls(package, tuple(layers), network, data, shift, scale, layer_ends, bf16)

    @property
    def max_batch(self) -> int:
        """The maximum samples of a gradient or a step: their largest maps have 2^27 numbers."""
        return int(self.network.most)

    def gradient(self, row: Tensor, g: Tensor, batch: Prepared, above: int = 0) -> float:
        """Write the gradient of the mean loss at ``row`` (d,) into ``g`` (d,); return the loss.

        ``batch``: samples, indices into them, and the targets. ``g`` may be 0 before the coordinate
        ``above``.
        """
        x, index, y = batch
        loss: float = self.network.gradient(
            row,
            g,
            x,
            index,
            y,
            *self._normalisation(x),
            self.bf16,
            self.skipped(above),
            self._masks(index),
        )
        return loss

    def step(
        self,
        row: Tensor,
        moments: Tensor,
        batch: Prepared,
        round_: Round,
        pull: Pull | None = None,
        block: slice | None = None,
    ) -> float:
        """Take one step of plain SGD on ``row`` (d,), in place; return the mean loss before it.

        ``moments``: the momentum buffer, updated in place; ignored without momentum. ``pull``, of
        one row, is added to the gradient. If ``block`` is given, only it moves, and moments are
        those of it.
        """
        x, index, y = batch
        rates = round_.lr, round_.momentum, round_.weight_decay
        terms = (pull.weight, pull.centre, pull.constant) if pull else (0.0, None, None)
        first, stop = (block.start, block.stop) if block else (0, len(row))
        options = *terms, (first, stop), self.skipped(first), self._masks(index)
        loss: float = self.network.step(
            row, moments, x, index, y, *self._normalisation(x), self.bf16, *rates, *options
        )
        return loss

    def outputs(self, row: Tensor, index: Tensor) -> Tensor:
        """Return outputs (b, K) of resident samples ``index`` (b,) under ``row`` (d,)."""
        return self._forward(self.network, row, self.resident(index))

    @property
    def large(self) -> bool:
        """Whether a convolution has many weights."""
        return any(layer.large for layer in self.layers)

    @property
    def has_statistics(self) -> bool:
        """Whether a layer normalises over a batch: rows for ``outputs`` then end with
        statistics.
        """
        return any(layer.of_batch for layer in self.layers)

    def measure(self, row: Tensor, batches: Sequence[Tensor]) -> None:
        """Replace the statistics in ``row`` by their averages over batches of resident samples.

        Each of ``batches`` (b,) is a batch, of two samples or more.
        """
        for number, index in enumerate(batches, start=1):
            outputs = torch.empty(len(index), self.network.reached[-1])
            self.network.outputs(
                row,
                outputs,
                self.data.x,
                index,
                *self._normalisation(self.data.x),
                self.bf16,
                1 / number,
            )

    def skipped(self, above: int) -> int:
        """Return the number of leading layers without parameters from ``above`` on; never includes
        the last one.
        """
        return sum(stop <= above for stop in self.layer_ends[:-1])

    def prefix_length(self, above: int) -> int:
        """Return ``skipped`` if these layers can be computed apart from the others; 0 if not.

        That is if their last one alone is read by the others, and a sample's features are the same
        in each pass.
        """
        count = self.skipped(above)
        separate = all(count <= read for layer in self.layers[count:] for read in layer.reads)
        repeatable = not any(layer.of_batch or layer.draw for layer in self.layers[:count])
        return count if separate and repeatable else 0

    def below(self, row: Tensor, batch: Prepared, above: int) -> Tensor:
        """Return the outputs of the layers that ``prefix_length`` counts for a batch (b, ...);
        there must be some.
        """
        return self._forward(self._split(above)[0], row, batch)

    def gradient_above(
        self, features: Tensor, row: Tensor, g: Tensor, y: Tensor, above: int
    ) -> float:
        """Compute ``gradient`` from the result of ``below``."""
        batch = features, torch.arange(len(features)), y
        masks = self._masks(batch[1], self.prefix_length(above))
        loss: float = self._split(above)[1].gradient(row, g, *batch, *NEUTRAL, self.bf16, 0, masks)
        return loss

    def _masks(self, index: Tensor, below: int = 0) -> Tensor | None:
        """Draw the factors of all dropout for a batch; None without dropout.

        They are drawn as PyTorch draws them, in the order of the layers.
        """
        factors = [
            layer.draw(len(index), self.network.shape(layer.input)).reshape(-1)
            for layer in self.layers[below:]
            if layer.draw
        ]
        return torch.cat(factors) if factors else None

    def resident(self, index: Tensor) -> Prepared:
        """Return a batch of resident samples, which are gathered and normalised inside the call."""
        return self.data.x, index, self.data.target(index)

    def _normalisation(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shift and scale of samples; samples other than the resident ones are already
        network input.
        """
        return (self.shift, self.scale) if x is self.data.x else NEUTRAL

    def _forward(self, network: Any, row: Tensor, batch: Prepared) -> Tensor:
        """Return a network's outputs for a batch: vectors (b, f), or maps (b, height, width,
        channels).
        """
        x, index, _ = batch
        *sides, channels = network.reached
        outputs = torch.empty(len(index), prod(sides) * channels)
        at_once = max(1, network.most // OUTPUT_DIVISOR)
        for chunk, target in zip(index.split(at_once), outputs.split(at_once), strict=True):
            network.outputs(row, target, x, chunk, *self._normalisation(x), self.bf16)
        return outputs if sides == [1, 1] else outputs.view(len(index), *sides, channels)

    def _split(self, above: int) -> tuple[Any, Any]:
        """Split the network behind the layers that ``prefix_length`` counts."""
        count = self.prefix_length(above)
        if count not in self._halves:
            lower = _network(self.package, _image(self.data), self.layers[:count])
            upper = _network(self.package, lower.reached, self.layers[count:], count)
            self._halves[count] = lower, upper
        return self._halves[count]


def _image(data: DeviceDataset) -> tuple[int, ...]:
    """Return the shape (height, width, channels) of a sample; (1, 1, F) for a vector."""
    shape = tuple(data.x.shape[1:])
    return shape if len(shape) == 3 else (1, 1, *shape)


def _network(package: Any, shape: tuple[int, ...], layers: Sequence[Layer], below: int = 0) -> Any:
    """Create a network of the package for samples (height, width, channels), or for what the first
    ``below`` layers make.

    Raises ValueError for invalid sizes.
    """
    network = package.Network(*shape)
    for layer in layers:
        layer.add(network, below)
    return network


def tokens(data: DeviceDataset) -> bool:
    """Whether samples are texts (T,): the numbers of their words."""
    return data.x.dim() == 2 and data.x.dtype in {torch.int32, torch.int64}


def prepared(x: Tensor, y: Tensor) -> Prepared:
    """Return a batch of samples (b, C, H, W) or (b, F) that have been augmented."""
    return (x.movedim(1, -1) if x.dim() > 2 else x).contiguous(), torch.arange(len(x)), y


def _require_supported(data: DeviceDataset, criterion: Criterion) -> None:
    """Raise EngineError if the package does not support the computation around the network."""
    plain = criterion is cross_entropy and data.weights is None
    classes = data.y.dim() == 1 and not data.y.is_floating_point()
    shaped = data.x.dim() in {2, 4} and data.x.is_contiguous()
    typed = data.x.dtype in {torch.uint8, torch.float32} or tokens(data)
    dtype = str(data.x.dtype).removeprefix("torch.")
    requirements = {
        "it computes on CPUs only": data.x.device.type == "cpu",
        "the loss is not the plain cross-entropy of classes": plain and classes,
        "samples are neither images nor vectors, or are cut into patches": (
            shaped and data.patch is None
        ),
        f"samples are {dtype}, neither uint8 nor float32": typed,
    }
    for reason, supported in requirements.items():
        if not supported:
            raise EngineError(reason)


def _require_faster(layers: Sequence[Layer], bf16: bool, pixels: int) -> None:
    """Raise EngineError if PyTorch is as fast or faster."""
    if any(layer.large for layer in layers) and (bf16 or pixels > PIXELS):
        condition = "in bf16" if bf16 else f"of images of more than {PIXELS} pixels"
        raise EngineError(
            f"{condition} PyTorch is as fast for convolutions of more than {LARGE} weights"
        )
