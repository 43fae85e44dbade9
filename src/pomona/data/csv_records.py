"""CSV and Parquet files: records with line numbers, and columns by name or number."""

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO

from pomona.core.errors import ConfigError, DataError, near
from pomona.core.files import opened
from pomona.data import parquet
from pomona.data.array_file import file, reading
from pomona.data.problem_report import refuse
from pomona.data.settings import MARKS, CsvForm

MOST_COLUMNS = 10**5
MOST_ROWS = 10**7
LONGEST_LINE = 1 << 20  # characters that are looked at for what divides cells
DIVIDERS = ",;\t|"
_COMMA = re.compile(r"(?:(?:[<>]=?|[≤≥])\s*)?[-+]?\d+,\d+")


class CsvRecord(NamedTuple):
    """The cells of one record, and the line on which it ends; of Parquet the number of the row, and the names are 0."""

    path: Path
    line: int
    cells: list[str]


def records(path: Path, form: CsvForm) -> Iterator[CsvRecord]:
    """The records of a CSV file of this form, empty lines being passed over, or of a Parquet file, which needs none.

    Raises:
        DataError: a file that cannot be read, is no CSV, or has more than ``MOST_ROWS`` rows and a header.
        ConfigError: Parquet without the package that reads it.
    """
    if parquet.is_parquet(path):
        yield from (CsvRecord(path, row, cells) for row, cells in enumerate(parquet.records(path, MOST_ROWS)))
        return
    with reading(path), _text(path, form) as text:
        lines = None
        try:
            mark = _separator(text, form)
            pointed = form.decimal == "comma" or (form.decimal is None and mark != ",")
            lines = csv.reader(text, strict=True, delimiter=mark)
            for row, cells in enumerate(filter(None, lines)):
                if row > MOST_ROWS:
                    raise DataError(f"{path} has more than {MOST_ROWS} rows, at most so many are read; take a part")
                yield CsvRecord(path, lines.line_num, list(map(_pointed, cells)) if pointed else cells)
        except (csv.Error, UnicodeError) as fault:
            number = 0 if lines is None else lines.line_num
            raise DataError(f"{path}, after line {number}: {misread(fault, form)}") from fault


def misread(fault: Exception, form: CsvForm) -> str:
    """Why a text is not read, and the setting that may help."""
    if not isinstance(fault, UnicodeError):
        return f"no CSV ({fault}); correct it, or say how it is written by data.separator and data.encoding"
    if form.encoding:
        return f"not data.encoding = {form.encoding} ({fault}); set the encoding in which it was saved"
    return f"bytes that are not UTF-8 or UTF-16 ({fault}); set data.encoding = 'cp1252' or another, or save it as UTF-8"


def separator(path: Path, form: CsvForm) -> str:
    """What divides the cells of a file; see ``_separator``."""
    if parquet.is_parquet(path):
        return ","
    with reading(path), _text(path, form, "replace") as text:
        return _separator(text, form)


def encoding(start: bytes, form: CsvForm) -> str:
    """The codec of a file that starts so: as set, else UTF-16 by its byte order mark, which no UTF-8 begins with."""
    marked = start[:2] in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}
    known = form.encoding or ("utf-16" if marked else "utf-8")
    return {"utf-8": "utf-8-sig", "utf-16": "utf-16" if marked else "utf-16-le"}.get(known, known)


def _text(path: Path, form: CsvForm, errors: str = "strict") -> TextIOWrapper:
    """The text of a file from its start."""
    raw = opened(file(path))
    start = raw.read(2)
    raw.seek(0)
    return TextIOWrapper(raw, encoding(start, form), errors, newline="")


def _separator(text: TextIO, form: CsvForm) -> str:
    """What was set; else a comma; or a semicolon, tab or bar where both of the first two lines have it equally often,
    and no comma is in the first, as spreadsheets write where the comma is the decimal mark. The text is left at its
    start.
    """
    if form.separator:
        return MARKS[form.separator]
    first, second = text.readline(LONGEST_LINE), text.readline(LONGEST_LINE)
    text.seek(0)
    found = [mark for mark in ";\t|" if first.count(mark) and first.count(mark) == second.count(mark)]
    return found[0] if len(found) == 1 and "," not in first else ","


def _pointed(cell: str) -> str:
    """A number with a decimal point in place of a comma; any other cell as it is."""
    return cell.replace(",", ".") if _COMMA.fullmatch(cell.strip()) else cell


def place(path: Path, line: int, several: bool = False) -> str:
    """Name of a record for messages: its line, or its row where there are no lines; and its file, if of several."""
    word = "row" if parquet.is_parquet(path) else "line"
    return f"{word} {line}" + (f" of {path}" if several else "")


def rows(path: Path, form: CsvForm, header: bool, columns: Sequence[object]) -> Iterator[CsvRecord]:
    """The records below the header; after the last, a DataError names all lines that are not as wide as it is."""
    wrong = []
    for record in islice(records(path, form), int(header), None):
        if len(record.cells) == len(columns):
            yield record
        else:
            wrong.append(f"{place(*record[:2])}: {len(record.cells)} cells, not {len(columns)}; complete the line")
    refuse(path, wrong, [divided] if wrong and (divided := _divided(map(str, columns))) else [])


def _divided(columns: Iterable[str]) -> str:
    """A hint if names of columns hold what may divide cells."""
    odd = any(mark in name for name in columns for mark in DIVIDERS)
    return "if its cells are divided by another character, set data.separator" if odd else ""


def column(which: str | int, columns: Sequence[str], key: str, path: Path) -> int:
    """The number of a column given by name or number. Raises ConfigError naming the setting ``key``."""
    if isinstance(which, str):
        if which not in columns:
            hint = "; ".join(filter(None, [near(which, columns), _divided(columns)]))
            raise ConfigError(f"data.{key}: {path} has no column {which!r}; {hint}")
        return columns.index(which)
    if not -len(columns) <= which < len(columns):
        raise ConfigError(f"data.{key}: {path} has no column {which}; its columns are 0 to {len(columns) - 1}")
    return which % len(columns)


def heading(path: Path, form: CsvForm, header: bool) -> tuple[str, ...]:
    """The names of a file's columns; their numbers as text where it has none. Raises DataError for a name twice."""
    first = next(records(path, form), None)
    if first is None:
        raise DataError(f"{path} is empty; at least one row is needed")
    if len(first.cells) > MOST_COLUMNS:
        raise DataError(f"{path} has {len(first.cells)} columns, at most {MOST_COLUMNS} are read; leave some out")
    if not header:
        return tuple(map(str, range(len(first.cells))))
    columns = tuple(cell.strip() for cell in first.cells)
    twice = next((name for name, times in Counter(columns).items() if times > 1), None)
    if twice is not None:
        raise DataError(f"{path}, {place(*first[:2])}: two columns are named {twice!r}; name each once")
    return columns


def parts(path: Path, suffix: str = ".csv") -> list[Path]:
    """A file by itself, or the train.csv of a folder and its test.csv, if any; or those of another suffix."""
    if not path.is_dir():
        return [path]
    train, test = path / f"train{suffix}", path / f"test{suffix}"
    if not train.exists():
        raise DataError(f"{path} has no {train.name}; add it, or set data.path to one file")
    return [train, test] if test.exists() else [train]
