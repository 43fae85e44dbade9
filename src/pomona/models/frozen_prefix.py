"""Splitting a network into its frozen prefix and the trained rest.

The features between them, one tensor, are the same in every round, so they are computed only once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn

from pomona.models.layers import training_mode
from pomona.models.lora import Lora


@dataclass(frozen=True)
class Cut:
    """A split network: ``network(x)`` is ``rest(features(x))``.

    Attributes:
        features: samples (b, ...) -> the output of the frozen prefix: one tensor (b, ...), or
            several concatenated to (b, f).
        shape: of one sample's features.
        rest: the remaining network; its parameters and buffers are the network's own, with the same
            names.
    """

    features: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    rest: nn.Module


def cut(module: nn.Module, sample: Tensor) -> Cut | None:
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
        two, three = (_Early(traced).followed(sample.expand(b, *sample.shape[1:])) for b in (2, 3))
        found = _cut(module, graph, two, three)
        module.eval()
        with torch.no_grad():
            same = found is not None and torch.allclose(
                found.rest(found.features(sample)), module(sample), atol=1e-5
            )
    except Exception:  # tracing runs the network's own code, which may raise anything
        return None
    return found if same else None


def _cut(module: nn.Module, graph: fx.Graph, two: "_Early", three: "_Early") -> Cut | None:
    """Split after the early operations, using their results for two and for three samples."""
    early = two.found
    handed = [node for node in early if any(user in two.late for user in node.users)]
    parts = [node for node in handed if isinstance(early[node], Tensor)]
    frozen = (
        p
        for n in early
        if n.op == "call_module"
        for p in module.get_submodule(str(n.target)).parameters()
    )
    if next(frozen, None) is None or any(early[node].shape[0] != 2 for node in parts):
        return None
    numbers = {node: (early[node], three.found[node]) for node in handed if node not in parts}
    if any(pair[0] != pair[1] and pair != (2, 3) for pair in numbers.values()):
        return None
    shapes = [tuple(early[node].shape[1:]) for node in parts]
    first = _network(module, _first(graph, two, parts))
    rest = _network(module, _rest(graph, two, list(zip(parts, shapes, strict=True)), numbers))
    return Cut(first, shapes[0] if len(parts) == 1 else (sum(map(prod, shapes)),), rest)


class _Tracer(fx.Tracer):
    """Tracer that stops at PyTorch's own layers, at adapted layers, and at completely frozen parts.

    The code of a frozen part is not traced; it may branch on the sizes of its input, as padding
    does.
    """

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        trained = [parameter.requires_grad for parameter in m.parameters()]
        still = bool(trained) and not any(trained)
        return still or isinstance(m, Lora) or super().is_leaf_module(m, module_qualified_name)


class _Early(fx.Interpreter):
    """Finds operations that use nothing trained, are deterministic, and treat each sample
    separately.

    Attributes:
        found: the results of those that depend on the samples.
        late: operations that are not early; operations in neither do not depend on the samples.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.found: dict[fx.Node, Any] = {}
        self.late: set[fx.Node] = set()

    @torch.no_grad()
    def followed(self, samples: Tensor) -> "_Early":
        """Run the early operations on some samples."""
        with torch.random.fork_rng(devices=[]):
            self.run(samples)
        return self

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "output" or self.late.intersection(n.all_input_nodes) or self._changes(n):
            self.late.add(n)
            return None
        before = torch.random.get_rng_state()
        value = super().run_node(n)
        if not torch.equal(before, torch.random.get_rng_state()):
            self.late.add(n)
        elif n.op == "placeholder" or any(node in self.found for node in n.all_input_nodes):
            self.found[n] = value
        return value

    def _changes(self, n: fx.Node) -> bool:
        """Return whether a node has trained parameters, or normalises over the batch."""
        if n.op not in {"get_attr", "call_module"}:
            return False
        part = self.fetch_attr(str(n.target))
        if isinstance(part, Tensor):
            return part.requires_grad
        mixes = part.training and any(
            isinstance(m, nn.modules.batchnorm._BatchNorm) for m in part.modules()
        )
        return mixes or any(p.requires_grad for p in part.parameters())


def _network(module: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """Return a graph module with the parts of the network that the graph uses."""
    made = fx.GraphModule(module, graph)
    made.graph.eliminate_dead_code()
    made.delete_all_unused_submodules()
    made.recompile()
    return made


def _first(graph: fx.Graph, early: _Early, parts: list[fx.Node]) -> fx.Graph:
    """Return the graph of the operations up to the features."""
    made, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        if node not in early.late:
            copies[node] = made.node_copy(node, copies.__getitem__)
    ends = [copies[node] for node in parts]
    if len(ends) > 1:
        flat = [made.call_method("flatten", (end, 1)) for end in ends]
        ends = [made.call_function(torch.cat, (flat, 1))]
    made.output(ends[0])
    return made


def _rest(
    graph: fx.Graph,
    early: _Early,
    parts: list[tuple[fx.Node, tuple[int, ...]]],
    numbers: dict[fx.Node, tuple[Any, Any]],
) -> fx.Graph:
    """Return the graph after the features: ``parts`` with shapes, ``numbers`` with values for 2 and
    3 samples.
    """
    made, copies, stop = fx.Graph(), dict[fx.Node, Any](), 0
    features = made.placeholder("features")
    for node, shape in parts:
        start, stop = stop, stop + prod(shape)
        copies[node] = (
            features
            if len(parts) == 1
            else made.call_function(part, (features, start, stop, shape))
        )
    for node, (two, three) in numbers.items():
        copies[node] = two if two == three else made.call_method("size", (features, 0))
    for node in graph.nodes:
        if node not in early.found:
            copies[node] = made.node_copy(node, copies.__getitem__)
    return made


def part(features: Tensor, start: int, stop: int, shape: tuple[int, ...]) -> Tensor:
    """Extract one of several features (b, *shape) that are concatenated in (b, f)."""
    return features[:, start:stop].reshape(-1, *shape)
