"""Print the tables of ``docs/results/liars.md`` from a bench of the suite ``liars``.

python tools/liars_tables.py runs/liars [--cost runs/liars-full]
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
LIES = ("scale", "sign", "noise", "collude", "labels")
RULES = ("", "+clipped", "+centred", "+median", "+trimmed", "+geometric", "+krum")
OTHERS = ("ditto", "ditto+clipped", "ditto+median", "fedrep", "fedrep+clipped", "fedrep+median")
MIXTURES = ("fedala", "fedala+clipped", "apple", "fedamp", "fedfomo", "pfedgraph", "separate")
Values = Mapping[
    tuple[str, str], Mapping[int, list[float]]
]  # (scenario, method) -> seed -> clients


def values(folder: Path) -> Values:
    """Return each client's test accuracy in % after the last round."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for group in load(folder).results["results"]:
        cells = [c for c in group["cells"] if c["figures"]]
        found[group["scenario"], group["method"]] = {
            c["seed"]: [
                100 * v for v in c["figures"]["models"][c["figures"]["headline"]]["last"]["value"]
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


def cost(of: Values, rules: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return rows (method, cost): accuracy without liars over that without the rule, all clients,
    paired by seed.
    """
    rows = []
    for method, plain in rules:
        own, other = of["honest", method], of["honest", plain]
        each = [float(np.mean(own[s]) - np.mean(other[s])) for s in sorted(own)]
        middle, half = interval(each)
        worst = [min(own[s]) - min(other[s]) for s in sorted(own)]
        rows.append(
            [
                f"`{method}`",
                f"{middle:+.2f} +- {half:.2f}",
                "{:+.1f} +- {:.1f}".format(*interval(worst)),
            ]
        )
    return rows


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
    """Return the mean weight of clients 0 to 3 over that of other honest clients, in honest
    clients' last rows.
    """
    last = run.rounds[-1]
    W = np.abs(np.asarray(last.info[quantity]))
    place = [last.cohort.index(i) for i in HONEST]
    liars = W[place][:, :4].mean()
    others = np.mean(
        [np.delete(W[k], [0, 1, 2, 3, i]).mean() for k, i in zip(place, HONEST, strict=True)]
    )
    return float(liars / others)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in Markdown."""
    for row in (heads, ["---"] * len(heads), *rows):
        print("| " + " | ".join(row) + " |")
    print()


def main() -> None:
    """Print all tables."""
    asked = argparse.ArgumentParser()
    asked.add_argument("bench", type=Path)
    asked.add_argument("--cost", type=Path)
    args = asked.parse_args()
    of = values(args.bench)
    numbers = range(1, 5)
    for lie in LIES:
        print(f"{lie}\n")
        heads = ["method", "none lies", *(f"{n} of 12" for n in numbers)]
        rows = [
            [
                f"`fedavg{rule}`",
                mean(of, "honest", f"fedavg{rule}"),
                *(mean(of, f"{lie}-{n}", f"fedavg{rule}") for n in numbers),
            ]
            for rule in RULES
        ]
        table(heads, rows)
    for n in (2, 4):
        print(f"{n} of 12\n")
        rows = [
            [f"`{m}`", mean(of, "honest", m), *(mean(of, f"{lie}-{n}", m) for lie in LIES)]
            for m in (*OTHERS, *MIXTURES)
        ]
        table(["method", "none lies", *LIES], rows)
    print("weights\n")
    table(["method", "none lies", *LIES], shares(args.bench, of))
    paired = [(f"fedavg{rule}", "fedavg") for rule in RULES[1:]]
    paired += [(f"{m}+{rule}", m) for m in ("ditto", "fedrep") for rule in ("clipped", "median")]
    table(["method", "mean", "worst client"], cost(values(args.cost) if args.cost else of, paired))


if __name__ == "__main__":
    main()
