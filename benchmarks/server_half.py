"""Memory of a server whose silos train a ResNet-18, or 100 million parameters: its half alone, and
with all silos.

    python benchmarks/server_half.py [--quick]

The first table is one process that holds the frozen part and does a deployed server's part of a
round, except messages: it runs the round loop with checkpoints (downlink as bytes, uplinks from
bytes into files, admission, aggregation) over silos that answer with noise of the right shape and
keep nothing. (Under a budget M each real silo keeps a copy of all cores, N times the memory of one
row, so 100 of them would not fit beside their server.) "before" is the process's resident memory
when the loop begins, "peak" its high-water mark from then on (VmHWM, pages of files included), "in
N d" the difference in rows of all silos together; "not in files" is the largest sample of memory
that the system cannot write to a file and reclaim (RssAnon and RssShmem, every 5 ms); "s" is the
last round's time, including drawing the noise. Files are in the temporary folder (TMPDIR), which
should not be in memory.

The second table is whole runs that train, as in ``memory.py``, the silos in two worker processes
that share the frozen part; each silo has ten images of noise for training. Linux only.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
from torch import Tensor

from memory import GIGABYTE, RUN, Case, case_of, field, report
from pomona.core.rng import stream
from pomona.core.round import Roster
from pomona.core.state import NamedTensors
from pomona.federation.exchange import Arrival, ClientRequest, Reply, UplinkSpool
from pomona.federation.transport import SIMULATION, as_arrivals
from pomona.methods.base import Downlink
from pomona_federation.messages.tensor_bytes import Encoding, PackedRows
from timing import Table, chosen, publish

# 99,852,209 numbers, of which 993,109 are trained: 9,100 features of a sample, 109 units and 10
# outputs above them
WIDE = [
    "model.name=mlp",
    "model.hidden=[10000, 9100, 109]",
    'model.train=["fc3.*", "fc4.*"]',
    "clients=100",
]
NARROW = ["model.name=mlp", "model.hidden=[12, 8]", 'model.train=["fc2.*", "fc3.*"]', "clients=3"]
RESNET = ["model.name=resnet18"]  # 11,167,562 numbers with one input channel and ten classes
COMMON = ["rounds=2", "lr=0.01", "workers=2"]
LOOK = 0.005  # seconds


@dataclass(frozen=True)
class Size:
    """Runs: the server half alone, and complete, each by settings of network and method."""

    alone: dict[str, list[str]]
    whole: dict[str, list[str]]


FEDAVG, APPLE = ["method=fedavg"], ["method=apple"]
FIVE = [*APPLE, "method.budget=5"]
FULL = Size(
    {
        "16 silos, resnet18, fedavg": [*RESNET, "clients=16", *FEDAVG],
        "64 silos, resnet18, fedavg": [*RESNET, "clients=64", *FEDAVG],
        "16 silos, resnet18, apple, M = 5": [*RESNET, "clients=16", *FIVE],
        "64 silos, resnet18, apple, M = 5": [*RESNET, "clients=64", *FIVE],
        **{
            f"64 silos, resnet18, {name}": [*RESNET, "clients=64", f"method={name}"]
            for name in ("fedamp", "cfl", "scaffold", "feddyn")
        },
        "100 silos, 1 of 100 M, fedavg": [*WIDE, *FEDAVG],
        "100 silos, 1 of 100 M, apple, M = 5": [*WIDE, *FIVE],
        "100 silos, 1 of 100 M, apple, M = 99": [*WIDE, *APPLE],
    },
    {"fedavg": [*WIDE, *FEDAVG], "apple, M = 99": [*WIDE, *APPLE]},
)
QUICK = Size({"apple, M = 1": [*NARROW, *APPLE, "method.budget=1"]}, {})


class Answers:
    """A transport to silos that answer training requests with noise, and name other silos if
    integers are expected.
    """

    run = SIMULATION

    def __init__(self, folder: Path, silos: int) -> None:
        self._folder, self._encoding = folder, Encoding("fp32", silos)

    def add_clients(self, ids: tuple[int, ...], roster: Roster, row: Tensor | None) -> None:
        """Do nothing: silos keep nothing."""

    def visit(self, visit: ClientRequest, down: Downlink) -> list[Arrival]:
        """One answer per silo, from bytes; the downlink as bytes."""
        packed = PackedRows(down, self._encoding)
        for name, rows in down.items():
            for j in rows.index.unique().tolist():
                packed.digest(name, j)
        spool = UplinkSpool.allocate(visit, self._folder)
        return as_arrivals([spool.store(self._reply(i, visit)) for i in visit.ids], visit, down)

    def _reply(self, client: int, visit: ClientRequest) -> Reply:
        data = self._encoding.pack_uplink(self._uplink(client, visit))
        return Reply(client, self._encoding.unpack_uplink(data, visit.expects), loss=0.0)

    def commit(self, ids: Sequence[int]) -> None:
        """Do nothing: silos keep nothing."""

    def save(self, ids: Sequence[int]) -> tuple[NamedTensors, Any]:  # noqa: ARG002 - a Transport
        """Return nothing: silos keep nothing."""
        return {}, None

    def restore(self, ids: Sequence[int], tensors: NamedTensors, note: Any, roster: Roster) -> None:
        """Do nothing: silos keep nothing."""

    @staticmethod
    def _uplink(client: int, visit: ClientRequest) -> dict[str, Tensor]:
        draw = stream(0, "noise", visit.round.number, client)
        others = [i for i in visit.ids if i != client]
        return {
            name: torch.from_numpy(draw.standard_normal(like.shape, dtype="float32"))
            if like.is_floating_point()
            else torch.from_numpy(draw.choice(others, tuple(like.shape), replace=False)).to(
                like.dtype
            )
            for name, like in visit.expects.items()
        }


def run(words: list[str]) -> None:
    """The rounds of one server, in the measured process."""
    from pomona.config import read_overrides, resolve
    from pomona.core.membership import PlannedMembership
    from pomona.federation.callbacks import NullCallback
    from pomona.federation.checkpointing import Checkpointing
    from pomona.federation.loop import Loop
    from pomona.record.run_folder import RunRecord
    from rounds import noise, scenario_of

    torch.set_num_threads(1)
    config = resolve(read_overrides(words))
    scenario = scenario_of(config, noise(14 * config.clients))
    roster, record = (
        Roster(tuple(len(c.train) for c in scenario.partition.clients)),
        RunRecord(None, config.tree()),
    )
    server, d = config.method.method().server, len(scenario.initial())
    with tempfile.TemporaryDirectory() as out:
        answers, checkpoints = Answers(Path(out), config.clients), Checkpointing(Path(out), 1, {})
        initial = scenario.initial.in_files(Path(out))
        parts = (
            PlannedMembership(config.membership, roster),
            initial,
            answers,
            record,
            NullCallback(),
        )
        loop = Loop(config, server, *parts, checkpoints, metric=scenario.choice.metric)
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        before = field("self", "status", "VmRSS")
        with watched() as unfiled:
            loop.run()
    last = [row for kind, row in record.events if kind == "round"][-1]
    print(
        json.dumps(
            {
                "frozen": sum(t.nbytes for t in scenario.network.frozen.values()),
                "rows": 4 * config.clients * d,
                "before": before,
                "peak": field("self", "status", "VmHWM"),
                "unfiled": max(unfiled),
                "down": sum(last.bytes_down),
                "up": sum(last.bytes_up),
                "s": last.seconds,
            }
        )
    )


@contextmanager
def watched() -> Iterator[list[int]]:
    """Repeatedly measure this process's resident bytes that are in no file."""
    seen, over = [0], Event()

    def look() -> None:
        while not over.wait(LOOK):
            seen.append(field("self", "status", "RssAnon") + field("self", "status", "RssShmem"))

    looking = Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join()


def alone(case: Case) -> dict[str, object]:
    """A row of the first table, from a separate process."""
    command = [sys.executable, __file__, RUN, *case.words]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {
        "frozen part GB": said["frozen"] / GIGABYTE,
        "N d GB": said["rows"] / GIGABYTE,
        "before GB": said["before"] / GIGABYTE,
        "peak GB": said["peak"] / GIGABYTE,
        "not in files GB": said["unfiled"] / GIGABYTE,
        "in N d": (said["peak"] - said["before"]) / said["rows"],
        "down GB": said["down"] / GIGABYTE,
        "up GB": said["up"] / GIGABYTE,
        "s": said["s"],
    }


def main(size: Size, words: list[str]) -> list[Table]:
    """Measure and print."""
    cases = {name: case_of(COMMON, how, words) for name, how in size.alone.items()}
    rows = {name: alone(case) for name, case in cases.items()}
    tables = [publish("The server half alone", rows, 1, changed=words)]
    if size.whole:
        tables.append(
            report({name: case_of(COMMON, how) for name, how in size.whole.items()}, words)
        )
    return tables


if __name__ == "__main__":
    if sys.argv[1:2] == [RUN]:
        run(sys.argv[2:])
    else:
        main(*chosen(QUICK, FULL))
