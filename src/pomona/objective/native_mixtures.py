"""Steps on mixtures of rows by the package pomona-native: mixing, gradients, slopes and the own row's step."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pomona.core.round import Round
from pomona.objective.mixture import Mixture
from pomona.objective.native_step import NativeStep, Prepared


@dataclass
class NativeMixtures:
    """Two passes over all rows a step, one to mix them and one for slopes and steps, for all clients of a call.

    What is computed of a client does not depend, to the bit, on who else is in the call. Mixtures and gradients lie in
    memory that is kept from step to step.
    """

    _memory: Tensor = field(default_factory=lambda: torch.empty(2, 0, 0))

    def step(
        self, native: NativeStep, mixture: Mixture, batches: Sequence[Prepared], moments: Tensor, round_: Round
    ) -> tuple[Tensor, Tensor]:
        """Move the own rows by one step of plain SGD, in place. Returns losses (n,) and the weights' slopes (n, N).

        ``moments`` (n, d) are what momentum remembers, (n, 0) without.
        """
        W, G = self._room(*mixture.cores.shape)
        losses, slopes = torch.empty(len(W)), torch.empty_like(mixture.weights)
        own, rates = mixture.own.int().argmax(1), (round_.lr, round_.momentum, round_.weight_decay)
        shared = mixture.copies.dim() == 2
        # Who holds copies of his own is a call for himself.
        calls = [slice(None)] if shared else [slice(k, k + 1) for k in range(len(W))]
        sees = [
            (mixture.weights[some], own[some], mixture.copies if shared else mixture.copies[k], mixture.cores[some])
            for k, some in enumerate(calls)
        ]
        for some, seen in zip(calls, sees, strict=True):
            native.package.mix(*seen, W[some])
        for k, batch in enumerate(batches):
            losses[k] = native.gradient(W[k], G[k], batch)
        for some, seen in zip(calls, sees, strict=True):
            native.package.move(*seen, G[some], moments[some], slopes[some], *rates)
        return losses, slopes

    def _room(self, n: int, d: int) -> Tensor:
        """Memory (2, n, d) for mixtures and gradients."""
        if self._memory.shape[1] < n or self._memory.shape[2] != d:
            self._memory = torch.zeros(2, n, d)
        return self._memory[:, :n]
