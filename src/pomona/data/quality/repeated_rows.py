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
from pomona.data.dataset import Dataset, Kind, Owners
from pomona.data.quality.cells import Rows, by_size
from pomona.data.quality.equal_rows import Repeats, by_chance, inputs
from pomona.data.validation import blocks
from pomona.storage.mapped_array import allocate

ROWS: dict[Kind, str] = {"table": "rows", "image": "images", "text": "texts"}
COMPARED: dict[Kind, str] = {
    "table": "features and label",
    "image": "pixels and label",
    "text": "words and label",
}
TRAIN, VALIDATION, TEST = range(3)


class Uses(NamedTuple):
    """What the rows in use (n,) are for: their numbers, clients and splits, training rows first."""

    rows: Rows
    client: Rows
    role: NDArray[np.int8]


def uses(clients: Sequence[tuple[Rows, Rows, Rows]]) -> Uses:
    """Return the uses of rows from those of each client: training, validation, test."""
    lists = [
        (i, k, rows) for k in range(3) for i, client in enumerate(clients) for rows in (client[k],)
    ]
    counts = [len(rows) for _, _, rows in lists]
    return Uses(
        np.concatenate([np.zeros(0, np.int64), *(rows for _, _, rows in lists)]),
        np.repeat(np.array([i for i, _, _ in lists], np.int64), counts),
        np.repeat(np.array([k for _, k, _ in lists], np.int8), counts),
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
    repeats, use = Repeats.of(dataset), uses(clients)
    if not repeats.any:
        return []
    noun, compared = ROWS[dataset.kind], COMPARED[dataset.kind]
    row_numbers = repeats.rows[use.rows]
    leaked = _leaked(row_numbers, use, names)
    if by_chance(inputs(dataset), repeats.inputs):
        return _leak(noun, compared, leaked) if _exceeds(row_numbers, use, leaked) else []
    return [
        *_leak(noun, compared, leaked),
        *_across_clients(noun, compared, row_numbers, use, names, dataset.owners is not None),
        *_repeated_in_training(noun, compared, row_numbers, use, names),
        *_contrary(noun, dataset, repeats, use, names),
    ]


class Leaked(NamedTuple):
    """Held-out rows that the same client trains on: their number by split, all held-out rows by
    split, test rows that equal validation rows alone, and counts by client.
    """

    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    validated: int
    clients: list[tuple[str, int]]


def _leaked(row_numbers: Rows, use: Uses, names: Sequence[str]) -> Leaked:
    key, role = row_numbers * len(names) + use.client, use.role
    trained = np.isin(key, key[role == TRAIN]) & (role > TRAIN)
    validated = np.isin(key, key[role == VALIDATION]) & (role == TEST) & ~trained
    of_client = np.bincount(use.client[trained | validated], minlength=len(names))
    return Leaked(
        np.bincount(role[trained | validated], minlength=3),
        np.bincount(role, minlength=3),
        int(validated.sum()),
        list(zip(names, of_client.tolist(), strict=True)),
    )


def _exceeds(row_numbers: Rows, use: Uses, leaked: Leaked) -> bool:
    """Return whether held-out rows are among training rows far more often than training rows are
    twice among themselves.
    """
    train = use.role == TRAIN
    key = (row_numbers * (use.client.max(initial=0) + 1) + use.client)[train]
    counts = np.unique(key, return_counts=True)[1]
    share = counts[counts > 1].sum() / max(1, len(key))
    n, count = int(leaked.sizes[1:].sum()), int(leaked.counts[1:].sum())
    return bool(count > share * n + 4 * np.sqrt(share * (1 - share) * n) + 2)


def _leak(noun: str, compared: str, leaked: Leaked) -> list[str]:
    """Warn about held-out rows that the same client trains on."""
    phrases = [
        f"{leaked.counts[k]} of {leaked.sizes[k]} {SPLITS[k]} {noun}"
        for k in (TEST, VALIDATION)
        if leaked.counts[k]
    ]
    if not phrases:
        return []
    source = "training or validation" if leaked.validated else "training"
    return [
        f"{' and '.join(phrases)} equal {source} {noun} of the same client, {compared} "
        f"({by_size(leaked.clients)}): figures on them are too good; leave them out by "
        "data.duplicates=drop, or keep rows of one patient together by a group column"
    ]


def _across_clients(
    noun: str, compared: str, row_numbers: Rows, use: Uses, names: Sequence[str], owned: bool
) -> list[str]:
    """Warn about rows that several clients have; of rows dealt to clients that are not ``owned`` by
    any, only if one is tested on.
    """
    sites = len(names)
    first_of_row = np.full(int(row_numbers.max(initial=0)) + 1, sites, np.int64)
    np.minimum.at(first_of_row, row_numbers, use.client)
    first_client = first_of_row[row_numbers]
    at_another = first_client != use.client
    leaked_tests = _trained_elsewhere(row_numbers, use) if at_another.any() else 0
    if not at_another.any() or not (owned or leaked_tests):
        return []
    pairs, counts = np.unique((first_client * sites + use.client)[at_another], return_counts=True)
    count, (a, b) = counts.max(), divmod(int(pairs[counts.argmax()]), sites)
    tested_on = (
        f"; {leaked_tests} of them are test {noun} that another client trains on"
        if leaked_tests
        else ""
    )
    condition = "if they are one patient, a" if owned else "a"
    return [
        f"{noun} that are the same at another client, {compared}: {int(at_another.sum())} ({count} "
        f"of {names[b]} at {names[a]}){tested_on}; {condition} model is tested on what another was "
        "trained on: leave them out, by data.duplicates=drop"
    ]


def _trained_elsewhere(row_numbers: Rows, use: Uses) -> int:
    """Return how many test rows another client trains on."""
    sites, train, test = int(use.client.max()) + 1, use.role == TRAIN, use.role == TEST
    keys = np.unique((row_numbers * sites + use.client)[train])
    numbers, tested = keys // sites, row_numbers[test]
    trainers = np.searchsorted(numbers, tested, "right") - np.searchsorted(numbers, tested)
    return int((trainers > np.isin((row_numbers * sites + use.client)[test], keys)).sum())


def _repeated_in_training(
    noun: str, compared: str, row_numbers: Rows, use: Uses, names: Sequence[str]
) -> list[str]:
    """Warn about rows that a client trains on more than once."""
    train = use.role == TRAIN
    keys, counts = np.unique(
        row_numbers[train] * len(names) + use.client[train], return_counts=True
    )
    of_client = np.bincount(keys % len(names), counts - 1, len(names)).astype(int).tolist()
    if not sum(of_client):
        return []
    return [
        f"training {noun} that repeat another of the same client, {compared}: {sum(of_client)} of "
        f"{int(train.sum())} ({by_size(list(zip(names, of_client, strict=True)))}); they count "
        "twice; "
        "if they were entered twice, leave them out by data.duplicates=drop"
    ]


def _contrary(
    noun: str, dataset: Dataset, repeats: Repeats, use: Uses, names: Sequence[str]
) -> list[str]:
    """Warn about equal inputs with different targets."""
    number, row_numbers = repeats.inputs[use.rows], repeats.rows[use.rows]
    conflicting = _repeated(np.unique(np.stack([number, row_numbers]), axis=1)[0])
    if not len(conflicting):
        return []
    rows = np.flatnonzero(np.isin(number, conflicting))
    first = rows[number[rows] == number[rows[0]]]
    contrary = first[row_numbers[first] != row_numbers[first[0]]][0]
    named = dataset.targets == "classes"

    def described(k: int) -> str:
        label = f"{dataset.classes[int(dataset.y[use.rows[k]])]} in " if named else ""
        return f"{label}{SPLITS[use.role[k]]} of {names[use.client[k]]}"

    return [
        f"equal {noun} with different labels: {len(rows)} (one is {described(first[0])}, its equal "
        f"{described(contrary)}); if they are one patient, one label is false: correct it, or "
        "leave them out"
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
    dropped = np.setdiff1d(np.arange(n), first)
    counts = np.bincount(role[dropped], minlength=3)
    splits = listed([f"{counts[k]} {SPLITS[k]}" for k in (2, 1, 0) if counts[k]])
    noun = ROWS[dataset.kind]
    if owners is None:
        of_clients = ""
    else:
        of_client = np.bincount(owners.client[dropped], minlength=len(owners.names)).tolist()
        of_clients = f"; {by_size(list(zip(owners.names, of_client, strict=True)))}"
    if duplicates == "error":
        raise DataError(
            f"{dataset.name}: {len(dropped)} {noun} repeat others, {COMPARED[dataset.kind]} "
            f"({splits}{of_clients}); leave them out, by hand or by data.duplicates=drop"
        )
    note = (
        f"{len(dropped)} {noun} that repeat others, {COMPARED[dataset.kind]}, are left out "
        f"({splits}{of_clients}): of equal ones the first stays, training before validation before "
        "test"
    )
    reduced = selected_rows(dataset, np.sort(first), memory_share)
    emptied = _emptied(role, first, owners)
    return replace(reduced, notes=(*reduced.notes, note, *emptied))


def _emptied(role: NDArray[np.int8], first: Rows, owners: Owners | None) -> list[str]:
    """Note the clients whose test or validation rows all repeat others; new ones are drawn."""
    client = np.zeros(len(role), np.int64) if owners is None else owners.client
    names = ("the data",) if owners is None else owners.names
    lines = []
    for split in (VALIDATION, TEST):
        given, remaining = (
            np.bincount(client[rows[role[rows] == split]], minlength=len(names))
            for rows in (np.arange(len(role)), first)
        )
        if emptied := [names[k] for k in np.flatnonzero((given > 0) & (remaining == 0))]:
            lines.append(
                f"all {SPLITS[split]} rows of {listed(emptied)} repeat others and are left out; "
                f"others are drawn from the training rows: give {SPLITS[split]} rows that are new"
            )
    return lines


def selected_rows(dataset: Dataset, rows: Rows, memory_share: float) -> Dataset:
    """Return the data set with these rows (n,), ascending, alone."""
    raw, owners, groups = dataset.raw, dataset.owners, dataset.groups
    subgroups, times = dataset.subgroups, dataset.times
    x = _selected(dataset.x, rows, memory_share)
    if raw:
        raw_x = x if raw.x is dataset.x else _selected(raw.x, rows, memory_share)
        raw = raw.with_rows(rows, raw_x)
    return replace(
        dataset,
        x=x,
        y=_selected(dataset.y, rows, memory_share),
        n_train=int((rows < dataset.n_train).sum()),
        raw=raw,
        owners=owners and replace(owners, client=owners.client[rows], role=owners.role[rows]),
        groups=groups and groups._replace(number=groups.number[rows]),
        subgroups=subgroups and subgroups._replace(number=subgroups.number[rows]),
        times=None if times is None else times[rows],
    )


def _selected(array: NDArray[np.generic], rows: Rows, memory_share: float) -> NDArray[np.generic]:
    """Return the rows of an array, in memory or in a file as arrays of their size are."""
    selected = allocate((len(rows), *array.shape[1:]), array.dtype, memory_share)
    for start, block in blocks(rows, max(1, 2**22 // max(1, array[0].size))):
        selected[start : start + len(block)] = array[block]
    return selected
