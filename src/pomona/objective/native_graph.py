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
from pomona.objective.native_layers import Layer, Places, Value, layer_of

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
    for name, part in module.named_modules():
        if _altered(part):
            what = f"layer {name}" if name else "the network"
            return f"{what} has a hook or a forward of its own"
    graph = _traced(module)
    if isinstance(graph, str):
        return graph
    translation = _Translation(module, space)
    try:
        for node in graph.nodes:
            translation.take(node, flat or tokens)
    except _UnknownError as unknown:
        return str(unknown)
    made = translation.layers
    if not made or made[-1].kind != "linear" or made[-1].rectified:
        return "the last layer is not linear"
    if tokens != (made[0].kind == "embedding"):
        return "texts are read by an embedding, and nothing else is"
    return made


def _traced(module: nn.Module) -> fx.Graph | str:
    """Return the operations of the forward pass, or why they are not known: what fx cannot follow,
    and what is not the same in each call, in training and in evaluation.
    """
    modes = [(part, part.training) for part in module.modules()]
    before, found = _numbers(module), list[fx.Graph]()
    try:
        for training in (True, False, True):
            for part, _ in modes:
                part.training = training
            found.append(fx.Tracer().trace(module))
    except Exception as fault:  # the network's own code may raise any type
        return f"the network's forward pass cannot be traced ({worded(fault)})"
    finally:
        for part, training in modes:
            part.training = training
    if len({str(graph) for graph in found}) > 1 or _numbers(module) != before:
        return "the network's forward pass is not the same in each call"
    return found[0]


def _numbers(module: nn.Module) -> list[dict[str, Any]]:
    """Return the numbers and texts that the network's modules hold beside tensors."""
    plain = (int, float, str, type(None))
    return [
        {name: value for name, value in vars(part).items() if isinstance(value, plain)}
        for part in module.modules()
    ]


def _altered(part: nn.Module) -> bool:
    """Return whether a module computes more than its type says."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" in vars(part) or any(getattr(part, kind) for kind in hooks)


class _Translation:
    """The layers found so far, and what each operation of the graph makes."""

    def __init__(self, module: nn.Module, space: ParameterSpace) -> None:
        self.layers = list[Layer]()
        self._module, self._places = module, Places(module, space)
        self._values = dict[Any, Value]()  # by operation

    def take(self, node: fx.Node, flat: bool) -> None:
        """Translate an operation. Raises _UnknownError if the package does not have it here."""
        if node.op == "placeholder" and not self._values:
            self._values[node] = Value(0, flat)
        elif node.op == "output":
            if self._values.get(node.args[0]) != Value(len(self.layers), True):
                raise _UnknownError("the network's outputs are not those of its last layer")
        elif value := self._made(node):
            self._values[node] = value
        else:
            called = node.op == "call_module"
            kind = (
                type(self._module.get_submodule(str(node.target))).__name__ if called else node.op
            )
            name = node.target if called else node.name
            raise _UnknownError(f"layer {name} ({kind}) is none that it knows in this place")

    def _made(self, node: fx.Node) -> Value | None:
        read = [self._values[a] for a in node.args if isinstance(a, fx.Node)]
        if not read or len(read) != len(node.all_input_nodes):
            return None
        own, rest = read[0], node.args[1:]
        if node.op == "call_module":
            part = self._module.get_submodule(str(node.target))
            return None if rest or node.kwargs else self._of_module(part, node, own)
        given = {k: v for k, v in node.kwargs.items() if v is not False}  # as in inplace=False
        target: Any = node.target
        if own.tokens:
            mean = target in ("mean", torch.mean) and (rest, given) in (
                ((1,), {}),
                ((), {"dim": 1}),
            )
            return replace(own, tokens=False) if mean else None
        if target in (add, iadd, torch.add) and len(read) == 2 and not given:
            return self._summed(read[0], read[1], node)
        if target in ("flatten", torch.flatten) and rest == (1,) and not given:
            return replace(own, flat=True)
        if target in ACTIVATIONS and not rest and not given:
            return self._activated(ACTIVATIONS[target], own, node)
        return None

    def _of_module(self, part: Any, node: fx.Node, own: Value) -> Value | None:
        kind = type(part)
        if getattr(part, "inplace", False) and not self._alone(node):
            return None
        if kind is nn.Identity or (isinstance(part, nn.Dropout | nn.Dropout2d) and part.p == 0):
            return own
        if kind is nn.Flatten and [part.start_dim, part.end_dim] == [1, -1]:
            return replace(own, flat=True)
        if own.tokens:
            return None
        if kind in ACTIVATIONS and getattr(part, "approximate", "none") == "none":
            return self._activated(ACTIVATIONS[kind], own, node)
        if not (layer := layer_of(part, str(node.target), own, self._places)):
            return None
        if (
            layer.kind == "pooling"
            and (behind := self._behind(own, node))
            and _pools(behind, layer)
        ):
            sizes = {**behind.sizes, "window": layer.sizes["window"], "hop": layer.sizes["hop"]}
            self.layers[-1] = replace(behind, sizes=sizes)
            return own
        return replace(self._append(layer, own), tokens=kind is nn.Embedding)

    def _append(self, layer: Layer, own: Value) -> Value:
        self.layers.append(layer)
        return Value(len(self.layers), own.flat)

    def _alone(self, node: fx.Node) -> bool:
        """Whether an operation is the only one to read its input, under any name."""
        made = self._values[node.args[0]].layer
        names = {other for other, value in self._values.items() if value.layer == made}
        return len({user for other in names for user in other.users} - names) == 1

    def _behind(self, own: Value, node: fx.Node) -> Layer | None:
        """Return the last layer if this operation alone reads it."""
        last = own.layer == len(self.layers) > 0 and self._alone(node)
        return self.layers[-1] if last else None

    def _activated(self, name: str, own: Value, node: fx.Node) -> Value:
        behind = self._behind(own, node)
        if name == "relu" and behind and behind.rectified is not None:
            self.layers[-1] = replace(behind, rectified=True)
            return own
        return self._append(Layer("activation", {"name": name}, own.layer), own)

    def _summed(self, own: Value, other: Value, node: fx.Node) -> Value | None:
        if (
            own.flat != other.flat
            or other.tokens
            or (node.target is iadd and not self._alone(node))
        ):
            return None
        return self._append(Layer("sum", {"beside": other.layer}, own.layer, rectified=False), own)


def _pools(convolution: Layer, layer: Layer) -> bool:
    """Whether a convolution pools what it makes itself; pooling and ReLU commute."""
    if convolution.kind != "convolution" or convolution.pooled or convolution.large:
        return False
    sizes = layer.sizes
    plain = not sizes["mean"] and not sizes["ceil"] and sizes["padding"] == (0, 0)
    return plain and max(*sizes["window"], *sizes["hop"]) <= WINDOW
