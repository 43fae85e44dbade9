"""The measured tables of docs/guides/own-data.md: four hospitals' raw files to personal models,
several seeds.

    python examples/heart_disease.py  # next to folder heart_disease of examples/heart-disease.toml
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
BASELINE = "separate"
METHODS = ("fedavg", "fedavg-ft", "ditto", "fedala", "apple", "apple method.core_step=local")


def auroc(run: pomona.Result) -> list[float | None]:
    """Last-round test AUROC of each hospital's headline model, None if undefined."""
    return list(run.curve(*run.about["headline"])[-1].value)


def spread(values: np.ndarray) -> str:
    """Mean and standard deviation over seeds, as a cell."""
    return f"{values.mean():.3f}" + (f" +- {values.std(ddof=1):.3f}" if len(values) > 1 else "")


def gain_text(gains: Sequence[pomona.Gain | None]) -> str:
    """A hospital's gains by seed, as a cell: seed 0 with interval, the mean, and intervals above
    and below 0.
    """
    defined = [gain for gain in gains if gain]
    if not defined:
        return "undefined"
    first, verdicts = gains[0], [gain.verdict for gain in defined]
    better, worse = verdicts.count("better"), verdicts.count("worse")
    mean = np.mean([gain.value for gain in defined])
    first_text = "undefined"
    if first:
        first_text = (
            f"{first.value:+.3f} [{first.low:+.3f}, {first.high:+.3f}]"
            if first.interval
            else f"{first.value:+.3f} [-]"
        )
    return f"{first_text}; {mean:+.3f}, {better} above, {worse} below"


def tables(seeds: int, rounds: int | None = None) -> Iterator[str]:
    """Both tables' lines, in Markdown; ``rounds`` overrides the settings' for a quick look."""
    changes = {"rounds": rounds} if rounds else {}
    runs = {}
    for method in (BASELINE, *METHODS):
        name, *overrides = method.split()
        layers = (
            read_file(SETTINGS),
            changes,
            {"method": {"name": name}},
            read_overrides(overrides),
        )
        runs[method] = [pomona.run(resolve(*layers, {"seed": k})) for k in range(seeds)]
    hospitals = runs[BASELINE][0].about["clients"]
    yield f"| test AUROC | {' | '.join([*hospitals, 'mean'])} |"
    yield "| --- |" + " --- |" * (len(hospitals) + 1)
    for method, results in runs.items():
        values = np.array([[*row, np.mean(row)] for row in map(auroc, results)], dtype=float)
        yield f"| {method} | {' | '.join(map(spread, values.T))} |"
    yield ""
    yield f"| gain over training alone | {' | '.join([*hospitals, 'mean'])} |"
    yield "| --- |" + " --- |" * (len(hospitals) + 1)
    for method in METHODS:
        gains = [
            pomona.gains(run, local)
            for run, local in zip(runs[method], runs[BASELINE], strict=True)
        ]
        columns = [[clients[k] for clients, _ in gains] for k in range(len(hospitals))]
        columns.append([mean for _, mean in gains])
        yield f"| {method} | {' | '.join(map(gain_text, columns))} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    for line in tables(parser.parse_args().seeds):
        print(line)
