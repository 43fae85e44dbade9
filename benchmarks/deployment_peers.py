"""Four silos of real processes with almost no computation: Pomona, plain Flower and NVFlare,
in one run.

    python benchmarks/deployment_peers.py [--quick] [nvflare=PYTHON] [turns=3] [silos=4]

The candidates take turns, each from a cold start: "ready s" is from the first process to the start
of the first round, "round s" the median of the rounds after the first. Each sends one row of 610
numbers to every silo and back:

- pomona: ``pomona deploy rehearse``'s federation, APPLE with M = 1 on a small network, TLS and node
  keys; it trains on 17 images, evaluates, signs, checks, writes a checkpoint, as usual. "resume s":
  the server is stopped by Ctrl-C after half of the rounds; from `pomona server resume` until the
  next round is committed, the silos having stayed.
- flower: SuperLink, SuperNodes and an app that echoes its input
  (``peers_deployment/flower_noop.py``), TLS and node keys, default isolation: a process a message.
- nvflare: its proof-of-concept mode with a client that sends back what it gets
  (``peers_deployment/nvflare_job.py``), mutual TLS, FedAvg; only where PYTHON is the interpreter of
  an environment that has it, made by

    python -m venv FOLDER && FOLDER/bin/pip install nvflare==2.9.0

All share this machine's cores: seconds are upper bounds for silos on separate machines.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from deployment import OPTIONS, Case, config
from peers_deployment import flower_noop
from pomona.record.run_folder import load
from pomona.scenario import Scenario
from pomona_federation.rehearsal.run import local_federation
from pomona_federation.supervision.supervisor import environment
from timing import Table, chosen, publish

NUMBERS = 610  # of the small network
MLP = {"name": "mlp", "hidden": [8]}
Measure = Callable[[Path, int, int], Table]


@dataclass(frozen=True)
class Size:
    """Numbers of turns, silos and rounds."""

    turns: int
    silos: int
    rounds: int


FULL, QUICK = Size(3, 4, 8), Size(1, 2, 4)


def pomona(folder: Path, silos: int, rounds: int) -> Table:
    """Pomona's federation, stopped and resumed half way."""
    case = Case(silos, {"name": "apple", "budget": 1}, MLP, (8, 8, 1), 2 * rounds)
    with local_federation(
        Scenario.prepare(config(case, folder)), folder / "out", **OPTIONS
    ) as local:
        start_time = time.time()
        for process in ("server", *local.names):
            local.start(process)
        run = local.server / "run"
        local.wait(lambda status: status.round >= rounds)
        server = local.process("server")
        server.send_signal(signal.SIGINT)
        server.wait(60)
        record = load(run)
        first = json.loads((run / "events.jsonl").read_text().splitlines()[0])["time"]
        reached = local.status.round if local.status else 0
        resumed_at, command = time.time(), ["server", "resume", "--folder", str(local.server)]
        with (folder / "resumed.log").open("wb") as log:
            resumed = subprocess.Popen(
                [sys.executable, "-m", "pomona", *command],
                env=environment(folder),
                stdout=log,
                stderr=log,
            )
        try:
            while not (local.status and local.status.round > reached):
                assert resumed.poll() is None, (folder / "resumed.log").read_text()
                time.sleep(0.05)
            took = time.time() - resumed_at
        finally:
            resumed.send_signal(signal.SIGTERM)
            resumed.wait(60)
        seconds = [row.seconds for row in record.rounds]
    return {"ready s": first - start_time, "round s": median(seconds[1:]), "resume s": took}


def flower(folder: Path, silos: int, rounds: int) -> Table:
    """Flower's federation, with an app that does nothing."""
    ready, seconds = flower_noop.rounds(folder, silos, rounds, NUMBERS)
    return {"ready s": ready, "round s": median(seconds[1:]), "resume s": None}


def nvflare(python: str) -> Measure:
    """NVFlare's federation, with a client that does nothing."""

    def measure(folder: Path, silos: int, rounds: int) -> Table:
        job, output = (
            Path(__file__).parent / "peers_deployment" / "nvflare_job.py",
            folder / "marks.json",
        )
        with (folder / "nvflare.log").open("wb") as log:
            command = [python, str(job), str(output), str(silos), str(rounds)]
            subprocess.run(command, cwd=folder, stdout=log, stderr=log, check=True, timeout=900)
        times = json.loads(output.read_text())
        marks = times["received"]
        seconds = [later - earlier for earlier, later in pairwise(marks)]
        return {
            "ready s": marks[0] - times["began"],
            "round s": median(seconds[1:]),
            "resume s": None,
        }

    return measure


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    options = dict(argument.partition("=")[::2] for argument in arguments)
    assert options.keys() <= {"nvflare", "turns", "silos"}, options
    turns, silos = int(options.get("turns", size.turns)), int(options.get("silos", size.silos))
    candidates: dict[str, Measure] = {"pomona": pomona, "flower": flower}
    if python := options.get("nvflare"):
        candidates["nvflare"] = nvflare(python)
    results: dict[str, list[Table]] = {name: [] for name in candidates}
    for _ in range(turns):
        for name, measure in candidates.items():
            with tempfile.TemporaryDirectory() as folder:
                results[name].append(measure(Path(folder), silos, size.rounds))
            print(name, results[name][-1], file=sys.stderr, flush=True)
    rows = {
        name: {key: _median([row[key] for row in rows]) for key in rows[0]}
        for name, rows in results.items()
    }
    return [
        publish("Federations that do next to nothing", rows, turns, silos=silos, rounds=size.rounds)
    ]


def _median(values: list[object]) -> object:
    numbers = [value for value in values if isinstance(value, float)]
    return median(numbers) if numbers else None


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
