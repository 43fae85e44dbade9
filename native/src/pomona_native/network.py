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
NO_SAMPLES = torch.empty(0, dtype=torch.int64)
PIXELS = 2**12
"""For larger images PyTorch is as fast or faster at convolutions with many weights."""
# samples, indices into them, how many of these each row has, and their targets
Prepared = tuple[Tensor, Tensor, list[int], Tensor]


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
        bf16: convolutions and linear layers multiply numbers rounded to bf16 and add in float32;
            all else, and the backward pass, is float32.
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

    def gradient(self, W: Tensor, G: Tensor, batches: Prepared, above: int = 0) -> Tensor:
        """Write the gradients of the mean losses of rows W (n, d) into G (n, d); return the losses
        (n,).

        G may be 0 before the coordinate ``above``.
        """
        x, index, counts, y = batches
        options = *self._normalisation(x), self.bf16, self.skipped(above), self._masks(counts)
        return torch.tensor(self.network.gradient(W, G, x, index, counts, y, *options))

    def step(
        self,
        W: Tensor,
        moments: Tensor,
        batches: Prepared,
        round_: Round,
        pull: Pull | None = None,
        block: slice | None = None,
    ) -> Tensor:
        """Take one step of plain SGD on rows W (n, d), in place; return the mean losses (n,) before
        it.

        ``moments``: the momentum buffers, updated in place; ignored without momentum. ``pull`` is
        added to the gradients. If ``block`` is given, only it moves, and moments are those of it.
        """
        x, index, counts, y = batches
        rates = round_.lr, round_.momentum, round_.weight_decay
        terms = (pull.weight, pull.centre, pull.constant) if pull else (0.0, None, None)
        first, stop = (block.start, block.stop) if block else (0, W.shape[1])
        options = *terms, (first, stop), self.skipped(first), self._masks(counts)
        losses = self.network.step(
            W, moments, x, index, counts, y, *self._normalisation(x), self.bf16, *rates, *options
        )
        return torch.tensor(losses)

    def outputs(self, W: Tensor, batches: Prepared) -> Tensor:
        """Return outputs (b, K) of rows W (n, d) for their batches, one after the other."""
        return self._forward(self.network, W, batches)

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
            self._forward(self.network, row.unsqueeze(0), self.resident([index]), 1 / number)

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
        return self._forward(self._split(above)[0], row.unsqueeze(0), batch)

    def gradient_above(
        self, features: Tensor, row: Tensor, g: Tensor, y: Tensor, above: int
    ) -> float:
        """Compute ``gradient`` of one row from the result of ``below``."""
        counts = [len(features)]
        masks = self._masks(counts, self.prefix_length(above))
        batch = features, torch.arange(len(features)), counts, y
        rows = row.unsqueeze(0), g.unsqueeze(0)
        loss: float
        (loss,) = self._split(above)[1].gradient(*rows, *batch, *NEUTRAL, self.bf16, 0, masks)
        return loss

    def _masks(self, counts: Sequence[int], below: int = 0) -> Tensor | None:
        """Draw the factors of all dropout for batches of these sizes; None without dropout.

        They are drawn as PyTorch draws them, batch after batch in the order of the layers.
        """
        factors = [
            layer.draw(count, self.network.shape(layer.input)).reshape(-1)
            for count in counts
            for layer in self.layers[below:]
            if layer.draw
        ]
        return torch.cat(factors) if factors else None

    def resident(self, indices: Sequence[Tensor]) -> Prepared:
        """Return batches of resident samples, which are gathered and normalised inside the call."""
        index = indices[0] if len(indices) == 1 else torch.cat([NO_SAMPLES, *indices])
        return self.data.x, index, list(map(len, indices)), self.data.target(index)

    def _normalisation(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shift and scale of samples; samples other than the resident ones are already
        network input.
        """
        return (self.shift, self.scale) if x is self.data.x else NEUTRAL

    def _forward(self, network: Any, W: Tensor, batches: Prepared, share: float = 0.0) -> Tensor:
        """Return a network's outputs for batches: vectors (b, f), or maps (b, height, width,
        channels).
        """
        x, index, counts, _ = batches
        *sides, channels = network.reached
        outputs = torch.empty(len(index), prod(sides) * channels)
        network.outputs(W, outputs, x, index, counts, *self._normalisation(x), self.bf16, share)
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


def prepared(batches: Sequence[tuple[Tensor, Tensor]]) -> Prepared:
    """Return batches of augmented samples (b, C, H, W) or (b, F) and their targets."""
    x, y = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    samples = (x.movedim(1, -1) if x.dim() > 2 else x).contiguous()
    return samples, torch.arange(len(x)), [len(targets) for _, targets in batches], y


def _require_supported(data: DeviceDataset, criterion: Criterion) -> None:
    """Raise EngineError if the package does not support the computation around the network."""
    plain = criterion is cross_entropy and data.weights is None
    classes = data.y.dim() == 1 and not data.y.is_floating_point()
    shaped = data.x.dim() in {2, 4} and data.x.is_contiguous()
    typed = data.x.dtype in {torch.uint8, torch.float32} or tokens(data)
    dtype = str(data.x.dtype).removeprefix("torch.")
    requirements = {
        "it computes on CPUs only": data.x.device.type == "cpu",
        "pomona-native trains only with the cross-entropy of classes": plain and classes,
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
