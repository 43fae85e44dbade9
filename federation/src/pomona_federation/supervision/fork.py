"""A program as a fork of its supervisor, so that the two share the memory of what both import."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple


class Program(NamedTuple):
    """A program that a supervisor may fork.

    Attributes:
        main: runs it; its arguments are in ``sys.argv``.
        modules: what it imports, and its supervisor before a fork.
    """

    main: Callable[[], None]
    modules: Sequence[str]


class Fork:
    """A forked process, with what its supervisor uses of ``subprocess.Popen``."""

    def __init__(self, program: Program, command: Sequence[str], env: Mapping[str, str]) -> None:
        ours, theirs = os.pipe()
        self.stdout = os.fdopen(ours, "rb")
        self._process = get_context("fork").Process(
            target=_run, args=(program.main, command, env, theirs)
        )
        for name in program.modules:
            import_module(name)
        gc.collect()
        gc.freeze()  # garbage collection would write into memory that is shared
        self._process.start()
        os.close(theirs)
        assert self._process.pid
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None before the end is known."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self.returncode

    def wait(self) -> int | None:
        """Wait for its end; the exit code."""
        self._process.join()
        return self.returncode


def safe() -> bool:
    """Whether this process can be forked: another thread may hold a lock, which then stays held."""
    return sys.platform == "linux" and threading.active_count() == 1


def _run(
    main: Callable[[], None], command: Sequence[str], env: Mapping[str, str], output: int
) -> None:
    """Run a program in this process as if it had been started by its command line."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    null_file = os.open(os.devnull, os.O_RDWR)
    files = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    for inherited in files - {null_file, output}:
        os.dup2(output if inherited in {1, 2} else null_file, inherited, inherited < 3)
    os.environ.clear()
    os.environ.update(env)
    sys.argv, sys.path = list(command[2:]), sys.path[not sys.flags.safe_path :]
    with suppress(OSError):  # its name in lists of processes; its command line is the parent's
        name = command[2].removeprefix("pomona_federation.")
        Path("/proc/self/comm").write_text(name, encoding="utf-8")
    main()
