"""The demo over several seeds: accuracy of every method, and whether APPLE's relationships find the
hidden groups.

    python benchmarks/demo_seeds.py [--quick] [key=value ...]

Prints, one row per method, mean and standard deviation over seeds of the mean client test accuracy
(headline model of each method; in the last and the best validation round), the same on validation,
APPLE's lead in points with its 95 % interval over the seeds (Student's t, which takes the seeds'
differences as normal), and for APPLE the mean directed relationship of clients in one group and in
different groups, without the own core.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import ttest_1samp

import pomona
from pomona.cli.run import DEMO, DEMO_METHODS
from pomona.config import read_overrides, resolve
from pomona.core.toml import Tree
from timing import Table, chosen, publish


@dataclass(frozen=True)
class Size:
    """Number of seeds, and settings for a small run."""

    seeds: int
    changes: Tree


FULL, QUICK = Size(5, {}), Size(2, {"rounds": 2})


def relationships(result: pomona.Result) -> tuple[float, float]:
    """Mean off-diagonal DR within hidden groups, and between them, after the last round."""
    groups = np.array(result.about["groups"])
    same_group = groups[:, None] == groups
    diagonal = np.eye(len(groups), dtype=bool)
    dr = result.matrices("dr")[-1][1]
    return float(dr[same_group & ~diagonal].mean()), float(dr[~same_group].mean())


def lead(ours: list[float], baseline: list[float]) -> str:
    """The mean difference in points, with its interval over seeds."""
    points = 100 * (np.array(ours) - np.array(baseline))
    low, high = ttest_1samp(points, 0.0).confidence_interval()
    return f"{points.mean():+.1f} ({low:.1f} to {high:.1f})"


def main(size: Size, arguments: list[str]) -> list[Table]:
    """Run and print."""
    rows: dict[str, Table] = {}
    scores: dict[str, dict[str, list[float]]] = {}
    for settings in DEMO_METHODS:
        method = settings["method"]
        last, best, validation, dr = [], [], [], []
        for seed in range(size.seeds):
            result = pomona.run(
                resolve(DEMO, settings, {"seed": seed}, size.changes, read_overrides(arguments))
            )
            figures = result.summary["models"][result.summary["headline"]]
            last.append(figures["last"]["test"])
            best.append(figures["best_validation"]["test"])
            validation.append(figures["best_validation"]["validation"])
            if "dr" in result.quantities:
                dr.append(relationships(result))
        columns = {"last": last, "at best validation": best, "validation": validation}
        within, between = np.mean(dr, axis=0).tolist() if dr else (None, None)
        scores[method["name"]] = columns
        rows[method["name"]] = {
            **{name: f"{np.mean(v):.4f} +- {np.std(v, ddof=1):.4f}" for name, v in columns.items()},
            "DR within groups": within,
            "DR between groups": between,
        }
    apple = scores["apple"]
    for name, columns in scores.items():
        for column in ("last", "at best validation"):
            led = None if name == "apple" else lead(apple[column], columns[column])
            rows[name][f"APPLE's lead, {column}"] = led
    return [publish("The demo over seeds: mean client test accuracy", rows, size.seeds)]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
