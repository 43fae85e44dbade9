"""The server keeps the last row of each client, and each client asks for some of them a round: APPLE and FedFomo.

A client's request has as many places as its budget; its own id stands in a place that it has no use for.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def limit(budget: int | None, N: int) -> int:
    """Rows that a client of N downloads a round: M, at most those of all others."""
    return N - 1 if budget is None else min(budget, N - 1)


def unasked(budget: int | None, N: int) -> Tensor:
    """The requests (N, M) of clients before their first uplink: their own ids."""
    return torch.arange(N).unsqueeze(1).repeat(1, limit(budget, N))


def request(chosen: Iterable[int], client: int, places: int) -> Tensor:
    """The ids (places,) that a client asks for: ascending, then its own."""
    ids = torch.tensor(sorted(chosen), dtype=torch.long)
    return torch.cat([ids, ids.new_full((places - len(ids),), client)])


def stored(held: Tensor, ids: tuple[int, ...], sent: Tensor) -> Tensor:
    """Rows or requests (N, ...) with those that the clients ids sent (n, ...) in their places."""
    return held.index_copy(0, torch.tensor(ids, device=held.device), sent)
