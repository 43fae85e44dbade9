"""Class weights: the weight of a class's samples in training, the same for all clients or from
their own counts.

Weights are applied to the target, as a class's probability mass: the loss is linear in its target,
so this scales a sample's loss in every engine. With privacy, this precedes clipping of the sample's
gradient.
"""

from pomona.core.bounds import Targets
from pomona.core.errors import ConfigError
from pomona.core.lazy_torch import Tensor, torch
from pomona.models.settings import ModelSettings


def require(settings: ModelSettings, targets: Targets, n_outputs: int, private: bool) -> None:
    """Raise ConfigError for class weights that do not fit the targets, the loss or privacy."""
    weights = settings.class_weights
    if weights == "none":
        return
    if targets not in {"classes", "multilabel"} or settings.loss != "auto":
        raise ConfigError(
            "model.class_weights needs classes or labels, and model.loss = auto; remove it"
        )
    if weights == "balanced" and private:
        raise ConfigError(
            "model.class_weights = balanced is computed from counts of private samples, which "
            "privacy does not cover; give the weights as a list"
        )
    if weights != "balanced" and len(weights) != n_outputs:
        raise ConfigError(
            f"model.class_weights has {len(weights)} weights; give {n_outputs}, one for each "
            "class or label"
        )


def weights_of(
    settings: ModelSettings, y: Tensor, rows: list[Tensor], n_outputs: int
) -> Tensor | None:
    """Return each client's weights (N, K) float32, or None.

    Args:
        settings: weights accepted by ``require``.
        y: (n,) int64 classes, or (n, K) flags.
        rows: each client's training rows.
        n_outputs: K.
    """
    if settings.class_weights == "none":
        return None
    if settings.class_weights != "balanced":
        return torch.tensor(settings.class_weights, device=y.device).expand(len(rows), -1)
    weights = [_balanced(y[index], n_outputs) for index in rows]
    return torch.stack(weights) if weights else None


def _balanced(y: Tensor, n_outputs: int) -> Tensor:
    """Return weights (K,) that balance a client's classes, or each label's yes and no, in its mean
    loss.

    Classes: n / (k n_c) with k the number of classes that the client has, so that the mean weight
    of its samples is 1.
    Labels: the ratio of no to yes, as the weight of yes. Classes and labels that the client does
    not have keep 1.
    """
    if y.dim() == 1:
        counts = torch.bincount(y, minlength=n_outputs).double()
        weights = len(y) / ((counts > 0).sum() * counts)
        return weights.where(counts > 0, 1).float()
    yes = y.double().sum(0)
    no = len(y) - yes
    return (no / yes).where((yes > 0) & (no > 0), 1).float()


def masses(y: Tensor, weights: Tensor) -> Tensor:
    """Return targets multiplied by their weights.

    Args:
        y: (b,) int64 classes, or (b, K) flags.
        weights: (K,).

    Returns:
        (b, K) with the class's weight in its place; or (b, K, 2), the masses of yes and no.
    """
    if y.dim() == 1:
        return torch.nn.functional.one_hot(y, len(weights)) * weights
    return torch.stack([y * weights, 1 - y], -1)
