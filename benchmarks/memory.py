"""Peak resident memory of whole runs: APPLE with 100 clients and under a budget, 40 clients,
ResNet-18.

    python benchmarks/memory.py [--quick] [key=value ...]

Each case is a separate run in a fresh process tree, on images of noise, with few samples per
client. The peak is that of PSS (proportional set size: shared pages count once), summed over all
processes of the run and read repeatedly from /proc/PID/smaps_rollup; next to it the sum of each
process's own high-water mark (VmHWM), which counts shared pages once per process and is an upper
bound. "over imports" is the peak minus the command's memory before it makes any data. "not in
files" is the peak of memory that the system cannot write back to a file and reclaim: private
memory, and memory shared between processes (Pss_Anon and Pss_Shmem). "server's mark" is the
high-water mark of the command's first process: with two workers it is the server half, with all
uplinks and without training; with one it is everything. "models" counts the parameters' bytes once
per client, "files" are those of clients' states (``state_memory``). Linux only.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from timing import Table, chosen, publish

EVERY = 0.2  # seconds between two samples; sampling gigabytes takes much of that
RUN = "--run"
READY = "ready"
SETTINGS = [
    "engine=torch",
    "batch_size=10",
    "data.name=rounds:noise",
    "data.test_share=0.25",
    "data.validation_share=0.0",
    "partition=iid",
]
APPLE = ["method=apple", "model=cnn", "rounds=2"]
RESNET = ["model=resnet18", "rounds=1", "clients=20"]
# 1,628,170 numbers
WIDE = ["model=mlp", "model.hidden=[2048]", "clients=40", "rounds=2", "eval_every=2", "workers=2"]
BUDGET = ["method=apple", "model=lenet", "method.budget=5", "workers=2"]
COPIES = ["method=apple", "model=cnn", "method.budget=5", "workers=2", "rounds=3", "eval_every=3"]
FIFTY = [*BUDGET, "clients=50", "rounds=3", "eval_every=3"]
THIRTY = [*BUDGET, "clients=30", "rounds=2", "eval_every=2"]
WIDE_METHODS = ("fedavg", "fedala", "ditto", "apple")
FILES = ["state_memory=0.01"]
GIGABYTE = 1e9


@dataclass(frozen=True)
class Case:
    """One run: settings, whether it keeps its record (with checkpoints) on disk, and the target in
    bytes.
    """

    settings: tuple[str, ...]
    recorded: bool = False
    target: float | None = None


def case_of(*groups: list[str], recorded: bool = False, target: float | None = None) -> Case:
    """A run with these settings in addition to the common ones."""
    return Case(
        tuple(setting for group in (SETTINGS, *groups) for setting in group), recorded, target
    )


def _hundred(workers: int, recorded: bool) -> Case:
    return case_of(
        APPLE, ["clients=100", f"workers={workers}"], recorded=recorded, target=3 * GIGABYTE
    )


FULL = {
    "apple, 100 clients, 1 worker": _hundred(1, False),
    "apple, 100 clients, 2 workers": _hundred(2, False),
    "apple, 100 clients, 2 workers, recorded": _hundred(2, True),
    "apple, 20 clients, M = 5, 2 workers, recorded": case_of(
        APPLE, ["clients=20", "method.budget=5", "workers=2"], recorded=True
    ),
    **{
        f"apple, {n} clients of the cnn, M = 5": case_of(COPIES, [f"clients={n}"])
        for n in (50, 100, 500)
    },
    "apple, 50 clients, M = 5, states in memory": case_of(FIFTY),
    "apple, 50 clients, M = 5, states in files": case_of(FIFTY, FILES),
    "apple, 30 clients, M = 5, states in memory, recorded": case_of(THIRTY, recorded=True),
    "apple, 30 clients, M = 5, states in files, recorded": case_of(THIRTY, FILES, recorded=True),
    **{
        f"{m}, 40 clients of 1.6 M, recorded": case_of(WIDE, [f"method={m}"], recorded=True)
        for m in WIDE_METHODS
    },
    "resnet18, fedavg, 20 clients, 2 workers, recorded": case_of(
        RESNET, ["method=fedavg", "workers=2"], recorded=True
    ),
    "resnet18, apple, 20 clients, 2 workers": case_of(RESNET, ["method=apple", "workers=2"]),
}
QUICK = {
    "apple, 3 clients, 2 workers, recorded": case_of(
        ["method=apple", "model=logistic", "rounds=1", "clients=3", "workers=2"], recorded=True
    )
}


@dataclass(frozen=True)
class Peak:
    """Bytes of a run's processes, PSS unless stated otherwise; and seconds.

    Attributes:
        baseline: without data.
        pss: peak.
        unfiled: peak of the part that is not mapped from files.
        marks: sum of the processes' high-water marks.
        server: the first process's.
        models: parameters of all clients.
        files: clients' states in files.
        bytes_down, bytes_up: sent to and by all clients in the last round.
        a_round: seconds of the last round.
        seconds: of the run.
    """

    baseline: int
    pss: int
    unfiled: int
    marks: int
    server: int
    models: int
    files: int
    bytes_down: int
    bytes_up: int
    a_round: float
    seconds: float


def run(arguments: list[str]) -> None:
    """One run in the measured process; its folder is the first argument, empty for none."""
    from pomona.config import read_overrides, resolve
    from pomona.simulation import simulate
    from rounds import noise, scenario_of

    folder, *settings = arguments
    config = resolve(read_overrides(settings))
    print(READY, flush=True)
    sys.stdin.readline()  # the parent has measured the baseline
    scenario = scenario_of(config, noise(14 * config.clients))  # ten for training, one batch
    result = simulate(scenario, Path(folder) / "run" if folder else None)
    models, files = config.clients * scenario.initial().nbytes, result.summary["state_files_bytes"]
    last = result.rounds[-1]
    traffic = {"bytes_down": sum(last.bytes_down), "bytes_up": sum(last.bytes_up)}
    print(
        json.dumps({"models": models, "files": files, **traffic, "a_round": last.seconds}),
        flush=True,
    )


def measure(case: Case) -> Peak:
    """Run a case and observe its processes until it ends."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, RUN, folder if case.recorded else "", *case.settings]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline().strip() == READY
            baseline, marks, peak, unfiled, start_time = (
                pss(process.pid),
                dict[int, int](),
                0,
                0,
                monotonic(),
            )
            process.stdin.write("\n")
            process.stdin.flush()
            while process.poll() is None:
                peak = max(peak, sum(map(pss, family(process.pid))))
                unfiled = max(
                    unfiled, sum(pss(pid, "Pss_Anon", "Pss_Shmem") for pid in family(process.pid))
                )
                marks |= {
                    pid: max(marks.get(pid, 0), field(pid, "status", "VmHWM"))
                    for pid in family(process.pid)
                }
                sleep(EVERY)
            assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}"
            result = json.loads(process.stdout.readline())
            server = marks[process.pid]
            return Peak(
                baseline,
                peak,
                unfiled,
                sum(marks.values()),
                server,
                **result,
                seconds=monotonic() - start_time,
            )


def family(pid: int) -> Iterator[int]:
    """A process and all its descendants."""
    yield pid
    with suppress(OSError):  # it may have ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))


def pss(pid: int, *keys: str) -> int:
    """A process's proportional set size in bytes, or the sum of parts of it; 0 after its end."""
    return sum(field(pid, "smaps_rollup", key) for key in keys or ("Pss",))


def field(pid: int | str, name: str, key: str) -> int:
    """A line ``key: N kB`` of a file in /proc/PID, in bytes; 0 after the process has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{name}").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return 0


def report(cases: dict[str, Case], settings: list[str]) -> Table:
    """Measure these runs, with further settings, and print."""
    peaks = {
        name: measure(Case((*case.settings, *settings), case.recorded))
        for name, case in cases.items()
    }
    rows = {
        name: {
            "peak GB": p.pss / GIGABYTE,
            "over imports GB": (p.pss - p.baseline) / GIGABYTE,
            "not in files GB": p.unfiled / GIGABYTE,
            "in models": (p.pss - p.baseline) / p.models,
            "models GB": p.models / GIGABYTE,
            "sum of marks GB": p.marks / GIGABYTE,
            "server's mark GB": p.server / GIGABYTE,
            "target GB": None if (target := cases[name].target) is None else target / GIGABYTE,
            "files GB": p.files / GIGABYTE,
            "down GB": p.bytes_down / GIGABYTE,
            "up GB": p.bytes_up / GIGABYTE,
            "s a round": p.a_round,
            "s": p.seconds,
        }
        for name, p in peaks.items()
    }
    return publish(
        "Peak resident memory of a run", rows, 1, sampled_every_s=EVERY, changed=settings
    )


def main(cases: dict[str, Case], arguments: list[str]) -> list[Table]:
    """Measure the only table."""
    return [report(cases, arguments)]


if __name__ == "__main__":
    if sys.argv[1:2] == [RUN]:
        run(sys.argv[2:])
    else:
        main(*chosen(QUICK, FULL))
