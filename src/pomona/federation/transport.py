"""Transports of the round loop: the protocol, and a transport with all clients in this process.

Results do not depend on the transport: a client's work is a pure function of its state, its downlink and its own random
streams, and replies are sorted by id.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from torch import Tensor

from pomona.core.lazy_tensors import Lazy, Named, form, merged
from pomona.core.round import Roster
from pomona.federation.calls import Groups
from pomona.federation.client import ClientRuntime, owner
from pomona.federation.exchange import Arrival, ClientRequest, Reply, received_bytes
from pomona.federation.kept_copies import KeptCopies
from pomona.methods.base import Downlink

SIMULATION = "simulation"
"""Run id of a single process tree, which has one run; a deployment has its own ids."""
T = TypeVar("T")
Make = Callable[[Groups], ClientRuntime]  # groups -> the clients of one process


class Transport(Protocol):
    """Carries downlinks to clients and replies back. ``run``: the id of its run."""

    run: str

    def begin(self, ids: tuple[int, ...], roster: Roster, row: Tensor | None) -> None:
        """Create the initial states of clients that join, from a model (d,) or the run's initial one."""

    def visit(self, visit: ClientRequest, down: Downlink) -> list[Arrival]:
        """Exchange with the clients of a request; returns arrivals in the order of its ids, without absent clients."""

    def commit(self, ids: Sequence[int]) -> None:
        """Tell these clients to commit the last visit; its other clients are unchanged."""

    def save(self, ids: Sequence[int]) -> tuple[Named, Any]:
        """Return a checkpoint's data for these clients: tensors by dotted path, and a note for JSON."""

    def restore(self, ids: Sequence[int], tensors: Named, note: Any, roster: Roster) -> None:
        """Restore clients, the inverse of ``save``. Raises PrivacyError if a ledger does not continue from there."""


class Inline:
    """All clients in this process."""

    run = SIMULATION
    busy_share: float | None = None

    def __init__(self, make: Make, groups: Groups) -> None:
        self._clients = make(groups)

    @property
    def copies(self) -> KeptCopies:
        """Copies of each other's models that the clients keep."""
        return self._clients.copies

    def begin(self, ids: tuple[int, ...], roster: Roster, row: Tensor | None) -> None:
        """Create the initial states of clients that join."""
        self._clients.begin(ids, roster, row)

    def visit(self, visit: ClientRequest, down: Downlink) -> list[Arrival]:
        """Serve the clients one after another."""
        return arrived(self._clients.visit(visit, down), visit, down)

    def commit(self, ids: Sequence[int]) -> None:
        """Commit the last visit for these clients."""
        self._clients.commit(ids)

    def save(self, ids: Sequence[int]) -> tuple[Named, list[Any]]:
        """Return all clients' states and copies, and the positions of their privacy ledgers."""
        return saved(self, ids)

    def restore(self, ids: Sequence[int], tensors: Named, note: list[Any], roster: Roster) -> None:
        """Restore clients from a checkpoint."""
        self.collect(partial(ClientRuntime.agree, positions=dict(zip(ids, note, strict=True))), ids)
        self._clients.restore(ids, tensors, roster)

    def collect(self, what: Callable[[ClientRuntime, int], T], ids: Sequence[int]) -> list[T]:
        """Return the result of a question to each client's runtime, in the order of ids."""
        return [what(self._clients, i) for i in ids]

    def close(self) -> None:
        """Do nothing."""


def arrived(replies: Sequence[Reply], visit: ClientRequest, down: Downlink) -> list[Arrival]:
    """Convert replies from this process tree, which belong to the current round."""
    taken = dict(zip(visit.ids, received_bytes(down, visit.ids), strict=True))
    return [
        Arrival(
            reply,
            SIMULATION,
            visit.round.number,
            visit.roster.sizes[reply.client],
            taken[reply.client],
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
    def copies(self) -> KeptCopies:
        """Copies of each other's models that the clients keep."""

    def collect(self, what: Callable[[ClientRuntime, int], T], ids: Sequence[int]) -> list[T]:
        """Return the result of a question to each client's runtime, in the order of ids."""

    def close(self) -> None:
        """End the processes."""


def saved(transport: LocalTransport, ids: Sequence[int]) -> tuple[Lazy, list[Any]]:
    """Return tensors and note of a checkpoint for clients of this process tree; tensors in files are lazy."""
    known = {path: t for own in transport.collect(ClientRuntime.at_hand, ids) for path, t in own.items()}

    def fetch(path: str) -> Tensor:
        if not known[path].is_meta:
            return known[path]
        return transport.collect(partial(ClientRuntime.tensor, path=path), [owner(path)])[0]

    states = Lazy({path: form(t) for path, t in known.items()}, fetch)
    return merged(states, transport.copies.stored(ids)), transport.collect(ClientRuntime.position, ids)
