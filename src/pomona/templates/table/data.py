"""Writes patients.csv, one row a patient: python data.py

The patients are made up, so that the project runs at once. Read your own files here instead.
"""

import csv
from pathlib import Path

import numpy as np

EFFECTS = {"aachen": 1, "bergen": 1, "cadiz": -1, "delft": -1}  # of oxygen, by hospital
COLUMNS = ["age", "pulse", "pressure", "glucose", "sodium", "creatinine", "lactate", "oxygen"]


def main() -> None:
    """Write 40 patients of each hospital, always the same."""
    draw = np.random.default_rng(7)
    with Path("patients.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["hospital", *COLUMNS, "outcome"])
        for hospital, effect in EFFECTS.items():
            for values in draw.normal(size=(40, len(COLUMNS))):
                risk = values[:-1].sum() + effect * values[-1] + draw.normal(scale=0.5)
                cells = [f"{50 + 10 * value:.1f}" for value in values]
                rows.writerow([hospital, *cells, "ill" if risk > 0 else "well"])


if __name__ == "__main__":
    main()
