"""The measured table of docs/guides/choose-a-method.md: methods on three small federations, tuned
alike, over seeds.

    python examples/choose_a_method.py runs/choose-a-method           # 450 short runs; resumable
    python examples/choose_a_method.py runs/smoke --size smoke        # a look in a minute

The runs are those of the suite choose-a-method, which comes with the package. A cell is the
last-round test accuracy in % of the model that the method's paper reports, averaged over clients,
as mean and standard deviation (ddof = 1) over seeds; in brackets the share of clients that do worse
than with local training on the same data, over all seeds.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pomona import experiments
from pomona.experiments.suite import suite_file

SUITE = suite_file("choose-a-method")
BASELINE = "separate"


def accuracies(bench: experiments.Bench) -> dict[tuple[str, str], dict[int, np.ndarray]]:
    """(scenario, method) -> seed -> last-round test accuracy (clients,) of the headline model, NaN
    for none.
    """
    by_run = {}
    for result in bench.results["results"]:
        cells = [(int(c["seed"]), c["figures"]) for c in result["cells"] if c["figures"]]
        by_run[result["scenario"], result["method"]] = {
            seed: np.array(f["models"][f["headline"]]["last"]["accuracy"], dtype=float)
            for seed, f in cells
        }
    return by_run


def cell(runs: dict[int, np.ndarray], local: dict[int, np.ndarray]) -> str:
    """One cell of the table; ``local`` are the accuracies of Separate."""
    if not runs:
        return "failed"
    means = [100 * np.nanmean(a) for a in runs.values()]
    gains = np.concatenate([a - local[seed] for seed, a in runs.items()])
    spread = f" +- {np.std(means, ddof=1):.1f}" if len(means) > 1 else ""
    return f"{np.mean(means):.1f}{spread} ({100 * np.mean(gains[~np.isnan(gains)] < 0):.0f} %)"


def table(bench: experiments.Bench) -> Iterator[str]:
    """The table's lines, in Markdown."""
    by_run, scenarios = accuracies(bench), list(bench.results["scenarios"])
    yield f"| method | {' | '.join(s.replace('-', ' ') for s in scenarios)} |"
    yield "| --- |" + " --- |" * len(scenarios)
    for method in bench.results["methods"]:
        cells = [
            cell(by_run[scenario, method], by_run[scenario, BASELINE]) for scenario in scenarios
        ]
        yield f"| {method} | {' | '.join(cells)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", choices=("smoke", "cpu"), default="cpu")
    arguments = parser.parse_args()
    for line in table(experiments.run(SUITE, arguments.out, size=arguments.size)):
        print(line)
