"""Transports of the round loop: the protocol, and the one that has all clients in this process.

Results do not depend on the transport: a client's work is a pure function of its state, its downlink and its own random
streams, and replies are put back in the order of ids.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from torch import Tensor

from pomona.core.lazy_tensors import Lazy, Named, form, merged
from pomona.core.round import Roster
from pomona.federation.calls import Groups
from pomona.federation.client_runtime import ClientRuntime, owner
from pomona.federation.exchange import Arrival, ClientRequest, Reply, received_bytes
from pomona.federation.kept_copies import KeptCopies
from pomona.methods.base import Downlink

SIMULATION = "simulation"
"""The run id of one process tree, which carries one run; a deployment has its own."""
T = TypeVar("T")
Make = Callable[[Groups], ClientRuntime]  # groups -> the clients of one process


class Transport(Protocol):
    """Carries downlinks to clients and replies back. ``run``: the id of the run that it serves."""

    run: str

    def begin(self, ids: tuple[int, ...], roster: Roster, row: Tensor | None) -> None:
        """Make the first states of clients that join, from a model (d,) or the run's initial one."""

    def visit(self, visit: ClientRequest, down: Downlink) -> list[Arrival]:
        """Exchange with the clients of a request; what arrived in the order of its ids, without absent clients."""

    def commit(self, ids: Sequence[int]) -> None:
        """Tell these clients to keep what the last visit made; the others of it stay as they were."""

    def save(self, ids: Sequence[int]) -> tuple[Named, Any]:
        """What a checkpoint must hold of these clients, as they stand: tensors by dotted path, and a note for JSON."""

    def restore(self, ids: Sequence[int], tensors: Named, note: Any, roster: Roster) -> None:
        """The inverse of ``save``. Raises PrivacyError for a client whose ledger does not go on from there."""


class Inline:
    """All clients in this process."""

    run = SIMULATION
    busy_share: float | None = None

    def __init__(self, make: Make, groups: Groups) -> None:
        self._clients = make(groups)

    @property
    def copies(self) -> KeptCopies:
        """What the clients keep of each other's models."""
        return self._clients.copies

    def begin(self, ids: tuple[int, ...], roster: Roster, row: Tensor | None) -> None:
        """Make the first states of clients that join."""
        self._clients.begin(ids, roster, row)

    def visit(self, visit: ClientRequest, down: Downlink) -> list[Arrival]:
        """Serve the clients one after another."""
        return arrived(self._clients.visit(visit, down), visit, down)

    def commit(self, ids: Sequence[int]) -> None:
        """Let these clients keep what the last visit made."""
        self._clients.commit(ids)

    def save(self, ids: Sequence[int]) -> tuple[Named, list[Any]]:
        """All clients' states and copies, and where their privacy ledgers stand."""
        return saved(self, ids)

    def restore(self, ids: Sequence[int], tensors: Named, note: list[Any], roster: Roster) -> None:
        """Give clients the states of a checkpoint."""
        self.collect(partial(ClientRuntime.agree, positions=dict(zip(ids, note, strict=True))), ids)
        self._clients.restore(ids, tensors, roster)

    def collect(self, what: Callable[[ClientRuntime, int], T], ids: Sequence[int]) -> list[T]:
        """What each client's keeper answers to a question, in the order of ids."""
        return [what(self._clients, i) for i in ids]

    def close(self) -> None:
        """Nothing to end."""


def arrived(replies: Sequence[Reply], visit: ClientRequest, down: Downlink) -> list[Arrival]:
    """Replies from this process tree, which belong to the round that is under way."""
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
    """A transport within one process tree, whose clients can be asked anything."""

    @property
    def busy_share(self) -> float | None:
        """Share of the working time in which all its processes worked; None where there is one."""

    @property
    def copies(self) -> KeptCopies:
        """What the clients keep of each other's models."""

    def collect(self, what: Callable[[ClientRuntime, int], T], ids: Sequence[int]) -> list[T]:
        """What each client's keeper answers to a question, in the order of ids."""

    def close(self) -> None:
        """End the processes."""


def saved(transport: LocalTransport, ids: Sequence[int]) -> tuple[Lazy, list[Any]]:
    """Tensors and note of a checkpoint for clients of this process tree; tensors in files are loaded lazily."""
    known = {path: t for own in transport.collect(ClientRuntime.at_hand, ids) for path, t in own.items()}

    def fetch(path: str) -> Tensor:
        if not known[path].is_meta:
            return known[path]
        return transport.collect(partial(ClientRuntime.tensor, path=path), [owner(path)])[0]

    states = Lazy({path: form(t) for path, t in known.items()}, fetch)
    return merged(states, transport.copies.stored(ids)), transport.collect(ClientRuntime.position, ids)
