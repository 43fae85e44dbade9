"""Features of a batch held to those under a fixed model, in distribution: a squared maximum mean
discrepancy in the loss.

Gretton, Borgwardt, Rasch, Schoelkopf, Smola. A kernel two-sample test. JMLR 2012, the biased
statistic:

    R(x, y) = mean k(x_i, x_j) + mean k(y_i, y_j) - 2 mean k(x_i, y_j),
    k(x, y) = sum_s exp(-|x - y|^2 / (s w)),    s = 1/4, 1/2, 1, 2, 4

x are the features of a batch's samples, y those under the fixed model, and w is the mean
|y_i - y_j|^2 over all pairs of the client's training samples: a width of the batch, as FedPHP has
it, goes to 0 with x - y, and the slope to infinity.

FL4Health 0.4.2 holds Ditto's and MR-MTL's models to the received one in this way, by 18 kernels of
fixed widths on normalised features, whose weights it solves for every 20 steps; here all weigh
alike.
"""

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.row_algebra import TINY

KERNELS = (0.25, 0.5, 1.0, 2.0, 4.0)


def discrepancy_losses(training: base.LocalTraining, W: Tensor, weight: float) -> list[base.Loss]:
    """Return each client's loss of its batches: the run's own plus ``weight`` times the discrepancy
    of features from those under fixed rows W (n, d); none for a weight of 0.
    """
    if not (weight and training.trains):
        return []
    objective = training.objective
    return [
        _discrepancy_loss(training, base.Cached.features(objective, row, client), weight)
        for row, client in zip(W, training.clients, strict=True)
    ]


def _discrepancy_loss(training: base.LocalTraining, fixed: base.Cached, weight: float) -> base.Loss:
    plain = training.objective.criterion
    n = len(fixed.values)
    # over pairs of different samples it is twice the total variance
    width = (2 * fixed.values.var(0, correction=n > 1).sum()).clamp_min(TINY)

    def batch_loss(index: Tensor) -> base.RowCriterion:
        reference = fixed.lookup(index)

        def loss(outputs: Tensor, targets: Tensor, features: Tensor) -> Tensor:
            return plain(outputs, targets).mean() + weight * discrepancy(features, reference, width)

        return loss

    return batch_loss


def discrepancy(x: Tensor, y: Tensor, width: Tensor) -> Tensor:
    """Return R () of features x and y (b, f), for w () above 0."""
    return statistic(distances(x, y), width, len(x))


def distances(x: Tensor, y: Tensor) -> Tensor:
    """Return squared distances (2 b, 2 b) of all x and y (b, f), from differences: products would
    lose small ones.
    """
    z = torch.cat([x, y])
    return torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").square()


def statistic(distance: Tensor, width: Tensor, b: int) -> Tensor:
    """Return R () from squared distances (2 b, 2 b), the first b of x."""
    kernel = torch.stack([torch.exp(-distance / (width * k)) for k in KERNELS]).sum(0)
    return kernel[:b, :b].mean() + kernel[b:, b:].mean() - 2 * kernel[:b, b:].mean()
