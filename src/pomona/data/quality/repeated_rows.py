"""Notes on equal rows of clients and splits, once the splits are known."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import SPLITS
from pomona.data.dataset import Dataset, InputKind
from pomona.data.quality.cells import Rows, by_size
from pomona.data.quality.equal_rows import Repeats, inputs, repeats_are_expected

ROWS: dict[InputKind, str] = {"table": "rows", "image": "images", "text": "texts"}
COMPARED: dict[InputKind, str] = {
    "table": "features and label",
    "image": "pixels and label",
    "text": "words and label",
}
TRAIN, VALIDATION, TEST = range(3)
REMEDY = "leave them out by data.duplicates=drop"
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RowUses:
    """The n rows in use, training rows first, and what they are for.

    Attributes:
        dataset: their data set.
        row: (n,) their numbers in it.
        number: (n,) a number for each distinct input and target.
        inputs: (n,) a number for each distinct input.
        client, role: (n,) the client and the split of each.
        names: of the clients.
    """

    dataset: Dataset
    row: Rows
    number: Rows
    inputs: Rows
    client: Rows
    role: NDArray[np.int64]
    names: Sequence[str]

    @cached_property
    def key(self) -> Rows:
        """(n,) a number for each distinct input and target of a client."""
        return self.number * len(self.names) + self.client

    @cached_property
    def leaked(self) -> tuple[Mask, Mask]:
        """(n,) whether held-out rows equal training rows of their client, and whether test rows
        equal validation rows alone.
        """
        trained = np.isin(self.key, self.key[self.role == TRAIN]) & (self.role > TRAIN)
        validation = np.isin(self.key, self.key[self.role == VALIDATION])
        return trained, validation & (self.role == TEST) & ~trained

    def by_client(self, rows: Mask) -> str:
        """Count these rows (n,) by client."""
        return by_size(self.names, np.bincount(self.client[rows], minlength=len(self.names)))


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
    repeats = Repeats.from_dataset(dataset)
    if not repeats.any or not clients:
        return []
    lists = [client[role] for role in range(3) for client in clients]
    counts, rows = list(map(len, lists)), np.concatenate(lists).astype(np.int64)
    client = np.repeat(np.tile(np.arange(len(clients)), 3), counts)
    role = np.repeat(np.repeat(np.arange(3), len(clients)), counts)
    uses = RowUses(dataset, rows, repeats.rows[rows], repeats.inputs[rows], client, role, names)
    noun, compared = ROWS[dataset.kind], COMPARED[dataset.kind]
    if repeats_are_expected(inputs(dataset), repeats.inputs):
        return leaked_rows(uses, noun, compared) if _exceed_chance(uses) else []
    checks = (leaked_rows, across_clients, in_training, conflicting_labels)
    return [line for check in checks for line in check(uses, noun, compared)]


def _exceed_chance(uses: RowUses) -> bool:
    """Return whether held-out rows are among training rows far more often than training rows are
    twice among themselves.
    """
    train = uses.key[uses.role == TRAIN]
    repeats = np.unique(train, return_counts=True)[1]
    share = repeats[repeats > 1].sum() / max(1, len(train))
    n, count = int((uses.role > TRAIN).sum()), int(np.logical_or(*uses.leaked).sum())
    return bool(count > share * n + 4 * np.sqrt(share * (1 - share) * n) + 2)


def leaked_rows(uses: RowUses, noun: str, compared: str) -> list[str]:
    """Warn about held-out rows that the same client trains on."""
    trained, validated = uses.leaked
    leaked = trained | validated
    phrases = [
        f"{count} of {(uses.role == role).sum()} {SPLITS[role]} {noun}"
        for role in (TEST, VALIDATION)
        if (count := int((leaked & (uses.role == role)).sum()))
    ]
    source = "training or validation" if validated.any() else "training"
    line = (
        f"{' and '.join(phrases)} equal {source} {noun} of the same client, {compared} "
        f"({uses.by_client(leaked)}): figures are too good; {REMEDY}, or set data.group_column"
    )
    return [line] if phrases else []


def across_clients(uses: RowUses, noun: str, compared: str) -> list[str]:
    """Warn about rows that several clients have; of rows dealt to clients that do not own them,
    only if one is tested on.
    """
    sites, owned = len(uses.names), uses.dataset.owners is not None
    first = np.full(int(uses.number.max(initial=0)) + 1, sites, np.int64)
    np.minimum.at(first, uses.number, uses.client)
    again = first[uses.number] != uses.client
    tested = _trained_elsewhere(uses) if again.any() else 0
    if not again.any() or not (owned or tested):
        return []
    rows_by_client_pair = np.bincount((first[uses.number] * sites + uses.client)[again])
    a, b = divmod(int(rows_by_client_pair.argmax()), sites)
    also = f"; {tested} of them are test {noun} that another client trains on" if tested else ""
    return [
        f"{noun} that are the same at another client, {compared}: {again.sum()} "
        f"({rows_by_client_pair.max()} of {uses.names[b]} at {uses.names[a]}){also}; "
        f"{'if they are one patient, ' * owned}a model is tested on what another was trained on; "
        f"{REMEDY}"
    ]


def _trained_elsewhere(uses: RowUses) -> int:
    """Return how many test rows another client trains on."""
    train, test = uses.role == TRAIN, uses.role == TEST
    keys = np.unique(uses.key[train])
    trainers = np.bincount(keys // len(uses.names), minlength=int(uses.number.max()) + 1)
    return int((trainers[uses.number[test]] > np.isin(uses.key[test], keys)).sum())


def in_training(uses: RowUses, noun: str, compared: str) -> list[str]:
    """Warn about rows that a client trains on more than once."""
    train = uses.role == TRAIN
    again = train.copy()
    again[np.unique(uses.key[train], return_index=True)[1]] = False  # training rows are first
    line = (
        f"training {noun} that repeat another of the same client, {compared}: {again.sum()} of "
        f"{train.sum()} ({uses.by_client(again)}); they count twice; if entered twice, {REMEDY}"
    )
    return [line] if again.any() else []


def conflicting_labels(uses: RowUses, noun: str, _compared: str) -> list[str]:
    """Warn about equal inputs with different targets."""
    distinct_inputs = np.unique(np.stack([uses.inputs, uses.number]), axis=1)[0]
    several, counts = np.unique(distinct_inputs, return_counts=True)
    rows = np.flatnonzero(np.isin(uses.inputs, several[counts > 1]))
    if not len(rows):
        return []
    equal = rows[uses.inputs[rows] == uses.inputs[rows[0]]]
    pair = equal[0], equal[uses.number[equal] != uses.number[equal[0]]][0]
    dataset, examples = uses.dataset, []
    for k in pair:
        has_classes = dataset.targets == "classes"
        label = f"{dataset.classes[int(dataset.y[uses.row[k]])]} in " if has_classes else ""
        examples.append(f"{label}{SPLITS[uses.role[k]]} of {uses.names[uses.client[k]]}")
    return [
        f"equal {noun} with different labels: {len(rows)} (one is {examples[0]}, its equal "
        f"{examples[1]}); if they are one patient, one label is false: correct it"
    ]
