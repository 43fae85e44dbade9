"""The loss of each sample, by kind of targets; who averages over samples is the objective's business."""

from torch import Tensor, nn


def cross_entropy(outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """-log softmax(outputs)[target]: (B, K) logits, (B,) int64 classes -> (B,).

    With ``smoothing`` that share of the target is spread over all classes (Szegedy et al., CVPR 2016, section 7).
    """
    return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=smoothing)


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over labels of the binary cross-entropy: (B, K) logits, (B, K) zeros and ones as float -> (B,)."""
    return nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(dim=1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over targets of the squared difference: (B, K), (B, K) -> (B,)."""
    return nn.functional.mse_loss(outputs, targets, reduction="none").mean(dim=1)
