"""Processor time of a round of many clients of nine training samples each, of this build and of
others in turns.

    python benchmarks/many_clients.py [--quick] [SRC ...]

A ``SRC`` is the ``src`` folder of another checkout, behind the folder of its native engine and a
colon if that is not the installed one. Native engine where there is one, one process with one
thread, images of noise; FedAvg with ``logistic`` and evaluation of the received model, APPLE with M
= 5 and an ``mlp`` of 12,730 numbers without. Milliseconds per client and round: each run's median
of rounds after a first one, and of the runs.
"""

from functools import partial
from itertools import product

from timing import Table, Times, answered, builds, chosen, engines_here, publish

PROGRAM = """
import statistics, sys
from pathlib import Path
import pomona
sys.path.insert(0, str(Path(pomona.__file__).parents[2] / "benchmarks"))
import torch
from rounds import Rounds, noise, scenario_of
from pomona.config import resolve

torch.set_num_threads(1)
clients, rounds = map(int, sys.argv[3:])
small = {"name": "mlp", "hidden": [16]}
overrides, watched = {
    "fedavg": ({"model": "logistic"}, {"received"}),
    "apple": ({"model": small, "method": {"name": "apple", "budget": 5}}, ()),
}[sys.argv[1]]
data = {"name": "rounds:noise", "validation_share": 0.0, "test_share": 0.25}
settings = {"lr": 0.01, "data": data, "partition": {"name": "iid"}, "engine": sys.argv[2]}
config = resolve(settings, {"clients": clients, "batch_size": 10, **overrides})
run = Rounds(scenario_of(config, noise(12 * clients)), 1, frozenset(watched))
milliseconds = []
for _ in range(rounds + 1):
    began = cpu_seconds()
    run.run()
    milliseconds.append(1e3 * (cpu_seconds() - began) / clients)
print(statistics.median(milliseconds[1:]))
"""
FULL = {"fedavg": 1000, "apple": 200}, 3, 5
QUICK = {"fedavg": 12, "apple": 6}, 1, 1


def main(size: tuple[dict[str, int], int, int], arguments: list[str]) -> list[Table]:
    """Measure and print."""
    counts, rounds, turns = size
    sources = builds(arguments)

    def measured(source: str, method: str) -> float:
        parameters = method, engines_here()[-1], str(counts[method]), str(rounds)
        return float(answered(source, PROGRAM, *parameters)[0])

    names = {f"{method}, {counts[method]} clients, {build}": (method, build)
             for method, build in product(counts, sources)}  # fmt: skip
    candidates = {
        name: partial(measured, sources[build], method) for name, (method, build) in names.items()
    }
    times = Times.interleaved(candidates, turns)
    rows: dict[str, Table] = {
        name: {
            "median ms": times.median(name),
            "min ms": min(times.seconds[name]),
            "max ms": max(times.seconds[name]),
            "times this build": times.cost(
                name, f"{method}, {counts[method]} clients, {[*sources][-1]}"
            ),
        }
        for name, (method, _) in names.items()
    }
    return [publish("A client's part of a round of many", rows, times.turns, threads=1)]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
