"""Fully connected networks on flattened samples: multinomial logistic regression and MLPs."""

from collections import OrderedDict
from itertools import pairwise

from torch import nn

from pomona.models import ModelSettings
from pomona.models.compatibility import features


def mlp(settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int) -> nn.Sequential:
    """Stack linear layers of widths ``settings.hidden`` with ReLU between them.

    Raises ConfigError if the samples are texts.
    """
    widths = (features(settings.name, input_shape, vocabulary), *settings.hidden, n_outputs)
    steps: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, (before, after) in enumerate(pairwise(widths), start=1):
        if number > 1:
            steps[f"relu{number - 1}"] = nn.ReLU()
        steps[f"fc{number}"] = nn.Linear(before, after)
    return nn.Sequential(steps)


def logistic(settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int) -> nn.Sequential:
    """One linear layer: ``mlp`` without hidden layers. Raises ConfigError if the samples are texts."""
    return mlp(settings.model_copy(update={"hidden": ()}), input_shape, n_outputs, vocabulary)
