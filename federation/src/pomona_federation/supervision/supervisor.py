"""Supervision: start a program, watch it, restart it after a delay, and leave no process behind.

The loop is the same on both sides. Each side's policy decides when a process counts as lost, how
long to wait, and which status is written: ``server/superlink_supervisor.py`` and
``silo/node_supervisor.py``.
"""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import psutil

from pomona_federation.supervision.process_logs import LogFile, OutputLog
from pomona_federation.supervision.processes import (
    adopt,
    disown,
    end,
    process_tree,
    reap,
    start,
    undisturbed,
)

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
    """

    command: Sequence[str]
    env: Mapping[str, str]
    log: Path
    first: str = ""
    process: subprocess.Popen[bytes] | None = None
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

    def start(self) -> subprocess.Popen[bytes]:
        """Start the program."""
        self.process = start(self.command, dict(self.env))
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
