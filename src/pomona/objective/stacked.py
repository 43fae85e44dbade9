"""The objective for many rows at a time: n small training steps as one large one, for a GPU."""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import pad_sequence

from pomona.models.layers import active, frozen
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.batches import Views
from pomona.objective.dataset import DeviceDataset, Precision
from pomona.objective.objective import ConstantFeatures, Criterion, RowCriterion, batch_loss
from pomona.objective.pytorch import TorchObjective

MEMORY = 2**31  # bytes
Tensors = dict[str, Tensor]


class StackedObjective(TorchObjective):
    """Losses and gradients of rows W (n, d), all rows in one forward and one backward pass.

    Equal to ``TorchObjective`` up to rounding, with the same arguments: rows of unequal batches are
    padded, and the padding has no effect; networks that normalise over a batch are not padded, but
    computed in runs of rows with equally long batches. Evaluation, whose batches are already large,
    and products with a Hessian are computed row by row.

    Dropout is drawn separately for each row, but from one generator for all of them, so results
    differ from the loop's. ``torch.func.vmap`` must support the network: no branches on values, no
    ``.item()``.

    Args:
        module: the architecture; only its frozen values are used.
        space: the module's parameter space.
        data: the resident data; everything is computed on its device.
        criterion: (outputs (b, K), targets) -> per-sample losses (b,).
        precision: ``bf16`` runs forward and backward under autocast; rows and gradients keep their
            dtype.
        memory: approximate maximum bytes for the passes of a call; more rows are computed in chunks
            of at least one.
    """

    def __init__(
        self,
        module: nn.Module,
        space: ParameterSpace,
        data: DeviceDataset,
        criterion: Criterion,
        precision: Precision = "fp32",
        memory: int = MEMORY,
    ) -> None:
        super().__init__(module, space, data, criterion, precision)
        self._memory = memory
        fixed = frozen(module)
        self._moving = [
            (k, b) for k, b in module.named_buffers() if b.is_floating_point() and k not in fixed
        ]
        batch_norm = nn.modules.batchnorm._BatchNorm
        self._mixes_samples = space.has_statistics or any(
            isinstance(m, batch_norm) for _, m in active(module)
        )
        self._cost: tuple[int, int] | None = None
        for submodule in module.modules():
            if isinstance(submodule, nn.Embedding) and submodule.padding_idx is not None:
                submodule.register_forward_hook(partial(_stop_at, submodule.padding_idx))
            # ``vmap`` supports it only on contiguous memory
            if isinstance(submodule, nn.GroupNorm):
                submodule.register_forward_pre_hook(lambda _, inputs: inputs[0].contiguous())

    def gradient(
        self,
        W: Tensor,
        indices: list[Tensor],
        criterion: Criterion | list[RowCriterion] | None = None,
        above: int = 0,
        views: Views = None,
        cache: ConstantFeatures | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Return mean losses (n,) and gradients G (n, d); backpropagation stops at ``above``."""
        losses, G = torch.empty(len(W), device=W.device), torch.empty_like(W)
        G[:, :above] = G[:, self.space.trained :] = 0
        self._enter_training()
        for chunk in self._chunks(W, [len(i) for i in indices]):
            chunk_criterion = (
                criterion[chunk] if isinstance(criterion, list) else criterion or self.criterion
            )
            chunk_views = views[chunk] if views else None
            losses[chunk] = self._differentiate(
                W[chunk], indices[chunk], chunk_criterion, G[chunk], above, chunk_views
            )
        return losses, G

    def rows_at_once(self, W: Tensor, length: int) -> int:
        """Return the number of rows like those of W that are computed together on batches of this
        length.
        """
        if self._cost is None:
            small, large = (self._activation_bytes(W, length) for length in (2, 4))
            slope = (large - small) // 2
            self._cost = max(small - 2 * slope, 0), slope
        fixed, slope = self._cost
        # The backward pass needs as much memory again as the forward pass keeps.
        return max(1, self._memory // (2 * (fixed + slope * length)))

    def _chunks(self, W: Tensor, lengths: list[int]) -> Iterator[slice]:
        """Yield slices of the rows that are computed together."""
        runs = (
            [list(run) for _, run in groupby(lengths)]
            if self._mixes_samples
            else [lengths]
            if lengths
            else []
        )
        start = 0
        for run in runs:
            stop, size = start + len(run), self.rows_at_once(W, max(run))
            yield from (slice(k, min(k + size, stop)) for k in range(start, stop, size))
            start = stop

    def _differentiate(
        self,
        W: Tensor,
        indices: list[Tensor],
        criterion: Criterion | list[RowCriterion],
        G: Tensor,
        above: int,
        views: Views,
    ) -> Tensor:
        """Return mean losses (m,) of a chunk's rows, and write their gradients into G (m, d)."""
        parameters, buffers = self._stack(W)
        index, real = padded(indices)
        outputs, features, y = self._stacked_forward(
            parameters, buffers, index, isinstance(criterion, list), views
        )
        if isinstance(criterion, list):
            counts = [len(i) for i in indices]
            rows = zip(criterion, counts, outputs, y, features, strict=True)
            losses = torch.stack([batch_loss(c, o[:b], t[:b], f[:b]) for c, b, o, t, f in rows])
        else:
            sample_losses = criterion(outputs.flatten(0, 1), y.flatten(0, 1))
            losses = sample_losses.unflatten(0, real.shape).where(real, 0).sum(1) / real.sum(1)
        entries = self.space.parameters[
            sum(entry.stop <= above for entry in self.space.parameters[:-1]) :
        ]
        leaves = [parameters[entry.name] for entry in entries]
        gradients = torch.autograd.grad(
            losses.sum(), leaves, allow_unused=True, materialize_grads=True
        )
        for entry, gradient in zip(entries, gradients, strict=True):
            entry.view(G).copy_(gradient)
        for entry in self.space.statistics_in(W):
            entry.view(W).copy_(buffers[entry.name])
        return losses.detach()

    def _stack(self, W: Tensor) -> tuple[Tensors, Tensors]:
        """Return stacked parameters, views of W and leaves of the graph; and stacked buffers,
        writable copies.

        Buffers that are not part of W are the module's own: in training nothing depends on
        BatchNorm's updates of them. Frozen ones are not stacked.
        """
        parameters = {e.name: e.view(W).detach().requires_grad_() for e in self.space.parameters}
        loose = {k: b.expand(len(W), *b.shape) for k, b in self._moving}
        buffers = loose | {e.name: e.view(W) for e in self.space.statistics_in(W)}
        return parameters, {
            k: b.detach().clone(memory_format=torch.contiguous_format) for k, b in buffers.items()
        }

    def _stacked_forward(
        self,
        parameters: Tensors,
        buffers: Tensors,
        index: Tensor,
        features: bool,
        views: Views = None,
    ) -> tuple[Tensor, Tensor | tuple[()], Tensor]:
        """Return outputs (m, b, K), features (m, b, f) if wanted, and targets of m models on
        ``index`` (m, b).
        """

        def forward(
            parameters: Tensors, buffers: Tensors, x: Tensor
        ) -> tuple[Tensor, list[Tensor]]:
            recorded: list[Tensor] = []
            hook = self._last.register_forward_pre_hook(
                lambda _, inputs: recorded.append(inputs[0].flatten(1).float())
            )
            with hook if features else nullcontext():
                outputs: Tensor = functional_call(self._module, parameters | buffers, (x,))
            return outputs.float(), recorded[-1:]

        if views is None or self.data.plain:
            x, y = self.data.training_view(index.flatten(), None)
        else:
            rows = [
                self.data.training_view(samples, view)
                for samples, view in zip(index, views, strict=True)
            ]
            x, y = (torch.cat(tensors) for tensors in zip(*rows, strict=True))
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._precision == "bf16"):
            outputs, recorded = vmap(forward, randomness="different")(
                parameters, buffers, x.unflatten(0, index.shape)
            )
        return outputs, recorded[0] if recorded else (), y.unflatten(0, index.shape)

    def _activation_bytes(self, W: Tensor, length: int) -> int:
        """Return the bytes that the forward pass of one row on a batch of this length keeps for the
        backward pass.
        """
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            sizes[tensor.data_ptr()] = tensor.nbytes
            return tensor

        parameters, buffers = self._stack(torch.zeros_like(W[:1]))
        index = torch.zeros(1, length, dtype=torch.long, device=W.device)
        hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        with torch.random.fork_rng(devices=[W.device] if W.is_cuda else []), hooks:
            outputs, _, y = self._stacked_forward(parameters, buffers, index, False)
            self.criterion(outputs[0], y[0])
        return sum(sizes.values())


def padded(indices: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Stack the index lists of n rows to (n, b), b the longest, with a mask of the real entries,
    bool (n, b).

    A row is padded with its own first sample, so that padding is finite if the row is, and zero
    times it is zero.
    """
    index = pad_sequence(indices, batch_first=True, padding_value=-1)
    real = index >= 0
    return index.where(real, index[:, :1]), real


def _stop_at(token: int, _: nn.Module, inputs: tuple[Tensor], embedded: Tensor) -> Tensor:
    """Stop the gradient for padding tokens: ``vmap`` observes an embedding's ``padding_idx`` only
    in row 0.
    """
    return torch.where(torch.eq(inputs[0], token).unsqueeze(-1), embedded.detach(), embedded)
