"""Memory of a server whose silos train a ResNet-18, or 100 million parameters: its half alone, and
with all silos.

    python benchmarks/server_half.py [--quick]

The first table is one process that holds the frozen part and does a deployed server's part of a
round, except messages: it runs the round loop with checkpoints (downlink as bytes, uplinks from
bytes into files, admission, aggregation) over silos that answer with noise of the right shape and
keep nothing. (Under a budget M each real silo keeps a copy of all cores, N times the memory of one
row, so 100 of them would not fit next to their server.) "before" is the process's resident memory
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
INTERVAL = 0.005  # seconds


@dataclass(frozen=True)
class Size:
    """Runs: the server half alone, and complete, each by settings of network and method."""

    server: dict[str, list[str]]
    complete: dict[str, list[str]]


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

    def visit(self, visit: ClientRequest, downlink: Downlink) -> list[Arrival]:
        """One answer per silo, from bytes; the downlink as bytes."""
        packed = PackedRows(downlink, self._encoding)
        for name, rows in downlink.items():
            for j in rows.index.unique().tolist():
                packed.digest(name, j)
        spool = UplinkSpool.allocate(visit, self._folder)
        return as_arrivals([spool.store(self._reply(i, visit)) for i in visit.ids], visit, downlink)

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
        peers = [i for i in visit.ids if i != client]
        return {
            name: torch.from_numpy(draw.standard_normal(template.shape, dtype="float32"))
            if template.is_floating_point()
            else torch.from_numpy(draw.choice(peers, tuple(template.shape), replace=False)).to(
                template.dtype
            )
            for name, template in visit.expects.items()
        }


def run(arguments: list[str]) -> None:
    """The rounds of one server, in the measured process."""
    from pomona.config import read_overrides, resolve
    from pomona.core.membership import PlannedMembership
    from pomona.federation.callbacks import NullCallback
    from pomona.federation.checkpointing import Checkpointing
    from pomona.federation.loop import Loop
    from pomona.record.run_folder import RunRecord
    from rounds import noise, scenario_of

    torch.set_num_threads(1)
    config = resolve(read_overrides(arguments))
    scenario = scenario_of(config, noise(14 * config.clients))
    roster, record = (
        Roster(tuple(len(c.train) for c in scenario.partition.clients)),
        RunRecord(None, config.tree()),
    )
    server, d = config.method.method().server, len(scenario.initial())
    with tempfile.TemporaryDirectory() as folder:
        answers, checkpoints = (
            Answers(Path(folder), config.clients),
            Checkpointing(Path(folder), 1, {}),
        )
        initial = scenario.initial.in_files(Path(folder))
        components = (
            PlannedMembership(config.membership, roster),
            initial,
            answers,
            record,
            NullCallback(),
        )
        loop = Loop(config, server, *components, checkpoints, metric=scenario.choice.metric)
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
        baseline = field("self", "status", "VmRSS")
        with watched() as unfiled:
            loop.run()
    last = [row for event, row in record.events if event == "round"][-1]
    print(
        json.dumps(
            {
                "frozen": sum(t.nbytes for t in scenario.network.frozen.values()),
                "rows": 4 * config.clients * d,
                "before": baseline,
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
    samples, finished = [0], Event()

    def sample() -> None:
        while not finished.wait(INTERVAL):
            samples.append(field("self", "status", "RssAnon") + field("self", "status", "RssShmem"))

    thread = Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        finished.set()
        thread.join()


def measure(case: Case) -> dict[str, object]:
    """A row of the first table, from a separate process."""
    command = [sys.executable, __file__, RUN, *case.settings]
    result = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    )
    return {
        "frozen part GB": result["frozen"] / GIGABYTE,
        "N d GB": result["rows"] / GIGABYTE,
        "before GB": result["before"] / GIGABYTE,
        "peak GB": result["peak"] / GIGABYTE,
        "not in files GB": result["unfiled"] / GIGABYTE,
        "in N d": (result["peak"] - result["before"]) / result["rows"],
        "down GB": result["down"] / GIGABYTE,
        "up GB": result["up"] / GIGABYTE,
        "s": result["s"],
    }


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    cases = {name: case_of(COMMON, settings, arguments) for name, settings in size.server.items()}
    rows = {name: measure(case) for name, case in cases.items()}
    tables = [publish("The server half alone", rows, 1, changed=arguments)]
    if size.complete:
        tables.append(
            report(
                {name: case_of(COMMON, settings) for name, settings in size.complete.items()},
                arguments,
            )
        )
    return tables


if __name__ == "__main__":
    if sys.argv[1:2] == [RUN]:
        run(sys.argv[2:])
    else:
        main(*chosen(QUICK, FULL))
