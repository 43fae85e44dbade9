"""The measured tables of docs/guides/own-data.md: four hospitals' raw files to personal models,
several seeds.

    python examples/heart_disease.py  # beside folder heart_disease of examples/heart-disease.toml
    python examples/heart_disease.py --seeds 1  # a look

Each seed draws new training and test rows. The first table has the last-round test AUROC of each
hospital, by the model that the method's paper reports, as mean and standard deviation (ddof = 1)
over seeds. The second has each hospital's gain over local training on the same test rows: for seed
0 with its paired 95 % interval, and over all seeds the mean and the number of intervals above 0 and
below.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import pomona
from pomona.config import read_overrides, resolve
from pomona.core.toml import read_file

SETTINGS = Path(__file__).parents[1] / "examples" / "heart-disease.toml"
ALONE = "separate"
METHODS = ("fedavg", "fedavg-ft", "ditto", "fedala", "apple", "apple method.core_step=local")


def auroc(run: pomona.Result) -> list[float]:
    """Last-round test AUROC of each hospital's headline model."""
    return list(run.curve(*run.about["headline"])[-1].value)


def spread(values: np.ndarray) -> str:
    """Mean and standard deviation over seeds, as a cell."""
    return f"{values.mean():.3f}" + (f" +- {values.std(ddof=1):.3f}" if len(values) > 1 else "")


def told(gains: Sequence[pomona.Gain | None]) -> str:
    """A hospital's gains by seed, as a cell: seed 0 with interval, the mean, and intervals above
    and below 0.
    """
    known = [gain for gain in gains if gain]
    if not known:
        return "undefined"
    first, said = gains[0], [gain.verdict for gain in known]
    more, less = said.count("better"), said.count("worse")
    mean = np.mean([gain.value for gain in known])
    own = "undefined"
    if first:
        own = (
            f"{first.value:+.3f} [{first.low:+.3f}, {first.high:+.3f}]"
            if first.interval
            else f"{first.value:+.3f} [-]"
        )
    return f"{own}; {mean:+.3f}, {more} above, {less} below"


def tables(seeds: int, rounds: int | None = None) -> Iterator[str]:
    """Both tables' lines, in Markdown; ``rounds`` overrides the settings' for a quick look."""
    changes = {"rounds": rounds} if rounds else {}
    runs = {}
    for method in (ALONE, *METHODS):
        name, *own = method.split()
        layers = (read_file(SETTINGS), changes, {"method": {"name": name}}, read_overrides(own))
        runs[method] = [pomona.run(resolve(*layers, {"seed": k})) for k in range(seeds)]
    hospitals = runs[ALONE][0].about["clients"]
    yield f"| test AUROC | {' | '.join([*hospitals, 'mean'])} |"
    yield "| --- |" + " --- |" * (len(hospitals) + 1)
    for method, made in runs.items():
        values = np.array([[*row, np.mean(row)] for row in map(auroc, made)], dtype=float)
        yield f"| {method} | {' | '.join(map(spread, values.T))} |"
    yield ""
    yield f"| gain over training alone | {' | '.join([*hospitals, 'mean'])} |"
    yield "| --- |" + " --- |" * (len(hospitals) + 1)
    for method in METHODS:
        each = [
            pomona.gains(run, alone) for run, alone in zip(runs[method], runs[ALONE], strict=True)
        ]
        columns = [[clients[k] for clients, _ in each] for k in range(len(hospitals))]
        yield f"| {method} | {' | '.join(map(told, [*columns, [mean for _, mean in each]]))} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    for line in tables(parser.parse_args().seeds):
        print(line)
