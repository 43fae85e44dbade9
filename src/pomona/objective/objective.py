"""The interface of the objective: all access that a method has to private data, and what a method
passes to it.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from pomona.core.errors import ConfigError
from pomona.core.lazy_torch import Tensor, torch
from pomona.core.round import Round
from pomona.models.parameter_space import Head, ParameterSlice
from pomona.objective.batches import Pass, Views, ordinary
from pomona.objective.dataset import BatchFunction, DeviceDataset
from pomona.objective.optimizer_step import optimizer_step
from pomona.storage.row_bank import RowBank

Criterion = Callable[[Tensor, Tensor], Tensor]  # (outputs (b, K), targets) -> losses (b,)
# (outputs, targets, features (b, f)) -> loss ()
RowCriterion = Callable[[Tensor, Tensor, Tensor], Tensor]
FEATURES_LIMIT = 2**28
"""Maximum bytes that ``ConstantFeatures`` caches; further features are recomputed each time."""


def batch_loss(criterion: RowCriterion, outputs: Tensor, y: Tensor, features: Tensor) -> Tensor:
    """Return a row's loss () on a batch. Raises ConfigError if it is not one number."""
    loss = criterion(outputs, y, features)
    if loss.ndim:
        raise ConfigError(
            f"a loss of the method returned shape {tuple(loss.shape)} for a batch of {len(y)} "
            "samples; return their mean, shape (): loss.mean()"
        )
    return loss


@dataclass(frozen=True)
class Pull:
    """A term weight (w - centre) + constant added to the gradient; parts that are None are omitted.

    Attributes:
        weight: of the proximal part.
        centre: rows (n, d) that attract w.
        constant: rows (n, d) that do not depend on w.
    """

    weight: float = 0.0
    centre: Tensor | None = None
    constant: Tensor | None = None

    def __call__(self, w: Tensor) -> Tensor:
        """Return the term (a, d) for the first a rows, w (a, d)."""
        constant = None if self.constant is None else self.constant[: len(w)]
        if self.centre is None:
            return w.new_zeros(w.shape) if constant is None else constant
        proximal = self.weight * (w - self.centre[: len(w)])
        return proximal if constant is None else proximal + constant


@dataclass(frozen=True)
class Mixture:
    """Rows w_i = sum_{j != i} p_ij c_j + p_ii c_i of n clients, the own row c_i separate from
    others' copies.

    Attributes:
        weights: p (n, N).
        own_mask: (n, N), True at each client's own position, one per row.
        copies: of all rows, (N, d) if all clients have the same, else (n, N, d), or what
            ``GradientSource.copies`` returns.
        cores: the clients' own rows (n, d).
    """

    weights: Tensor
    own_mask: Tensor
    copies: Any
    cores: Tensor

    @property
    def own_weights(self) -> Tensor:
        """Weights p_ii as a column (n, 1)."""
        return self.weights[self.own_mask].unsqueeze(1)

    def rows(self) -> Tensor:
        """Return the mixtures (n, d)."""
        peer_weights = self.weights.masked_fill(self.own_mask, 0)
        shared = self.copies.dim() == 2
        mixed = (
            peer_weights @ self.copies
            if shared
            else torch.bmm(peer_weights.unsqueeze(1), self.copies).squeeze(1)
        )
        return mixed.addcmul_(self.own_weights, self.cores)

    def products(self, G: Tensor) -> Tensor:
        """Return <g_i, c_j> of rows G (n, d) for all pairs (n, N): others' rows as copied, the own
        as it is.
        """
        shared = self.copies.dim() == 2
        peers = G @ self.copies.T if shared else torch.bmm(self.copies, G.unsqueeze(2)).squeeze(2)
        # On a CPU a batched product of single rows takes five times as long.
        pairs = zip(G.unbind(), self.cores.unbind(), strict=True)
        products = torch.stack([torch.dot(g, core) for g, core in pairs])
        return peers.masked_scatter(self.own_mask, products)


@dataclass
class ConstantFeatures:
    """Cache of the outputs of layers that do not change between some calls, by batch.

    A batch has the same samples each time: matrix kernels round differently for other numbers of
    rows, so only then are the results bit-identical.
    """

    limit: int = FEATURES_LIMIT
    _cache: dict[Hashable, Tensor] = field(default_factory=dict)
    _bytes: int = 0

    def get(self, batch: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """Return the features of a batch, which must not be changed; computed if not cached."""
        if batch in self._cache:
            return self._cache[batch]
        features = compute()
        if self._bytes + features.nbytes <= self.limit:
            self._cache[batch] = features
            self._bytes += features.nbytes
        return features


class GradientSource(Protocol):
    """Gradients of model rows on batches, and steps with them.

    A class that inherits from this defines ``gradient``; steps and mixtures then follow, as PyTorch
    computes them. An engine that computes whole steps itself overrides them.
    """

    def gradient(
        self,
        W: Tensor,
        indices: list[Tensor],
        criterion: Criterion | list[RowCriterion] | None = None,
        above: int = 0,
        views: Views = None,
        cache: ConstantFeatures | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return mean losses (n,) of rows W (n, d), row k on the samples ``indices[k]``, and their
        gradients G (n, d).

        Args:
            W: rows; BatchNorm statistics after the parameters are updated in place.
            indices: of the samples, one list per row.
            criterion: replaces the run's own loss: one function of (outputs, targets) that returns
                per-sample losses; or one function per row, for losses that depend on the row or on
                a batch as a whole, of (outputs, targets, features), where features are the input of
                the last layer.
            above: entries of G below this index are not used and may be zero.
            views: the training views of the batches, one per row; without them the samples are used
                unchanged.
            cache: given if rows are the same below ``above`` whenever a batch occurs: an engine may
                reuse features.
        """

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
        """Take one step of the round's optimizer on rows W (n, d), in place; return mean losses
        (n,) before it.

        ``pull`` is added to the gradient. If ``block`` is given, only it moves, and ``moments`` are
        those of it.
        """
        losses, G = self.gradient(W, indices, above=block.start if block else 0, views=views)
        G = G if pull is None else G + pull(W)
        if block:
            optimizer_step(W[:, block], G[:, block], moments, round_)
        else:
            optimizer_step(W, G, moments, round_)
        return losses

    def mixing_layout(self, copies: Tensor) -> Tensor:
        """Return copies (N, d) or (n, N, d) in the memory layout in which they are mixed in every
        step of a round.
        """
        # PyTorch's products would copy a row that fills several places in each step.
        return copies.contiguous()

    def copies(self, bank: RowBank, index: Tensor) -> Any:
        """Return rows by their numbers (n, N) in a bank, as every step of a round mixes them: (n,
        N, d), or what the engine's own mixtures read.
        """
        return self.mixing_layout(bank[index])

    def mixtures(self, mixture: Mixture) -> Tensor:
        """Return the mixtures (n, d)."""
        return mixture.rows()

    def products(self, mixture: Mixture, G: Tensor) -> Tensor:
        """Return the products (n, N) of rows G (n, d) with the mixed rows."""
        return mixture.products(G)

    def mixed_step(
        self,
        mixture: Mixture,
        indices: list[Tensor],
        moments: Tensor,
        round_: Round,
        views: Views = None,
    ) -> tuple[Tensor, Tensor]:
        """Take a step on each client's own row of its mixture, in place.

        The own row moves by its weight times the gradient at the mixture. Returns mean losses (n,),
        and the slopes (n, N) of the weights: the gradient's products with all rows as they were
        mixed.
        """
        losses, G = self.gradient(self.mixtures(mixture), indices, views=views)
        slopes = self.products(mixture, G)
        optimizer_step(mixture.cores, G.mul_(mixture.own_weights), moments, round_)
        return losses, slopes


class Objective(GradientSource, Protocol):
    """Losses and gradients of model rows; the only way for a method to read samples.

    A row (d,) has a model's parameters. If BatchNorm statistics are sent with a model, they may
    follow the parameters: training then updates them in place, and evaluation uses them. A row
    without them is evaluated with statistics estimated on the client's own training data.
    """

    data: DeviceDataset
    least_batch: int  # minimum number of samples in a training step
    layers: tuple[slice, ...]  # of a row, one per layer from input to output
    norms: tuple[slice, ...]  # of a row, the parameters of normalisation layers
    head: Head | None = None  # the last layer, if it is linear, with a bias, and trained
    parameters: tuple[ParameterSlice, ...] = ()  # of a row, by name
    # whether ``gradient`` returns real losses; otherwise it returns zeros
    shows_losses: bool = True
    shows_trained: bool = True  # whether models that a client has trained may be scored

    def hessian(self, W: Tensor, indices: list[Tensor], Z: Tensor, views: Views = None) -> Tensor:
        """Return products (n, d) of the mean losses' Hessians at rows W (n, d) on the samples with
        vectors Z.
        """

    def batchwise(
        self, row: Tensor, client: int, split: str, function: BatchFunction
    ) -> tuple[Tensor, ...]:
        """Apply a function to each batch's outputs (b, *S) and targets, samples first, on all of a
        client's split.

        Returns () for no samples. Only the function's results are kept in memory.
        """

    def batchwise_each(
        self, W: Tensor, clients: Sequence[int], splits: Sequence[str], function: BatchFunction
    ) -> list[list[tuple[Tensor, ...]]]:
        """Return ``batchwise`` of each client's own row of W (n, d), by client on each split; an
        engine may compute all in one call.
        """
        return [
            [
                self.batchwise(row, client, split, function)
                if len(self.data.rows[split][client])
                else ()
                for split in splits
            ]
            for row, client in zip(W.unbind(), clients, strict=True)
        ]

    def features(self, row: Tensor, client: int, split: str) -> Tensor:
        """Return inputs (b, f) of the last layer under one row (d,), on all of a client's split."""

    def tensors(self, row: Tensor, client: int) -> dict[str, Tensor]:
        """Return one row (d,) as named tensors, with the buffers used for its evaluation at a
        client.
        """

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the run's own per-sample losses (b,)."""

    def outputs(self, row: Tensor, client: int, split: str) -> tuple[Tensor, Tensor]:
        """Return outputs (b, K) of one row (d,) on all of a client's split, and the targets, in row
        order.
        """
        results = self.batchwise(row, client, split, lambda outputs, targets: (outputs, targets))
        if results:
            return results[0], results[1]
        return torch.empty(0), self.data.target(self.data.rows[split][client])

    def losses(self, row: Tensor, client: int, split: str) -> Tensor:
        """Return per-sample losses (b,) of one row on all of a client's split."""
        results = self.batchwise(
            row, client, split, lambda outputs, targets: (self.criterion(outputs, targets),)
        )
        return results[0] if results else torch.empty(0)

    def batches(self, rows: Tensor, pass_: Pass) -> Iterator[Tensor]:
        """Yield batches of a pass over a client's rows (m,), each an index tensor."""
        return ordinary(rows, pass_)

    def position(self, client: int) -> Sequence[Any]:  # noqa: ARG002
        """Return the position of a client's privacy ledger, for a checkpoint; empty without one."""
        return ()

    def require(self, client: int, position: Sequence[Any]) -> None:  # noqa: ARG002
        """Raise PrivacyError unless a client's ledger, if there is one, continues from a
        checkpoint's position.
        """
        return

    def epsilon(self, client: int) -> float:  # noqa: ARG002
        """Return a client's epsilon so far; infinite without privacy."""
        return inf

    def epsilon_alone(self, client: int) -> float:
        """Return a client's epsilon so far by its own noise alone; infinite without privacy."""
        return self.epsilon(client)

    def epsilon_by_groups(self, client: int) -> float:
        """Return a client's epsilon so far for all training samples of any one of its groups;
        infinite without privacy.
        """
        return self.epsilon(client)
