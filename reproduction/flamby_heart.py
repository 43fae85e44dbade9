"""Write Fed-Heart-Disease as FLamby divides it, for flamby-heart.toml: a file a centre and part.

    python reproduction/flamby_heart.py heart_disease  # UCI's processed.*.data -> heart/

Ogier du Terrail et al., NeurIPS 2022: columns slope, ca and thal are left out, then rows with gaps;
chest pain and ECG are one column for each value but the lowest; 66 % of a centre's rows are for
training, drawn by scikit-learn with seed 43, stratified where each class has three rows.
"""

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sklearn.model_selection import train_test_split

COLUMNS = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
VALUES = {"cp": (2, 3, 4), "restecg": (1, 2)}  # all but the lowest
CENTRES = {"cleveland": 0, "hungarian": 1, "switzerland": 2, "va": 3}

Row = Mapping[str, float | str]


def heart(source: Path) -> dict[str, list[Row]]:
    """Return the rows of each part of Fed-Heart-Disease by file name."""
    return {
        f"{part}_{number}": rows
        for name, number in CENTRES.items()
        for part, rows in _split(_patients(source / f"processed.{name}.data")).items()
    }


def _patients(file: Path) -> list[Row]:
    with file.open(newline="", encoding="utf-8") as lines:
        known = [(row[: len(COLUMNS)], row[-1]) for row in csv.reader(lines) if row]
    return [
        _patient(dict(zip(COLUMNS, cells, strict=True)), outcome)
        for cells, outcome in known
        if "?" not in cells
    ]


def _patient(cells: Mapping[str, str], outcome: str) -> Row:
    row: dict[str, float | str] = {
        name: float(cells[name]) for name in COLUMNS if name not in VALUES
    }
    row |= {
        f"{name}_{value}": float(float(cells[name]) == value)
        for name in VALUES
        for value in VALUES[name]
    }
    return {**row, "disease": int(float(outcome) > 0)}


def _split(rows: Sequence[Row]) -> dict[str, list[Row]]:
    outcomes = [row["disease"] for row in rows]
    enough = min(outcomes.count(value) for value in (0, 1)) > 2
    places = list(range(len(rows)))
    train, test = train_test_split(
        places,
        train_size=0.66,
        test_size=0.34,
        random_state=43,
        stratify=outcomes if enough else None,
    )
    return {"train": [rows[i] for i in sorted(train)], "test": [rows[i] for i in sorted(test)]}


def write(parts: Mapping[str, Iterable[Row]], folder: Path) -> None:
    """Write each part's rows as FOLDER/PART.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in parts.items():
        held = list(rows)
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(held[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(held)


def main(source: str, folder: str = "heart") -> None:
    """Write FOLDER/train_0.csv to FOLDER/test_3.csv."""
    write(heart(Path(source)), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
