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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from pomona.core.errors import ConfigError, with_extra
from pomona.core.registry import load
from pomona.data.array_file import file
from pomona.data.formats.columns import Columns
from pomona.data.formats.transfer import read_columns
from pomona.data.settings import (
    CsvFile,
    DataSettings,
    SpreadsheetFormat,
    StatisticsFormat,
)

ENTRY_POINTS = "pomona.readers"
Reader = Callable[[Path, object], Columns]


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


def read(paths: Sequence[Path], settings: object) -> list[Columns]:
    """Read files with the settings of their data, all in one child process.

    A file whose suffix is unknown is read as CSV.

    Raises:
        ConfigError: the library of a format is missing.
        DataError: a file is missing, cannot be read, or is not of its format.
    """
    readers = [_reader(path, format_of(path) or CSV) for path in paths]
    return read_columns(list(zip(map(file, paths), readers, strict=True)), settings)


def _reader(path: Path, form: Format) -> Reader:
    """Return a format's read function. Raises ConfigError if its library is missing."""
    if form.library and not find_spec(form.library):
        raise ConfigError(f"{path}: {form.title} needs {form.library}; {with_extra(form.extra)}")
    return cast("Reader", load(form.reader))
