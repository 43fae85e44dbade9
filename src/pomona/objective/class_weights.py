"""Class weights: how much the samples of a class count in training, the same for all clients or by own counts.

A weight goes into the target, as the mass that stands on each class: the loss is linear in its target, so that the loss
of a sample is multiplied, whoever computes it. With privacy this comes before a sample's gradient is clipped.
"""

from typing import Literal

import torch
from torch import Tensor

from pomona.core.errors import ConfigError
from pomona.core.targets import Targets
from pomona.models.settings import ModelSettings

Kinds = Literal["none", "balanced"]


def require(settings: ModelSettings, targets: Targets, n_outputs: int, private: bool) -> None:
    """Raise ConfigError for class weights that do not fit the targets, the loss or privacy."""
    weights = settings.class_weights
    if weights == "none":
        return
    if targets not in {"classes", "multilabel"} or settings.loss != "auto":
        raise ConfigError("model.class_weights is for classes and labels, and model.loss = auto; take it out here")
    if weights == "balanced" and private:
        raise ConfigError(
            "model.class_weights = balanced follows from counts of private samples, which privacy does not cover; "
            "give the weights as a list"
        )
    if weights != "balanced" and len(weights) != n_outputs:
        raise ConfigError(
            f"model.class_weights has {len(weights)} weights; give {n_outputs}, one for each class or label"
        )


def weights_of(settings: ModelSettings, y: Tensor, rows: list[Tensor], n_outputs: int) -> Tensor | None:
    """Each client's weights (N, K) float32; None without any.

    Args:
        settings: weights that ``require`` has let pass.
        y: (n,) int64 classes, or (n, K) flags.
        rows: each client's training rows.
        n_outputs: K.
    """
    if settings.class_weights == "none":
        return None
    if settings.class_weights != "balanced":
        return torch.tensor(settings.class_weights, device=y.device).expand(len(rows), -1)
    each = [_balanced(y[own], n_outputs) for own in rows]
    return torch.stack(each) if each else None


def _balanced(y: Tensor, n_outputs: int) -> Tensor:
    """Weights (K,) by which a client's classes, or each label's yes and no, count the same in its mean loss.

    Classes: n / (k n_c) with k the classes that the client has, so that the mean weight of its samples is 1. Labels: no
    over yes, the weight of yes. What a client has nothing of plays no role, and keeps 1.
    """
    if y.dim() == 1:
        counts = torch.bincount(y, minlength=n_outputs).double()
        weights = len(y) / ((counts > 0).sum() * counts)
        return weights.where(counts > 0, 1).float()
    yes = y.double().sum(0)
    no = len(y) - yes
    return (no / yes).where((yes > 0) & (no > 0), 1).float()


def masses(y: Tensor, weights: Tensor) -> Tensor:
    """Targets whose mass is their weight.

    Args:
        y: (b,) int64 classes, or (b, K) flags.
        weights: (K,).

    Returns:
        (b, K) with the class's weight in its place; or (b, K, 2), the masses on yes and on no.
    """
    if y.dim() == 1:
        return torch.nn.functional.one_hot(y, len(weights)) * weights
    return torch.stack([y * weights, 1 - y], -1)
