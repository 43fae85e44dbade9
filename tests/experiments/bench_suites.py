"""A small suite, misbehaving executors, and the part of a bench that must not depend on
interruptions.
"""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from copy import deepcopy
from itertools import count
from pathlib import Path
from threading import Timer

import tomli_w

from pomona.experiments import run

SUITE = {
    "title": "Two methods on a few digits",
    "seeds": [0, 1],
    "points": 2,
    "search": {"lr": [0.001, 0.3]},
    "base": {
        "data": {"name": "digits", "train_limit": 240, "test_limit": 120},
        "model": {"name": "mlp", "hidden": [8]},
        "partition": {"name": "dirichlet", "beta": 1.0, "min_size": 8},
        "clients": 3,
        "rounds": 3,
        "batch_size": 16,
    },
    "scenario": {"dirichlet": {}},
    "method": {"separate": {}, "apple": {"search": {"method": {"dr_lr": [0.01]}}}},
}
FILES = ("results.json", "table.md", "table.csv")


def changed(**overrides):
    """The suite with other top-level keys; ``base`` is merged."""
    suite = deepcopy(SUITE)
    suite["base"] |= overrides.pop("base", {})
    return suite | overrides


def in_process():
    """An executor in this process."""
    return ThreadPoolExecutor(1)


def outcome(folder):
    """The files that must be identical byte for byte."""
    return {name: (folder / name).read_bytes() for name in FILES}


def run_here(folder):
    """Run a whole bench in this process."""
    run(SUITE, Path(folder), in_process())


def run_until_killed(folder, write, delay):
    """Run a whole bench in this process, which dies ``delay`` seconds after its durable write
    number ``write``.

    Counted in writes, a bench dies equally early on fast and slow machines; the delay lets it die
    between two writes.
    """
    fsync, writes = os.fsync, count(1)

    def counted(file):
        fsync(file)
        if next(writes) == write:
            Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()

    os.fsync = counted
    run_here(folder)


class Never(Executor):
    """An executor that must not be used."""

    def submit(self, fn, /, *args, **kwargs):
        raise AssertionError("a finished cell was submitted again")


class Counting(Executor):
    """Runs jobs at once and records their folders; ``fault(k)`` may raise instead of job k, from
    0.
    """

    def __init__(self, fault=lambda k: None):
        self.folders, self._fault = [], fault

    def submit(self, fn, /, *args, **kwargs):
        self.folders.append(Path(args[1]))
        job = Future()
        try:
            self._fault(len(self.folders) - 1)
            job.set_result(fn(*args, **kwargs))
        except Exception as fault:
            job.set_exception(fault)
        return job


def command(folder, *arguments):
    """The command line of the suite, for a separate process."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    suite = folder.with_suffix(".toml")
    suite.write_text(tomli_w.dumps(SUITE))
    return [sys.executable, "-m", "pomona", "bench", str(suite), "--out", str(folder), *arguments]


def start_process(command):
    """Start a process that leads its own group."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "500"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    )


HANGS = 900  # seconds; longer than any busy machine needs


def exit_of(process, seconds=HANGS):
    """Exit code, standard output, standard error."""
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, stdout, stderr


def wait_for(sign, seconds=HANGS):
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not sign():
        assert time.monotonic() < deadline
        time.sleep(0.01)
