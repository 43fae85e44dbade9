"""CSV and Parquet files, and frames: what they say at their start, and their rows as texts, with
their lines.
"""

import codecs
import csv
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

from pomona.core.errors import ConfigError, DataError, listed, near, refuse
from pomona.core.files import opened as binary
from pomona.data import parquet
from pomona.data.array_file import file, reading
from pomona.data.frame import Frame, Source
from pomona.data.settings import MARKS, CsvForm

MOST_COLUMNS = 10**5
MOST_ROWS = 10**7
LONGEST_LINE = 1 << 20  # characters examined to find the separator
DIVIDERS = ",;\t|"
PACKED = (b"\x1f\x8b", b"PK\x03\x04")  # gzip, zip
_COMMA = re.compile(r"(?:(?:[<>]=?|[≤≥])\s*)?[-+]?\d+,\d+")


class Record(NamedTuple):
    """The cells of a record and the line where it ends; for Parquet the row number, with 0 for the
    column names, and for frames the row number from 0.
    """

    path: Source
    line: int
    cells: list[str]


Records = Generator[Record, None, None]


@dataclass(frozen=True)
class TableFile:
    """A file whose start has been read.

    Attributes:
        path: of the file.
        form: what is set about a CSV file.
        encoding, separator: of a CSV file, as set or found; without meaning for Parquet.
        header: whether the first record names the columns.
        named: whether the columns have names, from the header or from the settings.
        columns: names of the columns, or their numbers as text.
        order: places of the columns in the file, if these are not 0, 1, ...
    """

    path: Source
    form: CsvForm
    encoding: str = ""
    separator: str = ","
    header: bool = False
    named: bool = False
    columns: tuple[str, ...] = ()
    order: tuple[int, ...] = ()

    def rows(self) -> Iterator[Record]:
        """Yield the records below the header, without empty lines.

        Raises:
            DataError: the file cannot be read, is not CSV or Parquet, has more than ``MOST_ROWS``
                rows after the first, or, at the end, lines of the wrong width, which are all named.
        """
        wrong = []
        for record in islice(_format(self.path).records(self), int(self.header), None):
            path, line, cells = record
            if len(cells) != len(self.columns):
                wrong.append(
                    f"{place(path, line)}: {len(cells)} cells, not {len(self.columns)}; complete "
                    "the line"
                )
            elif self.order:
                yield Record(path, line, [cells[i] for i in self.order])
            else:
                yield record
        refuse(self.path, wrong, list(filter(None, [_divided(self.columns)])))

    def like(self, first: "TableFile") -> "TableFile":
        """Return the file with its columns in the order of another one's.

        Raises DataError unless both have the same columns.
        """
        if self.columns == first.columns:
            return self
        if sorted(self.columns) == sorted(first.columns):
            order = tuple(map(self.columns.index, first.columns))
            return replace(self, columns=first.columns, order=order)
        alone = [
            f"only {one.path} has {listed(odd, 4)}"
            for one, other in ((self, first), (first, self))
            if (odd := sorted({*one.columns} - {*other.columns}))
        ]
        raise DataError(
            f"{self.path} and {first.path} have different columns ({'; '.join(alone)}); give both "
            "the same"
        )

    def with_names(self, names: tuple[str, ...]) -> "TableFile":
        """Return a file without a header whose columns have the names of ``data.columns``.

        Raises ConfigError if the file has a header, or another number of columns.
        """
        if self.header:
            raise ConfigError(
                f"data.columns names columns that {self.path} names itself; drop data.columns"
            )
        if len(self.columns) != len(names):
            raise ConfigError(
                f"data.columns has {len(names)} names, {self.path} {len(self.columns)} columns; "
                "name each once"
            )
        return replace(self, named=True, columns=names)

    def index(self, which: str | int, key: str) -> int:
        """Return the index of a column given by name or number; a number that is a name is one.

        Raises ConfigError with the setting ``key``.
        """
        if self.named and str(which) in self.columns:
            return self.columns.index(str(which))
        if isinstance(which, str):
            hint = "; ".join(filter(None, [near(which, self.columns), _divided(self.columns)]))
            raise ConfigError(f"data.{key}: {self.path} has no column {which!r}; {hint}")
        count = len(self.columns)
        if not -count <= which < count:
            raise ConfigError(
                f"data.{key}: {self.path} has no column {which}; its columns are 0 to {count - 1}"
            )
        return which % count

    def indices(self, which: Iterable[str | int], key: str) -> tuple[int, ...]:
        """Return the indices of several columns; see ``index``."""
        return tuple(self.index(one, key) for one in which)

    def moved(self, which: Iterable[str | int]) -> dict[int, int]:
        """Return the indices of columns whose names are given as numbers, where these differ."""
        names = self.columns if self.named else ()
        named = {one: names.index(str(one)) for one in which if str(one) in names}
        return {one: i for one, i in named.items() if isinstance(one, int) and one != i}


def opened(path: Source, form: CsvForm, header: bool | Callable[[list[str]], bool]) -> TableFile:
    """Read the start of a file: its format, and the names of its columns.

    Args:
        path: of the file.
        form: what is set about a CSV file.
        header: whether its first record names the columns, or a function that tells from its cells;
            Parquet always names them.

    Raises:
        DataError: as ``TableFile.rows``, or the file is empty, has too many columns, or names two
            of them alike.
        ConfigError: the package that reads Parquet is missing.
    """
    kind = _format(path)
    found = _sniffed(path, form) if kind is CSV else TableFile(path, form)
    with closing(kind.records(found)) as records:
        first = next(records, None)
    if first is None:
        raise DataError(f"{path} is empty; at least one row is needed")
    if len(first.cells) > MOST_COLUMNS:
        raise DataError(
            f"{path} has {len(first.cells)} columns, at most {MOST_COLUMNS} are read; leave some "
            "out"
        )
    columns = tuple(normalize("NFC", cell.strip()) for cell in first.cells)
    if not (kind.always_named or (header(list(columns)) if callable(header) else header)):
        return replace(found, columns=tuple(map(str, range(len(columns)))))
    if twice := repeated(columns):
        raise DataError(f"{path}: two columns are named {twice[0]!r}; name each once")
    return replace(found, header=True, named=True, columns=columns)


def _sniffed(path: Source, form: CsvForm) -> TableFile:
    """Return the format of a CSV file."""
    assert isinstance(path, Path)
    with reading(path), binary(file(path)) as raw:
        start = raw.read(4)
        if start.startswith(PACKED):
            raise DataError(
                f"{path} is compressed, as .gz, .zip and .xlsx are; unpack it, or save it as CSV"
            )
        known = encoding(start, form)
        raw.seek(0)
        text = TextIOWrapper(raw, known, "replace", newline="")
        first, second = text.readline(LONGEST_LINE), text.readline(LONGEST_LINE)
    mark = MARKS[form.separator] if form.separator else _separator(first, second)
    return TableFile(path, form, known, mark)


def _csv_records(found: TableFile) -> Records:
    path, mark, decimal = found.path, found.separator, found.form.decimal
    assert isinstance(path, Path)
    pointed = decimal == "comma" or (decimal is None and mark != ",")
    with reading(path), TextIOWrapper(binary(file(path)), found.encoding, newline="") as text:
        lines = csv.reader(text, strict=True, delimiter=mark)
        try:
            for row, cells in enumerate(filter(None, lines)):
                if row > MOST_ROWS:
                    raise DataError(
                        f"{path} has more than {MOST_ROWS} rows, the limit; read a part of it"
                    )
                yield Record(path, lines.line_num, list(map(_pointed, cells)) if pointed else cells)
        except (csv.Error, UnicodeError) as fault:
            raise DataError(
                f"{path}, after line {lines.line_num}: {misread(fault, found.form)}"
            ) from fault


def _parquet_records(found: TableFile) -> Records:
    assert isinstance(found.path, Path)
    cells = parquet.records(found.path, MOST_ROWS)
    return (Record(found.path, row, each) for row, each in enumerate(cells))


def _frame_records(found: TableFile) -> Records:
    assert isinstance(found.path, Frame)
    return (Record(found.path, row, each) for row, each in enumerate(found.path.records(), -1))


class Format(NamedTuple):
    """How files of a format are read: all records, what a row is called in messages, and whether
    the first record always names the columns.
    """

    records: Callable[[TableFile], Records]
    row: str
    always_named: bool


CSV = Format(_csv_records, "line", always_named=False)
FRAME = Format(_frame_records, "row", always_named=True)
FORMATS = {
    **dict.fromkeys((".csv", ".data", ".tsv", ".txt"), CSV),
    parquet.SUFFIX: Format(_parquet_records, "row", always_named=True),
}


def _format(path: Source) -> Format:
    if isinstance(path, Frame):
        return FRAME
    return FORMATS.get(path.suffix.lower(), CSV)


def misread(fault: Exception, form: CsvForm) -> str:
    """Describe why a text cannot be read, and the setting that may help."""
    if "field limit" in str(fault):
        return (
            f"a cell of more than {csv.field_size_limit()} characters, the limit; shorten it, or "
            "close its quote"
        )
    if not isinstance(fault, UnicodeError):
        return (
            f"no CSV ({fault}); correct it, or say how it is written by data.separator and "
            "data.encoding"
        )
    if form.encoding:
        return (
            f"not data.encoding = {form.encoding} ({fault}); set the encoding in which it was saved"
        )
    return (
        f"bytes that are not UTF-8 or UTF-16 ({fault}); set data.encoding = 'cp1252' or "
        "another, or save it as UTF-8"
    )


def encoding(start: bytes, form: CsvForm) -> str:
    """Return the codec of a file from its first bytes: as set, else UTF-16 if it has a UTF-16 byte
    order mark.
    """
    marked = start[:2] in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}
    known = form.encoding or ("utf-16" if marked else "utf-8")
    return {"utf-8": "utf-8-sig", "utf-16": "utf-16" if marked else "utf-16-le"}.get(known, known)


def _separator(first: str, second: str) -> str:
    """Return the separator that the first two lines suggest.

    The default is a comma. A semicolon, tab or bar is chosen if both lines contain it equally often
    and the first has no comma, as spreadsheets write with a decimal comma.
    """
    found = [
        mark for mark in ";\t|" if first.count(mark) and first.count(mark) == second.count(mark)
    ]
    return found[0] if len(found) == 1 and "," not in first else ","


def _pointed(cell: str) -> str:
    """Replace a number's decimal comma with a point; returns any other cell unchanged."""
    return cell.replace(",", ".") if _COMMA.fullmatch(cell.strip()) else cell


def place(path: Source, line: int, several: bool = False) -> str:
    """Return a record's location for messages: its line or row, and its file if there are
    several.
    """
    return f"{_format(path).row} {line}" + (f" of {path}" if several else "")


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once."""
    return [name for name, times in Counter(names).items() if times > 1]


def _divided(columns: Sequence[str]) -> str:
    """Return a hint if column names contain possible separators."""
    odd = any(mark in name for name in columns for mark in DIVIDERS)
    return "if its cells are divided by another character, set data.separator" if odd else ""


def parts(path: Path, suffix: str = ".csv") -> list[Path]:
    """Return a file, or a folder's train.csv and its test.csv if present; or those with another
    suffix.
    """
    if not path.is_dir():
        return [path]
    train, test = path / f"train{suffix}", path / f"test{suffix}"
    if not train.exists():
        raise DataError(f"{path} has no {train.name}; add it, or set data.path to one file")
    return [train, test] if test.exists() else [train]
