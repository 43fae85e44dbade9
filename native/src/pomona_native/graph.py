"""Translation of a network into layers of the compiled modules.

The forward pass is traced symbolically (``torch.fx``), so that shortcuts and functions between the
network's modules are seen as well. A network is translated if every operation is known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import add, iadd
from typing import Any

import torch
from torch import fx, nn

from pomona.core.errors import worded
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.engine import EngineError
from pomona_native.layers import Layer, RowLayout, Value, layer_of

ACTIVATIONS: Mapping[object, str] = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
    torch.relu: "relu",
    torch.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    nn.functional.relu: "relu",
    nn.functional.relu6: "relu6",
    nn.functional.silu: "silu",
    nn.functional.gelu: "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
WINDOW = 15  # side of the largest window that a convolution pools itself


def layers_of(module: nn.Module, space: ParameterSpace, flat: bool, tokens: bool) -> list[Layer]:
    """Return the layers of a network.

    Args:
        module: the network.
        space: its parameter space.
        flat: whether samples are vectors, not images.
        tokens: whether samples are texts.

    Raises EngineError with the first operation that the package lacks.
    """
    _require_unaltered(module)
    translation = _Translation(module, space)
    for node in _traced(module).nodes:
        translation.translate(node, flat or tokens)
    layers = translation.layers
    if not layers or layers[-1].operation != "linear" or layers[-1].rectified:
        raise EngineError("the last layer is not linear")
    if tokens != (layers[0].operation == "embedding"):
        raise EngineError(
            "texts need an embedding as the first layer, other data must not have one"
        )
    return layers


def _require_unaltered(module: nn.Module) -> None:
    """Raise EngineError if a module computes more than its type says."""
    for name, submodule in module.named_modules():
        hooked = any(getattr(submodule, attribute) for attribute in HOOKS)
        if hooked or "forward" in vars(submodule):
            subject = f"layer {name}" if name else "the network"
            raise EngineError(f"{subject} has a hook or overrides forward")


def _traced(module: nn.Module) -> fx.Graph:
    """Return the operations of the forward pass.

    Raises EngineError for what fx cannot follow, and for what is not the same in each call, in
    training and in evaluation.
    """
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    numbers, graphs = _numbers(module), list[fx.Graph]()
    try:
        for training in (True, False, True):
            for submodule, _ in modes:
                submodule.training = training
            graphs.append(fx.Tracer().trace(module))
    except Exception as fault:  # the network's own code may raise any type
        raise EngineError(
            f"the network's forward pass cannot be traced ({worded(fault)})"
        ) from fault
    finally:
        for submodule, training in modes:
            submodule.training = training
    if len({str(graph) for graph in graphs}) > 1 or _numbers(module) != numbers:
        raise EngineError("the network's forward pass is not the same in each call")
    return graphs[0]


def _numbers(module: nn.Module) -> list[dict[str, Any]]:
    """Return the plain attributes of the network's modules: numbers and strings."""
    plain = (int, float, str, type(None))
    return [
        {name: value for name, value in vars(submodule).items() if isinstance(value, plain)}
        for submodule in module.modules()
    ]


class _Translation:
    """The layers so far, and the value that each operation of the graph computes."""

    def __init__(self, module: nn.Module, space: ParameterSpace) -> None:
        self.layers = list[Layer]()
        self._module, self._layout = module, RowLayout(module, space)
        self._values = dict[Any, Value]()  # by operation

    def translate(self, node: fx.Node, flat: bool) -> None:
        """Translate an operation. Raises EngineError if the package does not have it here."""
        if node.op == "placeholder" and not self._values:
            self._values[node] = Value(0, flat)
        elif node.op == "output":
            if self._values.get(node.args[0]) != Value(len(self.layers), True):
                raise EngineError("the network's outputs are not those of its last layer")
        elif value := self._translated(node):
            self._values[node] = value
        else:
            name, operation = node.name, node.op
            if node.op == "call_module":
                name, operation = str(node.target), type(self._submodule(node)).__name__
            raise EngineError(f"layer {name} ({operation}) is not supported here")

    def _submodule(self, node: fx.Node) -> nn.Module:
        return self._module.get_submodule(str(node.target))

    def _translated(self, node: fx.Node) -> Value | None:
        inputs = [self._values[a] for a in node.args if isinstance(a, fx.Node)]
        if not inputs or len(inputs) != len(node.all_input_nodes):
            return None
        if node.op != "call_module":
            return self._of_function(node, inputs)
        plain = len(node.args) == 1 and not node.kwargs
        return self._of_module(self._submodule(node), node, inputs[0]) if plain else None

    def _of_function(self, node: fx.Node, inputs: Sequence[Value]) -> Value | None:
        target: Any = node.target
        source, arguments = inputs[0], node.args[1:]
        keywords = {k: v for k, v in node.kwargs.items() if v is not False}  # as in inplace=False
        if source.tokens:
            return _averaged(source, target, arguments, keywords)
        if keywords:
            return None
        if target in (add, iadd, torch.add) and len(inputs) == 2:
            return self._summed(inputs[0], inputs[1], node)
        if target in ("flatten", torch.flatten) and arguments == (1,):
            return replace(source, flat=True)
        if target in ACTIVATIONS and not arguments:
            return self._activated(ACTIVATIONS[target], source, node)
        return None

    def _of_module(self, module: Any, node: fx.Node, source: Value) -> Value | None:
        if getattr(module, "inplace", False) and not self._sole_reader(node):
            return None
        if value := _passed_on(module, source):
            return value
        if source.tokens:
            return None
        if type(module) in ACTIVATIONS and getattr(module, "approximate", "none") == "none":
            return self._activated(ACTIVATIONS[type(module)], source, node)
        layer = layer_of(module, str(node.target), source, self._layout)
        if not layer:
            return None
        if layer.operation == "pooling" and self._pooled_by_preceding(layer, source, node):
            return source
        return replace(self._append(layer, source), tokens=type(module) is nn.Embedding)

    def _append(self, layer: Layer, source: Value) -> Value:
        self.layers.append(layer)
        return Value(len(self.layers), source.flat)

    def _sole_reader(self, node: fx.Node) -> bool:
        """Whether an operation is the only one to read its input, under any name."""
        layer = self._values[node.args[0]].layer
        aliases = {alias for alias, value in self._values.items() if value.layer == layer}
        return len({user for alias in aliases for user in alias.users} - aliases) == 1

    def _preceding(self, source: Value, node: fx.Node) -> Layer | None:
        """Return the last layer if this operation alone reads it."""
        last = source.layer == len(self.layers) > 0 and self._sole_reader(node)
        return self.layers[-1] if last else None

    def _pooled_by_preceding(self, pooling: Layer, source: Value, node: fx.Node) -> bool:
        """Let the preceding convolution pool its own outputs, if it can: pooling and ReLU
        commute.
        """
        convolution = self._preceding(source, node)
        if not convolution or convolution.operation != "convolution":
            return False
        sizes = pooling.sizes
        plain = not sizes["mean"] and not sizes["ceil"] and sizes["padding"] == (0, 0)
        small = plain and max(*sizes["window"], *sizes["hop"]) <= WINDOW
        if not small or convolution.pooled or convolution.large:
            return False
        sizes = {**convolution.sizes, "window": sizes["window"], "hop": sizes["hop"]}
        self.layers[-1] = replace(convolution, sizes=sizes)
        return True

    def _activated(self, name: str, source: Value, node: fx.Node) -> Value:
        preceding = self._preceding(source, node)
        if name == "relu" and preceding and preceding.rectified is not None:
            self.layers[-1] = replace(preceding, rectified=True)
            return source
        return self._append(Layer("activation", {"name": name}, source.layer), source)

    def _summed(self, left: Value, right: Value, node: fx.Node) -> Value | None:
        if left.flat != right.flat or right.tokens:
            return None
        if node.target is iadd and not self._sole_reader(node):
            return None
        layer = Layer("sum", {"beside": right.layer}, left.layer, rectified=False)
        return self._append(layer, left)


def _passed_on(module: Any, source: Value) -> Value | None:
    """Return the value of a module that hands on its input, or flattens it; None for others."""
    if type(module) is nn.Flatten and [module.start_dim, module.end_dim] == [1, -1]:
        return replace(source, flat=True)
    dropout = type(module) in (nn.Dropout, nn.Dropout2d)
    return source if type(module) is nn.Identity or (dropout and module.p == 0) else None


def _averaged(
    source: Value, target: object, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Value | None:
    """Return the mean of word vectors, the only operation on them; None for others."""
    along_words = (arguments, keywords) in (((1,), {}), ((), {"dim": 1}))
    mean = target in ("mean", torch.mean) and along_words
    return replace(source, tokens=False) if mean else None
