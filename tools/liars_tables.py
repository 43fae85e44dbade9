"""Print the tables of ``docs/results/liars.md`` from a bench of the suite ``liars``.

python tools/liars_tables.py runs/liars
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

import pomona
from pomona.experiments.bench_results import load

HONEST = range(4, 12)
"""Clients that never lie in the suite: every number is theirs, also without liars."""
LIES = ("scale", "sign", "collude", "labels")
RULES = (
    "fedavg",
    "fedavg+clipped",
    "fedavg+centred",
    "fedavg+median",
    "fedavg+trimmed",
    "fedavg+geometric",
    "fedavg+krum",
)
OTHERS = ("ditto", "ditto+clipped", "ditto+median", "fedrep", "fedrep+clipped", "fedrep+median")
MIXTURES = ("fedala", "fedala+clipped", "apple", "fedamp", "fedfomo", "pfedgraph", "separate")
Values = Mapping[
    tuple[str, str], Mapping[int, list[float]]
]  # (scenario, method) -> seed -> clients


def values(folder: Path) -> Values:
    """Return each client's test accuracy in % after the last round; 0 without a finite model."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for group in load(folder).results["results"]:
        cells = [c for c in group["cells"] if c["figures"]]
        found[group["scenario"], group["method"]] = {
            c["seed"]: [
                100 * (v or 0.0)
                for v in c["figures"]["models"][c["figures"]["headline"]]["last"]["value"]
            ]
            for c in cells
        }
    return found


def _last(figures: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = figures["models"][figures["headline"]]["last"]
    return found


def interval(each: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the half width of its 95 % interval over seeds."""
    n = len(each)
    return float(np.mean(each)), float(student.ppf(0.975, n - 1) * np.std(each, ddof=1) / n**0.5)


def mean(of: Values, scenario: str, method: str) -> str:
    """Return a cell of a table: the honest clients' mean accuracy."""
    seeds = of.get((scenario, method))
    if not seeds:
        return ""
    middle, half = interval([float(np.mean([v[i] for i in HONEST])) for v in seeds.values()])
    return f"{middle:.1f} +- {half:.1f}"


def cost(of: Values, scenario: str, method: str) -> str:
    """Return accuracy without liars over that without the rule, all clients, paired by seed."""
    own, other = (of.get((scenario, m)) for m in (method, method.rpartition("+")[0]))
    if not own or not other:
        return ""
    each = [float(np.mean(own[s]) - np.mean(other[s])) for s in sorted(own)]
    return "{:+.2f} +- {:.2f}".format(*interval(each))


def shares(folder: Path, of: Values) -> list[list[str]]:
    """Return what the models that honest clients learn mix in of a liar, over what they mix in of
    another honest client; 1: no difference.
    """
    rows = []
    for method, quantity in (
        ("apple", "dr"),
        ("fedamp", "attention"),
        ("fedfomo", "weights"),
        ("pfedgraph", "graph"),
    ):
        cells = []
        for scenario in ("honest", *(f"{lie}-4" for lie in LIES)):
            each = [ratio(run, quantity) for run in runs(folder, scenario, method)]
            cells.append("" if not each else "{:.2f} +- {:.2f}".format(*interval(each)))
        rows.append([f"`{method}`", *cells])
    return rows


def runs(folder: Path, scenario: str, method: str) -> list[Any]:
    """Return the runs of a cell's seeds."""
    found = []
    for group in load(folder).results["results"]:
        if (group["scenario"], group["method"]) == (scenario, method):
            found += [pomona.load(folder / c["folder"]) for c in group["cells"] if c["figures"]]
    return found


def ratio(run: Any, quantity: str) -> float:
    """Return the mean weight of clients 0 to 3 over that of other honest clients, in the last rows
    of honest clients whose training has not diverged.
    """
    last = run.rounds[-1]
    W = np.abs(np.asarray(last.info[quantity]))
    rows = [(W[k], i) for k, i in enumerate(last.cohort) if i in HONEST]
    liars = np.mean([row[:4].mean() for row, _ in rows])
    return float(liars / np.mean([np.delete(row, [0, 1, 2, 3, i]).mean() for row, i in rows]))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    for row in (heads, ["---"] * len(heads), *rows):
        print("| " + " | ".join(row) + " |")
    print()


def main() -> None:
    """Print all tables."""
    asked = argparse.ArgumentParser()
    asked.add_argument("bench", type=Path)
    folder = asked.parse_args().bench
    of = values(folder)
    for count, methods in ((2, RULES), (4, (*RULES, *OTHERS, *MIXTURES))):
        print(f"{count} of 12\n")
        columns = ("honest", *(f"{lie}-{count}" for lie in LIES))
        rows = [[f"`{m}`", *(mean(of, column, m) for column in columns)] for m in methods]
        table(["method", "none lies", *LIES], rows)
    print("weights\n")
    table(["method", "none lies", *LIES], shares(folder, of))
    print("cost\n")
    ruled = [m for m in (*RULES, *OTHERS, *MIXTURES) if "+" in m]
    both = ("honest", "honest-unequal")
    table(["method", *both], [[f"`{m}`", *(cost(of, s, m) for s in both)] for m in ruled])


if __name__ == "__main__":
    main()
