"""Draw the curves of APPLE's table 1 on its published draw, practical CIFAR-10, beside the printed
values.

    python tools/published_curves.py

The curves are those in reproduction/results/apple-published: test accuracy, mean over the 12
clients, one seed. Where two runs have a value for a round, the first file counts.
"""

import csv
import tomllib
from pathlib import Path

from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[1]
CURVES = ROOT / "reproduction" / "results" / "apple-published"
FILES = (
    *("curves-full.csv", "curves-16-rounds.csv", "curves-cpu.csv"),
    *("curves-fedavg-ft.csv", "curves-separate.csv"),
)
NUMBERS = ROOT / "reproduction" / "numbers" / "apple-table1.toml"
FIGURE = ROOT / "docs" / "images" / "apple-published.png"
SCENARIO, TITLE = "cifar10-practical", "CIFAR10, practical"
ROWS = {  # (method, model, when) -> row of the table, name in the figure
    ("fedavg-ft", "personal", "received"): ("FedAvg-FT", "FedAvg-FT"),
    ("fedavg-ft", "local", "trained"): ("FedAvg-local", "FedAvg-local"),
    ("apple", "personal", "trained"): ("APPLE, mu!=0", "APPLE, paper's step"),
    ("apple-local", "personal", "trained"): ("", "APPLE, local step"),
    ("apfl", "personal", "trained"): ("APFL", "APFL"),
    ("fedfomo", "personal", "received"): ("FedFomo", "FedFomo"),
    ("heurfedamp", "personal", "trained"): ("HeurFedAMP", "HeurFedAMP"),
    ("separate", "personal", "trained"): ("Separate", "Separate"),
    ("fedavg-ft", "global", "received"): ("FedAvg", "FedAvg"),
}

Row = tuple[str, str, str]


def curves() -> dict[Row, dict[int, float]]:
    """Return test accuracy in % by round, for each row; round 0, before training, is left out."""
    accuracies: dict[Row, dict[int, float]] = {row: {} for row in ROWS}
    for name in FILES:
        with (CURVES / name).open(encoding="utf-8") as file:
            for line in csv.DictReader(file):
                row, number = (line["method"], line["model"], line["when"]), int(line["round"])
                selected = (line["scenario"], line["split"]) == (SCENARIO, "test") and row in ROWS
                if selected and number:
                    accuracies[row].setdefault(number, 100 * float(line["mean"]))
    return accuracies


def figure(accuracies: dict[Row, dict[int, float]], printed: dict[str, float]) -> None:
    """Write the figure: curves, and the printed values at the right."""
    plot, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    last = max(max(curve) for curve in accuracies.values())
    for row, curve in accuracies.items():
        rounds = sorted(curve)
        (line,) = axes.plot(
            rounds,
            [curve[r] for r in rounds],
            linestyle="--" if row[1] == "local" else "-",  # it lies on FedAvg-FT
            label=ROWS[row][1],
        )
        if value := printed.get(ROWS[row][0]):
            axes.plot(last + 6, value, marker="<", color=line.get_color(), clip_on=False)
    axes.annotate("printed", (last + 6, 30), ha="center")
    axes.set_xlim(0, last + 10)
    axes.set_ylim(28, 83)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy, mean over 12 clients, %")
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    plot.legend(loc="outside right center", frameon=False)
    plot.savefig(FIGURE, dpi=120)


def main() -> None:
    """Write the figure."""
    with NUMBERS.open("rb") as file:
        printed = tomllib.load(file)["scenario"][TITLE]["numbers"]
    figure(curves(), printed)


if __name__ == "__main__":
    main()
