"""Executors of a bench: processes of this machine, of which a crash loses one job alone; or a Ray
cluster.

``ProcessPoolExecutor`` gives up all its jobs when one process dies. The workers of
``pebble.ProcessPool`` share locks, so that killing a worker that holds one stops the whole pool,
and they survive when their parent is killed (both tested with ``test_bench_processes.py``).
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from queue import SimpleQueue
from tempfile import NamedTemporaryFile
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pomona.core.errors import StorageError, WorkerError
from pomona.core.files import writing
from pomona.core.registry import importable, own_code_folders

if TYPE_CHECKING:
    from pomona.federation.ray_cluster import Jobs

CONTEXT = get_context("forkserver")
P = ParamSpec("P")
T = TypeVar("T")


class WorkerProcess:
    """One worker process, started by the first job, and restarted by the next job after a crash."""

    def __init__(self) -> None:
        self._process: ForkServerProcess | None = None  # one that has been started
        self._pipe: Connection[Any, Any] | None = None
        self._closed = False
        self._lock = Lock()  # guards the process and whether another may be started

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run one job.

        Raises the job's exception, or WorkerError if the process dies or cannot be started.
        """
        process, pipe = self._alive()
        try:
            pipe.send((function, args, kwargs))
            answer, fault = pipe.recv()
        except (EOFError, OSError):
            process.join()
            how = (
                f"signal {-(process.exitcode or 0)}"
                if (process.exitcode or 0) < 0
                else f"exit {process.exitcode}"
            )
            self._process = None
            raise WorkerError(
                f"its process died ({how}); is there enough memory? try --jobs 1"
            ) from None
        if fault is not None:
            raise fault
        return answer

    def kill(self) -> None:
        """Kill the process and start no other."""
        with self._lock:
            self._closed = True
            if self._process:
                self._process.kill()

    def _alive(self) -> tuple[ForkServerProcess, "Connection[Any, Any]"]:
        if not self._process or not self._pipe or not self._process.is_alive():
            self._pipe, child_end = CONTEXT.Pipe()
            process = CONTEXT.Process(
                target=_serve,
                args=(child_end, own_code_folders()),
                daemon=True,
                name="pomona-bench",
            )
            try:
                process.start()
            except (EOFError, OSError) as fault:
                raise WorkerError(
                    f"its process cannot be started ({fault}); start again to continue"
                ) from None
            finally:
                child_end.close()
            with self._lock:
                self._process = process
                if self._closed:  # while it was being started
                    process.kill()
        return self._process, self._pipe


class ProcessPool(Executor):
    """Worker processes behind the standard interface of executors.

    Args:
        count: number of processes; the number of cores available to this process if None.
    """

    def __init__(self, count: int | None = None) -> None:
        count = count or len(os.sched_getaffinity(0))
        _start_server()
        self._workers = [WorkerProcess() for _ in range(count)]
        self._free: SimpleQueue[WorkerProcess] = SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="pomona-worker")

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a job of plain values; its future raises WorkerError if its process dies."""
        return self._threads.submit(self._run, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes: after their jobs if ``wait``, else now."""
        if not wait:
            for worker in self._workers:
                worker.kill()
        self._threads.shutdown(wait=True, cancel_futures=cancel_futures)
        for worker in self._workers:
            worker.kill()

    def _run(self, function: Callable[..., T], args: Any, kwargs: Any) -> T:
        worker = self._free.get()
        try:
            answer: T = worker.run(function, args, kwargs)
            return answer
        finally:
            self._free.put(worker)


def _start_server() -> None:
    """Start the process from which workers are forked, protected from Ctrl-C, which reaches the
    whole process group.

    It has only imported PyTorch: a fork of it is fast and inherits no state. That import takes
    seconds, in which a signal would end it and every start of a worker with it; a blocked signal
    stays blocked in all child processes.
    """
    CONTEXT.set_forkserver_preload(["pomona.experiments.job", "pomona.simulation"])
    # otherwise the server is started implicitly, and unblocks the signal
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _serve(pipe: "Connection[Any, Any]", folders: Sequence[Path]) -> None:
    """Run a worker: jobs from the pipe, with own code of these folders, until it closes or the
    parent has ended.
    """
    for folder in folders:
        importable(folder)
    # for subprocesses of a job; the parent ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_follow_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            function, args, kwargs = pipe.recv()
            try:
                pipe.send((function(*args, **kwargs), None))
            except Exception as fault:
                pipe.send((None, fault))


def _follow_parent() -> None:
    """End with the parent, so that no cell stays locked for the next bench."""
    parent = parent_process()
    if parent:
        parent.join()
        os._exit(1)


@contextmanager
def on_cluster(cluster: str, folder: Path) -> Iterator["Jobs"]:
    """Yield an executor of the Ray cluster at an address (``ray_cluster.connected``), which gives
    each job a core.

    Its nodes need this package, and data sets and the folder ``folder`` at the same paths, on
    shared storage.

    Raises:
        ConfigError: the extra is not installed, the address does not respond, or a node has other
            versions.
        StorageError: a node cannot access ``folder``.
    """
    from pomona.federation import ray_cluster  # late: it imports PyTorch
    from pomona.lifecycle import shared_versions

    with ray_cluster.connected(cluster, len(os.sched_getaffinity(0))):
        for node, versions in ray_cluster.on_each_node(shared_versions):
            ray_cluster.require_same(node, versions, shared_versions())
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=folder) as token:
                blind = [
                    node
                    for node, visible in ray_cluster.on_each_node(_sees, token.name)
                    if not visible
                ]
        if blind:
            raise StorageError(
                f"{', '.join(blind)}: does not see {folder.absolute()}; give an --out that "
                "all share"
            )
        yield ray_cluster.Jobs()


def _sees(path: str) -> bool:
    return Path(path).exists()
