"""Compare auto with the methods among which it chooses, on hospitals and regions, at three rates.

    python examples/choice_by_validation.py

Needs the files that the guide to choosing a method names.
"""

import tomllib
from pathlib import Path

import numpy as np

import pomona

MODELS = ("alone", "average", "shared", "mixed", "personal")


def main() -> None:
    """Print mean and standard deviation over five seeds by data set, rate and model."""
    suite = tomllib.loads(Path("reproduction/real-sites.toml").read_text(encoding="utf-8"))
    for name in ("heart-disease", "tcga-brca"):
        sites = {**suite["base"], **suite["scenario"][name], "method": "auto", "engine": "torch"}
        del sites["title"]
        for lr in (0.01, 0.03, 0.1):
            runs = [pomona.run(lr=lr, seed=seed, **sites) for seed in range(5)]
            means = np.array([[run.curve(m, "trained")[-1].mean for m in MODELS] for run in runs])
            print(name, lr, means.mean(0).round(3), means.std(0, ddof=1).round(3))


if __name__ == "__main__":
    main()
