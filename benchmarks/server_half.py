"""Memory of the server of 100 silos that train 1 of 100 million numbers: its half alone, and with all silos.

    python benchmarks/server_half.py [--quick]

The first table is one process that holds the frozen part and runs the round loop (downlink, admission, aggregation)
over silos that answer with noise of the right shape and keep nothing: under a budget M each silo keeps a copy of all
cores, N times the memory of one row, so that 100 of them do not fit beside their server. "before" is the process's
resident memory when the loop begins, "peak" its high-water mark from then on, "in N d" what lies between, in rows of
all silos together; "s" is the last round's time, with that of drawing the noise.

The second table is whole runs that train, as in ``memory.py``, the silos in two worker processes that share the frozen
part; each silo has ten images of noise for training. Linux only.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from memory import GIGABYTE, RUN, Case, case_of, field, report
from pomona.core.lazy_tensors import Named
from pomona.core.rng import stream
from pomona.core.round import Roster
from pomona.federation.exchange import Arrival, ClientRequest, Reply
from pomona.federation.transport import SIMULATION, arrived
from pomona.methods.base import Downlink
from timing import Table, chosen, publish

# 99,852,209 numbers, of which 993,109 are trained: 9,100 features of a sample, 109 units and 10 outputs above them
WIDE = ["model.name=mlp", "model.hidden=[10000, 9100, 109]", 'model.train=["fc3.*", "fc4.*"]', "clients=100"]
NARROW = ["model.name=mlp", "model.hidden=[12, 8]", 'model.train=["fc2.*", "fc3.*"]', "clients=3"]
COMMON = ["rounds=2", "lr=0.01", "workers=2"]


@dataclass(frozen=True)
class Size:
    """Runs of one network: the server half alone, and whole, each by settings of the method."""

    network: list[str]
    alone: dict[str, list[str]]
    whole: dict[str, list[str]]


FEDAVG, APPLE = ["method=fedavg"], ["method=apple"]
FULL = Size(
    WIDE,
    {"fedavg": FEDAVG, "apple, M = 5": [*APPLE, "method.budget=5"], "apple, M = 99": APPLE},
    {"fedavg": FEDAVG, "apple, M = 99": APPLE},
)
QUICK = Size(NARROW, {"apple, M = 1": [*APPLE, "method.budget=1"]}, {})


class Answers:
    """A transport to silos that answer a request to train with noise, and name others where integers are expected."""

    run = SIMULATION

    def begin(self, ids: tuple[int, ...], roster: Roster, row: Tensor | None) -> None:
        """The silos keep nothing."""

    def visit(self, visit: ClientRequest, down: Downlink) -> list[Arrival]:
        """One answer a silo."""
        return arrived([Reply(i, self._uplink(i, visit), loss=0.0) for i in visit.ids], visit, down)

    def commit(self, ids: Sequence[int]) -> None:
        """The silos keep nothing."""

    def save(self, ids: Sequence[int]) -> tuple[Named, Any]:  # noqa: ARG002 - a Transport
        """The silos keep nothing."""
        return {}, None

    def restore(self, ids: Sequence[int], tensors: Named, note: Any, roster: Roster) -> None:
        """The silos keep nothing."""

    @staticmethod
    def _uplink(client: int, visit: ClientRequest) -> dict[str, Tensor]:
        draw = stream(0, "noise", visit.round.number, client)
        others = [i for i in visit.ids if i != client]
        return {
            name: torch.from_numpy(draw.standard_normal(like.shape, dtype="float32"))
            if like.is_floating_point()
            else torch.from_numpy(draw.choice(others, tuple(like.shape), replace=False)).to(like.dtype)
            for name, like in visit.expects.items()
        }


def run(words: list[str]) -> None:
    """What the measured process does: the rounds of one server."""
    from pomona.config import read_overrides, resolve
    from pomona.core.membership import Planned
    from pomona.federation.callbacks import NullCallback
    from pomona.federation.checkpointing import Checkpointing
    from pomona.federation.loop import Loop
    from pomona.record.writer import RunRecord
    from rounds import noise, scenario_of

    torch.set_num_threads(1)
    config = resolve(read_overrides(words))
    scenario = scenario_of(config, noise(14 * config.clients))
    roster, record = Roster(tuple(len(c.train) for c in scenario.partition.clients)), RunRecord(None, config.tree())
    server, d = config.method.method().server, len(scenario.initial())
    parts = (Planned(config.membership, roster), scenario.initial, Answers(), record, NullCallback())
    loop = Loop(config, server, *parts, Checkpointing(None, 1, {}), metric=scenario.choice.metric)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = field("self", "status", "VmRSS")
    loop.run()
    last = [event for event in record.events if event["event"] == "round"][-1]
    print(
        json.dumps(
            {
                "frozen": sum(t.nbytes for t in scenario.frozen.values()),
                "rows": 4 * config.clients * d,
                "before": before,
                "peak": field("self", "status", "VmHWM"),
                "down": sum(last["bytes_down"]),
                "up": sum(last["bytes_up"]),
                "s": last["seconds"],
            }
        )
    )


def alone(case: Case) -> dict[str, object]:
    """A row of the first table, from a process of its own."""
    command = [sys.executable, __file__, RUN, *case.words]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {
        "frozen part GB": said["frozen"] / GIGABYTE,
        "N d GB": said["rows"] / GIGABYTE,
        "before GB": said["before"] / GIGABYTE,
        "peak GB": said["peak"] / GIGABYTE,
        "in N d": (said["peak"] - said["before"]) / said["rows"],
        "down GB": said["down"] / GIGABYTE,
        "up GB": said["up"] / GIGABYTE,
        "s": said["s"],
    }


def main(size: Size, words: list[str]) -> list[Table]:
    """Measure and print."""
    cases = {name: case_of(size.network, COMMON, how, words) for name, how in size.alone.items()}
    rows = {name: alone(case) for name, case in cases.items()}
    tables = [publish("The server half alone", rows, 1, changed=words)]
    if size.whole:
        tables.append(report({name: case_of(size.network, COMMON, how) for name, how in size.whole.items()}, words))
    return tables


if __name__ == "__main__":
    if sys.argv[1:2] == [RUN]:
        run(sys.argv[2:])
    else:
        main(*chosen(QUICK, FULL))
