"""Data sets of the Hugging Face Hub: the Parquet files of a repository at a commit."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import cast

import pyarrow as pa

from pomona.core import bounds
from pomona.core.errors import ConfigError, DataError, listed
from pomona.data import hub, text
from pomona.data.axes import ColumnData, PictureRows, Table, Texts
from pomona.data.dataset import Dataset
from pomona.data.formats import arrow
from pomona.data.images import image_arrays, image_stack
from pomona.data.reader_process import Reply, read_in_child
from pomona.data.settings import DataSettings, HubFiles
from pomona.data.tables import tabular
from pomona.data.tables.survey import TableSurvey, survey

SUFFIX = ".parquet"
NOTE = "huggingface"  # of the features, in a file of the Hub's library


def read(settings: DataSettings) -> Dataset:
    """Read a repository's table, texts or images; classes have the names of its card.

    Raises:
        ConfigError: no repository or commit, or several subsets.
        DataError: it is not on this machine, or has no such files.
    """
    source = cast("HubFiles", settings)
    if not source.repository:
        raise ConfigError("a repository needs its name: set data.repository = 'OWNER/NAME'")
    name = f"{source.repository}@{source.revision}"
    root = hub.snapshot("dataset", source.repository, source.revision)
    train, test = _split_files(name, root, source)
    names = _class_names(train[0], cast("ColumnData", settings))
    if names:  # the files have their numbers
        settings = settings.model_copy(update={"classes": tuple(map(str, range(len(names))))})
    dataset = _dataset([*train, *test], len(train), settings)
    return replace(dataset, name=name, classes=names or dataset.classes)


def _dataset(paths: Sequence[Path], training: int, settings: DataSettings) -> Dataset:
    if isinstance(settings, Texts):
        return text.read_parts(paths, training, settings)[0]
    if isinstance(settings, Table):
        return tabular.read_parts(paths, training, settings)[0]
    assert isinstance(settings, PictureRows)
    return _images(paths, training, settings)


def _split_files(name: str, root: Path, settings: HubFiles) -> tuple[list[Path], list[Path]]:
    """Return the files for training and for testing, sorted by path.

    Raises as ``read``.
    """
    inside = _subset_files(name, root, settings.subset)
    train, test = (_containing(role, inside) for role in (settings.train_part, settings.test_part))
    if not train or {*train} & {*test}:
        raise ConfigError(
            f"{name}: {'no file is' if not train else 'some files are both'} for training "
            f"({settings.train_part}) and for testing ({settings.test_part}) among "
            f"{listed(list(map(str, inside)), 6)}; set data.train_part and data.test_part"
        )
    usual = type(settings).model_fields["test_part"].default
    if not test and settings.test_part not in ("", usual):
        raise ConfigError(f"{name} has no files of data.test_part = {settings.test_part}")
    return [root / path for path in train], [root / path for path in test]


def _subset_files(name: str, root: Path, subset: str) -> list[Path]:
    """Return the files of a subset below ``root``, sorted. Raises as ``read``."""
    every = sorted(path.relative_to(root) for path in root.rglob(f"*{SUFFIX}"))
    inside = [path for path in every if path.is_relative_to(subset)]
    if not inside:
        summary = f"it has {listed(sorted({*_tops(every)}), 8)}" if every else "it has none"
        raise DataError(
            f"{name} has no Parquet files{f' in {subset}' if subset else ''} ({summary}); the Hub "
            "keeps Parquet files of every data set at its revision refs/convert/parquet"
        )
    tops = sorted({*_tops(inside)})
    if not subset and len(tops) > 1:
        raise ConfigError(f"{name} has the subsets {listed(tops, 8)}; set data.subset to one")
    return inside


def _tops(paths: Sequence[Path]) -> list[str]:
    """Return the first folder of each path; of files next to the folders ``.``."""
    return [path.parts[0] if len(path.parts) > 1 else "." for path in paths]


def _containing(split: str, paths: Sequence[Path]) -> list[Path]:
    """Return the paths that contain a word, as the Hub reads them: between / . _ and -."""
    if not split:
        return []
    pattern = re.compile(rf"(^|[/._-]){re.escape(split)}([/._-]|$)")
    return [path for path in paths if pattern.search(str(PurePosixPath(path)))]


def _class_names(path: Path, settings: ColumnData) -> tuple[str, ...]:
    """Return the names of the label's classes that a file's note has; none if it has none, or they
    are set.
    """
    if settings.classes or settings.targets != "classes" or len(settings.labels) != 1:
        return ()
    note = read_in_child(lambda: Reply(_note(path)), path).facts
    tree = bounds.parse(note, lambda reason: DataError(f"{path}: its Hub metadata: {reason}"))
    for key in ("info", "features", str(settings.labels[0]), "names"):
        tree = tree.get(key) if isinstance(tree, dict) else None
    are_names = isinstance(tree, list) and all(isinstance(name, str) for name in tree)
    return tuple(map(bounds.plain, tree)) if are_names and len({*tree}) == len(tree) else ()


def _note(path: Path) -> str:
    """Return the features that the Hub's library wrote into a file, as JSON."""
    try:
        return arrow.metadata(path, NOTE).decode() or "{}"
    except (OSError, ValueError) as fault:
        raise DataError(f"{path}: not a readable Parquet file ({fault}); fetch it again") from fault


def _images(paths: Sequence[Path], training: int, settings: PictureRows) -> Dataset:
    table = survey(paths, settings)
    assert settings.image_column is not None, "a setting selects this kind"
    column = table.sources[0].index(settings.image_column, "image_column")
    y, classes = table.targets(settings)
    with TemporaryDirectory() as folder:
        unpack = lambda: Reply(_unpacked(table, column, Path(folder)))  # noqa: E731
        pictures = [Path(name) for name in read_in_child(unpack, table.name).facts]
        stack = image_stack.stacked(table.name, pictures, settings)
    n_train = sum(table.counts[:training])
    usual = image_arrays.usual(stack.x)
    dataset = Dataset(table.name, "image", stack.x, y, classes, n_train, *usual, notes=stack.notes)
    described = table.described(dataset, training, (column,))
    return replace(described, columns=(), others=())


def _unpacked(table: TableSurvey, column: int, folder: Path) -> list[str]:
    """Write the pictures of the rows as files, for the readers of files; returns their paths."""
    paths = []
    for number, source in enumerate(table.sources):
        cells = source.cells(column)
        if pa.types.is_struct(cells.type):
            cells = pa.chunked_array([chunk.field("bytes") for chunk in cells.chunks])
        for row, picture in enumerate(cells):
            number_in_file = row if source.kept_rows is None else int(source.kept_rows[row])
            paths.append(str(folder / f"file-{number}-row-{number_in_file + 1}.png"))
            Path(paths[-1]).write_bytes(picture.as_py() or b"")
    return paths
