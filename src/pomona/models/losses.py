"""The loss of each sample, by kind of targets; who averages over samples is the objective's business."""

import torch
from torch import Tensor, nn


def cross_entropy(outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """-log softmax(outputs)[target]: (B, K) logits, (B,) int64 classes -> (B,).

    Targets may be masses (B, K) on the classes. With ``smoothing`` that share of the target's mass is spread over all
    classes (Szegedy et al., CVPR 2016, section 7).
    """
    if targets.is_floating_point() and smoothing:
        targets, smoothing = torch.lerp(targets, targets.mean(1, keepdim=True), smoothing), 0.0
    return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=smoothing)


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over labels of the binary cross-entropy: (B, K) logits, (B, K) zeros and ones as float -> (B,).

    Targets may be masses (B, K, 2) on yes and on no.
    """
    if targets.dim() > outputs.dim():
        yes, no = targets.unbind(-1)
        return (yes * nn.functional.softplus(-outputs) + no * nn.functional.softplus(outputs)).mean(dim=1)
    return nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(dim=1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over targets of the squared difference: (B, K), (B, K) -> (B,)."""
    return nn.functional.mse_loss(outputs, targets, reduction="none").mean(dim=1)
