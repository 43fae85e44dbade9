"""The faults that need a separate process: kills, signals, locks, standard streams; see
``rows``.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runs import BASE, PRIVATE, Spawner, outcome

from pomona.storage import checkpoint
from pomona.storage.run_status import read_status


def wait(run):
    """Let it end by itself."""


@dataclass(frozen=True)
class Process:
    """A fault.

    Attributes:
        id: its number in the table of scenarios, and what is done.
        code: the process's exit code, or minus the signal that killed it.
        phrases: required in the output.
        fault: from ``faults``, by name and arguments.
        act: action while it runs.
        check: what must hold afterwards.
        arguments: the run's method and settings.
    """

    id: str
    code: int
    phrases: tuple[str, ...]
    fault: tuple[object, ...]
    act: Callable[["Run"], None]
    check: Callable[["Run", "Process"], None]
    arguments: tuple[str, ...]


@dataclass
class Run:
    """A training process, its output, and the outcome of an undisturbed run with the same
    settings.
    """

    spawner: Spawner
    folder: Path
    arguments: tuple[str, ...]
    undisturbed: Callable[[tuple[str, ...]], object]
    process: int = 0

    @property
    def out(self):
        return self.folder / "run"

    @property
    def log(self):
        return self.folder / "log"

    def command(self):
        """The command line that starts it, and resumes it."""
        return [
            "run",
            *self.arguments[:1],
            *BASE,
            *self.arguments[1:],
            "--no-report",
            "--resume",
            "--out",
            str(self.out),
        ]

    def start(self, fault=()):
        self.process = self.spawner.start(self.command(), self.log, fault)

    def wait_for_round(self, round_):
        """Wait until a round is committed."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(Exception):
                if read_status(self.out).round >= round_:
                    return
            time.sleep(0.01)
        raise AssertionError(self.log.read_text())


# What is done while it runs.


def send(number, seconds=30.0):
    """Send a signal during a round, which ends the process soon."""

    def act(run):
        run.wait_for_round(2)
        time.sleep(0.1)  # some steps of the next round
        start_time = time.monotonic()
        os.kill(run.process, number)
        run.ended = run.spawner.wait(run.process, seconds)
        assert run.ended is not None
        assert time.monotonic() - start_time < seconds

    return act


def interrupt_twice(run):
    """Send two interrupts in quick succession."""
    run.wait_for_round(2)
    os.kill(run.process, signal.SIGINT)
    time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.kill(run.process, signal.SIGINT)


def in_the_same_folder(run):
    """A second process in the same folder must refuse and name the first."""
    run.wait_for_round(1)
    os.kill(run.process, signal.SIGSTOP)  # it must not end while the second waits for the lock
    try:
        code, output = run.spawner.run(run.command(), run.folder / "second.log")
    finally:
        os.kill(run.process, signal.SIGCONT)
    assert code == 5, output
    assert f"error[LOCKED]: {run.out} is in use by process {run.process}" in output


def orphaned(run):
    """The first process is killed; its lock must not outlive it."""
    run.wait_for_round(1)
    os.kill(run.process, signal.SIGKILL)


# What must still hold.


def resumes(run, row):
    """Resumed, it ends with the result of an undisturbed run."""
    newest, corrupt = checkpoint.newest(run.out / "checkpoints")
    assert corrupt == {}
    status, committed = read_status(run.out), newest.number if newest else 0
    assert status.code == (None if row.code < 0 else row.code)
    assert committed - 1 <= status.round <= committed
    code, output = run.spawner.run(run.command(), run.log)
    assert code == 0, output
    as_undisturbed(run, row)


def as_undisturbed(run, row):
    """Same result as an undisturbed run."""
    assert outcome(run.out) == run.undisturbed(row.arguments)
    assert read_status(run.out).state == "finished"
    assert not list(run.out.rglob(".unfinished"))


def is_charged(run, row):
    """The ledger has the release; resumed, it ends with the result of an undisturbed run, at the
    same cost.
    """
    ledgers = sorted(run.out.glob("private/dp/*/ledger.jsonl"))
    entries = [path.read_text().splitlines() for path in ledgers]
    assert sum(len(lines) - 1 for lines in entries) == row.fault[1]
    code, output = run.spawner.run(run.command(), run.log)
    assert code == 0, output
    as_undisturbed(run, row)
    for path, lines in zip(ledgers, entries, strict=True):
        resumed = path.read_text().splitlines()
        assert resumed[: len(lines)] == lines
        assert len(set(resumed)) == len(resumed)


APPLE = ("apple", "rounds=4", "workers=1", "engine=torch")  # whose steps can be slowed down
WORKERS = ("apple", "rounds=4", "workers=2", "engine=torch")
HIDDEN = (*APPLE, PRIVATE)


def process(id_, code, phrases=(), fault=(), act=wait, check=resumes, arguments=APPLE):
    """A fault in a separate process."""
    return Process(id_, code, phrases, fault, act, check, arguments)


SLOW = ("slow_steps",)
STEPS = ("open", "fsync", "replace", "fsync folder", "unlink")
KILLED = -signal.SIGKILL

PROCESSES = [
    process("F1 a worker process is killed in a round", 0, ("died", ("retrying from the last "
                                                                    "committed round")), ("worker_killed", 1), check=as_undisturbed, arguments=WORKERS),
    process("F4 SIGKILL between two rounds", KILLED, fault=("killed_after_commit", 2)),
    process("F5 SIGKILL in the save of a round: half written", KILLED, fault=("killed_in_save", "write", False, 3)),
    *(process(f"F5 SIGKILL in the save of a round: {moment} {step}", KILLED, fault=("killed_in_save", step, moment == "after", 3)) for step in STEPS for moment in ("before", "after")),
    process("F7 no file may grow beyond 8 kB", 6, ("File too large", "then resume"), ("no_room", 8192)),
    process("F41 Ctrl-C in a round", 130, ("error[INTERRUPTED]", "--resume"), SLOW, send(signal.SIGINT)),
    process("F41 Ctrl-C in a round of worker processes", 130, ("error[INTERRUPTED]", "--resume"), SLOW, send(signal.SIGINT), arguments=WORKERS),
    process("F42 Ctrl-C twice", 130, ("error[INTERRUPTED]",), SLOW, interrupt_twice),
    process("F42 SIGTERM in a round", 143, (), SLOW, send(signal.SIGTERM)),
    process("F43 a second process in the same folder", 0, (), SLOW, in_the_same_folder, as_undisturbed),
    process("F43 SIGKILL of the process that holds the folder", KILLED, (), SLOW, orphaned),
    process("F46 a worker process is killed in a round, and again", 1, ("error[ERROR]", "enough memory"), ("worker_killed", 2), arguments=WORKERS),
    process("F47 SIGKILL between ledger and use of a release", KILLED, fault=("killed_after_entries", 20), check=is_charged, arguments=HIDDEN),
    process("F50 the reader of standard error is gone", 0, fault=("no_reader", 2), check=as_undisturbed),
    process("F50 the reader of standard output is gone", 0, fault=("no_reader", 1), check=as_undisturbed),
    process("F50 standard error goes to a full disk", 0, fault=("full_disk", 2), check=as_undisturbed),
]  # fmt: skip
