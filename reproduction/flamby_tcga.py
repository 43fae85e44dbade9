"""Fed-TCGA-BRCA as FLamby has it, for flamby-tcga.toml: its split, its loss and its C-index.

    python reproduction/flamby_tcga.py FOLDER  # brca.csv, train_test_split.csv of FLamby -> tcga/

Ogier du Terrail et al., NeurIPS 2022: 1,088 patients of six regions, 39 features as they are in the
file, targets (n, 2) are the time in days and whether the patient died then. The loss is Cox's over
the samples of a batch, so it is not a sum over samples: no gradient of a single sample exists, and
differential privacy does not apply (Pomona's own survival models take another likelihood for that
reason). It is trained through the settings for a loss and a metric of one's own, as a regression on
two numbers: the first output is the log risk, the second is not used.
"""

import csv
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Part = tuple[NDArray[np.float32], NDArray[np.float32]]  # features (n, 39), time and event (n, 2)


def cox(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return minus the log partial likelihood of each sample (B,), 0 for a censored one.

    log sum over j at risk of exp(s_j) - s_i, where j is at risk if its time is not before i's and,
    among equal times, it is not later in the batch. ``targets`` (B, 2) may be scaled by column.
    """
    order = targets[:, 0].argsort(descending=True, stable=True)
    scores = outputs[order, 0]
    losses = torch.logcumsumexp(scores, 0) - scores
    events = targets[order, 1] > 0
    return torch.zeros_like(losses).index_put((order,), losses * events)


def concordance(predictions: NDArray[np.float64], targets: NDArray[np.float64]) -> float:
    """Return Harrell's C-index; NaN without a comparable pair.

    A pair is comparable if the earlier one had the event, or if times are equal and one of the two
    had it; equal scores count half.
    """
    time, event, score = targets[:, 0], targets[:, 1] > 0, predictions[:, 0]
    earlier = (time[:, None] < time) | ((time[:, None] == time) & ~event)
    pairs = earlier & event[:, None]
    above = (score[:, None] > score) + 0.5 * (score[:, None] == score)
    return float(above[pairs].mean()) if pairs.any() else float("nan")


def parts(folder: Path) -> dict[str, Part]:
    """Return the rows of each region's training and test part by name, train_0 to test_5."""
    with (folder / "brca.csv").open(newline="", encoding="utf-8") as lines:
        patients = {row[0]: row[1:] for row in csv.reader(lines)}
    found: dict[str, list[list[str]]] = {}
    with (folder / "train_test_split.csv").open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            found.setdefault(row["fold2"], []).append(patients[row["pid"]])
    return {name: _arrays(np.array(rows, np.float32)) for name, rows in sorted(found.items())}


def _arrays(table: NDArray[np.float32]) -> Part:
    return table[:, :39], table[:, [40, 39]]  # the file has the event before the time


def write(found: Mapping[str, Part], folder: Path) -> None:
    """Write each part as FOLDER/PART.npz, and all training rows once a region: pooled_0.npz, ...

    Features are stored as images of 39 x 1 pixels: tables are standardised, these are not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    train = [part for name, part in found.items() if name.startswith("train")]
    pooled = (np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train]))
    copies = {f"pooled_{region}": pooled for region in range(len(train))}
    for name, (x, y) in {**found, **copies}.items():
        np.savez(folder / f"{name}.npz", x=x[:, :, np.newaxis], y=y)


def main(source: str, folder: str = "tcga") -> None:
    """Write FOLDER/train_0.npz to FOLDER/test_5.npz and FOLDER/pooled_0.npz to pooled_5.npz."""
    write(parts(Path(source)), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
