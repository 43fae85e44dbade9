"""Models as mixtures of rows, one of which is the client's own: the algebra of APPLE's step."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mixture:
    """Rows w_i = sum_{j != i} p_ij c_j + p_ii c_i of n clients, the own row c_i separate from others' copies.

    Attributes:
        weights: p (n, N).
        own: mask (n, N) of the client's own position, one per row.
        copies: of all rows, (N, d) if all clients have the same, else (n, N, d).
        cores: the clients' own rows (n, d).
    """

    weights: Tensor
    own: Tensor
    copies: Tensor
    cores: Tensor

    @property
    def own_weights(self) -> Tensor:
        """Weights p_ii as a column (n, 1)."""
        return self.weights[self.own].unsqueeze(1)

    def rows(self) -> Tensor:
        """Return the mixtures (n, d)."""
        others = self.weights.masked_fill(self.own, 0)
        same = self.copies.dim() == 2
        mixed = others @ self.copies if same else torch.bmm(others.unsqueeze(1), self.copies).squeeze(1)
        return mixed.addcmul_(self.own_weights, self.cores)

    def products(self, G: Tensor) -> Tensor:
        """Return <g_i, c_j> of rows G (n, d) for all pairs (n, N): others' rows as copied, the own as it is."""
        same = self.copies.dim() == 2
        others = G @ self.copies.T if same else torch.bmm(self.copies, G.unsqueeze(2)).squeeze(2)
        # On a CPU a batched product of single rows takes five times as long.
        own = torch.stack([torch.dot(g, core) for g, core in zip(G, self.cores, strict=True)])
        return others.masked_scatter(self.own, own)
