"""Layers of the optional package pomona-native, and the modules of PyTorch that are such layers.

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
        kind: the method's name.
        sizes: its arguments except those below.
        input: the layer whose values it reads, from 1 on; 0 is the network's input.
        end: where its parameters end in a row; 0 without any.
        rectified: whether ReLU follows; None if it cannot.
        draw: of dropout, draws its factors for a batch of samples (height, width, channels).
    """

    kind: str
    sizes: Mapping[str, Any]
    input: int
    end: int = 0
    rectified: bool | None = None
    draw: Callable[[int, tuple[int, int, int]], Tensor] | None = None

    @property
    def pooled(self) -> bool:
        """Whether it is a convolution with pooling."""
        return (self.sizes.get("window", (1, 1)), self.sizes.get("hop", (1, 1))) != ((1, 1), (1, 1))

    @property
    def large(self) -> bool:
        """Whether it is a convolution of many weights."""
        weights: int = self.end - self.sizes["weight"] if self.kind == "convolution" else 0
        return weights > LARGE

    @property
    def of_batch(self) -> bool:
        """Whether it normalises over a batch."""
        return self.kind == "normalisation" and self.sizes["groups"] == 0

    @property
    def reads(self) -> tuple[int, ...]:
        """Numbers of the layers whose values it reads."""
        return (self.input, self.sizes["beside"]) if self.kind == "sum" else (self.input,)

    def add(self, network: Any, below: int = 0) -> None:
        """Append it to a network of the package that begins behind the first ``below`` layers.

        Raises ValueError for sizes out of bounds.
        """
        sizes = dict(self.sizes)
        if self.kind == "pooling" and sizes["window"] is None:  # of the whole image
            sizes["window"] = sizes["hop"] = network.shape(self.input - below)[:2]
        if self.kind == "convolution":
            sizes |= {"dense": not self.pooled and not self.large, "patches": self.large}
        if self.kind == "sum":
            sizes["beside"] -= below
        if self.rectified is not None:
            sizes["rectified"] = self.rectified
        if self.kind != "embedding":
            sizes["input"] = self.input - below
        getattr(network, self.kind)(**sizes)


@dataclass(frozen=True)
class Value:
    """What an operation makes: a layer's number; whether samples are vectors, not images."""

    layer: int
    flat: bool
    tokens: bool = False  # word vectors (b, T, f), of which the mean follows


class Places:
    """Where parameters and statistics begin and end in a row."""

    def __init__(self, module: nn.Module, space: ParameterSpace) -> None:
        self.parameters = {e.name: e for e in space.parameters}
        entries = space.buffers or ParameterSpace(module, "average").buffers
        self.statistics = {e.name: e.start for e in entries}

    def of(self, part: nn.Module, name: str) -> tuple[dict[str, int], int] | None:
        """Return where a module's weight and bias begin, -1 for none, and their end; None if one is
        frozen, or tied to another's.
        """
        begin, end = {}, 0
        for own in ("weight", "bias"):
            entry = self.parameters.get(f"{name}.{own}")
            if (entry is None) != (getattr(part, own, None) is None):
                return None
            begin[own] = entry.start if entry else -1
            end = max(end, entry.stop if entry else 0)
        return begin, end


def layer_of(part: Any, name: str, own: Value, places: Places) -> Layer | None:
    """Return the layer that a module is for an input, without ReLU or pooling after it; None if the
    package has none.
    """
    for kinds, make in _MAKERS.items():
        if type(part) in kinds:
            return make(part, name, own, places)
    return None


def _linear(part: nn.Linear, name: str, own: Value, places: Places) -> Layer | None:
    if not own.flat or not (found := places.of(part, name)):
        return None
    begin, end = found
    return Layer("linear", {"outputs": part.out_features, **begin}, own.layer, end, False)


def _convolution(part: nn.Conv2d, name: str, own: Value, places: Places) -> Layer | None:
    plain = part.groups == 1 and _pair(part.dilation) == (1, 1) and part.padding_mode == "zeros"
    if (
        own.flat
        or not plain
        or isinstance(part.padding, str)
        or not (found := places.of(part, name))
    ):
        return None
    begin, end = found
    sizes = {
        "outputs": part.out_channels,
        "kernel": _pair(part.kernel_size),
        "stride": _pair(part.stride),
    }
    sizes |= {"padding": _pair(part.padding), "window": (1, 1), "hop": (1, 1), **begin}
    return Layer("convolution", sizes, own.layer, end, False)


def _embedding(part: Any, name: str, own: Value, places: Places) -> Layer | None:
    bag = type(part) is nn.EmbeddingBag
    special = part.max_norm is not None or part.scale_grad_by_freq or part.sparse
    if bag and (part.mode != "mean" or part.padding_idx is not None):
        return None  # the bag's mean leaves padding out
    if own.layer or special or not (found := places.of(part, name)):
        return None
    begin, end = found
    skipped = -1 if part.padding_idx is None else part.padding_idx
    sizes = {"vocabulary": part.num_embeddings, "width": part.embedding_dim, "skipped": skipped}
    return Layer("embedding", {**sizes, "weight": begin["weight"]}, 0, end)


def _normalisation(part: Any, name: str, own: Value, places: Places) -> Layer | None:
    kind = type(part)
    fits = {
        nn.BatchNorm1d: own.flat,
        nn.BatchNorm2d: not own.flat,
        nn.LayerNorm: own.flat and len(getattr(part, "normalized_shape", ())) == 1,
        nn.GroupNorm: True,
    }[kind]
    if not fits or not (found := places.of(part, name)):
        return None
    begin, end = found
    groups, share, at = getattr(part, "num_groups", 1), 0.0, (-1, -1)
    if kind in (nn.BatchNorm1d, nn.BatchNorm2d):
        names = [f"{name}.running_{which}" for which in ("mean", "var")]
        if part.momentum is None or not places.statistics.keys() >= set(names):
            return None
        groups, share = 0, part.momentum
        at = places.statistics[names[0]], places.statistics[names[1]]
    sizes = {"groups": groups, "eps": part.eps, "share": share, "mean": at[0], "variance": at[1]}
    return Layer("normalisation", {**sizes, **begin}, own.layer, end, False)


def _pooling(part: Any, name: str, own: Value, places: Places) -> Layer | None:
    sizes = {
        "window": None,
        "hop": None,
        "padding": (0, 0),
        "mean": True,
        "counted": False,
        "ceil": False,
    }
    if type(part) is nn.AdaptiveAvgPool2d:
        known = _pair(part.output_size) == (1, 1)
    elif type(part) is nn.AvgPool2d:
        known = not part.ceil_mode and not part.divisor_override
        sizes["counted"] = part.count_include_pad
    else:
        known = not part.return_indices and _pair(part.dilation) == (1, 1)
        sizes |= {"mean": False, "ceil": part.ceil_mode}
    if own.flat or not known:
        return None
    if type(part) is not nn.AdaptiveAvgPool2d:
        sizes |= {
            "window": _pair(part.kernel_size),
            "hop": _pair(part.stride),
            "padding": _pair(part.padding),
        }
    return Layer("pooling", sizes, own.layer)


def _dropout(part: Any, name: str, own: Value, places: Places) -> Layer | None:
    """Factors are drawn as PyTorch draws them, from its global generator, and so are the same."""

    def each(batch: int, shape: tuple[int, int, int]) -> Tensor:
        ones = (
            torch.ones(batch, prod(shape)) if own.flat else torch.ones(batch, *shape).movedim(-1, 1)
        )
        made = nn.functional.dropout(ones, part.p)
        return made if own.flat else made.movedim(1, -1)

    def channels(batch: int, shape: tuple[int, int, int]) -> Tensor:
        made = nn.functional.dropout2d(torch.ones(batch, shape[-1], 1, 1), part.p)
        return made.movedim(1, -1).expand(batch, *shape)

    if type(part) is nn.Dropout2d and own.flat:
        return None
    return Layer("dropout", {}, own.layer, draw=each if type(part) is nn.Dropout else channels)


_MAKERS: dict[tuple[type, ...], Callable[[Any, str, Value, Places], Layer | None]] = {
    (nn.Linear,): _linear,
    (nn.Conv2d,): _convolution,
    (nn.Embedding, nn.EmbeddingBag): _embedding,
    (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm): _normalisation,
    (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d): _pooling,
    (nn.Dropout, nn.Dropout2d): _dropout,
}
