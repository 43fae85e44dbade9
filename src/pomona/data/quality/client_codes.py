"""Answers that clients code in their own ways: classes and categories that they do not share."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data.dataset import Dataset
from pomona.data.quality.cells import Cells, Rows, digits

TRUTH = (
    {"0", "no", "n", "false", "f", "nein", "non", "nej", "negative", "negativ", "neg", "absent"},
    {"1", "yes", "y", "true", "t", "ja", "j", "oui", "si", "sí", "positive", "positiv", "pos",
     "present"},
)  # fmt: skip
MAX_CODES = 10  # categories of a column that may be codes
ENOUGH_ROWS = 20  # rows of a client that show all of its codes


def notes(dataset: Dataset, cells: Cells | None) -> list[str]:
    """Warn about classes and categories that no two groups of clients share."""
    lines = list(_classes(dataset))
    if cells is None or len(cells.names) < 2:
        return lines
    for k, column in enumerate(cells.columns):
        if column.kind == "category" and len(cells.values[k]) <= MAX_CODES * len(cells.names):
            sets = [_category_names(cells.x[rows, k], cells.values[k]) for rows in cells.by_client]
            if max(map(len, sets)) <= MAX_CODES:
                lines += _disjoint(f"column {column.name}: categories", cells.names, sets)
        elif column.kind == "number":
            lines += _two_codes(cells, k)
    return lines


def _classes(dataset: Dataset) -> list[str]:
    """Warn about classes that groups of clients do not share, or that are two spellings of yes."""
    if dataset.targets != "classes":
        return []
    class_numbers = np.unique(np.asarray(dataset.y, np.int64)).tolist()
    owners = dataset.owners
    lines = []
    if owners is not None:
        pairs = np.unique(np.stack([owners.client, np.asarray(dataset.y, np.int64)]), axis=1)
        sets = [
            [dataset.classes[c] for c in pairs[1, pairs[0] == i]] for i in range(len(owners.names))
        ]
        lines = _disjoint("classes", owners.names, sets)
    if lines:
        return lines
    for answers in TRUTH:
        spellings = [
            n for c in class_numbers if (n := dataset.classes[c]).strip().casefold() in answers
        ]
        if len(spellings) > 1:
            lines.append(
                f"classes that may be one answer: {listed(spellings)}; write them alike if they are"
            )
    return lines


def _category_names(codes: NDArray[np.generic], names: Sequence[str]) -> list[str]:
    codes_present = np.asarray(codes, np.float64)
    codes_present = np.unique(codes_present[~np.isnan(codes_present)])
    return sorted(names[int(code)] for code in codes_present)


def _disjoint(subject: str, clients: Sequence[str], sets: Sequence[Sequence[str]]) -> list[str]:
    """Warn if there are clients with several names each that share none, also by way of others."""
    group = list(range(len(sets)))
    for a, b in combinations(range(len(sets)), 2):
        if group[a] != group[b] and {*sets[a]} & {*sets[b]}:
            group = [group[a] if g == group[b] else g for g in group]
    richest = {
        g: max((i for i in range(len(sets)) if group[i] == g), key=lambda i: len(sets[i]))
        for g in dict.fromkeys(group)
    }
    examples = [i for i in richest.values() if len(sets[i]) > 1]
    if len(examples) < 2:
        return []
    phrases = "; ".join(f"{listed(sets[i], 4)} at {clients[i]}" for i in examples[:4])
    further = f"; and {len(examples) - 4} more groups of clients" if len(examples) > 4 else ""
    return [
        f"{subject} that no two of these clients share: {phrases}{further}; if they are the same "
        "answers, "
        "write them alike at all clients"
    ]


def _two_codes(cells: Cells, k: int) -> list[str]:
    """Warn if a column has two whole numbers at each client, but not the same two."""
    sets: list[tuple[float, ...]] = []
    sites: list[int] = []
    for i, sample in enumerate(cells.samples):
        values = sample[:, k][~np.isnan(sample[:, k])]
        distinct = np.unique(values[:ENOUGH_ROWS]) if len(values) >= ENOUGH_ROWS else values[:0]
        if len(distinct) == 2 and len(distinct := np.unique(values)) == 2:
            sets.append(tuple(distinct.tolist()))
            sites.append(i)
        elif len(distinct) > 2:
            return []
    low, high = cells.extremes.low[:, k], cells.extremes.high[:, k]
    if len(set(sets)) < 2 or np.fmin.reduce(low) != min(min(pair) for pair in sets):
        return []
    if np.fmax.reduce(high) != max(max(pair) for pair in sets):
        return []
    examples = dict(zip(reversed(sets), reversed(sites), strict=True))
    phrases = "; ".join(
        f"{digits(a)}, {digits(b)} at {cells.names[i]}" for (a, b), i in list(examples.items())[:4]
    )
    return [
        f"column {cells.columns[k].name}: two values at each client, but not the same: {phrases}; "
        "if "
        "they are the same answers, write them alike at all clients"
    ]


def shared_groups(dataset: Dataset) -> list[str]:
    """Warn if a group identifier occurs at several clients."""
    owners, groups = dataset.owners, dataset.groups
    if groups is None or owners is None or len(owners.names) < 2:
        return []
    pairs: Rows = np.unique(np.stack([groups.number, owners.client]), axis=1)
    count = int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())
    if not count:
        return []
    return [
        f"{groups.column}: values that occur at several clients, and count as different "
        f"patients at each: {count}; if they are the same people, some may be in training at one "
        "and in test at another"
    ]
