"""Print the tables of ``docs/results/liars.md`` from a bench of the suite ``liars``, and draw its
figure.

``python tools/liars_tables.py runs/liars`` writes docs/images/liars.png.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from PIL import Image
from scipy.stats import t as student

import pomona
from pomona.experiments.bench_results import load

HONEST = range(4, 12)
"""Clients that never lie in the suite: every number is theirs, also without liars."""
LIES = ("scale", "sign", "noise", "collude", "labels", "backdoor")
TRIGGERED = "triggered"
"""In place of a lie: what its backdoor does."""
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "liars.png"
PANELS = {
    "scale": "scale: 50 times the change",
    "sign": "sign: minus 4 times the change",
    TRIGGERED: "backdoor: triggered samples",
    "collude": "collude: within the honest spread",
    "labels": "labels: class 9 - y",
}
STYLES = dict(
    zip(
        ("none", "clipped", "centred", "median", "trimmed", "geometric", "krum"),
        (
            ("#000000", "o"),
            ("#0072b2", "s"),
            ("#56b4e9", "D"),
            ("#e69f00", "^"),
            ("#f0e442", "v"),
            ("#009e73", "P"),
            ("#d55e00", "X"),
        ),
        strict=True,
    )
)
RULES = (
    "fedavg",
    "fedavg+clipped",
    "fedavg+centred",
    "fedavg+median",
    "fedavg+trimmed",
    "fedavg+geometric",
    "fedavg+krum",
)
BASELINES = ("ditto", "ditto+clipped", "ditto+median", "fedrep", "fedrep+clipped", "fedrep+median")
MIXTURES = ("fedala", "fedala+clipped", "apple", "fedamp", "fedfomo", "pfedgraph", "separate")
Values = Mapping[
    tuple[str, str], Mapping[int, list[float]]
]  # (scenario, method) -> seed -> clients


def values(folder: Path) -> Values:
    """Return each client's test accuracy in % after the last round, 0 without a finite model; and
    of ``triggered-LIARS`` the share of other classes' test samples that get the backdoor's class.
    """
    accuracies: dict[tuple[str, str], dict[int, list[float]]] = {}
    for group in load(folder).results["results"]:
        scenario, method = group["scenario"], group["method"]
        for cell in (c for c in group["cells"] if c["figures"]):
            figures, seed = cell["figures"], cell["seed"]
            last = figures["models"][figures["headline"]]["last"]["value"]
            accuracies.setdefault((scenario, method), {})[seed] = [100 * (v or 0.0) for v in last]
            if shares := figures.get("backdoor", {}).get("clients"):
                column = scenario.replace("backdoor", TRIGGERED)
                percentages = [100 * (shares.get(str(i)) or 0.0) for i in range(12)]
                accuracies.setdefault((column, method), {})[seed] = percentages
    return accuracies


def interval(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the half width of its 95 % interval over seeds."""
    n = len(numbers)
    return float(np.mean(numbers)), float(
        student.ppf(0.975, n - 1) * np.std(numbers, ddof=1) / n**0.5
    )


def honest(results: Values, scenario: str, method: str) -> list[float]:
    """Return the honest clients' mean by seed; empty if there is none."""
    seeds = results.get((scenario, method), {})
    return [float(np.mean([v[i] for i in HONEST])) for v in seeds.values()]


def mean(results: Values, scenario: str, method: str) -> str:
    """Return a cell of a table: the mean over honest clients, and its interval over seeds."""
    numbers = honest(results, scenario, method)
    return "{:.1f} +- {:.1f}".format(*interval(numbers)) if numbers else ""


def figure(results: Values) -> None:
    """Draw FedAvg's rules: a panel a lie, means over honest clients and seeds against liars."""
    plot, axes = plt.subplots(2, 3, figsize=(9.5, 5.2), sharex=True, layout="constrained")
    for ax, (lie, title) in zip(axes.flat, PANELS.items(), strict=False):
        for method, (colour, marker) in zip(RULES, STYLES.values(), strict=True):
            numbers = [
                honest(results, "honest" if k == 0 else f"{lie}-{k}", method) for k in range(5)
            ]
            start = lie == TRIGGERED  # nobody has seen a trigger where nobody lies
            y = [np.mean(e) if e else np.nan for e in numbers]
            ax.plot(range(start, 5), y[start:], color=colour, marker=marker, markersize=5)
        local = honest(results, f"{lie}-4", "separate")
        ax.axhline(np.mean(local), color="0.6", linestyle="--", zorder=0)
        ax.set_title(title, fontsize=10)
        ticks = range(80, 96, 5) if lie in ("collude", "labels") else range(0, 101, 20)
        ax.set(ylim=(ticks[0], 1.02 * ticks[-1]), yticks=ticks)
        ax.grid(color="0.92")
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_xticks(range(5))
        ax.set_ylabel("share in %" if lie == TRIGGERED else "accuracy in %")
    for ax in axes.flat[2:5]:
        ax.set_xlabel("liars of 12")
        ax.tick_params(labelbottom=True)
    axes[1, 2].set_axis_off()
    lines = [*axes[0, 0].lines]
    names = ["fedavg", *(f"+{rule}" for rule in [*STYLES][1:]), "separate"]
    axes[1, 2].legend(lines, names, loc="center", frameon=False)
    plot.savefig(buffer := BytesIO(), dpi=100)
    picture = Image.open(buffer).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    picture.save(FIGURE, optimize=True)


def cost(results: Values, scenario: str, method: str) -> str:
    """Return accuracy without liars over that without the rule, all clients, paired by seed."""
    with_rule, without_rule = (
        results.get((scenario, m)) for m in (method, method.rpartition("+")[0])
    )
    if not with_rule or not without_rule:
        return ""
    differences = [
        float(np.mean(with_rule[s]) - np.mean(without_rule[s])) for s in sorted(with_rule)
    ]
    return "{:+.2f} +- {:.2f}".format(*interval(differences))


def shares(folder: Path) -> list[list[str]]:
    """Return what the models that honest clients learn mix in of a liar, over what they mix in of
    another honest client; 1: no difference.
    """
    rows = []
    for method, quantity in (("apple", "dr"), ("fedamp", "attention"), ("pfedgraph", "graph")):
        cells = []
        for scenario in ("honest", *(f"{lie}-4" for lie in LIES)):
            ratios = [ratio(run, quantity) for run in runs(folder, scenario, method)]
            cells.append("" if not ratios else "{:.2f} +- {:.2f}".format(*interval(ratios)))
        rows.append([f"`{method}`", *cells])
    return rows


def runs(folder: Path, scenario: str, method: str) -> list[Any]:
    """Return the runs of a cell's seeds."""
    results = []
    for group in load(folder).results["results"]:
        if (group["scenario"], group["method"]) == (scenario, method):
            results += [pomona.load(folder / c["folder"]) for c in group["cells"] if c["figures"]]
    return results


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
    parser = argparse.ArgumentParser()
    parser.add_argument("bench", type=Path)
    folder = parser.parse_args().bench
    results = values(folder)
    figure(results)
    columns = ("honest", *(f"{lie}-4" for lie in (*LIES, TRIGGERED)))
    for title, methods in (("rules", RULES), ("others", (*BASELINES, *MIXTURES))):
        print(f"{title}, four liars\n")
        rows = [[f"`{m}`", *(mean(results, column, m) for column in columns)] for m in methods]
        table(["method", "none lies", *LIES, TRIGGERED], rows)
    print("rules, one to three liars\n")
    for lie in PANELS:
        counts = [f"{lie}-{k}" for k in (1, 2, 3)]
        rows = [[f"`{m}`", *(mean(results, column, m) for column in counts)] for m in RULES]
        table([lie, "1", "2", "3"], rows)
    print("weights\n")
    table(["method", "none lies", *LIES], shares(folder))
    print("cost\n")
    ruled = [m for m in (*RULES, *BASELINES, *MIXTURES) if "+" in m]
    scenarios = ("honest", "honest-unequal")
    table(
        ["method", *scenarios],
        [[f"`{m}`", *(cost(results, s, m) for s in scenarios)] for m in ruled],
    )


if __name__ == "__main__":
    main()
