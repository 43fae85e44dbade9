"""Class means (prototypes) of a federation: how a server pools them, and a loss that pulls features
to them.

    client           c_ik = mean of the features z of client i's samples of class k,   n_ik how many
    server           C_k  = sum_i p_i (n_ik / n_i) c_ik / sum_i p_i (n_ik / n_i)     over the cohort
    loss             R(z; y) = 1 / (b f) sum_j |z_j - C_y|^2                        z of f numbers, b samples j

p_i are FedAvg's weights: n_ik over the samples of class k unless shares are limited. Then the
shares of a client in all classes, before those of a class are scaled to 1, sum to p_i whatever
counts it sends; of a class that few others have it may still have most. A class that nobody in the
cohort has keeps its last mean. Up go ``class_means`` (K f) and ``class_counts`` (K), down
``class_means`` and ``class_known`` (K), 1 for a class that has a mean, else 0 and out of the loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base

REVEALS = {
    "class_means": "the mean features of each of its classes",
    "class_counts": "how many training samples of each class it has",
}
"""What the uplink's entries reveal, for a card."""
RELEASES = (base.RELEASES["class-means"], base.RELEASES["output-criterion"])
"""What sending class means, and a loss with them, releases past a noised gradient."""


def privacy(weight: float) -> base.PrivacyCost:
    """Return what a card says of a pull of this weight: without one gradients can be noised."""
    return base.PrivacyCost(gradients=(base.Gradients(noised=not weight),), releases=RELEASES)


@dataclass(frozen=True)
class ClassMeans:
    """A server's means (K, f), and which classes have one (K,) bool."""

    means: Tensor
    known: Tensor


def start(initial: base.Initial) -> ClassMeans:
    """Return no means; raises ConfigError for a network without a linear head."""
    head, row = base.linear_head(initial), initial()
    has_mean = torch.zeros(head.outputs, dtype=torch.bool, device=row.device)
    return ClassMeans(row.new_zeros(head.outputs, head.features), has_mean)


def downlink(state: ClassMeans, receivers: int) -> dict[str, base.Rows]:
    """Return the entries of a downlink."""
    has_mean = state.known.to(state.means)
    return {
        "class_means": base.Rows.broadcast(state.means.flatten(), receivers),
        "class_known": base.Rows.broadcast(has_mean, receivers),
    }


def received(entries: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return means (n, K, f) and known (n, K) of n clients from what they received."""
    has_mean = entries["class_known"]
    return entries["class_means"].unflatten(1, (has_mean.shape[1], -1)), has_mean


def means_of(features: Sequence[tuple[Tensor, Tensor]], classes: int) -> tuple[Tensor, Tensor]:
    """Return means (n, K, f) and counts (n, K) float64 of each client's classes, from features (b,
    f) and classes (b,) of its samples; the mean is 0 for a class without samples.

    Sending them is the release "class-means".
    """
    means, counts = [], []
    for z, y in features:
        membership = torch.nn.functional.one_hot(y, classes).double()
        counts.append(membership.sum(0))
        means.append((membership.T @ z.double() / counts[-1].clamp_min(1).unsqueeze(1)).to(z))
    return torch.stack(means), torch.stack(counts)


def uplink(training: base.LocalTraining, W: Tensor) -> base.Uplink:
    """Return the entries of an uplink: the clients' means under rows W (n, d), and counts."""
    means, counts = means_of(training.features(W), base.linear_head(training).outputs)
    return {"class_means": means.flatten(1), "class_counts": counts}


def uplink_form(state: ClassMeans) -> base.Uplink:
    """Return examples of the uplink's entries."""
    counts = torch.zeros(len(state.known), dtype=torch.float64)
    return {"class_means": state.means.flatten(), "class_counts": counts}


def invalid(uplink: base.Uplink) -> str | None:
    """Return why counts cannot be used: one is negative, or none is positive."""
    counts = uplink["class_counts"]
    if counts.min() >= 0 and counts.sum() > 0:
        return None
    return "tensor 'class_counts' holds a negative number, or only zeros"


def shares(counts: Tensor, ids: base.Ids, roster: base.Roster, uniform: bool = False) -> Tensor:
    """Return each client's weight in each class's mean (n, K) float64, columns that sum to 1 or are
    0.

    ``uniform``: clients that have a class have equal weights.
    """
    counts = counts.cpu()
    weights = roster.weights(ids).unsqueeze(1) * (counts / counts.sum(1, keepdim=True))
    weights = (counts > 0).double() if uniform else weights
    total = weights.sum(0)
    return weights / total.where(total > 0, 1)


def pooled(
    state: ClassMeans,
    uplink: base.Uplink,
    ids: base.Ids,
    roster: base.Roster,
    uniform: bool = False,
) -> ClassMeans:
    """Return the state after a round; ``uniform``: as for ``shares``."""
    p = shares(uplink["class_counts"], ids, roster, uniform).to(state.means)
    client_means = uplink["class_means"].unflatten(1, state.means.shape)
    present = p.sum(0) > 0
    means = (p.unsqueeze(2) * client_means).sum(0)
    return ClassMeans(means.where(present.unsqueeze(1), state.means), state.known | present)


def attracted(
    training: base.LocalTraining, means: Tensor, has_mean: Tensor, weight: float
) -> base.Loss:
    """Return the loss of one client's batches: the run's own plus ``weight`` times R.

    Args:
        training: the clients.
        means: (K, f), as one of them received them.
        has_mean: (K,), likewise.
        weight: of the pull.
    """
    plain = training.objective.criterion

    def batch_loss(index: Tensor) -> base.RowCriterion:
        y = training.targets(index)

        def loss(outputs: Tensor, targets: Tensor, features: Tensor) -> Tensor:
            offsets = (features - means[y]) * has_mean[y].unsqueeze(1)
            return plain(outputs, targets).mean() + weight * offsets.square().mean()

        return loss

    return batch_loss
