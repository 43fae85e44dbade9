"""Grouping of clients: those that train as rows of one call, and their assignment to worker processes."""

from collections.abc import Sequence

from pomona.config import Config
from pomona.storage.mapped_array import machine_memory

Groups = tuple[tuple[int, ...], ...]  # groups of clients that train in one call, each with the longest pass first
LARGEST_CALL = 16
"""Clients in a call made for speed: each then bears a sixteenth of the cost of reading a model."""
ROWS_A_CLIENT = 5
"""Rows per client in such a call: its core, its mixture, the gradient, momentum, and the evaluated model."""


def calls(config: Config, sizes: Sequence[int], workers: int, row: int) -> Groups:
    """Group a simulation's clients into calls, given their numbers of samples and the bytes of a row.

    If all clients read the same models in each step, a worker's clients train in one call, which reads the models once
    for all, if they fit into memory beside all clients' states. Only the native engine computes the same results for a
    client whatever the other clients in its call, and so for any number of workers and any memory.
    """
    alike = config.engine == "native" and config.method.method().client.reads_alike
    rows = min(len(sizes), workers * LARGEST_CALL) * ROWS_A_CLIENT
    fits = rows * row <= (1 - config.state_memory) * machine_memory()
    if alike and fits and config.rows_per_call is None:
        return by_worker(sizes, workers, LARGEST_CALL)
    return grouped(sizes, config.rows)


def by_worker(sizes: Sequence[int], workers: int, most: int) -> Groups:
    """Group clients by at most ``most``, with samples balanced among workers as well as single clients allow."""
    homes = (largest_first(home, sizes) for home in spread(sizes, workers))
    return tuple(home[k : k + most] for home in homes for k in range(0, len(home), most))


def grouped(sizes: Sequence[int], rows: int) -> Groups:
    """Group clients by ``rows`` that train in one call, by their numbers of samples, largest first.

    Depends only on the federation: neither participation nor the number of workers changes the groups.
    """
    order = largest_first(range(len(sizes)), sizes)
    return tuple(order[k : k + rows] for k in range(0, len(order), rows))


def largest_first(ids: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Sort clients by their numbers of samples, largest first; ties by lower id."""
    return tuple(sorted(ids, key=lambda i: (-sizes[i], i)))


def spread(sizes: Sequence[int], workers: int) -> list[tuple[int, ...]]:
    """Assign items to workers: largest first, to the least loaded; no worker stays empty."""
    homes: list[list[int]] = [[] for _ in range(min(workers, len(sizes)))]
    for client in largest_first(range(len(sizes)), sizes):
        min(homes, key=lambda home: (sum(sizes[i] for i in home), len(home))).append(client)
    return [tuple(sorted(home)) for home in homes if home]
