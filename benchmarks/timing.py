"""Measurement for all benchmarks: candidates take turns in one run; medians and their ratios are
reported.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from typing import TypeVar

from pomona.federation.run_checks import bf16_instructions
from pomona.objective.engine import EngineError, load_engine

T = TypeVar("T")
Work = Callable[[], object]

Table = dict[str, object]


def machine() -> Table:
    """Hardware and software of the measurement."""
    pairs = (line.partition(":") for line in reversed(_lines(Path("/proc/cpuinfo"))))
    processor = {key.strip(): value.strip() for key, _, value in pairs}
    name = processor.get("model name") or platform.processor() or platform.machine()
    # a name such as "AMD EPYC" stands for generations whose rates differ by two
    family = [f"{key} {processor[key]}" for key in ("cpu family", "model") if key in processor]
    return {
        "processor": ", ".join([name, *family]),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "bf16 in hardware": bf16_instructions() or "none",
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy")},
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def chosen(quick: T, full: T) -> tuple[T, list[str]]:
    """The size chosen on the command line, ``--quick`` or full, and the remaining words."""
    arguments = sys.argv[1:]
    return (quick if "--quick" in arguments else full), [
        argument for argument in arguments if argument != "--quick"
    ]


def native_release() -> str:
    """Version of the native engine and its kind of processor; empty if it cannot be used."""
    try:
        return load_engine("native").release
    except EngineError:
        return ""


def engines_here() -> list[str]:
    """The engines that can be measured."""
    return ["torch", "native"] if native_release() else ["torch"]


def seconds(work: Work) -> float:
    """Wall time of one call."""
    start_time = perf_counter()
    work()
    return perf_counter() - start_time


def cpu_seconds(work: Work) -> float:
    """This process's CPU time of one call."""
    start_time = process_time()
    work()
    return process_time() - start_time


CPU_SECONDS = """
import resource

def cpu_seconds():
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
"""


def answered(source: str, program: str, *arguments: str) -> list[str]:
    """What a program prints, as words, that a fresh process runs with the package in ``source``;
    its function ``cpu_seconds`` returns the processor seconds of the process and its children.
    """
    return subprocess.run(
        [sys.executable, "-c", CPU_SECONDS + program, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
    ).stdout.split()


def builds(folders: Sequence[str]) -> dict[str, str]:
    """The ``src`` folders of other checkouts by their names, then of this build."""
    checkouts = {Path(folder).parent.name: folder for folder in folders}
    return {**checkouts, "this build": str(Path(__file__).parents[1] / "src")}


def measured(works: Mapping[str, Work], turns: int) -> tuple["Times", "Times"]:
    """Wall time and this process's CPU time of candidates that take turns, as
    ``Times.interleaved``.
    """
    cpu: dict[str, list[float]] = {name: [] for name in works}

    def timed(name: str, work: Work) -> float:
        start_time = perf_counter()
        cpu[name].append(cpu_seconds(work))
        return perf_counter() - start_time

    wall = Times.interleaved(
        {name: partial(timed, name, work) for name, work in works.items()}, turns
    )
    return wall, Times({name: times[1:] for name, times in cpu.items()})


def publish(title: str, rows: Mapping[str, Mapping[str, object]], n: int, **notes: object) -> Table:
    """Print a table with its hardware and software; also append it as JSON to the file in
    POMONA_BENCHMARKS.
    """
    header = {**machine(), **notes, "n": n}
    print(
        f"{title}\n"
        + "\n".join(f"  {k}: {v}" for k, v in header.items())
        + f"\n{_aligned(rows)}\n",
        flush=True,
    )
    result = {"title": title, "machine": machine(), "notes": notes, "n": n, "rows": rows}
    if target := os.environ.get("POMONA_BENCHMARKS"):
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(json.dumps(result, default=str) + "\n")
    return result


def _aligned(rows: Mapping[str, Mapping[str, object]]) -> str:
    """Rows by name below the columns of the first; numbers to four digits."""
    columns = list(next(iter(rows.values())))
    cells = [
        ["", *columns],
        *([name, *(_cell(row[c]) for c in columns)] for name, row in rows.items()),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str("" if value is None else value)


@dataclass(frozen=True)
class Times:
    """Seconds of each candidate, turn by turn; the others are compared with the first."""

    seconds: Mapping[str, list[float]]

    @classmethod
    def interleaved(cls, candidates: Mapping[str, Callable[[], float]], turns: int) -> "Times":
        """Let the candidates, which return their seconds, take turns; a first turn warms up and
        does not count.
        """
        rows = [
            {name: candidate() for name, candidate in candidates.items()} for _ in range(turns + 1)
        ][1:]
        return cls({name: [row[name] for row in rows] for name in candidates})

    def ratios(self, name: str) -> list[float]:
        """The first candidate's seconds over another's, turn by turn: above 1, the other is
        faster.
        """
        first = next(iter(self.seconds.values()))
        return [a / b for a, b in zip(first, self.seconds[name], strict=True)]

    @property
    def turns(self) -> int:
        """Number of measurements of each candidate."""
        return len(next(iter(self.seconds.values())))

    def median(self, name: str) -> float:
        """Of one candidate's seconds."""
        return statistics.median(self.seconds[name])

    def cost(self, name: str, against: str | None = None) -> float:
        """One candidate's median over another's (by default the first's): above 1, it is slower."""
        return self.median(name) / self.median(against or next(iter(self.seconds)))

    def report(self, title: str, **notes: object) -> Table:
        """Report medians, and each candidate's speed relative to the first, by the median of the
        turns' ratios.
        """
        rows = {
            name: {
                "median s": statistics.median(times),
                "min s": min(times),
                "max s": max(times),
                "times as fast": statistics.median(self.ratios(name)),
            }
            for name, times in self.seconds.items()
        }
        return publish(title, rows, self.turns, **notes)
