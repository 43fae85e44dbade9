"""Transport that distributes clients over worker processes, with tensors in shared memory."""

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from errno import EMFILE
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, multiprocessing

from pomona.core.errors import ConfigError, WorkerError
from pomona.core.round import Roster
from pomona.core.state import Named, only
from pomona.federation.client import ClientRuntime, owner
from pomona.federation.copies import KeptCopies
from pomona.federation.exchange import Arrival, ClientRequest, Groups
from pomona.federation.transport import SIMULATION, Make, arrived, saved, spread
from pomona.methods.base import Downlink

T = TypeVar("T")


class Workers:
    """Groups of clients distributed over forked processes by number of samples; each process has
    one computing thread.

    Tensors are passed in shared memory. A worker stores its clients' states; clients' copies of
    each other's models are in ``copies``, which the workers' runtimes must not store as well. The
    processes end with ``close``.
    """

    run = SIMULATION

    def __init__(
        self, make: Make, groups: Groups, sizes: Sequence[int], workers: int, copies: KeptCopies
    ) -> None:
        self.copies = copies  # its banks must exist before a worker is forked
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Each tensor of a reply is an open file, in both processes.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        context = multiprocessing.get_context("fork")
        self._home: dict[int, int] = {}
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        # seconds of visits in which all workers were busy, and in which any was
        self._together, self._any = 0.0, 0.0
        for worker, homes in enumerate(
            spread([sum(sizes[i] for i in group) for group in groups], workers)
        ):
            own = tuple(groups[k] for k in homes)
            here, there = context.Pipe()
            self._pipes.append(here)
            process = context.Process(
                target=_serve,
                args=(there, list(self._pipes), make, own),
                daemon=True,
                name=f"pomona-worker-{worker}",
            )
            process.start()
            there.close()
            self._home |= {i: worker for group in own for i in group}
            self._processes.append(process)

    def begin(self, ids: tuple[int, ...], roster: Roster, row: Tensor | None) -> None:
        """Create the initial states of clients that join."""
        self.copies.begin(ids, roster, row)
        homes = sorted({self._home[i] for i in ids})
        for w in homes:
            self._send(
                w, ClientRuntime.begin, tuple(i for i in ids if self._home[i] == w), roster, row
            )
        for w in homes:
            self._receive(w)

    def visit(self, visit: ClientRequest, down: Downlink) -> list[Arrival]:
        """Serve the clients in parallel."""
        received = self.copies.received(visit, down)
        asked = sorted({self._home[i] for i in visit.ids})
        for w in asked:
            part = [k for k, i in enumerate(visit.ids) if self._home[i] == w]
            own = {name: rows.part(part) for name, rows in received.items()}
            cut = replace(visit, ids=tuple(visit.ids[k] for k in part))
            self._send(w, ClientRuntime.visit, cut, own)
        replies = {r.client: r for w in asked for r in self._receive(w)}
        busy = [0.0] * len(self._pipes)
        for reply in replies.values():
            busy[self._home[reply.client]] += reply.seconds
        self._together, self._any = self._together + min(busy), self._any + max(busy)
        return arrived([replies[i] for i in visit.ids], visit, down)

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
        self._all(lambda own: (ClientRuntime.commit, [i for i in ids if i in own]))
        self.copies.commit(ids)

    def save(self, ids: Sequence[int]) -> tuple[Named, list[Any]]:
        """Return all clients' states and copies, and the positions of their privacy ledgers."""
        return saved(self, ids)

    def restore(self, ids: Sequence[int], tensors: Named, note: list[Any], roster: Roster) -> None:
        """Restore clients from a checkpoint."""
        self.collect(partial(ClientRuntime.agree, positions=dict(zip(ids, note, strict=True))), ids)

        def part(own: set[int]) -> tuple[Any, ...]:
            mine = [i for i in ids if i in own]
            return (
                ClientRuntime.restore,
                mine,
                only(tensors, lambda path: owner(path) in mine),
                roster,
            )

        self._all(part)
        self.copies.restore(ids, tensors, roster)

    def collect(self, what: Callable[[ClientRuntime, int], T], ids: Sequence[int]) -> list[T]:
        """Return the result of a question to each client's runtime, in the order of ids."""
        asked = [w for w in range(len(self._pipes)) if any(self._home[i] == w for i in ids)]
        for w in asked:
            self._send(w, _each, what, [i for i in ids if self._home[i] == w])
        answers = {i: answer for w in asked for i, answer in self._receive(w)}
        return [answers[i] for i in ids]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(timeout=1)
            if process.is_alive():
                process.terminate()
                process.join()

    def _all(self, request: Callable[[set[int]], tuple[Any, ...]]) -> None:
        """Send every worker a request, by its client ids."""
        for w in range(len(self._pipes)):
            self._send(w, *request({i for i, home in self._home.items() if home == w}))
        for w in range(len(self._pipes)):
            self._receive(w)

    def _send(self, worker: int, function: Callable[..., Any], *args: Any) -> None:
        try:
            self._pipes[worker].send((function, args))
        except (BrokenPipeError, ConnectionResetError):
            raise self._dead(worker) from None

    def _receive(self, worker: int) -> Any:
        try:
            answer = self._pipes[worker].recv()
        except (
            OSError,
            EOFError,
            RuntimeError,
        ) as fault:  # the last if a file that was sent cannot be opened
            self._processes[worker].join(timeout=1)
            raise (
                _too_many_files() if self._processes[worker].is_alive() else self._dead(worker)
            ) from fault
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _dead(self, worker: int) -> WorkerError:
        ids = sorted(i for i, w in self._home.items() if w == worker)
        some = ", ".join(map(str, ids[:10])) + (
            f" and {len(ids) - 10} more" if len(ids) > 10 else ""
        )
        code = self._processes[worker].exitcode
        return WorkerError(
            f"worker {worker} with clients {some} died (exit {code}); is there enough memory? try "
            "workers=1"
        )


def _too_many_files() -> ConfigError:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ConfigError(
        f"so many clients take more than {most:,} open files in worker processes, which this "
        "system allows; set workers = 1, or raise the limit (ulimit -Hn)"
    )


def _each(
    clients: ClientRuntime, what: Callable[[ClientRuntime, int], T], ids: list[int]
) -> list[tuple[int, T]]:
    return [(i, what(clients, i)) for i in ids]


def _serve(pipe: Any, inherited: list[Any], make: Make, groups: Groups) -> None:
    for end in inherited:
        end.close()  # the parent's ends: an open copy here would hide its death
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # interrupts are handled by the parent
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    clients = make(groups)
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        while request := pipe.recv():
            function, args = request
            try:
                answer = function(clients, *args)
            except Exception as fault:
                answer = fault
            try:
                pipe.send(answer)
            except (OSError, RuntimeError) as fault:  # the second is PyTorch's
                if os.strerror(EMFILE) not in str(fault):
                    raise
                pipe.send(_too_many_files())
            # models, which would otherwise stay in memory until the next request
            del (
                request,
                function,
                args,
                answer,
            )
