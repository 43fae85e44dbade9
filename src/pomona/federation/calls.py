"""Who trains with whom: clients in the groups that train as rows of one call, and over worker processes."""

from collections.abc import Sequence

from pomona.config import Config
from pomona.storage.mapped_array import machine_memory

Groups = tuple[tuple[int, ...], ...]  # clients by the call they train in, each call's longest pass first
LARGEST_CALL = 16
"""Clients of a call that is made for its speed: what reading a model costs each is a sixteenth then."""
ROWS_A_CLIENT = 5
"""Rows of a client in such a call: its core, its mixture, the gradient, momentum, and the model that is evaluated."""


def calls(config: Config, sizes: Sequence[int], workers: int, row: int) -> Groups:
    """The calls of a simulation's clients, of their numbers of samples and the bytes of a row.

    Where all read the same models in each step, those of a worker train in one call, which reads them once for all of
    it, if they have room beside all clients' states. The native engine alone computes the same of a client whoever is
    in its call, and so for any number of workers and any memory.
    """
    alike = config.engine == "native" and config.method.method().client.reads_alike
    rows = min(len(sizes), workers * LARGEST_CALL) * ROWS_A_CLIENT
    fits = rows * row <= (1 - config.state_memory) * machine_memory()
    if alike and fits and config.rows_per_call is None:
        return by_worker(sizes, workers, LARGEST_CALL)
    return grouped(sizes, config.rows)


def by_worker(sizes: Sequence[int], workers: int, most: int) -> Groups:
    """Clients in groups of at most ``most``, which share the samples as evenly among workers as single clients can."""
    homes = (largest_first(home, sizes) for home in spread(sizes, workers))
    return tuple(home[k : k + most] for home in homes for k in range(0, len(home), most))


def grouped(sizes: Sequence[int], rows: int) -> Groups:
    """Clients in groups of ``rows`` that train in one call, by their numbers of samples, the largest first.

    A function of the federation alone: neither who takes part nor the number of workers changes who shares a call.
    """
    order = largest_first(range(len(sizes)), sizes)
    return tuple(order[k : k + rows] for k in range(0, len(order), rows))


def largest_first(ids: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Clients by their numbers of samples, the largest first; of as many, the lower id."""
    return tuple(sorted(ids, key=lambda i: (-sizes[i], i)))


def spread(sizes: Sequence[int], workers: int) -> list[tuple[int, ...]]:
    """Assignment of pieces to workers: largest first, to the least loaded; no worker stays empty."""
    homes: list[list[int]] = [[] for _ in range(min(workers, len(sizes)))]
    for client in largest_first(range(len(sizes)), sizes):
        min(homes, key=lambda home: (sum(sizes[i] for i in home), len(home))).append(client)
    return [tuple(sorted(home)) for home in homes if home]
