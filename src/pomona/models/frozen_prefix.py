"""Splitting a network into its frozen prefix and the trained rest.

The features between them, one tensor, are the same in every round, so they are computed only once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn

from pomona.models.layers import training_mode
from pomona.models.lora import Lora


@dataclass(frozen=True)
class SplitNetwork:
    """A split network: ``network(x)`` is ``trained(features(x))``.

    Attributes:
        features: samples (b, ...) -> the output of the frozen prefix: one tensor (b, ...), or
            several concatenated to (b, f).
        shape: of one sample's features.
        trained: the remaining network; its parameters and buffers are the network's own, with
            the same names.
    """

    features: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    trained: nn.Module


def split_network(module: nn.Module, sample: Tensor) -> SplitNetwork | None:
    """Split a network before the first operation that is trained, random, or mixes the samples of a
    batch.

    Args:
        module: any network; it is left in evaluation mode.
        sample: a batch of one, with any values, as network input.

    Returns:
        None if the network does not start with a frozen layer, or cannot be traced (``torch.fx``),
        e.g. because it branches on values or on its mode.
    """
    training_mode(module)()
    try:
        graph = _Tracer().trace(module)
        traced = fx.GraphModule(module, graph)
        early_2, early_3 = (
            _Early(traced).followed(sample.expand(b, *sample.shape[1:])) for b in (2, 3)
        )
        split = _split(module, graph, early_2, early_3)
        module.eval()
        with torch.no_grad():
            equal = split is not None and torch.allclose(
                split.trained(split.features(sample)), module(sample), atol=1e-5
            )
    except Exception:  # tracing runs the network's own code, which may raise anything
        return None
    return split if equal else None


def _split(
    module: nn.Module, graph: fx.Graph, early_2: "_Early", early_3: "_Early"
) -> SplitNetwork | None:
    """Split after the early operations, using their results for two and for three samples."""
    early, crossing = early_2.values, early_2.crossing()
    feature_nodes = [node for node in crossing if isinstance(early[node], Tensor)]
    if not _has_parameters(module, early) or any(
        early[node].shape[0] != 2 for node in feature_nodes
    ):
        return None
    numbers = {
        node: (early[node], early_3.values[node]) for node in crossing if node not in feature_nodes
    }
    if any(pair[0] != pair[1] and pair != (2, 3) for pair in numbers.values()):
        return None
    shapes = [tuple(early[node].shape[1:]) for node in feature_nodes]
    prefix = _network(module, _prefix_graph(graph, early_2, feature_nodes))
    features = list(zip(feature_nodes, shapes, strict=True))
    suffix = _network(module, _suffix_graph(graph, early_2, features, numbers))
    shape = shapes[0] if len(shapes) == 1 else (sum(map(prod, shapes)),)
    return SplitNetwork(prefix, shape, suffix)


def _has_parameters(module: nn.Module, nodes: Iterable[fx.Node]) -> bool:
    """Return whether a layer that one of these operations calls has parameters."""
    layers = [module.get_submodule(str(n.target)) for n in nodes if n.op == "call_module"]
    return any(True for layer in layers for _ in layer.parameters())


class _Tracer(fx.Tracer):
    """Tracer that stops at layers of PyTorch, at linear and adapted ones, and at completely frozen
    parts.

    The code of a frozen part is not traced; it may branch on the sizes of its input, as padding
    does.
    """

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        trained = [parameter.requires_grad for parameter in m.parameters()]
        still = bool(trained) and not any(trained)
        layer = isinstance(m, nn.Linear | Lora)  # subclasses, too: a last layer is hooked
        return still or layer or super().is_leaf_module(m, module_qualified_name)


class _Early(fx.Interpreter):
    """Finds operations that use nothing trained, are deterministic, and treat each sample
    separately.

    Attributes:
        values: the results of those that depend on the samples.
        late: operations that are not early; operations in neither do not depend on the samples.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values: dict[fx.Node, Any] = {}
        self.late: set[fx.Node] = set()

    @torch.no_grad()
    def followed(self, samples: Tensor) -> "_Early":
        """Run the early operations on some samples."""
        with torch.random.fork_rng(devices=[]):
            self.run(samples)
        return self

    def crossing(self) -> list[fx.Node]:
        """Return the early operations whose results others use."""
        return [node for node in self.values if any(user in self.late for user in node.users)]

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "output" or self.late.intersection(n.all_input_nodes) or self._changes(n):
            self.late.add(n)
            return None
        rng_state = torch.random.get_rng_state()
        value = super().run_node(n)
        if not torch.equal(rng_state, torch.random.get_rng_state()):
            self.late.add(n)
        elif n.op == "placeholder" or any(node in self.values for node in n.all_input_nodes):
            self.values[n] = value
        return value

    def _changes(self, n: fx.Node) -> bool:
        """Return whether a node has trained parameters, or normalises over the batch."""
        if n.op not in {"get_attr", "call_module"}:
            return False
        target = self.fetch_attr(str(n.target))
        if isinstance(target, Tensor):
            return target.requires_grad
        mixes = target.training and any(
            isinstance(m, nn.modules.batchnorm._BatchNorm) for m in target.modules()
        )
        return mixes or any(p.requires_grad for p in target.parameters())


def _network(module: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """Return a graph module with the parts of the network that the graph uses."""
    split = fx.GraphModule(module, graph)
    split.graph.eliminate_dead_code()
    split.delete_all_unused_submodules()
    split.recompile()
    return split


def _prefix_graph(graph: fx.Graph, early: _Early, feature_nodes: list[fx.Node]) -> fx.Graph:
    """Return the graph of the operations up to the features."""
    prefix, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        if node not in early.late:
            copies[node] = prefix.node_copy(node, copies.__getitem__)
    outputs = [copies[node] for node in feature_nodes]
    if len(outputs) > 1:
        flat = [prefix.call_method("flatten", (end, 1)) for end in outputs]
        outputs = [prefix.call_function(torch.cat, (flat, 1))]
    prefix.output(outputs[0])
    return prefix


def _suffix_graph(
    graph: fx.Graph,
    early: _Early,
    feature_shapes: list[tuple[fx.Node, tuple[int, ...]]],
    numbers: dict[fx.Node, tuple[Any, Any]],
) -> fx.Graph:
    """Return the graph after the features: ``feature_shapes`` are nodes with their shapes,
    ``numbers`` nodes with their values for 2 and for 3 samples.
    """
    suffix, copies, stop = fx.Graph(), dict[fx.Node, Any](), 0
    features = suffix.placeholder("features")
    for node, shape in feature_shapes:
        start, stop = stop, stop + prod(shape)
        copies[node] = (
            features
            if len(feature_shapes) == 1
            else suffix.call_function(feature_slice, (features, start, stop, shape))
        )
    for node, (size_2, size_3) in numbers.items():
        copies[node] = size_2 if size_2 == size_3 else suffix.call_method("size", (features, 0))
    for node in graph.nodes:
        if node not in early.values:
            copies[node] = suffix.node_copy(node, copies.__getitem__)
    return suffix


def feature_slice(features: Tensor, start: int, stop: int, shape: tuple[int, ...]) -> Tensor:
    """Extract one of several features (b, *shape) that are concatenated in (b, f)."""
    return features[:, start:stop].reshape(-1, *shape)
