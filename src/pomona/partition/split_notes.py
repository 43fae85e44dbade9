"""Notes on how clients' rows are split: times on both sides, classes on one side alone, test rows
that only some clients have.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import SPLITS, Split
from pomona.core.errors import listed
from pomona.data.dataset import Dataset, Owners
from pomona.partition.divergence import label_counts
from pomona.partition.partition import ClientRows, Partition, Rows
from pomona.partition.recipe import TEST, VALIDATION, latest_of

MOST_CLIENTS, MOST_CLASSES = 3, 8  # named in a line
DATA_PARTITIONS = {"natural", "file"}  # partitions that follow the data; others deal rows by shares
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Clients:
    """The clients of a run, for notes.

    Attributes:
        names: of all.
        founders: numbers of those that are trained with in round 1.
        validated: whether validation decides anything in the run.
    """

    names: Sequence[str]
    founders: Collection[int]
    validated: bool = False


def split_notes(dataset: Dataset, partition: Partition, clients: Clients) -> list[str]:
    """Return the notes, one line each."""
    return [
        *_partly_assigned(dataset, partition),
        *_tied_times(dataset, partition, clients.names),
        *_classes(dataset, partition, clients),
        *_untested(partition, clients.names),
    ]


def _partly_assigned(dataset: Dataset, partition: Partition) -> Iterator[str]:
    """Report owners whose test or validation rows are drawn, where those of others are given."""
    owners, recipe = dataset.owners, partition.recipe
    if owners is None or recipe.get("name") != "natural" or recipe.get("split") == "pooled":
        return
    for split, role in (("test", TEST), ("validation", VALIDATION)):
        has_rows = np.bincount(owners.client[owners.role == role], minlength=len(owners.names)) > 0
        if has_rows.all() or not has_rows.any():
            continue
        sampled = [
            name
            for (name, rows), assigned in zip(_by_owner(partition, owners), has_rows, strict=True)
            if not assigned and len(getattr(rows, split))
        ]
        if sampled:
            yield (
                f"{split} rows are given for {int(has_rows.sum())} of {len(has_rows)} clients; for "
                f"{listed(sampled)} they are drawn from its rows: data.{split}_share"
            )


def _by_owner(partition: Partition, owners: Owners) -> list[tuple[str, ClientRows]]:
    """Return each owner's rows by split, of a partition by owners; a single client has them all."""
    clients = partition.clients
    if len(clients) == len(owners.names):
        return list(zip(owners.names, clients, strict=True))
    by_split = [_divided(getattr(clients[0], split), owners) for split in SPLITS]
    return [(name, ClientRows(*rows)) for name, *rows in zip(owners.names, *by_split, strict=True)]


def _divided(rows: Rows, owners: Owners) -> list[Rows]:
    """Return each owner's of these rows (n,)."""
    owner = owners.client[rows]
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(1, len(owners.names)))
    return np.split(rows[order], bounds)


def _tied_times(dataset: Dataset, partition: Partition, names: Sequence[str]) -> Iterator[str]:
    """Report rows of the very time at which test or validation rows begin, some of them before it
    and some behind.
    """
    times = dataset.times
    if times is None:
        return
    owners = dataset.owners if partition.recipe.get("name") == "natural" else None
    if dataset.groups:
        unit = dataset.groups.within(owners.client if owners else None)
        times = latest_of(unit, times, int(unit.max(initial=-1)) + 1)[unit]
    split = list(zip(names, partition.clients, strict=True))
    if owners:
        split = _by_owner(partition, owners)
    for side in ("test", "validation"):
        counts = {name: _tied(rows, side, times) for name, rows in split}
        if tied := [name for name, count in counts.items() if count]:
            yield (
                f"{sum(counts.values())} rows of {listed(tied)} have the time at which the "
                f"split lies, on both sides of it: which of them are {side} rows is drawn"
            )


def _tied(rows: ClientRows, side: str, times: NDArray[Any]) -> int:
    """Return the number of rows of the time at which a client's test or validation rows begin; 0
    if no earlier row has it.
    """
    earlier, later = rows.train, getattr(rows, side)
    if side == "test":
        earlier = np.concatenate([earlier, rows.validation])
    if not (len(earlier) and len(later)) or times[earlier].max() != times[later].min():
        return 0
    joint = np.concatenate([earlier, later])
    return int((times[joint] == times[later].min()).sum())


def _classes(dataset: Dataset, partition: Partition, clients: Clients) -> Iterator[str]:
    """Report classes (labels, events) that a client has on one side of the split alone, and those
    that nobody trains on in round 1.

    Partitions that deal rows by shares differ by a row at each client from rounding; that is none.
    """
    if dataset.targets not in {"classes", "multilabel", "survival"}:
        return
    titles = _titles(dataset)
    splits: tuple[Split, ...] = ("train", "validation", "test")
    counts = {split: _class_counts(dataset, partition, split) for split in splits}
    sizes = {
        split: np.array([len(getattr(c, split)) for c in partition.clients]) for split in splits
    }
    tolerance = 0 if partition.recipe.get("name", "file") in DATA_PARTITIONS else 1

    def unseen(split: Split, absent: Split) -> Counts:
        """Return (n, C) whether a client has rows of a class in one split and none in another."""
        share = sizes[absent] / np.maximum(sizes[split], 1)
        surely = counts[split] - tolerance
        enough = (surely > 0) & (surely * share[:, np.newaxis] >= tolerance)
        in_absent = (sizes[absent] > 0)[:, np.newaxis]
        missing: Counts = enough & in_absent & (counts[absent] == 0)
        return missing

    lines = {
        "{} in training rows only, so that test results do not cover it": unseen("train", "test"),
        "{} in training rows only, so that validation does not cover it": unseen(
            "train", "validation"
        )
        & clients.validated,
        "{} in test rows, but not in training rows": unseen("test", "train")
        & (counts["validation"] == 0),
    }
    for line, missing in lines.items():
        if missing.any():
            yield line.format(_format_missing(missing, titles, clients.names))
    founders = np.isin(np.arange(len(clients.names)), list(clients.founders))
    late = counts["train"][~founders].any(axis=0) & ~counts["train"][founders].any(axis=0)
    if late.any():
        yield (
            f"no client of round 1 has training rows of {listed(list(titles[late]), MOST_CLASSES)}"
            ", the network has an output for it"
        )


def _titles(dataset: Dataset) -> NDArray[np.str_]:
    """Return what the columns of ``_counted`` count."""
    if dataset.targets == "survival":
        return np.array(["an event"])
    noun = "class" if dataset.targets == "classes" else "label"
    names = dataset.classes or dataset.labels or tuple(map(str, range(dataset.n_outputs)))
    return np.array([f"{noun} {name}" for name in names])


def _class_counts(dataset: Dataset, partition: Partition, split: Split) -> Counts:
    """Return (n, C) each client's rows of each class, with each label, or with an event."""
    if dataset.targets == "classes":
        return label_counts(partition, dataset, split)
    y = dataset.y if dataset.targets == "multilabel" else dataset.y[:, 1:]
    return np.stack([(y[getattr(c, split)] > 0).sum(axis=0) for c in partition.clients])


def _format_missing(missing: Counts, titles: NDArray[np.str_], names: Sequence[str]) -> str:
    """Format (n, C), ``class ill (A, B), class rare (C)``."""
    entries = [
        f"{title} ({listed([names[int(i)] for i in np.flatnonzero(column)], MOST_CLIENTS)})"
        for title, column in zip(titles, missing.T, strict=True)
        if column.any()
    ]
    return listed(entries, MOST_CLASSES)


def _untested(partition: Partition, names: Sequence[str]) -> list[str]:
    untested = [
        name for name, client in zip(names, partition.clients, strict=True) if not len(client.test)
    ]
    if not untested:
        return []
    if len(untested) == len(names):
        return [
            (
                "no client has test rows, so there are no test figures; give more rows a client, "
                "or separate test rows"
            )
        ]
    return [
        (
            f"{len(untested)} of {len(names)} clients have no test rows and are in no mean: "
            f"{listed(untested)}"
        )
    ]
