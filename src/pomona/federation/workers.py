"""Transport that distributes clients over workers, each of which serves some of them: processes of
this machine (``worker_process``), or actors of a cluster (``ray_cluster``).
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from traceback import format_exc
from typing import Any, Protocol, TypeVar

from torch import Tensor

from pomona.core.errors import PomonaError, WorkerError, listed, worded
from pomona.core.round import Ids, Roster
from pomona.core.state import NamedTensors, only
from pomona.federation import client_queries
from pomona.federation.client import ClientRuntime
from pomona.federation.client_store import owner
from pomona.federation.exchange import Arrival, ClientRequest, Groups
from pomona.federation.stale_models import StaleModels
from pomona.federation.transport import SIMULATION, as_arrivals, checkpoint_data, spread
from pomona.methods.base import Copies, Downlink, Rows

T = TypeVar("T")
DownlinkPart = Mapping[str, Rows | Copies]


class Worker(Protocol):
    """A process that serves some clients; its answers come in the order of the requests."""

    def send(self, function: Callable[..., Any], *args: Any) -> None:
        """Request ``function(clients, *args)`` of its ``ClientRuntime``."""

    def receive(self) -> Any:
        """Return the next answer, which may be an exception of the function.

        Raises WorkerError, with a phrase on the cause, if the process is gone.
        """

    def close(self) -> None:
        """End the process."""


class Crew(Protocol):
    """Starts workers, and carries models to them."""

    def start(self, groups: Groups) -> Worker:
        """Start a worker for groups of clients."""

    def deal(self, received: DownlinkPart) -> Callable[[Sequence[int]], DownlinkPart]:
        """Return what a worker is sent of a downlink, by the places of its clients."""


def result_or_exception(function: Callable[..., Any], *args: Any) -> Any:
    """Return a function's result, or its exception as another process can read it: with the
    traceback, unless it is Pomona's own, which says everything in its text.
    """
    try:
        return function(*args)
    except PomonaError as fault:
        return fault
    except Exception as fault:
        try:
            copied = copy(fault)  # made anew, as from its pickle
            pickle.dumps(copied)
        except Exception:
            copied = RuntimeError(worded(fault))
        copied.add_note(format_exc())
        return copied


class Workers:
    """Groups of clients distributed over the workers of a crew by number of samples.

    A worker stores its clients' states; clients' copies of each other's models are in ``copies``,
    which the workers' runtimes must not store as well. The workers end with ``close``.
    """

    run = SIMULATION

    def __init__(
        self, crew: Crew, groups: Groups, sizes: Sequence[int], workers: int, copies: StaleModels
    ) -> None:
        self.copies = copies  # its banks must exist before a worker is forked
        self._crew = crew
        self._worker_of: dict[int, int] = {}
        self._workers: list[Worker] = []
        # seconds of visits in which all workers were busy, and in which any was
        self._together, self._any = 0.0, 0.0
        for worker, indices in enumerate(
            spread([sum(sizes[i] for i in group) for group in groups], workers)
        ):
            worker_groups = tuple(groups[k] for k in indices)
            self._workers.append(crew.start(worker_groups))
            self._worker_of |= {i: worker for group in worker_groups for i in group}

    def add_clients(self, ids: Ids, roster: Roster, row: Tensor | None) -> None:
        """Create the initial states of clients that join."""
        self.copies.add_clients(ids, roster, row)
        workers = sorted({self._worker_of[i] for i in ids})
        for w in workers:
            self._send(
                w,
                ClientRuntime.add_clients,
                tuple(i for i in ids if self._worker_of[i] == w),
                roster,
                row,
            )
        for w in workers:
            self._receive(w)

    def visit(self, visit: ClientRequest, downlink: Downlink) -> list[Arrival]:
        """Serve the clients in parallel."""
        deal = self._crew.deal(self.copies.received(visit, downlink))
        workers = sorted({self._worker_of[i] for i in visit.ids})
        for w in workers:
            positions = [k for k, i in enumerate(visit.ids) if self._worker_of[i] == w]
            request = replace(visit, ids=tuple(visit.ids[k] for k in positions))
            self._send(w, ClientRuntime.visit, request, deal(positions))
        replies = {r.client: r for w in workers for r in self._receive(w)}
        busy = [0.0] * len(self._workers)
        for reply in replies.values():
            busy[self._worker_of[reply.client]] += reply.seconds
        self._together, self._any = self._together + min(busy), self._any + max(busy)
        return as_arrivals([replies[i] for i in visit.ids], visit, downlink)

    @property
    def busy_share(self) -> float | None:
        """The share of the time with any worker busy so far in which all were; None before any
        work.

        All begin together, so it is the time of the first to finish over that of the last, summed
        over visits.
        """
        return self._together / self._any if self._any else None

    def commit(self, ids: Sequence[int]) -> None:
        """Commit the last visit for these clients."""
        self._broadcast(lambda clients: (ClientRuntime.commit, [i for i in ids if i in clients]))
        self.copies.commit(ids)

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

        def request(clients: set[int]) -> tuple[Any, ...]:
            mine = [i for i in ids if i in clients]
            return (
                ClientRuntime.restore,
                mine,
                only(tensors, lambda path: owner(path) in mine),
                roster,
            )

        self._broadcast(request)
        self.copies.restore(ids, tensors, roster)

    def collect(self, query: Callable[[ClientRuntime, int], T], ids: Sequence[int]) -> list[T]:
        """Return the result of a question to each client's runtime, in the order of ids."""
        workers = [
            w for w in range(len(self._workers)) if any(self._worker_of[i] == w for i in ids)
        ]
        for w in workers:
            self._send(w, _query_clients, query, [i for i in ids if self._worker_of[i] == w])
        answers = {i: answer for w in workers for i, answer in self._receive(w)}
        return [answers[i] for i in ids]

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()

    def _broadcast(self, request: Callable[[set[int]], tuple[Any, ...]]) -> None:
        """Send every worker a request, by its client ids."""
        for w in range(len(self._workers)):
            self._send(w, *request({i for i, worker in self._worker_of.items() if worker == w}))
        for w in range(len(self._workers)):
            self._receive(w)

    def _send(self, worker: int, function: Callable[..., Any], *args: Any) -> None:
        with self._naming_clients(worker):
            self._workers[worker].send(function, *args)

    def _receive(self, worker: int) -> Any:
        with self._naming_clients(worker):
            answer = self._workers[worker].receive()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @contextmanager
    def _naming_clients(self, worker: int) -> Iterator[None]:
        """Name a lost worker's clients in its error."""
        try:
            yield
        except WorkerError as fault:
            ids = sorted(i for i, w in self._worker_of.items() if w == worker)
            clients = listed([*map(str, ids)], 10)
            raise WorkerError(f"worker {worker} with clients {clients} {fault}") from fault


def _query_clients(
    clients: ClientRuntime, query: Callable[[ClientRuntime, int], T], ids: list[int]
) -> list[tuple[int, T]]:
    return [(i, query(clients, i)) for i in ids]
