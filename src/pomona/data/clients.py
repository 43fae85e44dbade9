"""Data of several clients: read from the files of each, and compared.

The files define the partition and the split. A table's owners are compared for shared rows or
identifiers, and for different units.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import SPLITS
from pomona.core.errors import ConfigError, DataError, listed, refuse
from pomona.core.files import expanded
from pomona.data import cell_values, csv_table, npz, text
from pomona.data.array_file import file
from pomona.data.dataset import Dataset, Owners
from pomona.data.kinds import (
    Arrays,
    ClientArrays,
    ClientCsvTables,
    ClientCsvTexts,
    ClientParquetTables,
    ClientParquetTexts,
    Texts,
)
from pomona.data.table_file import FORMATS
from pomona.data.validation import blocks

FEWEST = 10  # minimum measurements per owner for a meaningful median
NEAR = 0.3  # tolerance of a ratio's log10 from an integer: up to a factor of 2
ClientData = (
    ClientCsvTables | ClientParquetTables | ClientCsvTexts | ClientParquetTexts | ClientArrays
)


def read(settings: ClientData) -> Dataset:
    """Read the files of ``data.clients``: all training rows, then all validation rows, then all
    test rows.

    Normalisation and vocabulary are learned from the training rows of all clients.

    Raises:
        ConfigError: no clients, or files of different types.
        DataError: a file is missing or damaged.
    """
    if not settings.clients:
        raise ConfigError(
            "data 'clients' needs files: add a section data.clients with a name and a train file "
            "for each"
        )
    parts = [
        (client, role, expanded(path))
        for role, part in enumerate(SPLITS)
        for client, files in enumerate(settings.clients)
        if (path := getattr(files, part)) is not None
    ]
    paths = [path for _, _, path in parts]
    refuse("data.clients", _shared(parts, [client.name for client in settings.clients]))
    dataset, counts = _joined(paths, settings)
    client = np.repeat(np.array([client for client, _, _ in parts], np.int64), counts)
    role = np.repeat(np.array([role for _, role, _ in parts], np.int8), counts)
    owners = Owners(
        tuple(cell_values.given(files.name) for files in settings.clients), client, role
    )
    return replace(dataset, name="clients", n_train=int((role < 2).sum()), owners=owners)


def _joined(paths: Sequence[Path], settings: ClientData) -> tuple[Dataset, tuple[int, ...]]:
    """Read all files as one data set; also return their row counts."""
    refuse("data.clients", [problem for path in paths if (problem := _fault(path))])
    suffixes = {path.suffix.lower() for path in paths}
    formats = set(map(FORMATS.get, suffixes))
    if suffixes != {".npz"} and (None in formats or len(formats) > 1):
        named = ", ".join(sorted(suffix or "no suffix" for suffix in suffixes))
        raise ConfigError(
            f"the files of data.clients end in {named}; give all as .npz, .parquet, or CSV"
        )
    training = len(settings.clients)
    if isinstance(settings, Arrays):
        return npz.read_parts(paths, training, settings)
    if isinstance(settings, Texts):
        return text.read_parts(paths, training, settings)
    return csv_table.read_parts(paths, training, settings)


def _shared(parts: Sequence[tuple[int, int, Path]], names: Sequence[str]) -> list[str]:
    """Report each file of training rows that is also used for another split, whose metrics would be
    on trained rows.
    """
    first: dict[Path, tuple[int, int]] = {}
    lines = []
    for client, role, path in parts:  # training rows come first
        owner, part = first.setdefault(path.absolute(), (client, role))
        if (names[owner], part) != (names[client], role) and part == 0:
            where = f"the {SPLITS[role]} rows of {names[client]}"
            lines.append(
                f"{path} holds the train rows of {names[owner]} and {where}; give each its own file"
            )
    return lines


def _fault(path: Path) -> str:
    """Describe in one line why a path cannot be read; empty if it can.

    All paths are reported together.
    """
    if path.is_dir():
        return (
            f"{path} is a folder; images of a client come as one .npz with arrays x and y, see "
            "the guide to own data"
        )
    try:
        file(path)
    except DataError as fault:
        return str(fault)
    return ""


def remarks(dataset: Dataset) -> list[str]:
    """Warn about rows and identifiers that occur at several owners, and about units that differ by
    a factor.

    Args:
        dataset: a table as read, x (N, F) with NaN for gaps; without owners the result is empty.
    """
    owners = dataset.owners
    dataset = replace(dataset, x=dataset.raw.x) if dataset.raw else dataset
    if owners is None or len(owners.names) < 2:
        return []
    return [*_same_rows(dataset, owners), *_same_groups(dataset, owners), *_units(dataset, owners)]


def _same_rows(dataset: Dataset, owners: Owners) -> list[str]:
    """Warn if owners share rows, unless rows repeat as often within an owner because of coarse
    values.
    """
    # row hashes, since the rows may not fit in memory twice
    alike = np.empty(len(dataset.x), np.int64)
    for start, block in blocks(dataset.x):
        stop = start + len(block)
        whole = np.hstack([_bytes(block), _bytes(dataset.y[start:stop])])
        rows = whole.view(f"V{whole.shape[1]}").ravel()  # one value a row
        alike[start:stop] = list(map(hash, rows.tolist()))
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


def _bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Return rows (n, ...) as their bytes (n, B), the same for equal values: one zero, one NaN."""
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), rows.dtype.type(np.nan), rows + rows.dtype.type(0))
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)


def _same_groups(dataset: Dataset, owners: Owners) -> list[str]:
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
