"""Fully connected networks on flattened samples: logistic regression, proportional hazards and
MLPs; a classifier of texts.
"""

from collections import OrderedDict
from itertools import pairwise

import torch
from torch import Tensor, nn

from pomona.models import ModelSettings
from pomona.models.compatibility import features, tokens

PROPORTIONAL_HAZARDS = "proportional-hazards"
LOG_HAZARDS = -80.0, 20.0  # beyond which a hazard is 0 or 1 in float32


class FastText(nn.Module):
    """Embedding (V, h) with token 0 fixed at zero, mean over the sequence, linear h, linear K.

    Joulin et al., "Bag of Tricks for Efficient Text Classification", EACL 2017, in the form that
    Zhang et al., "FedALA", AAAI 2023, use: the mean includes padding (token 0 is a zero row, but
    counts), and there is no activation between the two linear layers. With 98,635 tokens, width 32
    and 4 classes it has 98,635 * 32 + (32 + 1) * 32 + (32 + 1) * 4 = 3,157,508 parameters.
    """

    def __init__(self, vocabulary: int, width: int, n_outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.fc1 = nn.Linear(width, width)
        self.fc = nn.Linear(width, n_outputs)

    def forward(self, text: Tensor) -> Tensor:
        """Map (B, T) int32 or int64 token ids to (B, K) logits."""
        logits: Tensor = self.fc(self.fc1(self.embedding(text).mean(dim=1)))
        return logits


def fasttext(
    settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int
) -> FastText:
    """Build the classifier with ``settings.width``.

    Raises ConfigError unless the samples are texts.
    """
    return FastText(tokens(settings.name, input_shape, vocabulary), settings.width, n_outputs)


def mlp(
    settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int
) -> nn.Sequential:
    """Stack linear layers of widths ``settings.hidden`` with ReLU between them.

    Raises ConfigError if the samples are texts.
    """
    widths = (features(settings.name, input_shape, vocabulary), *settings.hidden, n_outputs)
    steps: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, (in_features, out_features) in enumerate(pairwise(widths), start=1):
        if number > 1:
            steps[f"relu{number - 1}"] = nn.ReLU()
        steps[f"fc{number}"] = nn.Linear(in_features, out_features)
    return nn.Sequential(steps)


def logistic(
    settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int
) -> nn.Sequential:
    """One linear layer: ``mlp`` without hidden layers.

    Raises ConfigError if the samples are texts.
    """
    return mlp(settings.model_copy(update={"hidden": ()}), input_shape, n_outputs, vocabulary)


class BaselineHazards(nn.Module):
    """Adds the logarithms of K intervals' cumulative hazards to a sample's log hazard ratio."""

    def __init__(self, intervals: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.full((intervals,), -2.0))

    def forward(self, risk: Tensor) -> Tensor:
        """Map log hazard ratios (B, 1) to the logits (B, K) of hazards 1 - exp(-exp(risk + b))."""
        cumulative = (risk + self.bias).clamp(*LOG_HAZARDS).exp()
        return cumulative + (-torch.expm1(-cumulative)).log()


def proportional_hazards(
    settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int
) -> nn.Sequential:
    """Cox's model for times in K intervals: h_k(x) = 1 - exp(-exp(w x + b_k)).

    Where hazards are proportional in continuous time, w are the log hazard ratios of Cox's model,
    whatever the intervals (Prentice and Gloeckler, "Regression analysis of grouped survival data
    with application to breast cancer data", Biometrics 1978); the likelihood is a sum over samples.

    Raises ConfigError if the samples are texts.
    """
    size = features(settings.name, input_shape, vocabulary)
    layers = {"flatten": nn.Flatten(), "fc1": nn.Linear(size, 1, bias=False)}
    return nn.Sequential(OrderedDict(**layers, baseline=BaselineHazards(n_outputs)))
