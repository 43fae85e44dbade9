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

BASELINE = "separate"
METHODS = (
    BASELINE,
    "fedavg",
    "fedavg-ft",
    "fedrep",
    "ditto",
    "fedala",
    "apple",
    "apple method.core_step=local",
)
MOST_COLUMNS = 10  # clients that have a column each


def values(run: pomona.Result) -> list[float]:
    """Last-round test metric of each client's headline model, NaN if undefined."""
    last = run.curve(*run.about["headline"])[-1].value
    return [float("nan") if value is None else value for value in last]


def gain_text(gain: pomona.Gain | None) -> str:
    """A gain with its interval, as a cell."""
    if gain is None:
        return "undefined"
    names = (
        f", without clients {', '.join(str(exclusion.client) for exclusion in gain.excluded)}"
        if gain.excluded
        else ""
    )
    interval = f"{gain.low:+.3f} to {gain.high:+.3f}" if gain.interval else "too few to judge"
    return f"{gain.value:+.3f} ({interval}{names})"


def row(method: str, runs: Sequence[pomona.Result], local: Sequence[pomona.Result]) -> str:
    """A method's line of the table; ``local`` are local training runs with the same seeds."""
    scores = np.array([values(run) for run in runs])
    by_client, worst = scores.mean(axis=0), np.nanmin(scores, axis=1).mean()
    columns = [f"{value:.3f}" for value in by_client] if len(by_client) <= MOST_COLUMNS else []
    means = [f"{np.nanmean(by_client):.3f}", f"{worst:.3f}"]
    gains = (
        [pomona.gains(run, baseline)[1] for run, baseline in zip(runs, local, strict=True)]
        if method != BASELINE
        else []
    )
    return f"| {' | '.join([method, *columns, *means, '; '.join(map(gain_text, gains))])} |"


def lines(settings: Tree, changes: Tree, seeds: int, methods: Sequence[str]) -> Iterator[str]:
    """The table's lines, in Markdown."""
    local: list[pomona.Result] = []
    for method in methods:
        name, *overrides = method.split()
        layers = (settings, changes, {"method": {"name": name}}, read_overrides(overrides))
        runs = [pomona.run(resolve(*layers, {"seed": seed})) for seed in range(seeds)]
        if not local:
            local, names = runs, runs[0].about["clients"]
            heads = [
                "method",
                *(names if len(names) <= MOST_COLUMNS else []),
                "mean",
                "worst",
                "gain over training alone",
            ]
            yield f"| {' | '.join(heads)} |"
            yield "| --- |" + " --- |" * (len(heads) - 1)
        yield row(method, runs, local)


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
    arguments = parser.parse_intermixed_args()
    tree, overrides = read_file(arguments.settings), read_overrides(arguments.changes)
    for line in lines(tree, overrides, arguments.seeds, (BASELINE, *arguments.methods)):
        print(line, flush=True)
