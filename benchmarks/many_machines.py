"""A round by one and two worker processes, and by one and two actors of a Ray cluster on this
machine; what a message costs.

    python benchmarks/many_machines.py [--quick] [key=value ...]

FedAvg and APPLE, iid, 12 clients, batch 256, the network ``cnn``, images of noise. A message is an
empty question to a worker and its answer; a model is one row there and back. Tests check that
results are bit-identical.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch

from pomona.config import read_overrides, resolve
from pomona.core.round import Roster
from pomona.core.toml import Tree
from pomona.federation.client_states import unchanged
from pomona.federation.ray_cluster import connected, reserved
from pomona.simulated_clients import cluster_transport, local_transport
from rounds import Rounds, noise, scenario_of
from timing import Table, Times, chosen, publish, seconds

SETTINGS: Tree = {
    "engine": "torch",
    "lr": 0.01,
    "clients": 12,
    "batch_size": 256,
    "model": {"name": "cnn"},
    "data": {"name": "rounds:noise", "test_share": 0.25, "validation_share": 0.0},
    "partition": {"name": "iid"},
}
METHODS = ("fedavg", "apple")
BACKENDS = ("processes", "ray")
WORKERS = (1, 2)
ROW = 582_026


@dataclass(frozen=True)
class Size:
    """Total images, settings for a small run, messages, and turns."""

    images: int
    changes: Tree
    messages: int
    turns: int


FULL = Size(12_288, {}, 50, 5)
QUICK = Size(200, {"clients": 3, "batch_size": 10, "model": {"name": "mlp"}}, 2, 1)


@contextmanager
def runs_of(size: Size, arguments: list[str]) -> Iterator[dict[tuple[str, str, int], Rounds]]:
    """Each method's rounds on each backend, for each number of workers."""
    images, overrides = noise(size.images), read_overrides(arguments)
    with connected("ray", sum(WORKERS) * len(METHODS)), ExitStack() as stack:
        runs = {}
        for method, workers in product(METHODS, WORKERS):
            settings = {"workers": workers, "method": {"name": method}}
            scenario = scenario_of(resolve(SETTINGS, size.changes, settings, overrides), images)
            roster = Roster(tuple(len(c.train) for c in scenario.partition.clients))
            cores = stack.enter_context(reserved(workers, print))
            transports = {"processes": local_transport, "ray": partial(cluster_transport, cores)}
            for backend in BACKENDS:
                transport = transports[backend](scenario, roster, Path(), unchanged)
                run = Rounds(scenario, watched=frozenset(), transport=transport)
                stack.callback(run.close)
                runs[method, backend, workers] = run
        yield runs


def round_trip(run: Rounds, count: int, *args: object) -> float:
    """Seconds of one question to the first worker, which answers with its last argument."""
    worker = run.transport._workers[0]

    def exchange() -> None:
        for _ in range(count):
            worker.send(getattr, "none", *args)
            worker.receive()

    return seconds(exchange) / count


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    torch.set_num_threads(1)
    with runs_of(size, arguments) as runs:
        times = Times.interleaved(
            {run: partial(seconds, runs[run].run) for run in runs}, size.turns
        )
        payloads = {"empty": 0, "a model": torch.randn(ROW)}
        messages = Times.interleaved(
            {
                (payload, backend): partial(
                    round_trip, runs[METHODS[0], backend, 2], size.messages, value
                )
                for payload, value in payloads.items()
                for backend in BACKENDS
            },
            size.turns,
        )
    rows = {
        f"{m}, {backend}": {
            **{f"{n} s": times.median((m, backend, n)) for n in WORKERS},
            "times as fast": times.cost((m, backend, 1), (m, backend, 2)),
            "times processes'": times.cost((m, backend, 2), (m, "processes", 2)),
        }
        for m, backend in product(METHODS, BACKENDS)
    }
    costs = {
        f"{payload}, {backend}": {"ms": 1e3 * messages.median((payload, backend))}
        for payload, backend in messages.seconds
    }
    return [
        publish("A round by one and two workers", rows, size.turns, images=size.images),
        publish("A message there and back", costs, size.turns),
    ]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
