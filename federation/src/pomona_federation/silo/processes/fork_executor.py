"""A silo's resident process: ``python -m pomona_federation.silo.processes.fork_executor PORT KIT APP``.

PORT is that of the SuperNode's runtime on loopback, KIT the silo's, APP the SHA-256 of the pinned app. The process
imports PyTorch, Flower and Pomona once, and forks a process for every message, which does the work of
``flwr-clientapp`` and ends. It is an executor of Flower's SuperExec; instead of polling it waits for a byte on its
standard input, which the SuperNode writes for each message. When the SuperNode ends, that input closes and this process
ends too.

A process with threads, or with CUDA started, cannot be forked safely. So this one runs only Flower's loop, starts no
thread, and ends itself, to be restarted, if it finds one. Everything beyond imports that a message needs happens in the
child, including CUDA.
"""

import gc
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psutil

from pomona.core.files import content
from pomona_federation import flower_internals
from pomona_federation.silo.http_client import PLAIN
from pomona_federation.silo.processes.pinned_app import require_pinned
from pomona_federation.silo.processes.runtime_secret import secret_file
from pomona_federation.silo.settings import use_kit
from pomona_federation.supervision.processes import die_with_parent

HOST = "127.0.0.1"
FORGETFUL = "--keep-no-data"
FALLBACK = 2.0  # seconds after which SuperNode is asked for a task without a signal
TASKS = Path("/proc/self/task")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.01"}  # Flower's minimum: ``reconcile`` does the waiting
MODULES = (
    "flwr.supercore.superexec.run_superexec",
    "flwr.supernode.runtime.run_clientapp",
    "pomona_federation.flower_apps",
    "pomona_federation.silo.tasks.client_app",
)


def command(port: int, kit: Path, app: str, *words: str) -> list[str]:
    """The command line of a SuperNode's resident process, given its runtime's port; it keeps the kit's data."""
    return [sys.executable, "-m", "pomona_federation.silo.processes.fork_executor", str(port), str(kit), app, *words]


def obstacle() -> str:
    """Why this process cannot be forked safely; empty if it can."""
    threads = len(list(TASKS.iterdir())) if TASKS.is_dir() else threading.active_count()
    if threads > 1:
        return f"the resident process has {threads} threads"
    torch = sys.modules.get("torch")
    return "the resident process has started CUDA" if torch and torch.cuda.is_initialized() else ""


@dataclass
class ForkExecutor:
    """Flower's executor that forks.

    Args:
        bell: file descriptor that signals messages.
        require: raises for a run and its app that must not be executed.
        read: called between messages; children inherit what it loads into memory.
    """

    bell: int
    require: Callable[[Any, Any], None]
    read: Callable[[], None] = lambda: None
    children: set[int] = field(default_factory=set)

    def get_eligible_capacity(self, *_: Any, **__: Any) -> tuple[set[Any], set[str]]:
        """Tasks of a ClientApp, at any time."""
        return flower_internals.client_app_tasks(), set()

    def wait_for_capacity(self, *_: Any, **__: Any) -> None:
        """Return at once: SuperNode handles one message at a time."""

    def reconcile(self) -> None:
        """Wait until there may be a task. Raises SystemExit if the SuperNode has ended, or forking is not safe."""
        self._reap()
        if not self.children:
            self.read()
        if why := obstacle():
            sys.exit(f"error[PROCESS]: {why}, and is started anew")
        if select.select([self.bell], [], [], FALLBACK)[0] and not os.read(self.bell, 4096):
            sys.exit(0)

    def launch(self, spec: Any) -> Any:
        """Do a task in a child process."""
        assert not obstacle(), "reconcile has looked"
        parent, pid = os.getpid(), os.fork()
        if not pid:
            _serve(spec, self.require, parent, self.bell)
        self.children.add(pid)
        return flower_internals.accepted()

    def close(self) -> None:
        """Return at once: the kernel ends the children with this process."""

    def _reap(self) -> None:
        """Collect the exit status of children that have ended."""
        for pid in tuple(self.children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.children.discard(pid)
                if os.WIFSIGNALED(status):
                    print(f"process {pid} of a message was ended by signal {os.WTERMSIG(status)}", flush=True)  # noqa: T201 - the log


def _serve(spec: Any, require: Callable[[Any, Any], None], parent: int, bell: int) -> NoReturn:
    """Handle one message in a child of ``parent``, and exit."""
    code = 1
    try:
        die_with_parent()
        if os.getppid() != parent:  # the parent ended before this child could ask to be ended with it
            os._exit(1)
        os.close(bell)
        flower_internals.run_client_app(spec, require)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def await_runtime(port: int, pid: int) -> None:
    """Wait until this process listens on a port of loopback.

    If another account of the machine had taken the port first, its messages would be handled in place of the server's.
    """
    while not listens(port, pid):
        time.sleep(0.1)


def listens(port: int, pid: int) -> bool:
    """Whether it is this process that listens on a port."""
    try:
        sockets = psutil.Process(pid).net_connections("tcp4")
    except psutil.Error:
        return False
    return any(s.status == psutil.CONN_LISTEN and (s.laddr.ip, s.laddr.port) == (HOST, port) for s in sockets)


def preload() -> None:
    """Import the modules that messages need, and limit PyTorch to one thread, as each message does."""
    from importlib import import_module

    for name in MODULES:
        import_module(name)
    import torch

    torch.set_num_threads(1)


def main() -> None:
    """Fork for every message until the SuperNode ends."""
    die_with_parent()
    port, kit, app = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    os.umask(0o077)
    preload()
    from pomona_federation.silo.data import kept_data

    gc.collect()
    gc.freeze()  # keep memory shared with the children: garbage collection would write into it
    keeper = None if FORGETFUL in sys.argv[4:] else kept_data.DataKeeper(kit)
    kept_data.use(keeper)
    use_kit(kit)

    def read() -> None:
        if keeper and keeper.refresh():
            if obstacle():  # a reader has left a thread: continue without it
                os.execv(sys.executable, command(port, kit, app, FORGETFUL))  # noqa: S606 - this very program
            gc.collect()
            gc.freeze()

    await_runtime(port, os.getppid())
    executor = ForkExecutor(sys.stdin.fileno(), partial(require_pinned, app), read)
    flower_internals.replace_hooks(PLAIN)
    flower_internals.run_superexec(f"{HOST}:{port}", executor, content(secret_file(kit)))


if __name__ == "__main__":
    main()
