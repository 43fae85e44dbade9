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
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from pomona.core.errors import ConfigError, DataError, listed, with_extra
from pomona.core.registry import load
from pomona.data.array_file import file
from pomona.data.formats.columns import Columns, Reader
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
_STATISTICS = ("pomona.data.formats.statistics_files:read", "pyreadstat", "clinical")
_SHEETS = ("pomona.data.formats.spreadsheets:read", "python_calamine", "clinical")
_FORMATS: Mapping[Format, Sequence[str]] = {
    CSV: (".csv", ".data", ".tsv", ".txt"),
    Format("Parquet", "pomona.data.formats.arrow:parquet"): (".parquet", ".pq"),
    Format("Arrow", "pomona.data.formats.arrow:ipc"): (".arrow", ".feather", ".ipc"),
    Format("ORC", "pomona.data.formats.arrow:orc"): (".orc",),
    Format("SAS", *_STATISTICS, StatisticsFormat): (".sas7bdat", ".xpt"),
    Format("SPSS", *_STATISTICS, StatisticsFormat): (".por", ".sav", ".zsav"),
    Format("Stata", *_STATISTICS, StatisticsFormat): (".dta",),
    Format("spreadsheet", *_SHEETS, SpreadsheetFormat): (".ods", ".xls", ".xlsb", ".xlsm", ".xlsx"),
}


@cache
def formats() -> Mapping[str, Format]:
    """Return all formats by suffix, with those of other packages."""
    outside = {entry.name: entry.load() for entry in entry_points(group=ENTRY_POINTS)}
    inside = {ending: form for form, endings in _FORMATS.items() for ending in endings}
    return {**outside, **inside}


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
    return [
        path
        for path in sorted(folder.rglob("*"))
        if format_of(path)
        and path.is_file()
        and not any(name.startswith((".", "_")) for name in path.relative_to(folder).parts)
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
        ConfigError: the library of a format is missing, or a setting is for other formats.
        DataError: a file is missing, cannot be read, or is not of its format.
    """
    work, used = [], []
    for path in paths:
        files = part_files(path) if path.is_dir() else [path]
        by_format = {format_of(each) or CSV: each for each in files}
        if len(by_format) != 1:
            raise DataError(
                f"{path} has tables of {len(by_format)} formats "
                f"({listed([each.name for each in by_format.values()])}); keep those of one, or "
                "set data.path to a file"
            )
        form = next(iter(by_format))
        if form.library and not find_spec(form.library):
            raise ConfigError(
                f"{path}: {form.title} needs {form.library}; {with_extra(form.extra)}"
            )
        reader = cast("Reader", load(form.reader))
        work.append(Work(path, [*map(file, files)], reader, form.title))
        used.append(form)
    _refuse_idle_settings(work, used, settings)
    return read_columns(work, settings)


def _refuse_idle_settings(work: Sequence[Work], used: Sequence[Format], settings: object) -> None:
    """Raise ConfigError for settings of other formats than the files have: those of a folder are
    known only now.
    """
    read_keys = {key for form in used if form.settings for key in form.settings.model_fields}
    for form in formats().values():
        if form.settings and isinstance(settings, form.settings):
            keys = form.settings.model_fields.keys() - DataSettings.model_fields.keys() - read_keys
            idle = sorted(
                k for k in keys if getattr(settings, k) != form.settings.model_fields[k].default
            )
            if idle:
                raise ConfigError(
                    f"data.{idle[0]} is for {form.title}, {work[0].path} has {work[0].title}; "
                    f"remove it, or set data.format = '{work[0].title.lower()}' for its settings"
                )
