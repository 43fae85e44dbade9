"""Methods against local training, on a settings file's clients: the tables of survival and of
vessels in the guides.

    python examples/compare_methods.py examples/tcga.toml --seeds 3 --methods fedavg "apple
    method.core_step=local"

docs/guides/choose-a-method.md has the settings files and the results. A value is the last-round
test metric of the model that the method's paper reports, averaged over seeds; the mean over clients
leaves out those whose test rows do not define it, and the worst is the mean over seeds of each
seed's worst client. Then follows, for each seed, the mean gain over local training on the same test
rows, with its paired 95 % interval.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import pomona
from pomona.config import read_overrides, resolve
from pomona.core.toml import Tree, read_file

ALONE = "separate"
METHODS = (
    ALONE,
    "fedavg",
    "fedavg-ft",
    "fedrep",
    "ditto",
    "fedala",
    "apple",
    "apple method.core_step=local",
)
FEW = 10  # clients that have a column each


def values(run: pomona.Result) -> list[float]:
    """Last-round test metric of each client's headline model, NaN if undefined."""
    last = run.curve(*run.about["headline"])[-1].value
    return [float("nan") if value is None else value for value in last]


def told(gain: pomona.Gain | None) -> str:
    """A gain with its interval, as a cell."""
    if gain is None:
        return "undefined"
    names = (
        f", without clients {', '.join(str(one.client) for one in gain.excluded)}"
        if gain.excluded
        else ""
    )
    ends = f"{gain.low:+.3f} to {gain.high:+.3f}" if gain.interval else "too few to judge"
    return f"{gain.value:+.3f} ({ends}{names})"


def row(method: str, runs: Sequence[pomona.Result], alone: Sequence[pomona.Result]) -> str:
    """A method's line of the table; ``alone`` are local training runs with the same seeds."""
    found = np.array([values(run) for run in runs])
    each, worst = found.mean(axis=0), np.nanmin(found, axis=1).mean()
    shown = [f"{value:.3f}" for value in each] if len(each) <= FEW else []
    means = [f"{np.nanmean(each):.3f}", f"{worst:.3f}"]
    gains = (
        [pomona.gains(run, floor)[1] for run, floor in zip(runs, alone, strict=True)]
        if method != ALONE
        else []
    )
    return f"| {' | '.join([method, *shown, *means, '; '.join(map(told, gains))])} |"


def lines(settings: Tree, changes: Tree, seeds: int, methods: Sequence[str]) -> Iterator[str]:
    """The table's lines, in Markdown."""
    floor: list[pomona.Result] = []
    for method in methods:
        name, *own = method.split()
        layers = (settings, changes, {"method": {"name": name}}, read_overrides(own))
        runs = [pomona.run(resolve(*layers, {"seed": seed})) for seed in range(seeds)]
        if not floor:
            floor, names = runs, runs[0].about["clients"]
            heads = [
                "method",
                *(names if len(names) <= FEW else []),
                "mean",
                "worst",
                "gain over training alone",
            ]
            yield f"| {' | '.join(heads)} |"
            yield "| --- |" + " --- |" * (len(heads) - 1)
        yield row(method, runs, floor)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("settings", type=Path)
    parser.add_argument("changes", nargs="*", help="key=value")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--methods",
        nargs="+",
        default=METHODS[1:],
        help="names, each with settings of its own if quoted",
    )
    asked = parser.parse_intermixed_args()
    tree, overrides = read_file(asked.settings), read_overrides(asked.changes)
    for line in lines(tree, overrides, asked.seeds, (ALONE, *asked.methods)):
        print(line, flush=True)
