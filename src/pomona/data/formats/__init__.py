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
from typing import TYPE_CHECKING, cast

from pomona.core.errors import ConfigError, DataError, listed, with_extra
from pomona.core.registry import load
from pomona.data.array_file import file, workbook
from pomona.data.settings import DataSettings
from pomona.data.table_settings import CsvFile, SpreadsheetFormat, StatisticsFormat

if TYPE_CHECKING:
    from pomona.data.formats.columns import Columns, Reader
    from pomona.data.formats.transfer import Work

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

    @property
    def name(self) -> str:
        """Its name in settings."""
        return self.title.lower()


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
    inside = {ending: adapter for adapter, endings in _FORMATS.items() for ending in endings}
    return {**outside, **inside}


def suffix(path: Path) -> str:
    """Return the suffix that names a file's format, in lower case and without ``.gz``."""
    return Path(workbook(path)[0].name.lower().removesuffix(".gz")).suffix


def format_of(path: Path) -> Format | None:
    """Return the format of a file by its suffix; None if it is not a table's."""
    return formats().get(suffix(path))


def part_files(folder: Path) -> list[Path]:
    """Return the table files in a folder and its folders, in order; hidden ones are left out, and
    those with an underscore, which programs write next to their data.
    """
    return [
        path
        for path in sorted(folder.rglob("*"))
        if format_of(path)
        and path.is_file()
        and not any(name.startswith((".", "_")) for name in path.relative_to(folder).parts)
        # results that the Hub's library keeps next to its data
        and not (path.name.startswith("cache-") and (path.parent / "state.json").exists())
    ]


def training_and_test(path: Path) -> list[Path]:
    """Return the file or folder with the training rows, and that with the test rows if there is
    one: those named train and test of a folder, else the path itself.

    Raises DataError for a folder without tables.
    """
    if not path.is_dir():
        return [path]
    train, test = (_named_table(path, name) for name in ("train", "test"))
    if train:
        return [train, *filter(None, [test])]
    if test or not part_files(path):
        raise DataError(f"{path} has no train.csv; add it, or set data.path to one file")
    return [path]


def _named_table(folder: Path, name: str) -> Path | None:
    """Return the table of a folder by its name, a file or a folder with files."""
    inside = sorted(folder.iterdir())
    paths = [path for path in inside if format_of(path) and path.stem.split(".")[0] == name]
    paths += [path for path in inside if path.name == name and path.is_dir() and part_files(path)]
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise DataError(f"{folder} has {names}; keep one, or set data.path to one file")
    return paths[0] if paths else None


def read(paths: Sequence[Path], settings: object) -> "list[Columns]":
    """Read files, and folders of files, with the settings of their data, all in one child process.

    A file whose suffix is unknown is read as CSV.

    Raises:
        ConfigError: the library of a format is missing, or a setting is for other formats.
        DataError: a file is missing, cannot be read, or is not of its format.
    """
    from pomona.data.formats import transfer  # imported late: it loads Arrow

    work, used = [], []
    for path in paths:
        files = part_files(path) if path.is_dir() else [path]
        by_format = {format_of(name) or CSV: name for name in files}
        if len(by_format) != 1:
            raise DataError(
                f"{path} has tables in {len(by_format)} formats "
                f"({listed([name.name for name in by_format.values()])}); keep those of one, or "
                "set data.path to a file"
            )
        file_format = next(iter(by_format))
        title, library = file_format.title, file_format.library
        if library and not find_spec(library):
            raise ConfigError(f"{path}: {title} needs {library}; {with_extra(file_format.extra)}")
        for name in files:
            file(workbook(name)[0])
        work.append(transfer.Work(path, files, cast("Reader", load(file_format.reader)), title))
        used.append(file_format)
    _refuse_idle_settings(work[0], used, settings)
    return transfer.read_columns(work, settings)


def _refuse_idle_settings(work: "Work", used: Sequence[Format], settings: object) -> None:
    """Raise ConfigError for settings of formats that no file has, also not that of ``work``: the
    format of a folder is known only now.
    """
    read_keys = {*DataSettings.model_fields}.union(
        *(file_format.settings.model_fields for file_format in used if file_format.settings)
    )
    for file_format in formats().values():
        if file_format.settings and isinstance(settings, file_format.settings):
            fields = file_format.settings.model_fields
            for key in sorted(fields.keys() - read_keys):
                if getattr(settings, key) != fields[key].default:
                    raise ConfigError(
                        f"data.{key} is for {file_format.title}, but {work.path} is {work.title}; "
                        f"remove it, or set data.format = '{work.title.lower()}' for its settings"
                    )
