"""The objective of the native engine: gradients, whole steps and mixtures."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pomona.core.round import Round
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.batches import Views
from pomona.objective.dataset import EVALUATION_BATCH, BatchFunction, statistics_batches
from pomona.objective.engine import Computation
from pomona.objective.objective import ConstantFeatures, Criterion, Mixture, Pull, RowCriterion
from pomona.objective.pytorch import Estimates, TorchObjective
from pomona.storage.row_bank import RowBank
from pomona_native.network import NativeNetwork, Prepared, prepared


class NativeObjective(TorchObjective):
    """Losses and gradients of rows W (n, d), row by row.

    Mixtures are computed in passes over all mixed rows, for all clients of a call; a client's
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
        G = torch.empty_like(W)
        G[:, :above] = G[:, self.space.trained :] = 0
        if not (cache and views and all(views) and self._network.prefix_length(above)):
            return self._network.gradient(W, G, self._batches(indices, views), above), G
        losses = torch.empty(len(W))
        for k, (row, index, view, g) in enumerate(zip(W, indices, views, G, strict=True)):
            batch = self._batches([index], [view])
            features = cache.get(view, partial(self._network.below, row, batch, above))
            losses[k] = self._network.gradient_above(features, row, g, batch[-1], above)
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
        """Take one step of the round's optimizer; plain SGD is a call for all rows, others follow
        from the gradients.
        """
        if not round_.optimizer.plain:
            return super().step(W, indices, moments, round_, views, pull, block)
        return self._network.step(W, moments, self._batches(indices, views), round_, pull, block)

    def mixing_layout(self, copies: Tensor) -> Tensor:
        """Return the copies as they are: a row that fills several places is read once."""
        return copies

    def copies(self, bank: RowBank, index: Tensor) -> Any:
        """Return rows by number, where they are in their bank."""
        numbers, positions = index.unique(return_inverse=True)
        rows = [bank.row(number).unsqueeze(0) for number in numbers.tolist()]
        return self._network.package.Copies(rows, positions)

    def mixtures(self, mixture: Mixture) -> Tensor:
        """Return the mixtures (n, d)."""
        W = torch.empty_like(mixture.cores)
        self._network.package.mix(mixture.weights, *self._rows(mixture), W)
        return W

    def products(self, mixture: Mixture, G: Tensor) -> Tensor:
        """Return the products (n, N) of rows G (n, d) with the mixed rows."""
        slopes = torch.empty_like(mixture.weights)
        self._network.package.products(*self._rows(mixture), G, slopes)
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
        slopes = torch.empty_like(mixture.weights)
        rates = round_.lr, round_.momentum, round_.weight_decay
        weights, rows, package = mixture.weights, self._rows(mixture), self._network.package
        package.mix(weights, *rows, W)
        losses = self._network.gradient(W, G, self._batches(indices, views))
        package.move(weights, *rows, G, moments, slopes, *rates)
        return losses, slopes

    def _rows(self, mixture: Mixture) -> tuple[Tensor, Any, Tensor]:
        """Return own positions (n,), copies as the package takes them, and own rows (n, d)."""
        copies, own_positions = mixture.copies, mixture.own_mask.int().argmax(1)
        if isinstance(copies, Tensor):
            index = None
            if copies.dim() == 3:
                index = torch.arange(copies.shape[0] * copies.shape[1]).view(copies.shape[:2])
                copies = copies.flatten(0, 1)
            copies = self._network.package.Copies([copies], index)
        return own_positions, copies, mixture.cores

    @torch.no_grad()
    def batchwise(
        self, row: Tensor, client: int, split: str, function: BatchFunction
    ) -> tuple[Tensor, ...]:
        """Apply a function to the outputs (b, K) and targets of all of a client's split."""
        if self._network.large:  # PyTorch's forward pass is as fast or faster
            return super().batchwise(row, client, split, function)
        return self.batchwise_each(row.unsqueeze(0), [client], [split], function)[0][0]

    @torch.no_grad()
    def batchwise_each(
        self, W: Tensor, clients: Sequence[int], splits: Sequence[str], function: BatchFunction
    ) -> list[list[tuple[Tensor, ...]]]:
        """Return ``batchwise`` of each client's own row; the outputs are computed in one call."""
        if self._network.large:
            return super().batchwise_each(W, clients, splits, function)
        indices = [self.data.rows[split][client] for client in clients for split in splits]
        x, index, sizes, y = self._network.resident(indices)
        counts = [sum(sizes[k : k + len(splits)]) for k in range(0, len(sizes), len(splits))]
        batches = x, index, counts, y
        results = function(self._network.outputs(self._evaluable_rows(W, clients), batches), y)
        split_results = zip(sizes, *(tensor.split(sizes) for tensor in results), strict=True)
        by_split = [tuple(result) if n else () for n, *result in split_results]
        return [by_split[k : k + len(splits)] for k in range(0, len(sizes), len(splits))]

    def _evaluable_rows(self, W: Tensor, clients: Sequence[int]) -> Tensor:
        """Return rows W (n, d) with the statistics that their evaluation needs, a client's own if
        they have none.
        """
        if not self._network.has_statistics or self.space.statistics_in(W):
            return W
        pairs = zip(W.unbind(), clients, strict=True)
        return torch.stack([self._with_own_statistics(row, client) for row, client in pairs])

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

    def _batches(self, indices: Sequence[Tensor], views: Views) -> Prepared:
        """Return batches with their training views."""
        if self.data.plain or not (views and any(views)):
            return self._network.resident(indices)
        views_of = zip(indices, views, strict=True)
        return prepared([self.data.training_view(index, view) for index, view in views_of])

    def _room(self, n: int, d: int) -> Tensor:
        """Return memory (2, n, d) for mixtures and gradients."""
        if self._memory.shape[1] < n or self._memory.shape[2] != d:
            self._memory = torch.zeros(2, n, d)
        return self._memory[:, :n]
