"""``data.duplicates``: rows that repeat others are kept, dropped or refused.

Of the copies of a row, training has the first claim, then validation, then test.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import SPLITS
from pomona.core.errors import DataError, listed
from pomona.data.dataset import Dataset
from pomona.data.quality.cells import Rows, by_size
from pomona.data.quality.equal_rows import Repeats
from pomona.data.quality.repeated_rows import COMPARED, ROWS, TEST, TRAIN, VALIDATION
from pomona.data.validation import blocks
from pomona.storage.mapped_array import allocate


def without_repeats(
    dataset: Dataset, duplicates: Literal["keep", "drop", "error"], memory_share: float
) -> Dataset:
    """Return the data with each row once, or refuse repeated ones, as ``data.duplicates`` says.

    Raises DataError for ``error``, if rows repeat.
    """
    if duplicates == "keep":
        return dataset
    owners, n = dataset.owners, len(dataset)
    role = np.where(np.arange(n) < dataset.n_train, TRAIN, TEST) if owners is None else owners.role
    client, names = (np.zeros(n, int), ()) if owners is None else (owners.client, owners.names)
    order = np.argsort(role, kind="stable")
    first = order[np.unique(Repeats.from_dataset(dataset).rows[order], return_index=True)[1]]
    dropped = np.setdiff1d(np.arange(n), first)
    if not len(dropped):
        return dataset
    counts = np.bincount(role[dropped], minlength=3)
    splits = listed([f"{counts[k]} {SPLITS[k]}" for k in (2, 1, 0) if counts[k]])
    at_client = by_size(names, np.bincount(client[dropped], minlength=len(names)))
    scope = f"{COMPARED[dataset.kind]} ({splits}{'; ' * bool(at_client)}{at_client})"
    noun = ROWS[dataset.kind]
    if duplicates == "error":
        raise DataError(
            f"{dataset.name}: {len(dropped)} {noun} repeat others, {scope}; leave them out, by "
            "hand or by data.duplicates=drop"
        )
    note = (
        f"{len(dropped)} {noun} that repeat others, {scope}, are left out: of equal ones the first "
        "stays, training before validation before test"
    )
    reduced = _selected(dataset, np.sort(first), memory_share)
    emptied = _emptied(role, client, first, names or ("the data",))
    return replace(reduced, notes=(*reduced.notes, note, *emptied))


def _emptied(
    role: NDArray[np.signedinteger], client: Rows, first: Rows, names: tuple[str, ...]
) -> list[str]:
    """Note the clients whose test or validation rows all repeat others; new ones are drawn."""
    lines = []
    for split in (VALIDATION, TEST):
        sizes_before, sizes_after = (
            np.bincount(client[rows[role[rows] == split]], minlength=len(names))
            for rows in (np.arange(len(role)), first)
        )
        if emptied := [names[k] for k in np.flatnonzero((sizes_before > 0) & (sizes_after == 0))]:
            lines.append(
                f"all {SPLITS[split]} rows of {listed(emptied)} repeat others and are left out; "
                f"others are drawn from the training rows: give {SPLITS[split]} rows that are new"
            )
    return lines


def _selected(dataset: Dataset, rows: Rows, memory_share: float) -> Dataset:
    """Return the data set with these rows (n,), ascending, alone."""
    raw, owners, groups = dataset.raw, dataset.owners, dataset.groups
    subgroups, times = dataset.subgroups, dataset.times
    x = _copied(dataset.x, rows, memory_share)
    if raw:
        shared = raw.x is dataset.x
        raw = raw.with_rows(rows, x if shared else _copied(raw.x, rows, memory_share))
    return replace(
        dataset,
        x=x,
        y=_copied(dataset.y, rows, memory_share),
        n_train=int((rows < dataset.n_train).sum()),
        raw=raw,
        owners=owners and replace(owners, client=owners.client[rows], role=owners.role[rows]),
        groups=groups and groups._replace(number=groups.number[rows]),
        subgroups=subgroups and subgroups._replace(number=subgroups.number[rows]),
        times=None if times is None else times[rows],
    )


def _copied(array: NDArray[np.generic], rows: Rows, memory_share: float) -> NDArray[np.generic]:
    """Return the rows of an array, in memory or in a file as arrays of their size are."""
    copy = allocate((len(rows), *array.shape[1:]), array.dtype, memory_share)
    for start, block in blocks(rows, max(1, 2**22 // max(1, array[0].size))):
        copy[start : start + len(block)] = array[block]
    return copy
