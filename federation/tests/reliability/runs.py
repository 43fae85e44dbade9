"""Small runs as processes, and the part of their outcome that must not depend on interruptions."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from problems import digest_of_models

ROUNDS = 8
BASE = (
    "data=digits",
    "data.train_limit=240",
    "data.test_limit=120",
    "partition={name='dirichlet', beta=1.0, min_size=8}",
    "model={name='mlp', hidden=[8]}",
    "clients=4",
    f"rounds={ROUNDS}",
    "batch_size=16",
    "lr=0.1",
)
PRIVATE = (
    "privacy={noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-3, seed=1,"
    " acknowledge=['metrics', 'sample-counts', 'training-loss', 'unlimited-epsilon']}"
)
CHANGING = "membership={joins={3=3}, leaves={0=5}, unseen=[1], adapt_rounds=2}"
CASES = {
    "apple": ("apple", "workers=1"),
    "apple with a budget": ("apple", "method.budget=2", "workers=2"),
    "fedamp": ("fedamp", "workers=1", "participation=0.5"),
    "fedfomo": ("fedfomo", "workers=2"),
    "scaffold": ("scaffold", "workers=1"),
    "fedala": ("fedala", "workers=2"),
    "ditto": ("ditto", "workers=1"),
    "cfl": ("cfl", "workers=2"),
    "apple, private": ("apple", "workers=2", PRIVATE),
    "apple, comers and goers": ("apple", "clients=5", "partition=iid", "workers=2", CHANGING),
}


def command_line(case, folder):
    """The command line of a case, which resumes an existing run."""
    method, *settings = case
    return ["run", method, *BASE, *settings, "--no-report", "--resume", "--out", str(folder)]


def outcome(folder):
    """The content of a finished run without times: a hash of its tensors, and its events but notes,
    which say what disturbed it.
    """
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return digest_of_models(folder), [timeless(e) for e in events if e["event"] != "note"]


def timeless(value):
    """A tree without clock times."""
    if isinstance(value, dict):
        return {
            k: timeless(v) for k, v in value.items() if k not in ("time", "seconds", "busy_share")
        }
    return value


class Spawner:
    """Processes that run ``pomona``, forked from one that has PyTorch loaded."""

    def __enter__(self):
        folder = Path(__file__)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "500"}
        self._server = subprocess.Popen(
            [sys.executable, str(folder.with_name("spawner.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        return self

    def __exit__(self, *_):
        self._server.communicate(timeout=60)

    def start(self, arguments, log, fault=()):
        """Start a process that leads its own group; return its id."""
        return self._request({"arguments": arguments, "log": str(log), "fault": fault})

    def wait(self, process, seconds=120.0):
        """Exit code, minus the signal for a killed process; None if it has not ended in time."""
        return self._request({"wait": process, "seconds": seconds})

    def run(self, arguments, log, fault=()):
        """Run a process; return exit code and output."""
        code = self.wait(self.start(arguments, log, fault))
        return code, log.read_text()

    def _request(self, question):
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())


def vanished(group, seconds=10.0):
    """Whether a process group is empty within this many seconds."""
    deadline = time.monotonic() + seconds
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.01)
        return False
    return True
