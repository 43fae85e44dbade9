"""Checks before training that a network fits the data and the loss, with one-line errors."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pomona.core.errors import ConfigError, PomonaError, explaining_memory_errors, worded
from pomona.models.layers import training_mode
from pomona.storage.mapped_array import machine_memory


def image(name: str, input_shape: tuple[int, ...], vocabulary: int) -> tuple[int, int, int]:
    """Return the samples' (C, H, W). Raises ConfigError unless they are images."""
    if vocabulary or len(input_shape) != 3:
        alternative = "fasttext" if vocabulary else "mlp or logistic"
        if len(input_shape) == 4:
            alternative = "a network for volumes, of your own or of MONAI (monai:NAME), or mlp"
        raise ConfigError(
            f"model.name={name} takes images, but a sample has shape {input_shape}; take "
            f"{alternative}"
        )
    channels, height, width = input_shape
    return channels, height, width


def features(name: str, input_shape: tuple[int, ...], vocabulary: int) -> int:
    """Return the number of values in a sample. Raises ConfigError if the values are tokens."""
    if vocabulary:
        raise ConfigError(
            f"model.name={name} takes images or tables, but the samples are texts; take fasttext"
        )
    return prod(input_shape)


def tokens(name: str, input_shape: tuple[int, ...], vocabulary: int) -> int:
    """Return the number of tokens in the vocabulary.

    Raises ConfigError unless the samples are texts.
    """
    if not vocabulary:
        raise ConfigError(
            f"model.name={name} takes texts, but the samples have no vocabulary (shape "
            f"{input_shape}); take mlp"
            f"{', cnn or resnet18' if len(input_shape) == 3 else ' or logistic'}"
        )
    return vocabulary


def call_family(family: Callable[..., object], name: str, *arguments: object) -> object:
    """Call a family with its four arguments.

    Raises ConfigError before the call if they do not fit its signature.
    """
    signature = "(settings, input_shape, n_outputs, vocabulary)"
    try:
        accepts = not isinstance(family, nn.Module) and inspect.signature(family).bind(*arguments)
    except (TypeError, ValueError):
        accepts = False
    if not accepts:
        raise ConfigError(
            f"model.name={name} does not name a function of {signature}; write one that takes "
            "these four and returns an nn.Module"
        )
    return family(*arguments)


@contextmanager
def construction(name: str) -> Iterator[None]:
    """Turn any fault of a network's own code, while it is built, into ConfigError."""
    try:
        with explaining_memory_errors(f"building model.name={name}"):
            yield
    except PomonaError:
        raise
    except Exception as fault:
        raise ConfigError(
            f"model.name={name} cannot be built ({worded(fault)}); see model.args"
        ) from fault


def verified(
    module: object,
    name: str,
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...],
    vocabulary: int,
) -> nn.Module:
    """Return the module after a trial with zero samples: one in evaluation mode, then two in
    training mode.

    Its buffers are left unchanged. Two samples, because BatchNorm rejects a single value per
    channel.

    Raises ConfigError if it is not an ``nn.Module``, has no trained parameters or any that is not
    float32, rejects the samples, or its outputs are not one tensor (b, *output_shape) in both
    modes.
    """
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"model.name={name} returned a {type(module).__name__}; the function must return an "
            "nn.Module"
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(
            f"model.name={name}: nothing is trained, all parameters are frozen or there are none; "
            "name some in model.train"
        )
    for path, parameter in module.named_parameters():
        is_trained = parameter.requires_grad and parameter.is_floating_point()
        if is_trained and parameter.dtype != torch.float32:
            raise ConfigError(
                f"model.name={name}: {path} is {parameter.dtype}, and training is in float32; let "
                "the function return network.float()"
            )
    training = module.training
    samples = torch.zeros((2, *input_shape), dtype=torch.int64 if vocabulary else torch.float32)
    module.eval()
    _require_outputs(module, samples[:1], output_shape, name, "evaluation")
    training_mode(module)()
    buffers = {path: buffer.clone() for path, buffer in module.named_buffers()}
    _require_outputs(
        partial(functional_call, module, buffers), samples, output_shape, name, "training"
    )
    return module.train(training)


def _require_outputs(
    network: Callable[[Tensor], object],
    samples: Tensor,
    output_shape: tuple[int, ...],
    name: str,
    mode: str,
) -> None:
    """Raise ConfigError unless a network maps samples (b, ...) to one tensor (b, *output_shape)."""
    try:
        with torch.no_grad(), explaining_memory_errors(f"trying model.name={name}"):
            outputs = network(samples)
    except PomonaError:
        raise
    except Exception as fault:  # a network's own code raises any type
        raise ConfigError(
            f"model.name={name} in {mode} mode fails on a sample of shape "
            f"{tuple(samples.shape[1:])}: {worded(fault)}; change the network "
            "(model.name, model.args) or the samples (of images: data.resize, or model.patch.size)"
        ) from fault
    if not isinstance(outputs, Tensor):
        raise ConfigError(
            f"model.name={name} in {mode} mode returns a {type(outputs).__name__}; a network takes "
            "one tensor of samples and returns one of outputs: set model.args so that it does, or "
            "wrap it in a module that does"
        )
    if tuple(outputs.shape) != (len(samples), *output_shape):
        raise ConfigError(
            f"model.name={name} in {mode} mode turns a batch of {len(samples)} into outputs of "
            f"shape {tuple(outputs.shape)}; the data needs {(len(samples), *output_shape)}: set "
            f"{'model = unet, or ' if len(output_shape) > 1 else ''}model.name, model.args"
        )


def require_room(outline: nn.Module, name: str) -> None:
    """Raise ConfigError if the weights of a network on the meta device would not fit into
    memory.
    """
    size = sum(tensor.nbytes for tensor in (*outline.parameters(), *outline.buffers()))
    if size > machine_memory():
        raise ConfigError(
            f"{name} has {size / 1e9:.1f} GB of weights, the machine {machine_memory() / 1e9:.1f} "
            "GB of memory; "
            "take narrower layers (model.hidden, model.width, model.args) or another network"
        )


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
