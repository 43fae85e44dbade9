"""The objective of a client that trains with differential privacy (DP-SGD; Abadi et al., CCS 2016).

    G = (sum_i clip(dF_i/dw, C) + N(0, (sigma C)^2)) / B,  i Poisson sampled, with q = B / n

is the only function of private data that a method receives: everything computed from G (APPLE's
step on its directed relationships, FedALA's weights, APFL's alpha) is post-processing without
further cost. B is the expected batch size, min(batch_size, n), never the drawn one.

With ``privacy.unit = "group"`` i is a group of samples, such as those of a patient: groups are
drawn whole with the same q, and dF_i is the sum over the group's samples (McMahan et al., ICLR
2018, clip users' updates alike). B stays the expected number of samples.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils.weak import WeakTensorKeyDictionary

from pomona.core.errors import ConfigError
from pomona.models.layers import active, training_mode
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.batches import Pass, View, Views
from pomona.objective.dataset import BatchFunction
from pomona.objective.objective import ConstantFeatures, Criterion, Objective, RowCriterion
from pomona.privacy.accounting import steps
from pomona.privacy.ledger import Draw, Position
from pomona.privacy.noise import KeyStore, clipped
from pomona.privacy.settings import SECOND_ORDER, WITHOUT_GROUPS, Privacy, require_acknowledged

CHUNK_NUMBERS = 2**24  # of per-sample gradients held at a time
CHUNK_SAMPLES = 64


class PrivateObjective(Objective):
    """An objective with differentially private gradients; evaluation is the wrapped objective's.

    Per-sample gradients are float32 whatever the wrapped objective's precision. They are computed
    in chunks of equal size, the last one padded, so that a sample's contribution does not depend on
    the other samples drawn.

    Args:
        inner: the objective over the same data.
        module: the architecture; only its frozen values are used.
        space: the module's parameter space.
        settings: the run's privacy.
        folder: of the clients' key stores; each is opened when the client first trains.
        chunk: number of samples whose gradients are held at a time; determined by memory if not
            set.
        run: id of the run, if several share the key stores.

    Raises:
        ConfigError: a layer stores batch statistics or mixes samples.
    """

    def __init__(
        self,
        inner: Objective,
        module: nn.Module,
        space: ParameterSpace,
        settings: Privacy,
        folder: Path,
        chunk: int | None = None,
        run: str = "",
    ) -> None:
        refuse_statistics(module)
        self.inner, self.data = inner, inner.data
        self.layers, self.norms, self.head = inner.layers, inner.norms, inner.head
        self.parameters = inner.parameters
        self.least_batch = 1
        self.shows_losses = "training-loss" in settings.acknowledge
        self.shows_trained = settings.honest == 1
        self._space = space
        self._settings = settings
        self._folder, self._run = folder, run
        self._chunk = chunk or max(1, min(CHUNK_SAMPLES, CHUNK_NUMBERS // space.trained))
        self._key_stores: dict[int, KeyStore] = {}
        self._draws = WeakTensorKeyDictionary()  # index tensor -> (client, draw)
        training_mode(module)()

        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            outputs = functional_call(module, parameters, (x.unsqueeze(0),))
            return inner.criterion(outputs.float(), y.unsqueeze(0)).squeeze(0)

        self._sample_gradients = vmap(
            grad_and_value(loss), in_dims=(None, 0, 0), randomness="different"
        )
        self._refuse_mixing()

    def key_store(self, client: int) -> KeyStore:
        """Return a client's noise key and ledger. Raises as ``KeyStore.open`` does."""
        if client not in self._key_stores:
            self._key_stores[client] = self._open(client)
        return self._key_stores[client]

    def position(self, client: int) -> Position:
        """Return the position of a client's ledger, for a checkpoint."""
        return self.key_store(client).position()

    def require(self, client: int, position: Sequence[Any]) -> None:
        """Raise PrivacyError unless a client's ledger continues from a checkpoint's position;
        creates no key store.
        """
        stored = Position(*position)
        if client in self._key_stores:
            self._key_stores[client].ledger.require(stored)
        else:
            self._key_stores[client] = self._open(client, stored)

    def epsilon(self, client: int) -> float:
        """Return a client's epsilon so far."""
        return self.key_store(client).epsilon()

    def epsilon_alone(self, client: int) -> float:
        """Return a client's epsilon so far by its own noise alone."""
        return self.key_store(client).epsilon_alone()

    def epsilon_by_groups(self, client: int) -> float:
        """Return a client's epsilon so far for all training samples of any one of its groups."""
        if self._settings.unit == "group" or self.data.groups is None:
            return self.epsilon(client)
        groups = self.data.groups[self.data.rows["train"][client]]
        largest = int(groups.unique(return_counts=True)[1].max()) if len(groups) else 1
        return self.key_store(client).epsilon(largest)

    def _open(self, client: int, position: Position | None = None) -> KeyStore:
        return KeyStore.open(self._folder, client, self._settings, position, self._run)

    def batches(self, rows: Tensor, pass_: Pass) -> Iterator[Tensor]:
        """Yield Poisson batches of a client's rows: as many steps as in ordinary passes; batches
        may be empty.
        """
        n, store = len(rows), self.key_store(pass_.client)
        for step in range(pass_.passes.batches(steps(n, pass_.size, pass_.share))):
            draw = Draw(pass_.round, pass_.purpose, step, n, pass_.size)
            index = rows[store.batch(draw, self._groups(rows)).to(rows.device)]
            self._draws[index] = pass_.client, draw
            yield index

    def gradient(
        self,
        W: Tensor,
        indices: list[Tensor],
        criterion: Criterion | list[RowCriterion] | None = None,
        above: int = 0,
        views: Views = None,
        cache: ConstantFeatures | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Return private gradients G (n, d) at rows W, and losses (n,): zeros unless
        "training-loss" is acknowledged.

        ``views``: of the batches; their randomness depends on a client's secret key, not on the
        run's seed. Without a criterion all of G is released, whatever is requested, because the
        norm of the whole gradient is clipped.

        Raises:
            ConfigError: the batch was not drawn by ``batches``; or there is a criterion that is not
                acknowledged.
            PrivacyError, StorageError: as ``KeyStore.release``.
        """
        if criterion is not None:
            require_acknowledged(self._settings, "output-criterion")
        losses, G = W.new_zeros(len(W)), torch.zeros_like(W)
        for k, index in enumerate(indices):
            client, draw = self._address(index)
            store = self.key_store(client)
            view = self._secret_view(views[k], draw) if views else None
            if criterion is not None:
                store.unprotected(draw, W[k])
                if len(index):
                    row_criterion = [criterion[k]] if isinstance(criterion, list) else criterion
                    loss, G[k : k + 1] = self.inner.gradient(
                        W[k : k + 1], [index], row_criterion, above, [view]
                    )
                    losses[k] = loss[0]
            else:
                with _seeded(W.device, store.forward_seed(draw, W[k])):
                    losses[k], total = self.clipped_sum(W[k], index, view)
                G[k] = store.release(draw, W[k], total) / min(draw.size, draw.n)
                for padding in self._space.padding:
                    G[k, padding] = 0  # a frozen coordinate needs no noise
        return (losses if self.shows_losses else torch.zeros_like(losses)), G

    def clipped_sum(
        self, row: Tensor, index: Tensor, view: View | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return mean loss () and sum (d,) float64 of clipped gradients of samples ``index``, or of
        their groups; private, no noise.
        """
        loss, total = row.new_zeros(()), torch.zeros_like(row, dtype=torch.float64)
        C = self._settings.max_grad_norm
        groups = self._groups(index)
        if groups is not None:
            order = groups.argsort(stable=True)
            index, groups = index[order], groups[order]
        unfinished = torch.zeros_like(total)  # of the group that the next chunk continues
        for start in range(0, len(index), self._chunk):
            chunk = index[start : start + self._chunk]
            P, values = self._gradients(row, chunk, view)
            loss = loss + values[: len(chunk)].sum() / len(index)
            if groups is None:
                total += clipped(P, C).sum(0)
                continue
            numbers = groups[start : start + self._chunk]
            sums = unfinished.new_zeros(int(numbers[-1] - numbers[0]) + 1, len(row))
            sums.index_add_(0, numbers - numbers[0], P[: len(chunk)].double())
            sums[0] += unfinished
            following = groups[start + self._chunk : start + self._chunk + 1]
            continues = bool((following == numbers[-1]).any())
            unfinished = sums[-1] if continues else torch.zeros_like(total)
            total += clipped(sums[: len(sums) - continues], C).sum(0)
        return loss, total

    def _gradients(self, row: Tensor, index: Tensor, view: View | None) -> tuple[Tensor, Tensor]:
        """Return gradients (chunk, d) and losses (chunk,) of up to a chunk of samples; gradients
        beyond them are zero.
        """
        parameters = {e.name: e.view(row) for e in self._space.parameters}
        gradients, losses = self._sample_gradients(
            parameters, *self.data.training_view(padded(index, self._chunk), view)
        )
        P = row.new_zeros(self._chunk, len(row))
        for entry in self._space.parameters:
            entry.view(P).copy_(gradients[entry.name])
        P[len(index) :] = 0
        return P, losses

    def _groups(self, rows: Tensor) -> Tensor | None:
        """Return the groups of rows (n,), numbered from 0 among them; None where rows are the unit.

        Raises ConfigError if the data have no groups.
        """
        if self._settings.unit == "row":
            return None
        if self.data.groups is None:
            raise ConfigError(WITHOUT_GROUPS)
        numbers: Tensor = self.data.groups[rows].unique(return_inverse=True)[1]
        return numbers

    def hessian(self, *_: Any, **__: Any) -> Tensor:
        """Refuse, because such a product is not a clipped gradient. Raises ConfigError."""
        raise ConfigError(f"{SECOND_ORDER}; take a method or an order without them")

    def batchwise(
        self, row: Tensor, client: int, split: str, function: BatchFunction
    ) -> tuple[Tensor, ...]:
        """Return the wrapped objective's result; requires acknowledging "metrics", or
        "output-criterion" for training data.
        """
        require_acknowledged(self._settings, "output-criterion" if split == "train" else "metrics")
        return self.inner.batchwise(row, client, split, function)

    def features(self, row: Tensor, client: int, split: str) -> Tensor:
        """Return the wrapped objective's features; requires acknowledging "output-criterion"."""
        require_acknowledged(self._settings, "output-criterion")
        return self.inner.features(row, client, split)

    def tensors(self, row: Tensor, client: int) -> dict[str, Tensor]:
        """Return one row (d,) as named tensors; a function of the row alone, since no layer stores
        statistics.
        """
        return self.inner.tensors(row, client)

    def losses(self, row: Tensor, client: int, split: str) -> Tensor:
        """Return the wrapped losses; requires acknowledging "training-loss" or "validation-losses",
        by split.
        """
        require_acknowledged(
            self._settings, "training-loss" if split == "train" else "validation-losses"
        )
        return self.inner.losses(row, client, split)

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the run's own per-sample losses (b,)."""
        return self.inner.criterion(outputs, targets)

    def _secret_view(self, view: View | None, draw: Draw) -> View | None:
        """Return a view whose random numbers are the client's secret."""
        return view and replace(view, seed=self.key_store(view.client).view_seed(draw))

    def _address(self, index: Tensor) -> tuple[int, Draw]:
        if index not in self._draws:
            raise ConfigError(
                "the batch is not one of training.steps, so privacy cannot account for it: use "
                "its batches whole and unchanged"
            )
        address: tuple[int, Draw] = self._draws[index]
        return address

    def _refuse_mixing(self) -> None:
        """Raise ConfigError if a sample's gradient depends on the rest of its batch, tested on two
        samples.
        """
        if len(self.data.y) < 2:
            return
        row = torch.zeros(self._space.size, device=self.data.y.device).fill_(0.01)
        parameters = {e.name: e.view(row) for e in self._space.parameters}
        repeated, mixed = (torch.tensor(pair, device=row.device) for pair in ([0, 0], [0, 1]))
        gradients = []
        for pair in (repeated, mixed):
            with _seeded(row.device, 0):  # equal dropout masks
                gradients.append(
                    self._sample_gradients(parameters, *self.data.training_view(pair, None))[0]
                )
        for name, gradient in gradients[0].items():
            if not torch.equal(gradient[0], gradients[1][name][0]):
                raise ConfigError(
                    f"the gradient of {name} at one sample depends on the other samples of its "
                    "batch; privacy needs a model that treats each sample separately"
                )


@contextmanager
def _seeded(device: torch.device, value: int) -> Iterator[None]:
    """Seed the generators that dropout masks come from, those of a CPU and of the device, and
    restore them after the block.

    A sample's mask depends on its place in the batch: if masks were public, they would betray who
    else was drawn, and sampling would protect nobody.
    """
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(value)
        if gpus:
            torch.cuda.manual_seed(value)
        yield


def refuse_statistics(module: nn.Module) -> None:
    """Raise ConfigError for a layer that normalises over a batch or keeps statistics of samples."""
    for problem in statistics_problems(module):
        raise ConfigError(problem)


def statistics_problems(module: nn.Module) -> Iterator[str]:
    """Yield a line for each layer that normalises over a batch or stores statistics of samples."""
    for name, layer in active(module):
        stores = any(b.is_floating_point() for b in layer.buffers(recurse=False))
        if stores or isinstance(layer, nn.modules.batchnorm._BatchNorm):
            yield (
                f"layer {name} ({type(layer).__name__}) stores or uses statistics of a batch, "
                "which privacy cannot cover; choose a model without it (lenet, cnn, vgg11, mlp), "
                "or use GroupNorm or LayerNorm instead"
            )


def padded(index: Tensor, length: int) -> Tensor:
    """Pad indices to (length,) with copies of the first."""
    return torch.cat([index, index[:1].expand(length - len(index))])
