"""The objective of the native engine: gradients, whole steps and mixtures."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from pomona.core.round import Round
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.batches import View, Views
from pomona.objective.dataset import EVALUATION_BATCH, BatchFunction, statistics_batches
from pomona.objective.engine import Computation
from pomona.objective.objective import ConstantFeatures, Criterion, Mixture, Pull, RowCriterion
from pomona.objective.pytorch import Estimates, TorchObjective
from pomona_native.network import NativeNetwork, Prepared, prepared

# weights (m, N), own positions (m,), copies (N, d), own rows (m, d)
MixArguments = tuple[Tensor, Tensor, Tensor, Tensor]


class NativeObjective(TorchObjective):
    """Losses and gradients of rows W (n, d), row by row.

    Mixtures are computed in passes over all mixed rows, each for all clients of a call; a client's
    results are bit-identical whatever other clients are in the call. Criteria that differ from the
    run's, products with a Hessian, and features of the last layer are PyTorch's.

    Args:
        computation: the network, data and loss.
        network: the package's network for them.
    """

    def __init__(self, computation: Computation, network: NativeNetwork) -> None:
        super().__init__(
            computation.module,
            computation.space,
            computation.data,
            computation.criterion,
            computation.precision,
        )
        self._network = network
        self._with_statistics = Estimates()
        # of a step's mixtures and gradients, reused by the next step
        self._memory = torch.empty(2, 0, 0)

    def gradient(
        self,
        W: Tensor,
        indices: list[Tensor],
        criterion: Criterion | list[RowCriterion] | None = None,
        above: int = 0,
        views: Views = None,
        cache: ConstantFeatures | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return mean losses (n,) and gradients G (n, d); features in ``cache`` are reused for
        batches with a view.
        """
        if criterion is not None:
            return super().gradient(W, indices, criterion, above, views)
        losses, G = torch.empty(len(W)), torch.empty_like(W)
        G[:, :above] = G[:, self.space.trained :] = 0
        for k, (row, index, view, g) in enumerate(
            zip(W, indices, views or [None] * len(W), G, strict=True)
        ):
            batch = self._batch(index, view)
            if cache and view and self._network.prefix_length(above):
                features = cache.get(view, partial(self._network.below, row, batch, above))
                losses[k] = self._network.gradient_above(features, row, g, batch[2], above)
            else:
                losses[k] = self._network.gradient(row, g, batch, above)
        return losses, G

    def step(
        self,
        W: Tensor,
        indices: list[Tensor],
        moments: Tensor,
        round_: Round,
        views: Views = None,
        pull: Pull | None = None,
        block: slice | None = None,
    ) -> Tensor:
        """Take one step of the round's optimizer; plain SGD is a call per row, others follow from
        the gradients.
        """
        if not round_.optimizer.plain:
            return super().step(W, indices, moments, round_, views, pull, block)
        losses = torch.empty(len(W))
        for k, (row, index, view) in enumerate(
            zip(W, indices, views or [None] * len(W), strict=True)
        ):
            own_pull = pull.row(k) if pull else None
            losses[k] = self._network.step(
                row, moments[k], self._batch(index, view), round_, own_pull, block
            )
        return losses

    def mixing_layout(self, copies: Tensor) -> Tensor:
        """Return the copies as they are: a row that fills several places is read once."""
        return copies

    def mixtures(self, mixture: Mixture) -> Tensor:
        """Return the mixtures (n, d)."""
        W = torch.empty_like(mixture.cores)
        for rows, arguments in _mix_calls(mixture):
            self._network.package.mix(*arguments, W[rows])
        return W

    def products(self, mixture: Mixture, G: Tensor) -> Tensor:
        """Return the products (n, N) of rows G (n, d) with the mixed rows."""
        slopes = torch.empty_like(mixture.weights)
        for rows, arguments in _mix_calls(mixture):
            self._network.package.products(*arguments[1:], G[rows], slopes[rows])
        return slopes

    def mixed_step(
        self,
        mixture: Mixture,
        indices: list[Tensor],
        moments: Tensor,
        round_: Round,
        views: Views = None,
    ) -> tuple[Tensor, Tensor]:
        """Take a step on the own rows; of plain SGD, its mixtures and gradients reuse the same
        memory.
        """
        if not round_.optimizer.plain:
            return super().mixed_step(mixture, indices, moments, round_, views)
        W, G = self._room(*mixture.cores.shape)
        losses, slopes = torch.empty(len(W)), torch.empty_like(mixture.weights)
        rates = round_.lr, round_.momentum, round_.weight_decay
        mix_calls, package = list(_mix_calls(mixture)), self._network.package
        for rows, arguments in mix_calls:
            package.mix(*arguments, W[rows])
        for k, (index, view) in enumerate(zip(indices, views or [None] * len(W), strict=True)):
            losses[k] = self._network.gradient(W[k], G[k], self._batch(index, view))
        for rows, arguments in mix_calls:
            package.move(*arguments, G[rows], moments[rows], slopes[rows], *rates)
        return losses, slopes

    @torch.no_grad()
    def batchwise(
        self, row: Tensor, client: int, split: str, function: BatchFunction
    ) -> tuple[Tensor, ...]:
        """Apply a function to each batch's outputs (b, K) and targets, on all of a client's
        split.
        """
        if self._network.large:  # PyTorch's forward pass is as fast or faster
            return super().batchwise(row, client, split, function)
        batches = self.data.rows[split][client].split(EVALUATION_BATCH)
        full_row = self._with_own_statistics(row, client)
        return self.data.batchwise(batches, partial(self._network.outputs, full_row), function)

    def _with_own_statistics(self, row: Tensor, client: int) -> Tensor:
        """Return a row (d,) with the statistics that its evaluation needs, a client's own if it has
        none.
        """
        if not self._network.has_statistics or self.space.statistics_in(row):
            return row
        if (cached := self._with_statistics.get(row, client)) is None:
            entries = self.space.buffers or ParameterSpace(self._module, "average").buffers
            full_row = torch.cat([row, torch.zeros(entries[-1].stop - len(row))])
            max_batch = min(EVALUATION_BATCH, self._network.max_batch)
            self._network.measure(
                full_row, statistics_batches(self.data.rows["train"][client], max_batch)
            )
            self._with_statistics.put(row, client, cached := [full_row])
        return cached[0]

    def _batch(self, index: Tensor, view: View | None) -> Prepared:
        """Return a batch with its training view."""
        if self.data.plain or view is None:
            return self._network.resident(index)
        return prepared(*self.data.training_view(index, view))

    def _room(self, n: int, d: int) -> Tensor:
        """Return memory (2, n, d) for mixtures and gradients."""
        if self._memory.shape[1] < n or self._memory.shape[2] != d:
            self._memory = torch.zeros(2, n, d)
        return self._memory[:, :n]


def _mix_calls(mixture: Mixture) -> Iterator[tuple[slice, MixArguments]]:
    """Yield the calls to make with their clients: one for all, or one for each client with copies
    of its own.
    """
    positions, shared = mixture.own_mask.int().argmax(1), mixture.copies.dim() == 2
    for rows in [slice(None)] if shared else [slice(k, k + 1) for k in range(len(positions))]:
        copies = mixture.copies if shared else mixture.copies[rows][0]
        yield rows, (mixture.weights[rows], positions[rows], copies, mixture.cores[rows])
