"""Does a network fit the data? Said in one line before anything runs."""

from math import prod

import torch
from torch import nn

from pomona.errors import ConfigError


def image(name: str, input_shape: tuple[int, ...], vocabulary: int) -> tuple[int, int, int]:
    """(C, H, W) of the samples. Raises ConfigError unless they are images."""
    if vocabulary or len(input_shape) != 3:
        other = "fasttext" if vocabulary else "mlp or logistic"
        raise ConfigError(f"model.name={name} takes images, but a sample has shape {input_shape}; take {other}")
    channels, height, width = input_shape
    return channels, height, width


def features(name: str, input_shape: tuple[int, ...], vocabulary: int) -> int:
    """Number of values in a sample. Raises ConfigError if the values are tokens."""
    if vocabulary:
        raise ConfigError(f"model.name={name} takes images or tables, but the samples are texts; take fasttext")
    return prod(input_shape)


def tokens(name: str, input_shape: tuple[int, ...], vocabulary: int) -> int:
    """Number of tokens in the vocabulary. Raises ConfigError unless the samples are texts."""
    if not vocabulary:
        raise ConfigError(
            f"model.name={name} takes texts, but the samples have no vocabulary (shape {input_shape}); take mlp"
            f"{', cnn or resnet18' if len(input_shape) == 3 else ' or logistic'}"
        )
    return vocabulary


def verified(module: object, name: str, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int) -> nn.Module:
    """The module, once one sample of zeros has passed through it in evaluation mode.

    Raises ConfigError if it is no ``nn.Module``, rejects the sample, or its outputs are not (1, n_outputs).
    """
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model.name={name} made a {type(module).__name__}; the function must return an nn.Module")
    training = module.training
    sample = torch.zeros((1, *input_shape), dtype=torch.int64 if vocabulary else torch.float32)
    try:
        with torch.no_grad():
            shape = tuple(module.eval()(sample).shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as fault:
        raise ConfigError(f"model.name={name} fails on a sample of shape {input_shape}: {fault}") from fault
    if shape != (1, n_outputs):
        raise ConfigError(
            f"model.name={name} turns a batch of 1 into outputs of shape {shape}; the data needs (1, {n_outputs})"
        )
    return module.train(training)
