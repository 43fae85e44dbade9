"""The objective for one row at a time: exact, and on a CPU the fastest way for a single client."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pomona.core.errors import ConfigError
from pomona.core.round import Round
from pomona.models.layers import layers
from pomona.models.parameter_space import ParameterSpace
from pomona.models.sliding_window import whole
from pomona.models.trained_part import active, frozen, training_mode
from pomona.objective.constant_features import ConstantFeatures
from pomona.objective.device_dataset import DeviceDataset
from pomona.objective.estimated_statistics import Estimates
from pomona.objective.mixture import Mixture
from pomona.objective.native_mixtures import NativeMixtures
from pomona.objective.native_step import NativeStep, Prepared, prepared
from pomona.objective.pull import Pull
from pomona.objective.training_view import View, Views

Criterion = Callable[[Tensor, Tensor], Tensor]  # (outputs (b, K), targets) -> losses (b,)
RowCriterion = Callable[[Tensor, Tensor, Tensor], Tensor]  # (outputs, targets, features (b, f)) -> loss ()
Precision = Literal["fp32", "bf16"]

EVALUATION_BATCH = 512
TARGETS_AT_ONCE = 2**17  # pixels: eight images of 128 x 128 at a time, whose maps are faster than those of 64


class LoopObjective:
    """Losses and gradients of rows W (n, d), where row k is evaluated on the k-th list of sample indices.

    Args:
        module: the architecture; only its frozen values are used.
        space: the module's parameter space.
        data: the resident data.
        criterion: (outputs (b, K), targets) -> per-sample losses (b,).
        precision: ``bf16`` runs forward and backward under autocast; rows and gradients stay float32.
        native: used if supported; everything else, including criteria that differ from the run's, uses PyTorch.
    """

    def __init__(
        self,
        module: nn.Module,
        space: ParameterSpace,
        data: DeviceDataset,
        criterion: Criterion,
        precision: Precision = "fp32",
        native: NativeStep | None = None,
    ) -> None:
        self.space = space
        self.data = data
        self.layers, self.norms = space.layers, space.norms
        self.least_batch = 2 if space.has_statistics else 1  # a single sample has no variance
        self._module, self._enter_training = module, training_mode(module)
        self._whole = whole(module, data.patch)
        self._criterion = criterion
        self._precision, self._native, self._mixtures = precision, native, NativeMixtures()
        named = dict(module.named_parameters())
        self._parameters = [named[e.name] for e in space.parameters]
        buffers = dict(module.named_buffers())
        self._buffers = [buffers[e.name] for e in space.buffers]
        self._own = [buffer.data for buffer in self._buffers]
        self._estimates = Estimates()
        self._watched = False  # whether a hook is waiting for the input of one of PyTorch's layers
        # PyTorch's backward pass fails for a GroupNorm in first place whose input needs no gradient.
        self._asks_inputs = any(isinstance(part, nn.GroupNorm) for part in module.modules()) and data.shift is not None

    def gradient(
        self,
        W: Tensor,
        indices: list[Tensor],
        criterion: Criterion | list[RowCriterion] | None = None,
        above: int = 0,
        views: Views = None,
    ) -> tuple[Tensor, Tensor]:
        """Return mean losses (n,) on the samples and their gradients G (n, d); buffers inside W are updated in place.

        ``criterion`` replaces the run's own loss: one function of (outputs, targets) that returns per-sample losses; or
        one function per row, for losses that depend on the row or on a batch as a whole, of (outputs, targets,
        features), where features are the input of the last layer. Backpropagation stops ``above`` the unused
        parameters: G may be 0 before this coordinate. ``views``: of the batches, one per row.
        """
        losses, G = torch.empty(len(W), device=W.device), torch.empty_like(W)
        G[:, :above] = 0
        self._enter_training()
        for k, (row, index, view, g) in enumerate(zip(W, indices, views or [None] * len(W), G, strict=True)):
            if self._native and criterion is None:
                losses[k] = self._native.gradient(row, g, self._batch(self._native, index, view), above)
                continue
            x, y = self.data.seen(index, view)
            losses[k] = self._autograd(x, y, row, g, criterion, k, above)
        G[:, self.space.trained :] = 0
        return losses, G

    def gradient_above(
        self, W: Tensor, indices: list[Tensor], above: int, kept: ConstantFeatures, views: Sequence[View]
    ) -> tuple[Tensor, Tensor]:
        """Return ``gradient`` for rows that below ``above`` are the same whenever a batch of ``kept`` occurs."""
        native = self._native
        if native is None or not native.skipped(above):
            return self.gradient(W, indices, None, above, views)
        losses, G = torch.empty(len(W)), torch.empty_like(W)
        G[:, :above] = G[:, self.space.trained :] = 0
        for k, (row, index, view, g) in enumerate(zip(W, indices, views, G, strict=True)):
            batch = self._batch(native, index, view)
            features = kept.of(view, partial(native.below, row, batch, above))
            losses[k] = native.gradient_above(features, row, g, batch[2], above)
        return losses, G

    def step(
        self,
        W: Tensor,
        indices: list[Tensor],
        moments: Tensor,
        round_: Round,
        views: Views = None,
        pull: Pull | None = None,
        part: slice | None = None,
    ) -> Tensor | None:
        """Take one step of plain SGD on rows W (n, d), in place; return their mean losses (n,) before it.

        Returns None, and changes nothing, if whole steps are not supported: with PyTorch, or another optimizer.
        ``moments`` (n, d) are momentum buffers, (n, 0) without momentum. ``pull`` is added to the gradient; if ``part``
        is given, only it moves, and moments are those of it.
        """
        if self._native is None or not round_.optimizer.plain:
            return None
        losses = torch.empty(len(W))
        for k, (row, index, view) in enumerate(zip(W, indices, views or [None] * len(W), strict=True)):
            batch = self._batch(self._native, index, view)
            losses[k] = self._native.step(row, moments[k], batch, round_, pull.row(k) if pull else None, part)
        return losses

    @property
    def mixes(self) -> bool:
        """Whether the native engine mixes rows."""
        return self._native is not None

    def mixtures(self, mixture: Mixture) -> Tensor:
        """Return the mixtures (n, d)."""
        return self._mixtures.rows(self._native, mixture) if self._native else mixture.rows()

    def products(self, mixture: Mixture, G: Tensor) -> Tensor:
        """Return the products (n, N) of rows G (n, d) with the mixed rows."""
        return self._mixtures.products(self._native, mixture, G) if self._native else mixture.products(G)

    def mixed_step(
        self, mixture: Mixture, indices: list[Tensor], moments: Tensor, round_: Round, views: Views = None
    ) -> tuple[Tensor, Tensor] | None:
        """Take one step of plain SGD on the own rows of mixtures, see ``NativeMixtures``; None as in ``step``."""
        if self._native is None or not round_.optimizer.plain:
            return None
        seen = zip(indices, views or [None] * len(indices), strict=True)
        batches = [self._batch(self._native, index, view) for index, view in seen]
        return self._mixtures.step(self._native, mixture, batches, moments, round_)

    def _batch(self, native: NativeStep, index: Tensor, view: View | None) -> Prepared:
        """Return a batch with its training view, for the native engine."""
        return native.resident(index) if self.data.plain or view is None else prepared(*self.data.seen(index, view))

    def hessian(self, W: Tensor, indices: list[Tensor], Z: Tensor, views: Views = None) -> Tensor:
        """Return products (n, d) of the mean losses' Hessians at rows W (n, d), on the samples, with vectors Z (n, d).

        Exact, by a second backward pass through the first (Pearlmutter, Neural Computation 1994).
        """
        H = torch.zeros_like(W)
        self._enter_training()
        for row, index, view, z, h in zip(W, indices, views or [None] * len(W), Z, H, strict=True):
            x, y = self.data.seen(index, view)
            self._point_at(row)
            leaves = {e.name: e.view(row).detach().requires_grad_() for e in self.space.parameters}
            with self._autocast():
                outputs = functional_call(self._module, leaves, (x.requires_grad_(self._asks_inputs),))
            loss = self._criterion(outputs.float(), y).mean()
            at = list(leaves.values())
            slopes = torch.autograd.grad(loss, at, create_graph=True, allow_unused=True, materialize_grads=True)
            products = [(g * e.view(z)).sum() for g, e in zip(slopes, self.space.parameters, strict=True)]
            along = torch.stack(products).sum()
            parts = torch.autograd.grad(along, at, allow_unused=True, materialize_grads=True)
            for entry, part in zip(self.space.parameters, parts, strict=True):
                entry.view(h).copy_(part)
        return H

    @torch.no_grad()
    def outputs(self, row: Tensor, client: int, split: str) -> tuple[Tensor, Tensor]:
        """Return outputs (b, K) of a model row (d,) on all of a client's split, and the targets, in row order."""
        outputs, targets = self.batchwise(row, client, split, lambda outputs, targets: (outputs, targets)) or (
            torch.empty(0),
            self.data.target(self.data.rows[split][client]),
        )
        return outputs, targets

    @torch.no_grad()
    def batchwise(
        self, row: Tensor, client: int, split: str, of: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Apply a function to outputs (b, *S) and targets, samples first, on all of a client's split.

        It gets one batch at a time, so only its results are kept in memory; () for no samples.
        """
        self._evaluable(row, client)
        self._module.eval()
        index = self.data.rows[split][client]
        at_once = self._at_once(prod(self.data.y.shape[1:]))
        made = [of(self._forward(row, part), self.data.target(part)) for part in index.split(at_once)]
        return tuple(torch.cat(parts) for parts in zip(*made, strict=True)) if len(index) else ()

    def features(self, row: Tensor, client: int, split: str) -> Tensor:
        """Return inputs (b, f) of the last layer under one model row (d,), on all of a client's split.

        Raises ConfigError if the network sees patches: a whole sample then has no features.
        """
        if self.data.patch:
            raise ConfigError("features of whole images are asked for, the network sees patches; take model.patch out")
        with self._seeing_features() as seen:
            outputs, _ = self.outputs(row, client, split)
        # Estimating statistics runs on the training data first; the split comes last.
        return torch.cat(seen)[-len(outputs) :] if len(outputs) else torch.empty(0)

    @contextmanager
    def _seeing_features(self) -> Iterator[list[Tensor]]:
        """Collect the inputs (b, f) of the last layer in each forward pass into a list."""
        seen: list[Tensor] = []
        last = self._module.get_submodule(layers(self._module)[-1][0])
        hook = last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten(1).float()))
        self._watched = True
        try:
            yield seen
        finally:
            self._watched = False
            hook.remove()

    @torch.no_grad()
    def tensors(self, row: Tensor, client: int) -> dict[str, Tensor]:
        """Return a model row (d,) as named tensors, with the buffers for its evaluation at a client; no frozen ones."""
        self._evaluable(row, client)
        fixed = frozen(self._module)
        tensors = [*self._module.named_parameters(), *self._module.named_buffers()]
        return {k: t.detach().contiguous().clone() for k, t in tensors if t.is_floating_point() and k not in fixed}

    def losses(self, row: Tensor, client: int, split: str) -> Tensor:
        """Return per-sample losses (b,) of one model row on all of a client's split."""
        found = self.batchwise(row, client, split, lambda outputs, targets: (self._criterion(outputs, targets),))
        return found[0] if found else torch.empty(0)

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the run's own per-sample losses (b,)."""
        return self._criterion(outputs, targets)

    def _loss(
        self, y: Tensor, criterion: Criterion | list[RowCriterion] | None, k: int, outputs: Tensor, features: Tensor
    ) -> Tensor:
        """Return the mean loss () of outputs (b, K), in row ``k`` of a call."""
        if isinstance(criterion, list):
            return criterion[k](outputs.float(), y, features.float())
        return (criterion or self._criterion)(outputs.float(), y).mean()

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
        """Return the mean loss () of row ``k``, and write its gradient into ``g`` (d,), from ``above`` on."""
        self._point_at(row)
        x.requires_grad_(self._asks_inputs)
        with self._seeing_features() as seen, self._autocast():
            outputs = self._module(x)
        loss = self._loss(y, criterion, k, outputs, seen[-1])
        first = sum(entry.stop <= above for entry in self.space.parameters[:-1])
        wanted = self._parameters[first:]
        leaves = [*wanted, x] if self._asks_inputs else wanted
        parts = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)[: len(wanted)]
        for entry, part in zip(self.space.parameters[first:], parts, strict=True):
            entry.view(g).copy_(part)
        return loss.detach()

    def _forward(self, row: Tensor, index: Tensor) -> Tensor:
        """Return outputs (b, K) of samples under the current row."""
        if self._native and not self._watched:
            return self._native.outputs(row, index)
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
        for entry, parameter in zip(self.space.parameters, self._parameters, strict=True):
            parameter.data = entry.view(row)
        if self.space.statistics_in(row):
            for entry, buffer in zip(self.space.buffers, self._buffers, strict=True):
                buffer.data = entry.view(row)
        else:
            for own, buffer in zip(self._own, self._buffers, strict=True):
                buffer.data = own

    def _evaluable(self, row: Tensor, client: int) -> None:
        """Make a row current, with statistics of a client's own if the row has none."""
        self._point_at(row)
        if not self.space.has_statistics or self.space.statistics_in(row):
            return
        norms = [part for _, part in active(self._module) if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        moving = [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var) if buffer is not None]
        if (known := self._estimates.of(row, client)) is None:
            self._estimate_statistics(norms, client)
            self._estimates.keep(row, client, [buffer.clone() for buffer in moving])
        else:
            for buffer, value in zip(moving, known, strict=True):
                buffer.copy_(value)

    def _estimate_statistics(self, norms: Sequence[nn.modules.batchnorm._BatchNorm], client: int) -> None:
        """Estimate the current model's BatchNorm statistics as plain averages over the client's training batches.

        For a network that sees patches, one per sample is used, always the same. Dropout is off, as in evaluation.
        """
        kept = [m.momentum for m in norms]
        self._module.eval()
        for norm in norms:
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None  # cumulative average
        plain, view = replace(self.data, augment=(), weights=None), View(client, 0, 0, "statistics", 0)
        pixels = prod(self.data.patch.size if self.data.patch else self.data.y.shape[1:])
        for part in self.data.rows["train"][client].split(self._at_once(pixels)):
            if len(part) > 1:
                with self._autocast():
                    self._module(plain.seen(part, view)[0])
        for norm, momentum in zip(norms, kept, strict=True):
            norm.momentum = momentum
