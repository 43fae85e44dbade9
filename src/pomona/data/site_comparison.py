"""Comparison of a table's owners, with warnings on shared rows or identifiers and on different
units.
"""

from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.data.dataset import Dataset, Owners
from pomona.data.problem_report import listed
from pomona.data.validation import blocks

FEWEST = 10  # minimum measurements per owner for a meaningful median
NEAR = 0.3  # tolerance of a ratio's log10 from an integer: up to a factor of 2


def notes(dataset: Dataset) -> list[str]:
    """Warn about rows and identifiers that occur at several owners, and about units that differ by
    a factor.

    Args:
        dataset: a table as read, x (N, F) with NaN for gaps; without owners the result is empty.
    """
    owners = dataset.owners
    dataset = replace(dataset, x=dataset.raw.x) if dataset.raw else dataset
    if owners is None or len(owners.names) < 2:
        return []
    return [*_repeated(dataset, owners), *_shared(dataset, owners), *_units(dataset, owners)]


def _repeated(dataset: Dataset, owners: Owners) -> list[str]:
    """Warn if owners share rows, unless rows repeat as often within an owner because of coarse
    values.
    """
    # row hashes, since the rows may not fit in memory twice
    alike = np.empty(len(dataset.x), np.uint64)
    for start, block in blocks(dataset.x):
        for row, cells in enumerate(block, start):
            whole = cells.tobytes() + dataset.y[row].tobytes()
            alike[row] = int.from_bytes(blake2b(whole, digest_size=8).digest())
    _, first, number = np.unique(alike, return_index=True, return_inverse=True)
    met, sites = owners.client[first][number], len(owners.names)
    elsewhere = met != owners.client
    across, within = (
        int(elsewhere.sum()),
        len(alike) - len(np.unique(number * sites + owners.client)),
    )
    if across <= within:
        return []
    pairs, counts = np.unique((met * sites + owners.client)[elsewhere], return_counts=True)
    count, (a, b) = counts.max(), divmod(int(pairs[counts.argmax()]), sites)
    return [
        f"rows that are the same at another client, features and label: {across} ({count} of "
        f"{owners.names[b]} at {owners.names[a]}); if they are one patient, a model is tested on "
        "what another was trained on: leave them out"
    ]


def _shared(dataset: Dataset, owners: Owners) -> list[str]:
    """Warn if a group identifier occurs at several owners."""
    if dataset.groups is None:
        return []
    pairs = np.unique(np.stack([dataset.groups.number, owners.client]), axis=1)
    count = int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())
    if not count:
        return []
    return [
        f"{dataset.groups.column}: values that occur at several clients, and count as different "
        f"patients at each: {count}; if they are the same people, some may be in training at one "
        "and in test at another"
    ]


def _units(dataset: Dataset, owners: Owners) -> list[str]:
    """Warn about each positive column whose median at some owner is 100, 1000, ... times that of
    the others.
    """
    lines = []
    for k, name in enumerate(dataset.columns or tuple(map(str, range(dataset.x.shape[1])))):
        away = _away(np.asarray(dataset.x[:, k], np.float64), owners)
        odd = [
            i
            for i, step in away.items()
            if abs(round(step)) >= 2 and abs(step - round(step)) <= NEAR
        ]
        if odd:
            said = [f"{owners.names[i]} (10^{round(away[i])} times)" for i in odd]
            lines.append(
                f"column {name}: medians differ from the other clients' by a factor of units: "
                f"{listed(said)}"
            )
    return lines


def _away(cells: NDArray[Any], owners: Owners) -> dict[int, float]:
    """Return each owner's log10 of its median over that of the others; empty unless positive at two
    or more owners.
    """
    if not np.nanmin(cells, initial=np.inf) > 0:
        return {}
    known = [cells[(owners.client == i) & ~np.isnan(cells)] for i in range(len(owners.names))]
    middle = {
        i: float(np.log10(np.median(own))) for i, own in enumerate(known) if len(own) >= FEWEST
    }
    if len(middle) < 2:
        return {}
    return {
        i: value - float(np.median([v for j, v in middle.items() if j != i]))
        for i, value in middle.items()
    }
