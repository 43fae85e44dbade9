"""Per-sample losses by type of targets; the objective averages them."""

import torch
from torch import Tensor, nn

SMOOTH = 1e-5  # as in MONAI: a class that is neither present nor predicted has a Dice of 1


def cross_entropy(outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """-log softmax(outputs)[target]: (B, K) logits, (B,) int64 classes -> (B,).

    Targets may be probabilities (B, K). With ``smoothing`` that share of the target's mass is
    spread over all classes (Szegedy et al., CVPR 2016, section 7).
    """
    if targets.is_floating_point() and smoothing:
        targets, smoothing = torch.lerp(targets, targets.mean(1, keepdim=True), smoothing), 0.0
    return nn.functional.cross_entropy(
        outputs, targets, reduction="none", label_smoothing=smoothing
    )


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over labels of the binary cross-entropy: (B, K) logits, (B, K) zeros and ones as float
    -> (B,).

    Targets may be probabilities (B, K, 2) of yes and no.
    """
    if targets.dim() > outputs.dim():
        yes, no = targets.unbind(-1)
        return (yes * nn.functional.softplus(-outputs) + no * nn.functional.softplus(outputs)).mean(
            dim=1
        )
    return nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(
        dim=1
    )


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over targets of the squared difference: (B, K), (B, K) -> (B,)."""
    return nn.functional.mse_loss(outputs, targets, reduction="none").mean(dim=1)


def hazard_surprise(outputs: Tensor, targets: Tensor) -> Tensor:
    """-log of the probability of a sequence of intervals: (B, K) logits of hazards, (B, 2, K)
    targets -> (B,).

    The hazard h_k = sigmoid(z_k) is the probability of an event in interval k given that it is
    reached. A target has a_k, whether interval k was reached and its end observed, and e_k, whether
    the event was in it. The loss is

        sum_k -e_k log h_k - (a_k - e_k) log(1 - h_k) = sum_k a_k softplus(z_k) - e_k z_k

    which needs no logarithm of a hazard near 0 or 1 (Gensheimer and Narasimhan, "A scalable
    discrete-time survival model for neural networks", PeerJ 2019; "logistic hazard" in Kvamme and
    Borgan, "Continuous and discrete-time survival prediction with neural networks", Lifetime Data
    Analysis 2021). Targets may be probabilities: it is linear in them.
    """
    reached, events = targets.unbind(1)
    return (reached * nn.functional.softplus(outputs) - events * outputs).sum(dim=1)


def cross_entropy_dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a sample's mean pixel cross-entropy, plus 1 minus the mean of its soft Dice over all
    classes.

    (B, C, *S) logits, (B, *S) int64 classes or (B, C, *S) probabilities -> (B,). Dice is computed
    per sample, so that a loss never depends on the other samples in the batch (Milletari et al.,
    3DV 2016; smoothed as in MONAI's DiceCELoss).
    """
    return _cross_entropy_dice(outputs, targets, first=0)


def cross_entropy_foreground_dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """As ``cross_entropy_dice``, with Dice over all classes except the first, the background."""
    return _cross_entropy_dice(outputs, targets, first=1)


def _cross_entropy_dice(outputs: Tensor, targets: Tensor, first: int) -> Tensor:
    logs = outputs.log_softmax(1).flatten(2)
    truth = (
        (targets if targets.is_floating_point() else _shares(targets, outputs.shape[1]))
        .flatten(2)
        .to(logs)
    )
    shares = logs.exp()
    overlap, total = (shares * truth).sum(2), (shares + truth).sum(2)
    dice = (2 * overlap + SMOOTH) / (total + SMOOTH)
    return 1 - dice[:, first:].mean(1) - (truth * logs).sum(1).mean(1)


def _shares(targets: Tensor, classes: int) -> Tensor:
    """Return one-hot masks: (B, *S) class numbers -> (B, C, *S)."""
    numbers = torch.arange(classes, device=targets.device).reshape(-1, *[1] * (targets.dim() - 1))
    return targets.unsqueeze(1) == numbers
