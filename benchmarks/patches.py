"""Peak resident memory of a volume through a 3-D U-Net: whole, and in patches and windows.

    python benchmarks/patches.py [--quick] [key=value ...]

One volume of noise with a mask for each of training, validation and test, one client. Each case is
a fresh process: a training step of one volume, then the outputs of the test volume. "peak GB" is
the process's own high-water mark after each of the two (VmHWM); "ready GB" is the mark after the
check of settings, for which a sample, or patch, of zeros passes through the network. Linux only.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from timing import Table, chosen, publish

CASE = "--case"
GIGABYTE = 1e9
SETTINGS = [
    "method=fedavg",
    "clients=1",
    "batch_size=1",
    "lr=0.01",
    "partition=iid",
    "data.name=rounds:noise",
    "workers=1",
]


@dataclass(frozen=True)
class Size:
    """Side of the volumes, of the patches, and the U-Net's width."""

    side: int
    patch: int
    width: int


FULL = Size(160, 64, 8)
QUICK = Size(16, 8, 4)


def case(arguments: list[str]) -> None:
    """One case in a measured process; the volume's side is the first argument."""
    import numpy as np
    import torch

    from pomona.config import read_overrides, resolve
    from pomona.core.rng import stream
    from pomona.data.dataset import Dataset
    from pomona.partition.partition import ClientRows, Partition
    from pomona.scenario import Scenario

    torch.set_num_threads(1)
    side, *settings = arguments
    shape = (3, *[int(side)] * 3)
    x = stream(0, "volumes").integers(0, 256, (*shape, 1), np.uint8)
    y = (x[..., 0] >= x.mean()).astype(np.uint8)
    data = Dataset("noise", "image", x, y, ("ground", "object"), 2, target_kind="segmentation")
    rows = ClientRows(*(np.array([k]) for k in range(3)))
    partition = Partition((rows,), {"fingerprint": ""})
    scenario = Scenario(resolve(read_overrides(settings)), data, partition)
    scenario.check()
    marks, seconds, objective, row = [peak()], [], scenario.objective(), scenario.initial()
    works: list[Callable[[], object]] = [
        lambda: objective.gradient(row[None], [torch.tensor([0])]),
        lambda: objective.batchwise(row, 0, "test", objective.data.task.reduce),
    ]
    for work in works:
        start_time = perf_counter()
        work()
        seconds.append(perf_counter() - start_time)
        marks.append(peak())
    print(json.dumps({"marks": marks, "seconds": seconds}))


def peak() -> int:
    """This process's high-water mark in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Measure and print."""
    network = ["model.name=unet", f"model.width={size.width}", "model.depth=2"]
    patch = [f"model.patch.size={[size.patch] * 3}"]
    rows = {}
    for name, overrides in (("whole", []), ("patches", patch)):
        command = [
            sys.executable,
            __file__,
            CASE,
            str(size.side),
            *SETTINGS,
            *network,
            *overrides,
            *arguments,
        ]
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        result = json.loads(process.stdout)
        ready, step, outputs = (mark / GIGABYTE for mark in result["marks"])
        times = dict(zip(("s a step", "s for outputs"), result["seconds"], strict=True))
        rows[name] = {
            "ready GB": ready,
            "peak GB, a step": step,
            "peak GB, then outputs": outputs,
            **times,
        }
    notes = {"side": size.side, "patch": size.patch, "width": size.width, "changed": arguments}
    return [publish("Peak resident memory of a volume through a 3-D U-Net", rows, 1, **notes)]


if __name__ == "__main__":
    if sys.argv[1:2] == [CASE]:
        case(sys.argv[2:])
    else:
        main(*chosen(QUICK, FULL))
