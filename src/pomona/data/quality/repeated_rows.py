"""Notes on equal rows of clients and splits, and ``data.duplicates``, which drops or refuses them.

Of the copies of a row, training has the first claim, then validation, then test.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import SPLITS
from pomona.core.errors import DataError, listed
from pomona.data.dataset import Dataset, Kind
from pomona.data.quality.cells import Rows, at
from pomona.data.quality.equal_rows import Repeats, by_chance, inputs
from pomona.data.validation import blocks
from pomona.storage.mapped_array import allocate

ROWS: dict[Kind, str] = {"table": "rows", "image": "images", "text": "texts"}
PARTS: dict[Kind, str] = {
    "table": "features and label",
    "image": "pixels and label",
    "text": "words and label",
}
TRAIN, TEST = 0, 2


class Uses(NamedTuple):
    """What the rows in use (n,) are for: their numbers, clients and splits, training rows first."""

    rows: Rows
    client: Rows
    role: NDArray[np.int8]


def uses(clients: Sequence[tuple[Rows, Rows, Rows]]) -> Uses:
    """Return the uses of rows from those of each client: training, validation, test."""
    each = [(i, k, rows) for k in range(3) for i, own in enumerate(clients) for rows in (own[k],)]
    counts = [len(rows) for _, _, rows in each]
    return Uses(
        np.concatenate([np.zeros(0, np.int64), *(rows for _, _, rows in each)]),
        np.repeat(np.array([i for i, _, _ in each], np.int64), counts),
        np.repeat(np.array([k for _, k, _ in each], np.int8), counts),
    )


def notes(
    dataset: Dataset, clients: Sequence[tuple[Rows, Rows, Rows]], names: Sequence[str]
) -> list[str]:
    """Warn about equal rows: in training and in test of one client, of several clients, within
    training, and with different targets.

    Args:
        dataset: the data, before anything is learned from them.
        clients: rows of each client for training, validation and test.
        names: of the clients.
    """
    repeats, used = Repeats.of(dataset), uses(clients)
    if not repeats.any:
        return []
    many, what = ROWS[dataset.kind], PARTS[dataset.kind]
    same = repeats.rows[used.rows]
    within = _within(same, used, names)
    if by_chance(inputs(dataset), repeats.inputs):
        return _leak(many, what, within) if _exceeds(same, used, within) else []
    return [
        *_leak(many, what, within),
        *_between(many, what, same, used, names),
        *_twice(many, what, same, used, names),
        *_contrary(many, repeats, used, names),
    ]


class Within(NamedTuple):
    """Held-out rows that the same client trains on: their number by split, all held-out rows by
    split, and counts by client.
    """

    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    clients: list[tuple[str, int]]


def _within(same: Rows, used: Uses, names: Sequence[str]) -> Within:
    key = same * len(names) + used.client
    trained = np.isin(key, key[used.role == TRAIN]) & (used.role > TRAIN)
    counts = np.bincount(used.role[trained], minlength=3)
    of_client = np.bincount(used.client[trained], minlength=len(names))
    return Within(
        counts,
        np.bincount(used.role, minlength=3),
        list(zip(names, of_client.tolist(), strict=True)),
    )


def _exceeds(same: Rows, used: Uses, within: Within) -> bool:
    """Return whether held-out rows are among training rows far more often than training rows are
    twice among themselves.
    """
    train = used.role == TRAIN
    key = (same * (used.client.max(initial=0) + 1) + used.client)[train]
    counts = np.unique(key, return_counts=True)[1]
    share = counts[counts > 1].sum() / max(1, len(key))
    n, count = int(within.sizes[1:].sum()), int(within.counts[1:].sum())
    return bool(count > share * n + 4 * np.sqrt(share * (1 - share) * n) + 2)


def _leak(many: str, what: str, within: Within) -> list[str]:
    """Warn about held-out rows that the same client trains on."""
    parts = [
        f"{within.counts[k]} of {within.sizes[k]} {SPLITS[k]} {many}"
        for k in (2, 1)
        if within.counts[k]
    ]
    if not parts:
        return []
    return [
        f"{' and '.join(parts)} equal training rows of the same client, {what} "
        f"({at(within.clients)}): figures on them are too good; leave them out by "
        "data.duplicates=drop, or keep rows of one patient together by a group column"
    ]


def _between(many: str, what: str, same: Rows, used: Uses, names: Sequence[str]) -> list[str]:
    """Warn about rows that several clients have."""
    sites = len(names)
    _, first, number = np.unique(same, return_index=True, return_inverse=True)
    met = used.client[first][number]
    elsewhere = met != used.client
    if not elsewhere.any():
        return []
    leaks = _trained_elsewhere(same, used)
    pairs, counts = np.unique((met * sites + used.client)[elsewhere], return_counts=True)
    count, (a, b) = counts.max(), divmod(int(pairs[counts.argmax()]), sites)
    tested_on = f"; {leaks} of them are test {many} that another client trains on" if leaks else ""
    return [
        f"{many} that are the same at another client, {what}: {int(elsewhere.sum())} ({count} of "
        f"{names[b]} at {names[a]}){tested_on}; if they are one patient, a model is tested on what "
        "another was trained on: leave them out, by data.duplicates=drop"
    ]


def _trained_elsewhere(same: Rows, used: Uses) -> int:
    """Return how many test rows another client trains on."""
    sites, train, test = int(used.client.max()) + 1, used.role == TRAIN, used.role == TEST
    keys = np.unique((same * sites + used.client)[train])
    numbers, tested = keys // sites, same[test]
    trainers = np.searchsorted(numbers, tested, "right") - np.searchsorted(numbers, tested)
    return int((trainers > np.isin((same * sites + used.client)[test], keys)).sum())


def _twice(many: str, what: str, same: Rows, used: Uses, names: Sequence[str]) -> list[str]:
    """Warn about rows that a client trains on more than once."""
    train = used.role == TRAIN
    keys, counts = np.unique(same[train] * len(names) + used.client[train], return_counts=True)
    of_client = np.bincount(keys % len(names), counts - 1, len(names)).astype(int).tolist()
    if not sum(of_client):
        return []
    return [
        f"training {many} that repeat another of the same client, {what}: {sum(of_client)} of "
        f"{int(train.sum())} ({at(list(zip(names, of_client, strict=True)))}); they count twice; "
        "if they were entered twice, leave them out by data.duplicates=drop"
    ]


def _contrary(many: str, repeats: Repeats, used: Uses, names: Sequence[str]) -> list[str]:
    """Warn about equal inputs with different targets."""
    number, same = repeats.inputs[used.rows], repeats.rows[used.rows]
    several = _repeated(np.unique(np.stack([number, same]), axis=1)[0])
    if not len(several):
        return []
    rows = np.flatnonzero(np.isin(number, several))
    first = rows[number[rows] == several[0]]
    other = first[same[first] != same[first[0]]][0]
    a, b = (f"{SPLITS[used.role[k]]} of {names[used.client[k]]}" for k in (first[0], other))
    return [
        f"equal {many} with different labels: {len(rows)} (first one in {a}, one in {b}); if they "
        "are one patient, one label is false: correct it, or leave them out"
    ]


def _repeated(numbers: Rows) -> Rows:
    """Return the numbers that occur more than once."""
    values, counts = np.unique(numbers, return_counts=True)
    repeated: Rows = values[counts > 1]
    return repeated


def without_repeats(
    dataset: Dataset, duplicates: Literal["keep", "drop", "error"], memory_share: float
) -> Dataset:
    """Return the data with each row once, or refuse repeated ones, as ``data.duplicates`` says.

    Of equal rows, inputs and target, the first training row stays, else the first validation row,
    else the first test row.

    Raises DataError for ``error``, if rows repeat.
    """
    if duplicates == "keep":
        return dataset
    owners, n = dataset.owners, len(dataset)
    role = np.where(np.arange(n) < dataset.n_train, TRAIN, TEST) if owners is None else owners.role
    order = np.argsort(role, kind="stable")
    first = order[np.unique(Repeats.of(dataset).rows[order], return_index=True)[1]]
    if len(first) == n:
        return dataset
    left_out = np.setdiff1d(np.arange(n), first)
    counts = np.bincount(role[left_out], minlength=3)
    splits = listed([f"{counts[k]} {SPLITS[k]}" for k in (2, 1, 0) if counts[k]])
    many = ROWS[dataset.kind]
    if owners is None:
        whose = ""
    else:
        of_client = np.bincount(owners.client[left_out], minlength=len(owners.names)).tolist()
        whose = f"; {at(list(zip(owners.names, of_client, strict=True)))}"
    if duplicates == "error":
        raise DataError(
            f"{dataset.name}: {len(left_out)} {many} repeat others, {PARTS[dataset.kind]} "
            f"({splits}{whose}); leave them out, by hand or by data.duplicates=drop"
        )
    note = (
        f"{len(left_out)} {many} that repeat others, {PARTS[dataset.kind]}, are left out "
        f"({splits}{whose}): of equal ones the first stays, training before validation before test"
    )
    kept = only(dataset, np.sort(first), memory_share)
    return replace(kept, notes=(*kept.notes, note))


def only(dataset: Dataset, rows: Rows, memory_share: float) -> Dataset:
    """Return the data set with these rows (n,), ascending, alone."""
    raw, owners, groups = dataset.raw, dataset.owners, dataset.groups
    subgroups, times = dataset.subgroups, dataset.times
    x = _taken(dataset.x, rows, memory_share)
    raw_x = raw and (x if raw.x is dataset.x else _taken(raw.x, rows, memory_share))
    return replace(
        dataset,
        x=x,
        y=_taken(dataset.y, rows, memory_share),
        n_train=int((rows < dataset.n_train).sum()),
        raw=raw and replace(raw, x=raw_x),
        owners=owners and replace(owners, client=owners.client[rows], role=owners.role[rows]),
        groups=groups and groups._replace(number=groups.number[rows]),
        subgroups=subgroups and subgroups._replace(number=subgroups.number[rows]),
        times=None if times is None else times[rows],
    )


def _taken(array: NDArray[np.generic], rows: Rows, memory_share: float) -> NDArray[np.generic]:
    """Return the rows of an array, in memory or in a file as arrays of their size are."""
    out = allocate((len(rows), *array.shape[1:]), array.dtype, memory_share)
    for start, block in blocks(rows, max(1, 2**22 // max(1, array[0].size))):
        out[start : start + len(block)] = array[block]
    return out
