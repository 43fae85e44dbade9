"""Transports of the round loop: the protocol, a transport with all clients in this process, and how
they share calls.

Results do not depend on the transport: a client's work is a pure function of its state, its
downlink and its own random streams, and replies are sorted by id.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from torch import Tensor

from pomona.config import Config
from pomona.core.round import Ids, Roster
from pomona.core.state import Lazy, NamedTensors, merged, meta_tensor
from pomona.federation import client_queries
from pomona.federation.client import ClientRuntime
from pomona.federation.client_store import owner
from pomona.federation.exchange import Arrival, ClientRequest, Groups, Reply, received_bytes
from pomona.federation.stale_models import StaleModels
from pomona.methods.base import Downlink
from pomona.storage.mapped_array import machine_memory

SIMULATION = "simulation"
"""Run id of a single process tree, which has one run; a deployment has its own ids."""
LARGEST_CALL = 16
"""Clients in a call that reads models for all: each bears a sixteenth of the cost of reading."""
LARGEST_ROWS = 2**21
"""Bytes of the models that a call's clients train and receive, if they share it to save its cost:
more would leave the processor's cache between steps.
"""
ROWS_A_CLIENT = 5
"""Rows per client in such a call: its core, its mixture, the gradient, momentum, and the evaluated
model.
"""
T = TypeVar("T")
Make = Callable[[Groups], ClientRuntime]  # groups -> the clients of one process


class Transport(Protocol):
    """Carries downlinks to clients and replies back. ``run``: the id of its run."""

    run: str

    def add_clients(self, ids: Ids, roster: Roster, row: Tensor | None) -> None:
        """Create the initial states of clients that join, from a model (d,) or the run's initial
        one.
        """

    def visit(self, visit: ClientRequest, downlink: Downlink) -> list[Arrival]:
        """Exchange with the clients of a request; returns arrivals in the order of its ids, without
        absent clients.
        """

    def commit(self, ids: Sequence[int]) -> None:
        """Tell these clients to commit the last visit; its other clients are unchanged."""

    def save(self, ids: Sequence[int]) -> tuple[NamedTensors, Any]:
        """Return a checkpoint's data for these clients: tensors by dotted path, and a note for
        JSON.
        """

    def restore(self, ids: Sequence[int], tensors: NamedTensors, note: Any, roster: Roster) -> None:
        """Restore clients, the inverse of ``save``.

        Raises PrivacyError if a ledger does not continue from there.
        """


class Inline:
    """All clients in this process."""

    run = SIMULATION
    busy_share: float | None = None

    def __init__(self, make: Make, groups: Groups) -> None:
        self._clients = make(groups)

    @property
    def copies(self) -> StaleModels:
        """Copies of each other's models that the clients keep."""
        return self._clients.store.copies

    def add_clients(self, ids: Ids, roster: Roster, row: Tensor | None) -> None:
        """Create the initial states of clients that join."""
        self._clients.add_clients(ids, roster, row)

    def visit(self, visit: ClientRequest, downlink: Downlink) -> list[Arrival]:
        """Serve the clients one after another."""
        return as_arrivals(self._clients.visit(visit, downlink), visit, downlink)

    def commit(self, ids: Sequence[int]) -> None:
        """Commit the last visit for these clients."""
        self._clients.commit(ids)

    def save(self, ids: Sequence[int]) -> tuple[NamedTensors, list[Any]]:
        """Return all clients' states and copies, and the positions of their privacy ledgers."""
        return checkpoint_data(self, ids)

    def restore(
        self, ids: Sequence[int], tensors: NamedTensors, note: list[Any], roster: Roster
    ) -> None:
        """Restore clients from a checkpoint."""
        self.collect(
            partial(client_queries.agree, positions=dict(zip(ids, note, strict=True))), ids
        )
        self._clients.restore(ids, tensors, roster)

    def collect(self, query: Callable[[ClientRuntime, int], T], ids: Sequence[int]) -> list[T]:
        """Return the result of a question to each client's runtime, in the order of ids."""
        return [query(self._clients, i) for i in ids]

    def close(self) -> None:
        """Do nothing."""


def as_arrivals(
    replies: Sequence[Reply], visit: ClientRequest, downlink: Downlink
) -> list[Arrival]:
    """Convert replies from this process tree, which belong to the current round."""
    downloaded = dict(zip(visit.ids, received_bytes(downlink, visit.ids), strict=True))
    return [
        Arrival(
            reply,
            SIMULATION,
            visit.round.number,
            visit.roster.sizes[reply.client],
            downloaded[reply.client],
            sum(t.nbytes for t in reply.uplink.values()),
        )
        for reply in replies
    ]


class LocalTransport(Transport, Protocol):
    """A transport within one process tree, which can query any client."""

    @property
    def busy_share(self) -> float | None:
        """The share of the working time in which all processes worked; None for a single one."""

    @property
    def copies(self) -> StaleModels:
        """Copies of each other's models that the clients keep."""

    def collect(self, query: Callable[[ClientRuntime, int], T], ids: Sequence[int]) -> list[T]:
        """Return the result of a question to each client's runtime, in the order of ids."""

    def close(self) -> None:
        """End the processes."""


def checkpoint_data(transport: LocalTransport, ids: Sequence[int]) -> tuple[Lazy, list[Any]]:
    """Return tensors and note of a checkpoint for clients of this process tree; tensors in files
    are lazy.
    """
    tensors = {
        path: t
        for client_tensors in transport.collect(client_queries.at_hand, ids)
        for path, t in client_tensors.items()
    }

    def fetch(path: str) -> Tensor:
        if not tensors[path].is_meta:
            return tensors[path]
        return transport.collect(partial(client_queries.tensor, path=path), [owner(path)])[0]

    states = Lazy({path: meta_tensor(t) for path, t in tensors.items()}, fetch)
    return merged(states, transport.copies.stored(ids)), transport.collect(
        client_queries.position, ids
    )


def call_groups(
    config: Config,
    sizes: Sequence[int],
    workers: int,
    row: int,
    draws: bool = False,
    memory: int | None = None,
) -> Groups:
    """Group a simulation's clients into calls, given their numbers of samples, the bytes of a row,
    whether the network draws random numbers, which the clients of a call draw in turn, and the
    bytes of memory of all workers, None for this machine's.

    A call costs as much as training a tiny model, so a worker's clients with such models share
    calls; and if all clients read the same models in each step, a call reads them once for all, if
    they fit into memory next to all clients' states. Only engines other than PyTorch compute the
    same results for a client whatever the other clients in its call, and so for any number of
    workers and any memory.
    """
    if not config.engine_named or draws or config.privacy or config.rows_per_call is not None:
        return grouped(sizes, config.rows)
    method = config.method.method()
    received = method.card.exchange.down_models or (lambda _: 1)
    models = len(sizes) if method.client.keeps else received(len(sizes))
    largest = max(1, LARGEST_ROWS // max(1, row * models))
    rows = min(len(sizes), workers * LARGEST_CALL) * ROWS_A_CLIENT
    available = machine_memory() if memory is None else memory
    fits = rows * row <= (1 - config.state_memory) * available
    if method.client.reads_alike and fits:
        largest = max(largest, LARGEST_CALL)
    return by_worker(sizes, workers, largest)


def by_worker(sizes: Sequence[int], workers: int, largest: int) -> Groups:
    """Group clients by at most ``largest``, with samples balanced among workers as well as single
    clients allow.
    """
    shares = (largest_first(clients, sizes) for clients in spread(sizes, workers))
    return tuple(
        clients[k : k + largest] for clients in shares for k in range(0, len(clients), largest)
    )


def grouped(sizes: Sequence[int], rows: int) -> Groups:
    """Group clients by ``rows`` that train in one call, by their numbers of samples, largest first.

    Depends only on the federation: neither participation nor the number of workers changes the
    groups.
    """
    order = largest_first(range(len(sizes)), sizes)
    return tuple(order[k : k + rows] for k in range(0, len(order), rows))


def largest_first(ids: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Sort clients by their numbers of samples, largest first; ties by lower id."""
    return tuple(sorted(ids, key=lambda i: (-sizes[i], i)))


def spread(sizes: Sequence[int], workers: int) -> list[tuple[int, ...]]:
    """Assign items to workers: largest first, to the least loaded; no worker stays empty."""
    shares: list[list[int]] = [[] for _ in range(min(workers, len(sizes)))]
    loads = [0] * len(shares)
    for client in largest_first(range(len(sizes)), sizes):
        k = min(range(len(shares)), key=lambda k: (loads[k], len(shares[k])))
        shares[k].append(client)
        loads[k] += sizes[client]
    return [tuple(sorted(share)) for share in shares if share]
