"""The objective by PyTorch, one row at a time: exact, and on a CPU the fastest way for a single
client.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from math import prod
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pomona.core.errors import ConfigError
from pomona.models.layers import active, frozen, layers, training_mode
from pomona.models.parameter_space import ParameterSpace
from pomona.models.segmentation import on_whole_images
from pomona.objective.batches import View, Views
from pomona.objective.dataset import (
    EVALUATION_BATCH,
    BatchFunction,
    DeviceDataset,
    Precision,
    statistics_batches,
)
from pomona.objective.objective import (
    ConstantFeatures,
    Criterion,
    Objective,
    RowCriterion,
    batch_loss,
)

# pixels: eight images of 128 x 128 at a time, whose maps are faster than those of 64
TARGETS_AT_ONCE = 2**17


class TorchObjective(Objective):
    """Losses and gradients of rows W (n, d), where row k is evaluated on the k-th list of sample
    indices.

    Args:
        module: the architecture; only its frozen values are used.
        space: the module's parameter space.
        data: the resident data.
        criterion: (outputs (b, K), targets) -> per-sample losses (b,).
        precision: ``bf16`` runs forward and backward under autocast; rows and gradients stay
            float32.
    """

    def __init__(
        self,
        module: nn.Module,
        space: ParameterSpace,
        data: DeviceDataset,
        criterion: Criterion,
        precision: Precision = "fp32",
    ) -> None:
        self.space = space
        self.data = data
        self.layers, self.norms, self.head = space.layers, space.norms, space.head
        self.parameters = space.parameters
        self.least_batch = 2 if space.has_statistics else 1  # a single sample has no variance
        self._module, self._enter_training = module, training_mode(module)
        self._last = module.get_submodule(layers(module)[-1][0])
        self._whole = on_whole_images(module, data.patch)
        self._criterion = criterion
        self._precision = precision
        parameters = dict(module.named_parameters())
        self._parameters = [parameters[e.name] for e in space.parameters]
        buffers = dict(module.named_buffers())
        self._buffers = [buffers[e.name] for e in space.buffers]
        self._module_buffers = [buffer.data for buffer in self._buffers]
        self._estimates = Estimates()
        # PyTorch's backward pass fails for a GroupNorm in first place whose input needs no
        # gradient.
        self._needs_input_gradient = (
            any(isinstance(submodule, nn.GroupNorm) for submodule in module.modules())
            and data.shift is not None
        )

    def gradient(
        self,
        W: Tensor,
        indices: list[Tensor],
        criterion: Criterion | list[RowCriterion] | None = None,
        above: int = 0,
        views: Views = None,
        cache: ConstantFeatures | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Return mean losses (n,) and gradients G (n, d), row by row; backpropagation stops at
        ``above``.
        """
        losses, G = torch.empty(len(W), device=W.device), torch.empty_like(W)
        if above:
            G[:, :above] = 0
        self._enter_training()
        for k, (row, index, view, g) in enumerate(
            # much faster than to iterate over tensors
            zip(W.unbind(), indices, views or [None] * len(W), G.unbind(), strict=True)
        ):
            x, y = self.data.training_view(index, view)
            losses[k] = self._autograd(x, y, row, g, criterion, k, above)
        if self.space.statistics_in(W):
            G[:, self.space.trained :] = 0
        return losses, G

    def hessian(self, W: Tensor, indices: list[Tensor], Z: Tensor, views: Views = None) -> Tensor:
        """Return products (n, d) of the mean losses' Hessians at rows W (n, d), on the samples,
        with vectors Z (n, d).

        Exact, by a second backward pass through the first (Pearlmutter, Neural Computation 1994).
        """
        H = torch.zeros_like(W)
        self._enter_training()
        for row, index, view, z, h in zip(W, indices, views or [None] * len(W), Z, H, strict=True):
            x, y = self.data.training_view(index, view)
            self._point_at(row)
            leaves = {e.name: e.view(row).detach().requires_grad_() for e in self.space.parameters}
            with self._autocast():
                outputs = functional_call(
                    self._module, leaves, (x.requires_grad_(self._needs_input_gradient),)
                )
            loss = self._criterion(outputs.float(), y).mean()
            variables = list(leaves.values())
            slopes = torch.autograd.grad(
                loss, variables, create_graph=True, allow_unused=True, materialize_grads=True
            )
            products = [
                (g * e.view(z)).sum() for g, e in zip(slopes, self.space.parameters, strict=True)
            ]
            along = torch.stack(products).sum()
            gradients = torch.autograd.grad(
                along, variables, allow_unused=True, materialize_grads=True
            )
            for entry, gradient in zip(self.space.parameters, gradients, strict=True):
                entry.view(h).copy_(gradient)
        return H

    @torch.no_grad()
    def batchwise(
        self, row: Tensor, client: int, split: str, function: BatchFunction
    ) -> tuple[Tensor, ...]:
        """Apply a function to each batch's outputs (b, *S) and targets, on all of a client's
        split.
        """
        self._evaluable(row, client)
        self._module.eval()
        index = self.data.rows[split][client]
        at_once = self._at_once(prod(self.data.y.shape[1:]))
        return self.data.batchwise(index.split(at_once), self._forward, function)

    def features(self, row: Tensor, client: int, split: str) -> Tensor:
        """Return inputs (b, f) of the last layer under one model row (d,), on all of a client's
        split.

        Raises ConfigError if the network sees patches: a whole sample then has no features.
        """
        if self.data.patch:
            raise ConfigError(
                "features of whole images are undefined for a network of patches; remove "
                "model.patch"
            )
        with self._record_features() as features:
            # PyTorch's own passes, whatever a subclass does: the module has the hook
            results = TorchObjective.batchwise(
                self, row, client, split, lambda outputs, _: (outputs,)
            )
        # Estimating statistics runs on the training data first; the split comes last.
        return torch.cat(features)[-len(results[0]) :] if results else torch.empty(0)

    @contextmanager
    def _record_features(self) -> Iterator[list[Tensor]]:
        """Collect the inputs (b, f) of the last layer in each forward pass into a list."""
        features: list[Tensor] = []
        hook = self._last.register_forward_pre_hook(
            lambda _, inputs: features.append(inputs[0].flatten(1).float())
        )
        with hook:
            yield features

    @torch.no_grad()
    def tensors(self, row: Tensor, client: int) -> dict[str, Tensor]:
        """Return a model row (d,) as named tensors, with the buffers for its evaluation at a
        client; no frozen ones.
        """
        self._evaluable(row, client)
        fixed = frozen(self._module)
        parameters = self._module.named_parameters(remove_duplicate=False)
        tensors = [*parameters, *self._module.named_buffers()]
        return {
            k: t.detach().contiguous().clone()
            for k, t in tensors
            if t.is_floating_point() and k not in fixed
        }

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the run's own per-sample losses (b,)."""
        return self._criterion(outputs, targets)

    def _autograd(
        self,
        x: Tensor,
        y: Tensor,
        row: Tensor,
        g: Tensor,
        criterion: Criterion | list[RowCriterion] | None,
        k: int,
        above: int,
    ) -> Tensor:
        """Return the mean loss () of row ``k``, and write its gradient into ``g`` (d,), from
        ``above`` on.
        """
        self._point_at(row)
        x.requires_grad_(self._needs_input_gradient)
        if isinstance(criterion, list):
            with self._record_features() as features, self._autocast():
                outputs = self._module(x)
            loss = batch_loss(criterion[k], outputs.float(), y, features[-1])
        else:
            with self._autocast():
                outputs = self._module(x)
            loss = (criterion or self._criterion)(outputs.float(), y).mean()
        first = sum(entry.stop <= above for entry in self.space.parameters[:-1]) if above else 0
        parameters = self._parameters[first:]
        leaves = [*parameters, x] if self._needs_input_gradient else parameters
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)[
            : len(parameters)
        ]
        for view, gradient in zip(self.space.views(g)[first:], gradients, strict=True):
            view.copy_(gradient)
        return loss.detach()

    def _forward(self, index: Tensor) -> Tensor:
        """Return outputs (b, K) of samples under the current row."""
        x, _ = self.data.gather(index)
        with self._autocast():
            outputs = self._whole(x)
        return outputs.float()

    def _at_once(self, pixels: int) -> int:
        """Return the batch size for evaluation, for this many targets per sample."""
        return min(EVALUATION_BATCH, max(self.least_batch, TARGETS_AT_ONCE // max(1, pixels)))

    def _autocast(self) -> torch.autocast | nullcontext[None]:
        if self._precision == "fp32":
            return nullcontext()
        return torch.autocast(self.data.x.device.type, torch.bfloat16)

    def _point_at(self, row: Tensor) -> None:
        for value, parameter in zip(self.space.views(row), self._parameters, strict=True):
            parameter.data = value
        if self.space.statistics_in(row):
            for entry, buffer in zip(self.space.buffers, self._buffers, strict=True):
                buffer.data = entry.view(row)
        else:
            for value, buffer in zip(self._module_buffers, self._buffers, strict=True):
                buffer.data = value

    def _evaluable(self, row: Tensor, client: int) -> None:
        """Make a row current, with statistics of a client's own if the row has none."""
        self._point_at(row)
        if not self.space.has_statistics or self.space.statistics_in(row):
            return
        norms = [
            layer
            for _, layer in active(self._module)
            if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        ]
        buffers = [
            buffer
            for norm in norms
            for buffer in (norm.running_mean, norm.running_var)
            if buffer is not None
        ]
        if (cached := self._estimates.get(row, client)) is None:
            self._estimate_statistics(norms, client)
            self._estimates.put(row, client, [buffer.clone() for buffer in buffers])
        else:
            for buffer, value in zip(buffers, cached, strict=True):
                buffer.copy_(value)

    def _estimate_statistics(
        self, norms: Sequence[nn.modules.batchnorm._BatchNorm], client: int
    ) -> None:
        """Estimate the current model's BatchNorm statistics as plain averages over the client's
        training batches.

        For a network that sees patches, one per sample is used, always the same. Dropout is off, as
        in evaluation.
        """
        momenta = [m.momentum for m in norms]
        self._module.eval()
        for norm in norms:
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None  # cumulative average
        plain = replace(self.data, augment=(), weights=None)
        view = View(client, 0, 0, "statistics", 0)
        pixels = prod(self.data.patch.size if self.data.patch else self.data.y.shape[1:])
        for batch in statistics_batches(self.data.rows["train"][client], self._at_once(pixels)):
            with self._autocast():
                self._module(plain.training_view(batch, view)[0])
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


@dataclass
class Estimates:
    """Cache of the last estimated BatchNorm statistics, for evaluating one model on several splits
    in turn.

    A model is recognised as the same tensor, unchanged since, without reading its bytes.
    """

    _row: ReferenceType[Tensor] | None = None
    # version of the row's memory, which in-place changes increase; client
    _key: tuple[int, int] = (-1, -1)
    _values: list[Tensor] = field(default_factory=list)

    def get(self, row: Tensor, client: int) -> list[Tensor] | None:
        """Return the statistics of a model row (d,) for a client; None unless they are the last
        ones stored.
        """
        current = (
            self._row is not None and self._row() is row and self._key == (row._version, client)
        )
        return self._values if current else None

    def put(self, row: Tensor, client: int, values: Sequence[Tensor]) -> None:
        """Store these statistics in place of the previous ones."""
        self._row, self._key, self._values = ref(row), (row._version, client), [*values]
