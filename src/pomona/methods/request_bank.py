"""The budget of APPLE, FedFomo and PGFed: the server keeps a row of each client, and sends M on
request.

A client's request has as many places as its budget; its own id marks a place that it does not need.
"""

import math
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LEAST = -700.0  # of an exponent: its power is still a normal number


def limit(budget: int | None, N: int) -> int:
    """Return the rows that a client of N downloads per round: M, at most those of all others."""
    return N - 1 if budget is None else min(budget, N - 1)


def unasked(budget: int | None, N: int) -> Tensor:
    """Return the requests (N, M) of clients before their first uplink: their own ids."""
    return torch.arange(N).unsqueeze(1).repeat(1, limit(budget, N))


def request(chosen: Iterable[int], client: int, places: int) -> Tensor:
    """Return a client's request (places,): the ids chosen, ascending, then its own."""
    ids = torch.tensor(sorted(chosen), dtype=torch.long)
    return torch.cat([ids, ids.new_full((places - len(ids),), client)])


def served(asked: Tensor, there: Tensor, client: int) -> Tensor:
    """Return the ids (M,) sent to a client: those in ``asked`` (M,) that are available, a mask
    (N,), then its own.
    """
    return request(asked[there[asked] & (asked != client)].tolist(), client, len(asked))


def servable(there: Tensor, ids: tuple[int, ...]) -> Tensor:
    """Return the mask (N,) of requestable rows: those available, and those that the cohort
    uploads.
    """
    return there.index_fill(0, torch.tensor(ids, device=there.device), True)


def fresh_first(
    others: NDArray[np.int64],
    p: NDArray[np.float64],
    fetched: NDArray[np.bool_],
    M: int,
    r: int,
    draw: np.random.Generator,
) -> NDArray[np.int64]:
    """Return M of the ids ``others`` after r rounds: those never fetched, at random, then by
    APPLE's eq. 9 from p.
    """
    fresh = draw.permutation(others[~fetched])[:M]
    if len(fresh) == M:
        return fresh
    weight = probabilities(p[fetched], r, M, len(others) + 1)
    return np.concatenate(
        [fresh, draw.choice(others[fetched], M - len(fresh), replace=False, p=weight)]
    )


def probabilities(p: NDArray[np.float64], r: int, M: int, N: int) -> NDArray[np.float64]:
    """Return APPLE's eq. 9: b^|p_ij| normalised over the given j, with b of eq. 8 and the largest
    exponent removed.

    None is 0, however far apart the p_ij are, so that any M can be drawn.
    """
    exponent = np.abs(p) * math.log(max(1.5, r * M / N))
    power = np.exp(np.maximum(exponent - exponent.max(initial=0.0), LEAST))
    return np.asarray(power / power.sum()) if len(power) else power
