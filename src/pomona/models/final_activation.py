"""The activation that a network ends in, where its loss expects raw outputs."""

from typing import Any

import torch
from torch import Tensor, nn

RESHAPES = (
    *("Alias", "Clone", "Permute", "Reshape", "ReshapeAlias", "Squeeze", "ToCopy", "Transpose"),
    *("UnsafeView", "Unsqueeze", "View"),
)
ACTIVATIONS = {
    "Softmax": "softmax",
    "LogSoftmax": "log-softmax",
    "Sigmoid": "sigmoid",
    "LogSigmoid": "log-sigmoid",
    "Relu": "ReLU",
    "Tanh": "tanh",
    "Softplus": "softplus",
}
"""By the name of their backward pass, so that layers and functions are recognised alike."""


def final_activation(module: nn.Module, sample: Tensor) -> tuple[str, str] | None:
    """Return the activation that a network ends in, and the path of its layer, "" if it is a
    function; None for raw outputs.

    Args:
        module: the network; it is left in evaluation mode.
        sample: inputs (B, ...) to run it on.
    """
    results: list[tuple[str, Any]] = []

    def recorder(path: str) -> Any:
        return lambda _layer, _inputs, outputs: results.append((path, outputs))

    leaves = [(path, layer) for path, layer in module.named_modules() if not [*layer.children()]]
    hooks = [layer.register_forward_hook(recorder(path)) for path, layer in leaves]
    try:
        with torch.enable_grad():
            outputs = module.eval()(sample)
    finally:
        for hook in hooks:
            hook.remove()
    step = outputs.grad_fn
    while _name(step) in RESHAPES:
        step = step.next_functions[0][0]
    path = next((path for path, result in reversed(results) if result is outputs), "")
    return (ACTIVATIONS[_name(step)], path) if _name(step) in ACTIVATIONS else None


def _name(step: Any) -> str:
    """Return what a step of the backward pass belongs to; empty for an input or a constant."""
    return step.name().partition("Backward")[0] if step is not None else ""
