"""Translation of a network into layers of the optional package pomona-native.

The forward pass is traced symbolically (``torch.fx``), so that shortcuts and functions between the
network's modules are seen as well. A network is translated if every operation is known.
"""

from dataclasses import replace
from operator import add, iadd
from typing import Any

import torch
from torch import fx, nn

from pomona.core.errors import worded
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.native_layers import Layer, RowLayout, Value, layer_of

ACTIVATIONS: dict[object, str] = {
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
WINDOW = 15  # side of the largest window that a convolution pools itself


class _UnknownError(Exception):
    pass


def layers_of(
    module: nn.Module, space: ParameterSpace, flat: bool, tokens: bool
) -> list[Layer] | str:
    """Return the layers of a network if the package has them all; otherwise a line on the first one
    it lacks.

    Args:
        module: the network.
        space: its parameter space.
        flat: whether samples are vectors, not images.
        tokens: whether samples are texts.
    """
    for name, submodule in module.named_modules():
        if _altered(submodule):
            subject = f"layer {name}" if name else "the network"
            return f"{subject} has a hook or overrides forward"
    graph = _traced(module)
    if isinstance(graph, str):
        return graph
    translation = _Translation(module, space)
    try:
        for node in graph.nodes:
            translation.translate(node, flat or tokens)
    except _UnknownError as error:
        return str(error)
    layers = translation.layers
    if not layers or layers[-1].operation != "linear" or layers[-1].rectified:
        return "the last layer is not linear"
    if tokens != (layers[0].operation == "embedding"):
        return "texts need an embedding as the first layer, other data must not have one"
    return layers


def _traced(module: nn.Module) -> fx.Graph | str:
    """Return the operations of the forward pass, or why they are not known: what fx cannot follow,
    and what is not the same in each call, in training and in evaluation.
    """
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    numbers, graphs = _numbers(module), list[fx.Graph]()
    try:
        for training in (True, False, True):
            for submodule, _ in modes:
                submodule.training = training
            graphs.append(fx.Tracer().trace(module))
    except Exception as fault:  # the network's own code may raise any type
        return f"the network's forward pass cannot be traced ({worded(fault)})"
    finally:
        for submodule, training in modes:
            submodule.training = training
    if len({str(graph) for graph in graphs}) > 1 or _numbers(module) != numbers:
        return "the network's forward pass is not the same in each call"
    return graphs[0]


def _numbers(module: nn.Module) -> list[dict[str, Any]]:
    """Return the plain attributes of the network's modules: numbers and strings."""
    plain = (int, float, str, type(None))
    return [
        {name: value for name, value in vars(submodule).items() if isinstance(value, plain)}
        for submodule in module.modules()
    ]


def _altered(module: nn.Module) -> bool:
    """Return whether a module computes more than its type says."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" in vars(module) or any(getattr(module, attribute) for attribute in hooks)


class _Translation:
    """The layers so far, and the value that each operation of the graph computes."""

    def __init__(self, module: nn.Module, space: ParameterSpace) -> None:
        self.layers = list[Layer]()
        self._module, self._layout = module, RowLayout(module, space)
        self._values = dict[Any, Value]()  # by operation

    def translate(self, node: fx.Node, flat: bool) -> None:
        """Translate an operation. Raises _UnknownError if the package does not have it here."""
        if node.op == "placeholder" and not self._values:
            self._values[node] = Value(0, flat)
        elif node.op == "output":
            if self._values.get(node.args[0]) != Value(len(self.layers), True):
                raise _UnknownError("the network's outputs are not those of its last layer")
        elif value := self._translated(node):
            self._values[node] = value
        else:
            is_module = node.op == "call_module"
            operation = (
                type(self._module.get_submodule(str(node.target))).__name__
                if is_module
                else node.op
            )
            name = node.target if is_module else node.name
            raise _UnknownError(f"layer {name} ({operation}) is not supported here")

    def _translated(self, node: fx.Node) -> Value | None:
        inputs = [self._values[a] for a in node.args if isinstance(a, fx.Node)]
        if not inputs or len(inputs) != len(node.all_input_nodes):
            return None
        source, arguments = inputs[0], node.args[1:]
        if node.op == "call_module":
            module = self._module.get_submodule(str(node.target))
            return None if arguments or node.kwargs else self._module_value(module, node, source)
        keywords = {k: v for k, v in node.kwargs.items() if v is not False}  # as in inplace=False
        target: Any = node.target
        if source.tokens:
            mean = target in ("mean", torch.mean) and (arguments, keywords) in (
                ((1,), {}),
                ((), {"dim": 1}),
            )
            return replace(source, tokens=False) if mean else None
        if target in (add, iadd, torch.add) and len(inputs) == 2 and not keywords:
            return self._summed(inputs[0], inputs[1], node)
        if target in ("flatten", torch.flatten) and arguments == (1,) and not keywords:
            return replace(source, flat=True)
        if target in ACTIVATIONS and not arguments and not keywords:
            return self._activated(ACTIVATIONS[target], source, node)
        return None

    def _module_value(self, module: Any, node: fx.Node, source: Value) -> Value | None:
        module_type = type(module)
        if getattr(module, "inplace", False) and not self._sole_reader(node):
            return None
        if module_type is nn.Identity or (
            isinstance(module, nn.Dropout | nn.Dropout2d) and module.p == 0
        ):
            return source
        if module_type is nn.Flatten and [module.start_dim, module.end_dim] == [1, -1]:
            return replace(source, flat=True)
        if source.tokens:
            return None
        if module_type in ACTIVATIONS and getattr(module, "approximate", "none") == "none":
            return self._activated(ACTIVATIONS[module_type], source, node)
        if not (layer := layer_of(module, str(node.target), source, self._layout)):
            return None
        if (
            layer.operation == "pooling"
            and (preceding := self._preceding(source, node))
            and _pools(preceding, layer)
        ):
            sizes = {**preceding.sizes, "window": layer.sizes["window"], "hop": layer.sizes["hop"]}
            self.layers[-1] = replace(preceding, sizes=sizes)
            return source
        return replace(self._append(layer, source), tokens=module_type is nn.Embedding)

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

    def _activated(self, name: str, source: Value, node: fx.Node) -> Value:
        preceding = self._preceding(source, node)
        if name == "relu" and preceding and preceding.rectified is not None:
            self.layers[-1] = replace(preceding, rectified=True)
            return source
        return self._append(Layer("activation", {"name": name}, source.layer), source)

    def _summed(self, left: Value, right: Value, node: fx.Node) -> Value | None:
        if (
            left.flat != right.flat
            or right.tokens
            or (node.target is iadd and not self._sole_reader(node))
        ):
            return None
        return self._append(
            Layer("sum", {"beside": right.layer}, left.layer, rectified=False), left
        )


def _pools(convolution: Layer, layer: Layer) -> bool:
    """Whether a convolution can pool its own outputs; pooling and ReLU commute."""
    if convolution.operation != "convolution" or convolution.pooled or convolution.large:
        return False
    sizes = layer.sizes
    plain = not sizes["mean"] and not sizes["ceil"] and sizes["padding"] == (0, 0)
    return plain and max(*sizes["window"], *sizes["hop"]) <= WINDOW
