"""The demo over several seeds: accuracy of every method, and whether APPLE's relationships find the hidden groups.

    python benchmarks/demo_seeds.py [SEEDS] [key=value ...]

Prints, a method a row, mean and standard deviation over seeds of the mean client test accuracy (judged model of each
method; in the last round, and in the round best on validation), the same on validation, and for APPLE the mean
directed relationship of clients in one group and in different groups, without the own core.
"""

import sys

import numpy as np

import pomona
from pomona.cli.training import DEMO, DEMO_METHODS
from pomona.config import read_overrides, resolve


def relationships(result: pomona.Result) -> tuple[float, float]:
    """Mean off-diagonal DR within hidden groups, and between them, after the last round."""
    groups = np.array(result.about["groups"])
    same = groups[:, None] == groups
    own = np.eye(len(groups), dtype=bool)
    dr = result.matrices("dr")[-1][1]
    return float(dr[same & ~own].mean()), float(dr[~same].mean())


def main(seeds: int, words: list[str]) -> None:
    """Run and print."""
    for method in DEMO_METHODS:
        last, chosen, validation, dr = [], [], [], []
        for seed in range(seeds):
            result = pomona.run(resolve(DEMO, {"method": method, "seed": seed}, read_overrides(words)))
            figures = result.summary["models"][result.summary["headline"]]
            last.append(figures["last"]["value"])
            chosen.append(figures["best_validation"]["value"])
            validation.append(max(e.mean for e in result.curve(*result.about["headline"], "validation")))
            if result.matrices("dr"):
                dr.append(relationships(result))
        columns = (f"{np.mean(v):.4f} +- {np.std(v, ddof=1):.4f}" for v in (last, chosen, validation))
        found = f"  DR within/between groups {np.mean(dr, axis=0).round(4).tolist()}" if dr else ""
        print(
            f"{method['name']:<10} last {{}}  at best validation {{}}  validation {{}}".format(*columns) + found,
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:])
