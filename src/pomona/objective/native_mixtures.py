"""Mixtures of rows by the package pomona-native: mixing, gradients, slopes and the own row's step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pomona.core.round import Round
from pomona.objective.mixture import Mixture
from pomona.objective.native_step import NativeStep, Prepared

Seen = tuple[Tensor, Tensor, Tensor, Tensor]  # weights (m, N), own positions (m,), copies (N, d), own rows (m, d)


@dataclass
class NativeMixtures:
    """Passes over all mixed rows, each for all clients of a call.

    A client's results are bit-identical whatever other clients are in the call. A step's mixtures and gradients reuse
    the same memory.
    """

    _memory: Tensor = field(default_factory=lambda: torch.empty(2, 0, 0))

    def step(
        self, native: NativeStep, mixture: Mixture, batches: Sequence[Prepared], moments: Tensor, round_: Round
    ) -> tuple[Tensor, Tensor]:
        """Move the own rows by one step of plain SGD, in place. Returns losses (n,) and the weights' slopes (n, N).

        ``moments`` (n, d) are momentum buffers, (n, 0) without momentum.
        """
        W, G = self._room(*mixture.cores.shape)
        losses, slopes = torch.empty(len(W)), torch.empty_like(mixture.weights)
        rates = round_.lr, round_.momentum, round_.weight_decay
        for some, seen in self._calls(mixture):
            native.package.mix(*seen, W[some])
        for k, batch in enumerate(batches):
            losses[k] = native.gradient(W[k], G[k], batch)
        for some, seen in self._calls(mixture):
            native.package.move(*seen, G[some], moments[some], slopes[some], *rates)
        return losses, slopes

    def rows(self, native: NativeStep, mixture: Mixture) -> Tensor:
        """Return the mixtures (n, d)."""
        W = torch.empty_like(mixture.cores)
        for some, seen in self._calls(mixture):
            native.package.mix(*seen, W[some])
        return W

    def products(self, native: NativeStep, mixture: Mixture, G: Tensor) -> Tensor:
        """Return the products (n, N) of rows G (n, d) with the mixed rows."""
        slopes = torch.empty_like(mixture.weights)
        for some, seen in self._calls(mixture):
            native.package.products(*seen[1:], G[some], slopes[some])
        return slopes

    def _calls(self, mixture: Mixture) -> Iterator[tuple[slice, Seen]]:
        """Yield the calls to make with their clients: one for all, or one for each client with copies of its own."""
        own, shared = mixture.own.int().argmax(1), mixture.copies.dim() == 2
        for some in [slice(None)] if shared else [slice(k, k + 1) for k in range(len(own))]:
            copies = mixture.copies if shared else mixture.copies[some][0]
            yield some, (mixture.weights[some], own[some], copies, mixture.cores[some])

    def _room(self, n: int, d: int) -> Tensor:
        """Return memory (2, n, d) for mixtures and gradients."""
        if self._memory.shape[1] < n or self._memory.shape[2] != d:
            self._memory = torch.zeros(2, n, d)
        return self._memory[:, :n]
