"""The budget of APPLE, FedFomo and PGFed: the server keeps a row of each client, and sends M on
request.

A client's request has as many entries as its budget; its own id marks an entry that it does not
need.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.rng import stream
from pomona.core.round import Ids, Roster

MIN_EXPONENT = -700.0  # of an exponent: its power is still a normal number


def limit(budget: int | None, N: int) -> int:
    """Return the rows that a client of N downloads per round: M, at most those of all others."""
    return N - 1 if budget is None else min(budget, N - 1)


def unlimited(budget: int | None, N: int) -> bool:
    """Return whether a client of N downloads the rows of all others, whatever it requests."""
    return limit(budget, N) == N - 1


def initial_requests(budget: int | None, N: int) -> Tensor:
    """Return the requests (N, M) of clients before their first uplink: their own ids."""
    return torch.arange(N).unsqueeze(1).repeat(1, limit(budget, N))


def request(chosen: Iterable[int], client: int, size: int) -> Tensor:
    """Return a client's request (size,): the ids chosen, ascending, then its own."""
    ids = torch.tensor(sorted(chosen), dtype=torch.long)
    return torch.cat([ids, ids.new_full((size - len(ids),), client)])


def served(requested: Tensor, available: Tensor, client: int) -> Tensor:
    """Return the ids (M,) sent to a client: those in ``requested`` (M,) that are available, a mask
    (N,), then its own.
    """
    return request(
        requested[available[requested] & (requested != client)].tolist(), client, len(requested)
    )


def requestable(available: Tensor, ids: Ids) -> Tensor:
    """Return the mask (N,) of requestable rows: those available, and those that the cohort
    uploads.
    """
    return available.index_fill(0, torch.tensor(ids, device=available.device), True)


def other_clients(available: Tensor, client: int) -> NDArray[np.int64]:
    """Return the ids of those available (N,), ascending, without the client's own."""
    return np.setdiff1d(available.cpu().numpy().nonzero()[0], client)


def by_relations(
    p: Tensor,
    fetched: Tensor,
    available: Tensor,
    client: int,
    roster: Roster,
    budget: int | None,
    seed: int,
    number: int,
) -> Tensor:
    """Return a client's request (M,) for round ``number`` (APPLE, A.2), of those available (N,).

    First those never ``fetched`` (N,), at random, then by eq. 9 from relations p (N,). N of eq. 8
    counts members.
    """
    draw, size = stream(seed, "request", number, client), limit(budget, len(roster))
    ids = other_clients(available, client)
    is_fetched, M = fetched.numpy()[ids], min(size, len(ids))
    chosen = draw.permutation(ids[~is_fetched])[:M]
    if remaining := M - len(chosen):
        weight = probabilities(
            p.double().numpy()[ids[is_fetched]], number - 1, M, len(roster.members)
        )
        chosen = np.append(chosen, draw.choice(ids[is_fetched], remaining, replace=False, p=weight))
    return request(chosen.tolist(), client, size)


def probabilities(p: NDArray[np.float64], r: int, M: int, N: int) -> NDArray[np.float64]:
    """Return APPLE's eq. 9: b^|p_ij| normalised over the given j, with b of eq. 8 and the largest
    exponent removed.

    None is 0, however far apart the p_ij are, so that any M can be drawn.
    """
    exponent = np.abs(p) * math.log(max(1.5, r * M / N))
    power = np.exp(np.maximum(exponent - exponent.max(initial=0.0), MIN_EXPONENT))
    return np.asarray(power / power.sum()) if len(power) else power
