"""Layers of the compiled modules, and the PyTorch modules that they compute.

A module must be of PyTorch's own type, since a subclass may compute anything.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from pomona.models.parameter_space import ParameterSpace

LARGE = 2**18
"""Weights above which a convolution multiplies patches of several samples at a time, since its
weights do not stay in a processor's cache.
"""
_pair: Callable[[Any], tuple[int, int]] = nn.modules.utils._pair


@dataclass(frozen=True)
class Layer:
    """A call that appends a layer to a network of the package.

    Attributes:
        operation: the name of the package's method.
        sizes: its arguments except those below.
        input: the layer whose values it reads, from 1 on; 0 is the network's input.
        stop: where its parameters end in a row; 0 without any.
        rectified: whether ReLU follows; None if it cannot.
        draw: of dropout, draws its factors for a batch of samples (height, width, channels).
    """

    operation: str
    sizes: Mapping[str, Any]
    input: int
    stop: int = 0
    rectified: bool | None = None
    draw: Callable[[int, tuple[int, int, int]], Tensor] | None = None

    @property
    def pooled(self) -> bool:
        """Whether it is a convolution with pooling."""
        return (self.sizes.get("window", (1, 1)), self.sizes.get("hop", (1, 1))) != ((1, 1), (1, 1))

    @property
    def large(self) -> bool:
        """Whether it is a convolution of many weights."""
        weights: int = self.stop - self.sizes["weight"] if self.operation == "convolution" else 0
        return weights > LARGE

    @property
    def of_batch(self) -> bool:
        """Whether it normalises over a batch."""
        return self.operation == "normalisation" and self.sizes["groups"] == 0

    @property
    def reads(self) -> tuple[int, ...]:
        """Numbers of the layers whose values it reads."""
        return (self.input, self.sizes["beside"]) if self.operation == "sum" else (self.input,)

    def add(self, network: Any, below: int = 0) -> None:
        """Append it to a network of the package that starts after the first ``below`` layers.

        Raises ValueError for sizes out of bounds.
        """
        sizes = dict(self.sizes)
        if self.operation == "pooling" and sizes["window"] is None:  # of the whole image
            sizes["window"] = sizes["hop"] = network.shape(self.input - below)[:2]
        if self.operation == "convolution":
            sizes |= {"dense": not self.pooled and not self.large, "patches": self.large}
        if self.operation == "sum":
            sizes["beside"] -= below
        if self.rectified is not None:
            sizes["rectified"] = self.rectified
        if self.operation != "embedding":
            sizes["input"] = self.input - below
        getattr(network, self.operation)(**sizes)


@dataclass(frozen=True)
class Value:
    """The result of an operation: a layer's number; whether samples are vectors, not images."""

    layer: int
    flat: bool
    tokens: bool = False  # word vectors (b, T, f), of which the mean follows


class RowLayout:
    """Where parameters and statistics begin and end in a row."""

    def __init__(self, module: nn.Module, space: ParameterSpace) -> None:
        self.parameters = {e.name: e for e in space.parameters}
        entries = space.buffers or ParameterSpace(module, "average").buffers
        self.statistics = {e.name: e.start for e in entries}

    def locate(self, module: nn.Module, name: str) -> tuple[dict[str, int], int] | None:
        """Return where a module's weight and bias begin, -1 for none, and their end; None if one is
        frozen, or tied to another's.
        """
        offsets, stop = {}, 0
        for suffix in ("weight", "bias"):
            entry = self.parameters.get(f"{name}.{suffix}")
            if (entry is None) != (getattr(module, suffix, None) is None):
                return None
            offsets[suffix] = entry.start if entry else -1
            stop = max(stop, entry.stop if entry else 0)
        return offsets, stop


def layer_of(module: Any, name: str, source: Value, layout: RowLayout) -> Layer | None:
    """Return the layer that a module is for an input, without ReLU or pooling after it; None if the
    package has none.
    """
    translate = _TRANSLATIONS.get(type(module))
    return translate(module, name, source, layout) if translate else None


def _linear(module: nn.Linear, name: str, source: Value, layout: RowLayout) -> Layer | None:
    if not source.flat or not (location := layout.locate(module, name)):
        return None
    offsets, stop = location
    return Layer("linear", {"outputs": module.out_features, **offsets}, source.layer, stop, False)


def _convolution(module: nn.Conv2d, name: str, source: Value, layout: RowLayout) -> Layer | None:
    plain = (
        module.groups == 1 and _pair(module.dilation) == (1, 1) and module.padding_mode == "zeros"
    )
    if (
        source.flat
        or not plain
        or isinstance(module.padding, str)
        or not (location := layout.locate(module, name))
    ):
        return None
    offsets, stop = location
    sizes = {
        "outputs": module.out_channels,
        "kernel": _pair(module.kernel_size),
        "stride": _pair(module.stride),
    }
    sizes |= {"padding": _pair(module.padding), "window": (1, 1), "hop": (1, 1), **offsets}
    return Layer("convolution", sizes, source.layer, stop, False)


def _embedding(module: Any, name: str, source: Value, layout: RowLayout) -> Layer | None:
    special = module.max_norm is not None or module.scale_grad_by_freq or module.sparse
    if type(module) is nn.EmbeddingBag:  # its mean leaves padding out
        special = special or module.mode != "mean" or module.padding_idx is not None
    location = layout.locate(module, name)
    if source.layer or special or not location:
        return None
    offsets, stop = location
    skipped = -1 if module.padding_idx is None else module.padding_idx
    sizes = {"vocabulary": module.num_embeddings, "width": module.embedding_dim, "skipped": skipped}
    return Layer("embedding", {**sizes, "weight": offsets["weight"]}, 0, stop)


def _normalisation(module: Any, name: str, source: Value, layout: RowLayout) -> Layer | None:
    module_type = type(module)
    fits = {
        nn.BatchNorm1d: source.flat,
        nn.BatchNorm2d: not source.flat,
        nn.LayerNorm: source.flat and len(getattr(module, "normalized_shape", ())) == 1,
        nn.GroupNorm: True,
    }[module_type]
    if not fits or not (location := layout.locate(module, name)):
        return None
    offsets, stop = location
    groups, share, statistics = getattr(module, "num_groups", 1), 0.0, (-1, -1)
    if module_type in (nn.BatchNorm1d, nn.BatchNorm2d):
        names = [f"{name}.running_{statistic}" for statistic in ("mean", "var")]
        if module.momentum is None or not layout.statistics.keys() >= set(names):
            return None
        groups, share = 0, module.momentum
        statistics = layout.statistics[names[0]], layout.statistics[names[1]]
    sizes = {
        "groups": groups,
        "eps": module.eps,
        "share": share,
        "mean": statistics[0],
        "variance": statistics[1],
    }
    return Layer("normalisation", {**sizes, **offsets}, source.layer, stop, False)


def _pooling(module: Any, name: str, source: Value, layout: RowLayout) -> Layer | None:
    sizes = {
        "window": None,
        "hop": None,
        "padding": (0, 0),
        "mean": True,
        "counted": False,
        "ceil": False,
    }
    if type(module) is nn.AdaptiveAvgPool2d:
        supported = _pair(module.output_size) == (1, 1)
    elif type(module) is nn.AvgPool2d:
        supported = not module.ceil_mode and not module.divisor_override
        sizes["counted"] = module.count_include_pad
    else:
        supported = not module.return_indices and _pair(module.dilation) == (1, 1)
        sizes |= {"mean": False, "ceil": module.ceil_mode}
    if source.flat or not supported:
        return None
    if type(module) is not nn.AdaptiveAvgPool2d:
        sizes |= {
            "window": _pair(module.kernel_size),
            "hop": _pair(module.stride),
            "padding": _pair(module.padding),
        }
    return Layer("pooling", sizes, source.layer)


def _dropout(module: Any, name: str, source: Value, layout: RowLayout) -> Layer | None:
    """Draw the same factors as PyTorch, from its global generator."""

    def elements(batch: int, shape: tuple[int, int, int]) -> Tensor:
        unmasked = (
            torch.ones(batch, prod(shape))
            if source.flat
            else torch.ones(batch, *shape).movedim(-1, 1)
        )
        mask = nn.functional.dropout(unmasked, module.p)
        return mask if source.flat else mask.movedim(1, -1)

    def channels(batch: int, shape: tuple[int, int, int]) -> Tensor:
        mask = nn.functional.dropout2d(torch.ones(batch, shape[-1], 1, 1), module.p)
        return mask.movedim(1, -1).expand(batch, *shape)

    if type(module) is nn.Dropout2d and source.flat:
        return None
    return Layer(
        "dropout", {}, source.layer, draw=elements if type(module) is nn.Dropout else channels
    )


_TRANSLATIONS: Mapping[type, Callable[[Any, str, Value, RowLayout], Layer | None]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    **dict.fromkeys((nn.Embedding, nn.EmbeddingBag), _embedding),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm), _normalisation),
    **dict.fromkeys((nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d), _pooling),
    **dict.fromkeys((nn.Dropout, nn.Dropout2d), _dropout),
}
