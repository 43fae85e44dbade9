"""A federation of three silos and its server, of this build and of others: memory at rest, and what
a round with next to no work takes.

    python benchmarks/federation_builds.py [--quick] [OTHER_CHECKOUT/src ...]

The builds take turns, each time with new processes, with TLS and keys. "at rest" is the sum of the
proportional set sizes (PSS) of a silo's processes that wait for the server, and of a server's
without its ServerApp. A round is one step of APPLE on a network of 610 numbers: "round s" is the
median of the rounds after the second, "round processor s" that of all processes together.
"""

import json
import statistics
import sys
from pathlib import Path

from timing import Table, answered, builds, chosen, publish

ROUNDS = 10
QUICK, FULL = 1, 5  # turns
PROGRAM = """
import json, sys, tempfile, time
from pathlib import Path
from statistics import mean, median
from pomona.config import resolve
from pomona.record.run_folder import load
from pomona.scenario import Scenario
from pomona_federation.rehearsal.run import local_federation
from pomona_federation.supervision.supervisor import process_tree

def processes(local, name):
    tree = process_tree(local.process(name).pid)
    return [process for process, line in tree.items() if "flwr-serverapp" not in line]

def pss(local, name):
    lines = [
        line.split()
        for process in processes(local, name)
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    ]
    return sum(int(fields[1]) for fields in lines if fields[0] == "Pss:") / 1000

def processor(local, names):
    seconds = 0.0
    for name in names:
        for process in process_tree(local.process(name).pid):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds

folder, rounds = Path(tempfile.mkdtemp()), int(sys.argv[1])
run = {"method": {"name": "apple", "budget": 1}, "model": {"name": "mlp", "hidden": [8]}}
run |= {"data": {"name": "digits"}, "partition": {"name": "iid"}, "engine": "torch", "lr": 0.1}
run |= {"clients": 3, "rounds": rounds, "local_steps": 1, "batch_size": 10, "workers": 1}
scenario = Scenario.prepare(resolve(run))
waits = {"deadline": 280.0, "wait": 280.0, "patience": 280.0}
with local_federation(scenario, folder / "out", **waits) as local:
    for name in local.names:
        local.start(name)
    previous, current = -1.0, processor(local, local.names)
    while current - previous > 0.3:  # until all have imported their modules
        time.sleep(5)
        previous, current = current, processor(local, local.names)
    silo = mean(pss(local, name) for name in local.names)
    local.start("server")
    local.wait(lambda status: status.round >= 2)
    everyone = ("server", *local.names)
    began, reached = processor(local, everyone), local.status.round
    local.wait(lambda status: status.round >= rounds - 1)
    processor_seconds = (processor(local, everyone) - began) / (local.status.round - reached)
    server = pss(local, "server")
    local.wait(lambda status: status.state != "running")
    seconds = median(row.seconds for row in load(local.server / "run").rounds[2:])
print(silo, server, seconds, processor_seconds)
"""
FIGURES = ("silo at rest, MB", "server at rest, MB", "round s", "round processor s")


def main(turns: int, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    sources = {
        name: f"{source}:{Path(source).parent / 'federation/src'}"
        for name, source in builds(arguments).items()
    }
    figures: dict[str, list[list[float]]] = {name: [] for name in sources}
    for _ in range(turns):
        for name, source in sources.items():
            figures[name].append(
                [float(figure) for figure in answered(source, PROGRAM, str(ROUNDS))]
            )
            print(name, json.dumps(figures[name][-1]), file=sys.stderr, flush=True)
    rows = {name: dict(zip(FIGURES, map(_middle, zip(*values, strict=True)), strict=True))
            for name, values in figures.items()}  # fmt: skip
    return [publish("A federation of three silos", rows, turns, rounds=ROUNDS)]


def _middle(values: tuple[float, ...]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
