"""Fully connected networks on flattened samples: logistic regression and MLPs; a classifier of
texts.
"""

from collections import OrderedDict
from itertools import pairwise

from torch import Tensor, nn

from pomona.models import ModelSettings
from pomona.models.compatibility import features, tokens


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
