"""Workers that are forked processes of this machine, with tensors in shared memory."""

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Sequence
from errno import EMFILE
from typing import Any

import torch
from torch import multiprocessing

from pomona.core.errors import ConfigError, WorkerError
from pomona.federation.exchange import Groups
from pomona.federation.transport import Make
from pomona.federation.workers import DownlinkPart, result_or_exception


class Processes:
    """Starts processes with one computing thread each, forked from this one."""

    def __init__(self, make: Make) -> None:
        self._make, self._pipes = make, list[Any]()
        _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Each tensor of a reply is an open file, in both processes.
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    def start(self, groups: Groups) -> "WorkerProcess":
        """Fork a process for groups of clients."""
        return WorkerProcess(self._make, groups, self._pipes)

    def deal(self, received: DownlinkPart) -> Callable[[Sequence[int]], DownlinkPart]:
        """Return what a worker is sent of a downlink; its banks are in shared memory."""
        return lambda positions: {name: rows.select(positions) for name, rows in received.items()}


class WorkerProcess:
    """A forked process; ``pipes`` are this process's ends of those before it, and of its own."""

    def __init__(self, make: Make, groups: Groups, pipes: list[Any]) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, child_pipe = context.Pipe()
        pipes.append(self._pipe)
        self._process = context.Process(
            target=_serve,
            args=(child_pipe, list(pipes), make, groups),
            daemon=True,
            name=f"pomona-worker-{len(pipes) - 1}",
        )
        self._process.start()
        child_pipe.close()

    @property
    def pid(self) -> int | None:
        """The process's id."""
        pid: int | None = self._process.pid
        return pid

    def send(self, function: Callable[..., Any], *args: Any) -> None:
        """Send a request."""
        try:
            self._pipe.send((function, args))
        except (BrokenPipeError, ConnectionResetError):
            raise self._dead() from None

    def receive(self) -> Any:
        """Return the next answer."""
        try:
            return self._pipe.recv()
        # the last if a file that was sent cannot be opened
        except (OSError, EOFError, RuntimeError) as fault:
            self._process.join(timeout=1)
            raise (_too_many_files() if self._process.is_alive() else self._dead()) from fault

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join(timeout=1)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()

    def _dead(self) -> WorkerError:
        return WorkerError(
            f"died (exit {self._process.exitcode}); is there enough memory? try workers=1"
        )


def _too_many_files() -> ConfigError:
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ConfigError(
        "worker processes for so many clients need more open files than this system allows "
        f"({limit:,}); set workers = 1, or raise the limit (ulimit -Hn)"
    )


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
            answer = result_or_exception(function, clients, *args)
            try:
                pipe.send(answer)
            except (OSError, RuntimeError) as fault:  # the second is PyTorch's
                if os.strerror(EMFILE) not in str(fault):
                    raise
                pipe.send(_too_many_files())
            # models, which would otherwise stay in memory until the next request
            del (request, function, args, answer)
