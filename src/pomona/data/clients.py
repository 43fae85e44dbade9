"""Data of several clients: read from the files of each, and compared.

The files define the partition and the split.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pomona.core.bounds import SPLITS
from pomona.core.errors import ConfigError, DataError, refuse
from pomona.core.files import expanded
from pomona.data import cell_values, formats, npz, text
from pomona.data.array_file import file, workbook
from pomona.data.axes import Arrays, Table, Texts
from pomona.data.dataset import Dataset
from pomona.data.settings import DataSettings, FilesByClient
from pomona.data.tables import tabular


def read(settings: FilesByClient) -> Dataset:
    """Read the files of ``data.clients``: all training rows, then all validation rows, then all
    test rows.

    Normalisation and vocabulary are learned from the training rows of all clients.

    Raises:
        ConfigError: no clients, or files of different types.
        DataError: a file is missing or damaged.
    """
    if not settings.clients:
        raise ConfigError(
            "data 'clients' needs files: add a section data.clients with name and train file"
        )
    files = [
        (client, role, expanded(path))
        for role, split in enumerate(SPLITS)
        for client, files in enumerate(settings.clients)
        if (path := getattr(files, split)) is not None
    ]
    paths = [path for _, _, path in files]
    refuse("data.clients", _shared(files, [client.name for client in settings.clients]))
    dataset, counts = _read_files(paths, len(settings.clients), settings)
    names = tuple(cell_values.normalized_name(files.name) for files in settings.clients)
    clients, roles = [client for client, _, _ in files], [role for _, role, _ in files]
    return replace(dataset, name="clients").with_owners(names, clients, roles, counts)


def _read_files(
    paths: Sequence[Path], training: int, settings: DataSettings
) -> tuple[Dataset, tuple[int, ...]]:
    """Read all files as one data set, the first ``training`` for training; also return their row
    counts.
    """
    refuse("data.clients", [problem for path in paths if (problem := _fault(path))])
    _require_same_form(paths)
    if isinstance(settings, Arrays):
        return npz.read_parts(paths, training, settings)
    if isinstance(settings, Texts):
        return text.read_parts(paths, training, settings)
    assert isinstance(settings, Table)
    return tabular.read_parts(paths, training, settings)


def _require_same_form(paths: Sequence[Path]) -> None:
    """Raise ConfigError unless all files are archives, or all are tables."""
    arrays = [path.suffix.lower() == ".npz" for path in paths]
    tables = [path.is_dir() or formats.format_of(path) is not None for path in paths]
    if not (all(arrays) or all(tables)):
        suffixes = sorted({path.suffix.lower() or "no suffix" for path in paths})
        raise ConfigError(
            f"the files of data.clients end in {', '.join(suffixes)}; give all as .npz or as tables"
        )


def _shared(files: Sequence[tuple[int, int, Path]], names: Sequence[str]) -> list[str]:
    """Report each file of training rows that is also used for another split, whose metrics would be
    on trained rows.
    """
    first: dict[Path, tuple[int, int]] = {}
    lines = []
    for client, role, path in files:  # training rows come first
        owner, split = first.setdefault(path.absolute(), (client, role))
        if (names[owner], split) != (names[client], role) and split == 0:
            second = f"the {SPLITS[role]} rows of {names[client]}"
            lines.append(
                f"{path} contains the train rows of {names[owner]} and {second}; give each a file"
            )
    return lines


def _fault(path: Path) -> str:
    """Describe in one line why a path cannot be read; empty if it can.

    All paths are reported together.
    """
    if path.is_dir() and formats.part_files(path):
        return ""
    if path.is_dir():
        return f"{path} is a folder; images of a client are one .npz with arrays x and y"
    try:
        file(workbook(path)[0])
    except DataError as fault:
        return str(fault)
    return ""
