"""TCGA-BRCA by region: one file per region and part, ready for ``examples/tcga.toml``.

    python examples/tcga_regions.py tcga_brca

The folder has ``brca.csv`` and ``train_test_split.csv`` of Fed-TCGA-BRCA from
https://github.com/owkin/FLamby. Patients whose time is 0 have no follow-up and are left out.
"""

import csv
import sys
from pathlib import Path


def main(source: str, folder: str = "tcga") -> None:
    """Write FOLDER/train_0.csv to FOLDER/test_5.csv."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (
        Path(source, "brca.csv").open() as patients,
        Path(source, "train_test_split.csv").open() as split,
    ):
        patient_rows = {row.pop("pid"): row for row in csv.DictReader(patients)}
        assignments = [(row["pid"], row["fold2"]) for row in csv.DictReader(split)]
    for region in sorted({region for _, region in assignments}):
        rows = [
            patient_rows[pid]
            for pid, assigned in assignments
            if assigned == region and float(patient_rows[pid]["T"]) > 0
        ]
        with Path(folder, f"{region}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
