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
LONGEST_LINE = 1 << 20  # characters examined to find the delimiter
DIVIDERS = ",;\t|"
_COMMA = re.compile(r"(?:(?:[<>]=?|[≤≥])\s*)?[-+]?\d+,\d+")


class CsvRecord(NamedTuple):
    """The cells of a record and the line where it ends; for Parquet the row number, with 0 for the
    column names.
    """

    path: Path
    line: int
    cells: list[str]


def records(path: Path, form: CsvForm) -> Iterator[CsvRecord]:
    """Yield the records of a CSV or Parquet file without empty lines; ``form`` applies to CSV only.

    Raises:
        DataError: the file cannot be read, is not CSV, or has more than ``MOST_ROWS`` rows and a
            header.
        ConfigError: the package that reads Parquet is missing.
    """
    if parquet.is_parquet(path):
        yield from (
            CsvRecord(path, row, cells)
            for row, cells in enumerate(parquet.records(path, MOST_ROWS))
        )
        return
    with reading(path), _text(path, form) as text:
        lines = None
        try:
            mark = _separator(text, form)
            pointed = form.decimal == "comma" or (form.decimal is None and mark != ",")
            lines = csv.reader(text, strict=True, delimiter=mark)
            for row, cells in enumerate(filter(None, lines)):
                if row > MOST_ROWS:
                    raise DataError(
                        f"{path} has more than {MOST_ROWS} rows, the limit; read a part of it"
                    )
                yield CsvRecord(
                    path, lines.line_num, list(map(_pointed, cells)) if pointed else cells
                )
        except (csv.Error, UnicodeError) as fault:
            number = 0 if lines is None else lines.line_num
            raise DataError(f"{path}, after line {number}: {misread(fault, form)}") from fault


def misread(fault: Exception, form: CsvForm) -> str:
    """Describe why a text cannot be read, and the setting that may help."""
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


def separator(path: Path, form: CsvForm) -> str:
    """Return a file's delimiter; see ``_separator``."""
    if parquet.is_parquet(path):
        return ","
    with reading(path), _text(path, form, "replace") as text:
        return _separator(text, form)


def encoding(start: bytes, form: CsvForm) -> str:
    """Return the codec of a file from its first bytes: as set, else UTF-16 if it has a UTF-16 byte
    order mark.
    """
    marked = start[:2] in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}
    known = form.encoding or ("utf-16" if marked else "utf-8")
    return {"utf-8": "utf-8-sig", "utf-16": "utf-16" if marked else "utf-16-le"}.get(known, known)


def _text(path: Path, form: CsvForm, errors: str = "strict") -> TextIOWrapper:
    """Open the text of a file at its start."""
    raw = opened(file(path))
    start = raw.read(2)
    raw.seek(0)
    return TextIOWrapper(raw, encoding(start, form), errors, newline="")


def _separator(text: TextIO, form: CsvForm) -> str:
    """Return the configured delimiter, or detect it from the first lines.

    The default is a comma. A semicolon, tab or bar is chosen if both of the first two lines contain
    it equally often and the first has no comma, as spreadsheets write with a decimal comma. Leaves
    the text at its start.
    """
    if form.separator:
        return MARKS[form.separator]
    first, second = text.readline(LONGEST_LINE), text.readline(LONGEST_LINE)
    text.seek(0)
    found = [
        mark for mark in ";\t|" if first.count(mark) and first.count(mark) == second.count(mark)
    ]
    return found[0] if len(found) == 1 and "," not in first else ","


def _pointed(cell: str) -> str:
    """Replace a number's decimal comma with a point; returns any other cell unchanged."""
    return cell.replace(",", ".") if _COMMA.fullmatch(cell.strip()) else cell


def place(path: Path, line: int, several: bool = False) -> str:
    """Return a record's location for messages: its line or row, and its file if there are
    several.
    """
    word = "row" if parquet.is_parquet(path) else "line"
    return f"{word} {line}" + (f" of {path}" if several else "")


def rows(path: Path, form: CsvForm, header: bool, columns: Sequence[object]) -> Iterator[CsvRecord]:
    """Yield the records below the header; at the end, raise DataError with all lines of the wrong
    width.
    """
    wrong = []
    for record in islice(records(path, form), int(header), None):
        if len(record.cells) == len(columns):
            yield record
        else:
            wrong.append(
                f"{place(*record[:2])}: {len(record.cells)} cells, not {len(columns)}; complete "
                "the line"
            )
    refuse(path, wrong, [divided] if wrong and (divided := _divided(map(str, columns))) else [])


def _divided(columns: Iterable[str]) -> str:
    """Return a hint if column names contain possible delimiters."""
    odd = any(mark in name for name in columns for mark in DIVIDERS)
    return "if its cells are divided by another character, set data.separator" if odd else ""


def column(which: str | int, columns: Sequence[str], key: str, path: Path) -> int:
    """Return the index of a column given by name or number.

    Raises ConfigError with the setting ``key``.
    """
    if isinstance(which, str):
        if which not in columns:
            hint = "; ".join(filter(None, [near(which, columns), _divided(columns)]))
            raise ConfigError(f"data.{key}: {path} has no column {which!r}; {hint}")
        return columns.index(which)
    if not -len(columns) <= which < len(columns):
        raise ConfigError(
            f"data.{key}: {path} has no column {which}; its columns are 0 to {len(columns) - 1}"
        )
    return which % len(columns)


def heading(path: Path, form: CsvForm, header: bool) -> tuple[str, ...]:
    """Return a file's column names, or their numbers as text without a header.

    Raises DataError for duplicates.
    """
    first = next(records(path, form), None)
    if first is None:
        raise DataError(f"{path} is empty; at least one row is needed")
    if len(first.cells) > MOST_COLUMNS:
        raise DataError(
            f"{path} has {len(first.cells)} columns, at most {MOST_COLUMNS} are read; leave some "
            "out"
        )
    if not header:
        return tuple(map(str, range(len(first.cells))))
    columns = tuple(cell.strip() for cell in first.cells)
    twice = next((name for name, times in Counter(columns).items() if times > 1), None)
    if twice is not None:
        raise DataError(
            f"{path}, {place(*first[:2])}: two columns are named {twice!r}; name each once"
        )
    return columns


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
