"""Supervision: start a program, watch it, restart it after a delay, and leave no process behind.

The loop is the same on both sides. Each side's policy decides when a process counts as lost, how
long to wait, and which status is written: ``server/superlink_supervisor.py`` and
``silo/node_supervisor.py``.
"""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import current_thread, main_thread
from typing import Protocol, TypeVar

import psutil

from pomona.core.errors import StorageError
from pomona.core.files import opened
from pomona.storage.lock import LOCK, Holder, read_holder
from pomona_federation.supervision import fork
from pomona_federation.supervision.process_logs import LogFile, OutputLog

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Restart:
    """Action after a loss: a pause of ``delay`` seconds; before it, unless ``stop`` is False, all
    processes end.
    """

    delay: float
    stop: bool = True


class Policy(Protocol[T_co]):
    """The rules of one side; ``T_co`` is its final result."""

    def watch(self, supervisor: "Supervisor") -> Restart | T_co:
        """Start missing processes, and watch until something is lost, or return the final
        result.
        """

    def stopped(self, fault: BaseException | None, /) -> None:
        """Write the last status after all processes have ended.

        ``fault``: the exception that ended it, if any.
        """


def backoff(failures: int, first: float, longest: float) -> float:
    """Return the seconds before the next start: ``first`` after one failure, doubled by each
    further one, bounded.
    """
    return min(first * 2.0 ** min(max(failures, 1) - 1, 32), longest)


@dataclass
class Supervisor:
    """One program and all its descendants.

    Args:
        command, env: of the program.
        log: file for its output.
        first: part of the command line of descendants that are stopped before all others; empty for
            none.
        program: the same as ``command``, to be forked; None to start the command line.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    log: Path
    first: str = ""
    program: fork.Program | None = None
    process: subprocess.Popen[bytes] | fork.Fork | None = None
    _preexisting: set[psutil.Process] = field(default_factory=set)
    _output: OutputLog | None = None

    def run(self, policy: Policy[T]) -> T:
        """Keep the program running until the policy returns a final result, or an exception ends
        it.
        """
        adopt()
        self._preexisting = set(process_tree(os.getpid()))
        fault: BaseException | None = None
        try:
            while isinstance(step := policy.watch(self), Restart):
                if step.stop:
                    self.stop()
                time.sleep(step.delay)
            return step
        except BaseException as caught:
            fault = caught
            raise
        finally:
            with undisturbed():
                self.stop()
                policy.stopped(fault)
            disown()

    @property
    def alive(self) -> bool:
        """Whether the program itself is running."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> subprocess.Popen[bytes] | fork.Fork:
        """Start the program."""
        self.process = (
            fork.Fork(self.program, self.command, self.env)
            if self.program and fork.safe()
            else start(self.command, dict(self.env))
        )
        assert self.process.stdout
        self._output = OutputLog(self.process.stdout, LogFile(self.log))
        return self.process

    def settle(self) -> None:
        """Wait until the log has the last output of a program that has ended."""
        if self._output:
            self._output.settle()

    def descendants(self) -> dict[psutil.Process, str]:
        """Return the living processes started since ``run`` began, with their command lines."""
        reap({self.process.pid} if self.process else ())
        return {
            p: command
            for p, command in process_tree(os.getpid()).items()
            if p not in self._preexisting
        }

    def stop(self) -> None:
        """End all descendants in order, within 3.5 seconds."""
        end(
            self.descendants,
            [
                p
                for p, command in self.descendants().items()
                if self.first and self.first in command
            ],
        )
        if self.process:
            self.process.wait()
        reap()
        self.settle()
        self.process = None


# Nothing is sent to Flower's makers, nothing is installed while a federation runs, and a request's
# headers cannot replace the address that it comes from.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FORWARDED_ALLOW_IPS": "",
}
FLOWER = ("FLWR_HOME", "NO_PROXY", *QUIET)  # the variables that Flower reads on import
# the server's kit, for the process of its app: a run's settings are open to all members
SERVER_KIT = "POMONA_SERVER_KIT"
PROXIES = {"http_proxy", "https_proxy", "all_proxy"}
LOCAL = ("localhost", "127.0.0.1", "::1")
# psutil and the standard library have no binding of prctl
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def environment(flower_home: Path) -> dict[str, str]:
    """Return a Flower process's variables: Flower's folder and this installation's commands; no
    proxy.
    """
    inherited = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("FLWR_") and k.lower() not in PROXIES | {"no_proxy"}
    }
    scripts = sysconfig.get_path("scripts")
    ours = {
        "FLWR_HOME": str(flower_home),
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
    }
    fixed = {"NO_PROXY": ",".join(LOCAL), "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
    return {**inherited, **QUIET, **ours, **fixed}


def start(command: Sequence[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a child in its own process group; its output and its descendants' can be read from it.

    The folder that this process was started in is not searched for modules.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**env, "PYTHONSAFEPATH": "1"},
        start_new_session=True,
    )


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def adopt() -> None:
    """Become the parent of orphaned descendants (Linux) until ``disown``, so that ``process_tree``
    still finds them.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def disown() -> None:
    """Stop adopting orphans, after collecting those that have ended."""
    reap()
    _prctl(PR_SET_CHILD_SUBREAPER, 0)


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent has ended, for any reason (Linux)."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def process_tree(pid: int) -> dict[psutil.Process, str]:
    """Return a process and all its living descendants, each with its command line; zombies are
    excluded.
    """
    processes: dict[psutil.Process, str] = {}
    with suppress(psutil.Error):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with suppress(psutil.Error):  # it has just ended, or is a zombie
                processes[process] = " ".join(process.cmdline())
    return processes


def end(
    living: Callable[[], Collection[psutil.Process]],
    first: Iterable[psutil.Process] = (),
    patience: float = 2.5,
) -> None:
    """Terminate processes, and kill the rest after ``patience`` seconds; returns at most a second
    later.

    ``psutil.wait_procs`` is not enough: processes that start in the meantime must end too, and the
    exit status of a child is left to its ``Popen``.

    Args:
        living: returns the processes that are still alive.
        first: processes to terminate a second before the others.
        patience: seconds.
    """
    start_time, early = time.monotonic(), set(first)
    terminated: set[psutil.Process] = set()
    while (left := set(living())) and (waited := time.monotonic() - start_time) < patience + 1:
        targets = left & early if waited < 1 and left & early else left
        kill = waited > patience
        for process in targets if kill else targets - terminated:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        terminated |= targets
        time.sleep(0.1)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore SIGTERM and SIGINT while processes are ended, which takes seconds."""
    if current_thread() is not main_thread():
        yield
        return
    previous = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def reap(excluded: Collection[int] = ()) -> None:
    """Collect the exit status of ended adopted children, except those of which a Popen does it
    (``excluded``).
    """
    for child in psutil.Process().children():
        if child.pid not in excluded:
            with suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def holder(folder: Path, patience: float = 1.0) -> Holder | None:
    """Return the holder of a folder's lock, as ``storage.lock`` wrote it; None if it is free.

    Raises StorageError if the lock is held but its file still names no process after ``patience``
    seconds: a process that has just taken the lock is about to write its name.
    """
    path, deadline = folder / LOCK, time.monotonic() + patience
    try:
        with opened(path) as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    with suppress(ValueError):
                        return read_holder(file.fileno())
                else:
                    return None
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
    except OSError:
        return None
    raise StorageError(
        f"{path} is locked, but its content names no process; find the one that has it open "
        f"(`fuser {path}`) and stop that"
    )


def ask_to_stop(folder: Path, patience: float = 15.0) -> bool:
    """Send SIGTERM to the holder of a folder and wait until it has stopped; False if there was
    none, or it still runs.

    Raises StorageError if the lock names no process, or the machine's or container's first one.
    """
    current = holder(folder)
    if (
        not current
        or current.host != os.uname().nodename
        or not _has_open(current.pid, folder / LOCK)
    ):
        return False
    if current.pid == 1:
        raise StorageError(
            f"{folder / LOCK} names process 1, which is not signalled; stop the machine's service "
            "or container"
        )
    with suppress(ProcessLookupError):
        os.kill(current.pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while (process := holder(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not process


def _has_open(pid: int, lock: Path) -> bool:
    """Return whether a process has a file open: a container's process id may be another process
    here.
    """
    try:
        return any(file.path == str(lock.resolve()) for file in psutil.Process(pid).open_files())
    except psutil.Error:
        return False
