"""Figures on a model's card for display: the data, and the model's metrics on them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core import bounds
from pomona.data.dataset import Dataset
from pomona.metrics.metric import DETAILS, METRICS, is_own, metric_named

MOST = 20  # names listed


def outputs(data: Dataset, targets: str) -> str:
    """Describe a network's outputs in words."""
    if data.edges:
        ends = listed([f"{edge:g}" for edge in data.edges])
        return f"intervals of time that end at {ends}, in the unit of the data"
    names = listed(data.classes or data.labels) or f"{data.n_outputs} outputs"
    if targets == "classes" and len(data.classes) == 2:
        return f"{names}; the outcome is {bounds.plain(data.classes[1], 40)}: AUPRC is of it"
    return names


def held(data: Dataset, targets: str, rows: NDArray[np.int64]) -> tuple[str, str]:
    """Return the number of samples, and of those with each class, label or the event; empty for other targets."""
    match targets:
        case "classes":
            names = data.classes
            counts = np.bincount(data.y[rows], minlength=len(names))
        case "multilabel":
            names = data.labels or tuple(f"label {k}" for k in range(data.n_outputs))
            counts = np.count_nonzero(data.y[rows], axis=0)
        case "survival":
            names, counts = ("events",), data.y[rows][:, 1:].sum(axis=0)
        case _:
            return f"{len(rows):,}", ""
    return f"{len(rows):,}", listed([f"{name} {int(n):,}" for name, n in zip(names, counts, strict=True)])


def figures(metrics: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return name with unit, value, 95 % interval, and direction of each scalar metric."""
    intervals, known = metrics.get("intervals") or {}, {**METRICS, **DETAILS}
    found = []
    for name, value in metrics.items():
        if name in {"client", "samples"} or not (value is None or isinstance(value, int | float)):
            continue
        metric = metric_named(name) if is_own(name) else known.get(name)
        number = metric.number if metric else "{:,}".format
        ends = intervals.get(name)
        found.append(
            (
                metric.heading if metric else name.replace("_", " "),
                "not defined" if value is None else number(value),
                " to ".join(map(number, ends)) if ends and None not in ends else "",
                ("higher" if metric.higher else "lower") if metric else "",
            )
        )
    return found


def listed(names: Sequence[str]) -> str:
    """List the first names, each bounded in length, and the number of further ones."""
    few = [bounds.plain(name, 40) for name in names[:MOST]]
    return ", ".join([*few, *([f"and {len(names) - MOST} more"] if len(names) > MOST else [])])
