"""A silo's resident process: ``python -m pomona.deploy.silo.processes.fork_executor ADDRESS``, of the SuperNode.

It imports PyTorch, Flower and Pomona once, and forks a process for every message, which does what ``flwr-clientapp``
would do and ends. It is an executor of Flower's SuperExec; in place of polls it waits for a byte on its standard input,
which the SuperNode writes for each message; the end of that input is the end of the SuperNode, and its own.

A process with threads, or one that has started CUDA, cannot be forked safely. So this one runs nobody's code but
Flower's loop, starts no thread, and ends itself, to be started anew, if it finds one. What a message needs beyond
imports happens in the child, CUDA included.
"""

import gc
import os
import select
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pomona.deploy import flower_internals
from pomona.deploy.supervision.processes import die_with_parent

FALLBACK = 2.0  # seconds after which SuperNode is asked for a task although it has said nothing
TASKS = Path("/proc/self/task")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.01"}  # the least that Flower takes: ``reconcile`` does the waiting
MODULES = (
    "flwr.supercore.superexec.run_superexec",
    "flwr.supernode.runtime.run_clientapp",
    "pomona.deploy.flower_apps",
    "pomona.deploy.silo.tasks.client_app",
)


def command(address: str, *kit: str) -> list[str]:
    """The command line of the resident process of a SuperNode with its runtime at this address.

    It keeps the data of a kit, if one is given.
    """
    return [sys.executable, "-m", "pomona.deploy.silo.processes.fork_executor", address, *kit]


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
        bell: file descriptor that tells of messages.
        read: called between messages; what it has put into memory the children have, too.
    """

    bell: int
    read: Callable[[], None] = lambda: None
    children: set[int] = field(default_factory=set)

    def get_eligible_capacity(self, *_: Any, **__: Any) -> tuple[set[Any], set[str]]:
        """Tasks of a ClientApp, at any time."""
        return flower_internals.client_app_tasks(), set()

    def wait_for_capacity(self, *_: Any, **__: Any) -> None:
        """Return at once: SuperNode handles one message at a time."""

    def reconcile(self) -> None:
        """Wait until there may be a task. Raises SystemExit when the SuperNode has ended, or forking is not safe."""
        self._reap()
        if not self.children:
            self.read()
        if why := obstacle():
            sys.exit(f"error[PROCESS]: {why}, and is started anew")
        if select.select([self.bell], [], [], FALLBACK)[0] and not os.read(self.bell, 4096):
            sys.exit(0)

    def launch(self, spec: Any) -> Any:
        """Do a task in a child."""
        assert not obstacle(), "reconcile has looked"
        parent, pid = os.getpid(), os.fork()
        if not pid:
            _serve(spec, parent, self.bell)
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


def _serve(spec: Any, parent: int, bell: int) -> NoReturn:
    """Do one message in a child of ``parent``, and end."""
    code = 1
    try:
        die_with_parent()
        if os.getppid() != parent:  # it has ended before this one could say that it wants to end with it
            os._exit(1)
        os.close(bell)
        flower_internals.run_client_app(spec)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def preload() -> None:
    """Import what messages need, and keep PyTorch to one thread, as each message does."""
    from importlib import import_module

    for name in MODULES:
        import_module(name)
    import torch

    torch.set_num_threads(1)


def main() -> None:
    """Fork for every message until the SuperNode ends."""
    die_with_parent()
    address, *kit = sys.argv[1:]
    os.umask(0o077)
    preload()
    from pomona.deploy.silo.data import kept_data

    gc.collect()
    gc.freeze()  # what is shared with the children stays shared: no collection writes into it
    keeper = kept_data.DataKeeper(Path(*kit)) if kit else None
    kept_data.use(keeper)

    def read() -> None:
        if keeper and keeper.refresh():
            if obstacle():  # a reader has left a thread: from now on without
                os.execv(sys.executable, command(address))  # noqa: S606 - this very program
            gc.collect()
            gc.freeze()

    flower_internals.run_superexec(address, ForkExecutor(sys.stdin.fileno(), read))


if __name__ == "__main__":
    main()
