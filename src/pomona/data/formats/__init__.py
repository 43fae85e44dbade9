"""Formats of tables, by the suffix of a file.

To add a format, write one function ``read(path, settings) -> Columns`` (``columns.py`` says what it
returns), and one line in ``_FORMATS``. The function runs in a child process with bounded memory and
time, so it may call any library. It looks at the settings that it knows, with ``isinstance``
against its own group of settings, and ignores all others; it raises ``DataError`` for a file that
cannot be read and adds a note for everything that it drops, converts or guesses. It does not
interpret cells: what is a gap, a number or a category is decided for all formats in
``pomona.data.tables``.

A package can add a format too, by an entry point of the group ``pomona.readers`` whose name is the
suffix and whose object is a ``Format``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from pomona.core.errors import ConfigError, DataError, with_extra
from pomona.core.registry import load
from pomona.data.array_file import file
from pomona.data.formats.columns import Columns
from pomona.data.formats.folder import Reader
from pomona.data.formats.transfer import Work, read_columns
from pomona.data.settings import (
    CsvFile,
    DataSettings,
    SpreadsheetFormat,
    StatisticsFormat,
)

ENTRY_POINTS = "pomona.readers"


@dataclass(frozen=True)
class Format:
    """A format of tables.

    Attributes:
        title: its name in messages.
        reader: ``module:function`` of its ``read(path, settings) -> Columns``.
        library: the module that the reader needs, if it is not a dependency of the package.
        extra: the extra of the package that installs the library.
        settings: the group of settings that only this format has.
    """

    title: str
    reader: str
    library: str = ""
    extra: str = ""
    settings: type[DataSettings] | None = None


CSV = Format("CSV", "pomona.data.formats.csv:read", settings=CsvFile)
_STATISTICS = partial(
    Format,
    reader="pomona.data.formats.statistics_files:read",
    library="pyreadstat",
    extra="clinical",
    settings=StatisticsFormat,
)
_SPREADSHEET = Format(
    "spreadsheet",
    "pomona.data.formats.spreadsheets:read",
    "python_calamine",
    "clinical",
    SpreadsheetFormat,
)
_FORMATS: Mapping[str, Format] = {
    **dict.fromkeys((".csv", ".data", ".tsv", ".txt"), CSV),
    **dict.fromkeys((".parquet", ".pq"), Format("Parquet", "pomona.data.formats.arrow:parquet")),
    **dict.fromkeys(
        (".arrow", ".feather", ".ipc"), Format("Arrow", "pomona.data.formats.arrow:ipc")
    ),
    ".orc": Format("ORC", "pomona.data.formats.arrow:orc"),
    **dict.fromkeys((".sas7bdat", ".xpt"), _STATISTICS("SAS")),
    **dict.fromkeys((".por", ".sav", ".zsav"), _STATISTICS("SPSS")),
    ".dta": _STATISTICS("Stata"),
    **dict.fromkeys((".ods", ".xls", ".xlsb", ".xlsm", ".xlsx"), _SPREADSHEET),
}


@cache
def formats() -> Mapping[str, Format]:
    """Return all formats by suffix, with those of other packages."""
    outside = {
        entry.name: cast("Format", entry.load()) for entry in entry_points(group=ENTRY_POINTS)
    }
    return {**outside, **_FORMATS}


def suffix(path: Path) -> str:
    """Return the suffix that names a file's format, in lower case and without ``.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def format_of(path: Path) -> Format | None:
    """Return the format of a file by its suffix; None if it is not a table's."""
    return formats().get(suffix(path))


def part_files(folder: Path) -> list[Path]:
    """Return the table files in a folder and its folders, in order; hidden ones are left out, and
    those with an underscore, which programs write beside their data.
    """
    every = (path for path in sorted(folder.rglob("*")) if format_of(path) and path.is_file())
    return [
        path
        for path in every
        if not any(name.startswith((".", "_")) for name in path.relative_to(folder).parts)
    ]


def training_and_test(path: Path) -> list[Path]:
    """Return the file or folder with the training rows, and that with the test rows if there is
    one: those named train and test of a folder, else the path itself.

    Raises DataError for a folder without tables.
    """
    if not path.is_dir():
        return [path]
    train, test = (_named(path, name) for name in ("train", "test"))
    if train:
        return [train, *filter(None, [test])]
    if test or not part_files(path):
        raise DataError(f"{path} has no train.csv; add it, or set data.path to one file")
    return [path]


def _named(folder: Path, name: str) -> Path | None:
    """Return the table of a folder by its name, a file or a folder with files."""
    inside = sorted(folder.iterdir())
    paths = [path for path in inside if format_of(path) and path.stem.split(".")[0] == name]
    paths += [path for path in inside if path.name == name and path.is_dir() and part_files(path)]
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise DataError(f"{folder} has {names}; keep one, or set data.path to one file")
    return paths[0] if paths else None


def read(paths: Sequence[Path], settings: object) -> list[Columns]:
    """Read files, and folders of files, with the settings of their data, all in one child process.

    A file whose suffix is unknown is read as CSV.

    Raises:
        ConfigError: the library of a format is missing.
        DataError: a file is missing, cannot be read, or is not of its format.
    """
    work = []
    for path in paths:
        files = part_files(path) if path.is_dir() else [path]
        known = [format_of(each) or CSV for each in files]
        readers = [_reader(each, form) for each, form in zip(files, known, strict=True)]
        if not readers:
            raise DataError(f"{path} has no tables; set data.path to a file")
        work.append(Work(path, known[0].title, [*zip(map(file, files), readers, strict=True)]))
    return read_columns(work, settings)


def _reader(path: Path, form: Format) -> Reader:
    """Return a format's read function. Raises ConfigError if its library is missing."""
    if form.library and not find_spec(form.library):
        raise ConfigError(f"{path}: {form.title} needs {form.library}; {with_extra(form.extra)}")
    return cast("Reader", load(form.reader))
