"""How the benchmarks measure: candidates take turns in one run, and what is reported are medians and their ratios."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import torch

KERNELS = {"amx": "_is_amx_tile_supported", "avx512_bf16": "_is_avx512_bf16_supported"}


def machine() -> dict[str, object]:
    """What the numbers were made on, and with."""
    names = [line for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")]
    return {
        "processor": names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        # Without one of them bf16 is emulated, and slower than fp32.
        "bf16 in hardware": [name for name, asks in KERNELS.items() if getattr(torch.cpu, asks, bool)()],
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy")},
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    began = perf_counter()
    work()
    return perf_counter() - began


@dataclass(frozen=True)
class Times:
    """Seconds of each candidate, turn by turn; the first candidate is what the others are compared with."""

    of: Mapping[str, list[float]]

    @classmethod
    def interleaved(cls, candidates: Mapping[str, Callable[[], float]], turns: int) -> "Times":
        """Let the candidates, which return their seconds, take turns; a first turn warms up and does not count."""
        rows = [{name: candidate() for name, candidate in candidates.items()} for _ in range(turns + 1)][1:]
        return cls({name: [row[name] for row in rows] for name in candidates})

    def ratios(self, name: str) -> list[float]:
        """The first candidate's seconds over another's, turn by turn: above 1, the other is faster."""
        first = next(iter(self.of.values()))
        return [a / b for a, b in zip(first, self.of[name], strict=True)]

    def report(self, title: str, **notes: object) -> dict[str, object]:
        """Print medians and ratios; the same as JSON goes to the file that POMONA_BENCHMARKS names, a line a report."""
        n = len(next(iter(self.of.values())))
        print(f"{title}\n" + "\n".join(f"  {k}: {v}" for k, v in {**machine(), **notes, "n": n}.items()))
        figures = {name: _figures(times, self.ratios(name)) for name, times in self.of.items()}
        width = max(map(len, figures))
        for name, f in figures.items():
            spread = f"{f['min']:.4g} to {f['max']:.4g}"
            print(f"{name:<{width}}  median {f['median']:.4g} s ({spread}), {f['ratio']:.2f} times as fast")
        result = {"title": title, "machine": machine(), "notes": notes, "n": n, "seconds": figures}
        if target := os.environ.get("POMONA_BENCHMARKS"):
            with Path(target).open("a", encoding="utf-8") as file:
                file.write(json.dumps(result, default=str) + "\n")
        return result


def _figures(times: list[float], ratios: list[float]) -> dict[str, float]:
    return {
        "median": statistics.median(times),
        "min": min(times),
        "max": max(times),
        "ratio": statistics.median(ratios),
    }
