"""The text classifier of the FedALA experiments: embedding, mean, two linear layers.

Joulin et al., "Bag of Tricks for Efficient Text Classification", EACL 2017, in the form that Zhang et al., "FedALA",
AAAI 2023, use: the mean includes padding (token 0 is a zero row, but counts), and there is no activation between the
two linear layers. With 98,635 tokens, width 32 and 4 classes it has 98,635 * 32 + (32 + 1) * 32 + (32 + 1) * 4 =
3,157,508 parameters.
"""

from torch import Tensor, nn

from pomona.models import ModelSettings
from pomona.models.compatibility import tokens


class FastText(nn.Module):
    """Embedding (V, h) with token 0 fixed at zero, mean over the sequence, linear h, linear K."""

    def __init__(self, vocabulary: int, width: int, n_outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.fc1 = nn.Linear(width, width)
        self.fc = nn.Linear(width, n_outputs)

    def forward(self, text: Tensor) -> Tensor:
        """Map (B, T) int32 or int64 token ids to (B, K) logits."""
        logits: Tensor = self.fc(self.fc1(self.embedding(text).mean(dim=1)))
        return logits


def fasttext(settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int) -> FastText:
    """Build the classifier with ``settings.width``. Raises ConfigError unless the samples are texts."""
    return FastText(tokens(settings.name, input_shape, vocabulary), settings.width, n_outputs)
