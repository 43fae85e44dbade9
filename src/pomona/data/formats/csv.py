"""CSV: every cell as the text that the file has.

pyarrow reads the cells. It does not say in which line a row is, so that a file is read a second
time, by Python's ``csv``, where a message needs lines, and where line breaks within quotes leave
room for an unclosed quote that swallows rows.
"""

import codecs
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute
from pyarrow import csv as arrow_csv

from pomona.core.errors import DataError, refuse
from pomona.core.table import reads_as_number
from pomona.data.array_file import opened, reading
from pomona.data.formats.columns import MOST_COLUMNS, Columns
from pomona.data.formats.foreign import SIGNATURE, refuse_foreign
from pomona.data.formats.transfer import spooled
from pomona.data.table_settings import MARKS, CsvForm, CsvHeading

LONGEST_LINE = 1 << 20  # characters examined to find the separator
BLOCK = 1 << 22  # bytes parsed at once, more than a row may have
DIVIDERS = ",;\t|"
# byte order marks; that of UTF-32 begins with that of UTF-16
_CODECS = dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32")
_CODECS |= dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16")
# of Excel, before the header
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\r?\n?', re.IGNORECASE)
# a number with a decimal comma, between other marks
_DECIMAL_COMMA = re.compile(r"(?<![^;\t|])[-+]?\d+,\d+(?=[;\t|\r\n]|$)")


class Start(NamedTuple):
    """What the start of a CSV file says about the rest.

    Attributes:
        encoding, separator: as set, or from its first bytes and lines.
        skipped: lines before the first record.
        first, second: the first records, empty where the file ends before.
    """

    encoding: str
    separator: str
    skipped: int
    first: Sequence[str] = ()
    second: Sequence[str] = ()


class CountedLines:
    """A stream that counts the line breaks of what is read from it."""

    closed = False

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw, self.breaks, self.last = raw, 0, b""

    def read(self, count: int) -> bytes:
        """Return the next bytes."""
        content = self.raw.read(count)
        self.breaks += content.count(b"\n")
        self.last = content or self.last
        return content


def read(path: Path, settings: object) -> Columns:
    """Read a CSV file; its first record is row 0, whether or not it names the columns.

    Raises:
        DataError: it is not CSV, is empty or too large, or has lines of the wrong width, which are
            all named.
    """
    start = sniff(path, _csv_form(settings))
    width = len(start.first)
    if not width:
        raise DataError(f"{path} is empty; at least one row is needed")
    if width > MOST_COLUMNS:
        raise DataError(f"{path} has {width} columns; the limit is {MOST_COLUMNS}: leave some out")
    unnamed_column = _header_is_short(start, settings)
    try:
        table, ragged, line_count = _parsed(path, start, width + unnamed_column)
    except (UnicodeError, pa.ArrowInvalid) as fault:
        _check_records(path, start, unnamed_column)  # names the line
        raise DataError(f"{path}: {misread(fault, start.encoding)}") from fault
    if ragged > unnamed_column or len(table) + ragged + start.skipped != line_count:
        _check_records(path, start, unnamed_column and ragged == unnamed_column)
    unset = _csv_form(settings).separator is None and start.separator != ","
    notes = (f"{path}: cells are divided by {start.separator!r}",) if unset else ()
    names, cells, is_free = tuple(table.column_names), tuple(table.columns), start.separator != ","
    columns = Columns(names, cells, "line", has_names=False, free_commas=is_free, notes=notes)
    return _without_row_names(path, columns, start.first) if unnamed_column else columns


def lines(path: Path, settings: object) -> NDArray[np.int64]:
    """Return the line in which each record of a file ends, that of its header included."""
    start = sniff(path, _csv_form(settings))
    return np.array([line for line, _ in _records(path, start)], np.int64)


def _csv_form(settings: object) -> CsvForm:
    """Return the settings about CSV files; the defaults where there are none."""
    return settings if isinstance(settings, CsvForm) else CsvForm()


def sniff(path: Path, settings: CsvForm) -> Start:
    """Return what the start of a file says. Raises DataError for a file of another format."""
    with reading(path), opened(path) as raw:
        beginning = raw.read(SIGNATURE)
        refuse_foreign(path, beginning, "CSV")
        codec = encoding(beginning, settings)
        raw.seek(0)
        text = TextIOWrapper(raw, codec, "replace", newline="")
        top = [text.readline(LONGEST_LINE) for _ in range(3)]
    marked = _SEPARATOR_LINE.fullmatch(top[0])
    mark = MARKS[settings.separator] if settings.separator else marked and marked[1]
    start = Start(codec, mark or _separator(*top), int(marked is not None))
    records = islice(_records(path, start, "replace"), 2)
    cells = [*(record for _, record in records), list[str](), list[str]()]
    return start._replace(first=cells[0], second=cells[1])


def encoding(start: bytes, settings: CsvForm) -> str:
    """Return the codec of a file from its first bytes: as set, else by its byte order mark; without
    one, UTF-16 if every second byte of many is 0, else UTF-8.
    """
    marked = next((codec for mark, codec in _CODECS.items() if start.startswith(mark)), "")
    zeros = {start[k::2].count(0): codec for k, codec in enumerate(("utf-16-be", "utf-16-le"))}
    wide = marked or zeros[max(zeros)]
    is_wide = marked or (4 * max(zeros) > len(start) and min(zeros) == 0)
    codec = settings.encoding or (wide if is_wide else "utf-8")
    return {"utf-8": "utf-8-sig", "utf-16": wide}.get(codec, codec)


def _separator(first: str, second: str, third: str) -> str:
    """Return the separator that the first lines suggest.

    The default is a comma. A semicolon, tab or bar, else a blank, is chosen if the first line has
    no comma but the decimal ones of spreadsheets, and both lines contain it equally often, or the
    second again: R writes row names without a name for their column.
    """
    if "," in _DECIMAL_COMMA.sub("", first):
        return ","
    marks = [mark for mark in ";\t|" if _divides(mark, first, second)]
    if len(marks) == 1:
        return marks[0]
    rows = second, third if third.strip() else second
    blank = not set(first) & set(";\t|") and all(_divides(" ", first, row) for row in rows)
    return " " if blank else ","


def _divides(mark: str, first: str, second: str) -> bool:
    """Return whether a mark divides two lines into several cells each, as many or one more in the
    second.
    """
    names, cells = (len(next(csv.reader([line], delimiter=mark), [])) for line in (first, second))
    return names > 1 and cells - names in {0, 1}


def _records(path: Path, start: Start, errors: str = "strict") -> Iterator[tuple[int, list[str]]]:
    """Yield the line in which each record ends, and its cells; as Python reads them.

    Raises DataError for bytes that are not text, and for quotes that are not closed.
    """
    line = start.skipped
    with reading(path), opened(path) as raw:
        text = TextIOWrapper(raw, start.encoding, errors, newline="")
        for _ in range(start.skipped):
            text.readline(LONGEST_LINE)
        records = csv.reader(text, strict=True, delimiter=start.separator)
        try:
            for cells in filter(None, records):
                line = records.line_num + start.skipped
                yield line, cells
        except (csv.Error, UnicodeError) as fault:
            position = f", after line {line}" if line else ""
            raise DataError(f"{path}{position}: {misread(fault, start.encoding)}") from fault


def _header_is_short(start: Start, settings: object) -> bool:
    """Return whether the first line is names, one fewer than the second line has cells."""
    if isinstance(settings, CsvHeading) and settings.header is False:
        return False
    names = not all(map(reads_as_number, start.first))
    return names and len(start.second) == len(start.first) + 1


def _parsed(path: Path, start: Start, width: int) -> tuple[pa.Table, int, int]:
    """Return all rows of ``width`` cells as text, the number of rows of another width, and that of
    lines.
    """
    names, ragged = [str(k) for k in range(width)], 0

    def skip(_: object) -> str:
        nonlocal ragged
        ragged += 1
        return "skip"

    read_options = arrow_csv.ReadOptions(
        use_threads=False,
        block_size=BLOCK,
        skip_rows=start.skipped,
        column_names=names,
        encoding=start.encoding.removesuffix("-sig"),
    )
    parse_options = arrow_csv.ParseOptions(
        delimiter=start.separator, newlines_in_values=True, invalid_row_handler=skip
    )
    types = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    with reading(path), opened(path) as raw:
        counted = CountedLines(raw)
        stream = pa.PythonFile(counted, "r")
        batches = arrow_csv.open_csv(stream, read_options, parse_options, types)
        table = spooled(path, batches.schema, batches)
    open_end = not counted.last.rstrip(b"\0").endswith(b"\n")
    return table, ragged, counted.breaks + open_end


def _check_records(path: Path, start: Start, unnamed_column: bool) -> None:
    """Refuse what Python's stricter reader refuses: lines of the wrong width, and quotes that are
    not closed.
    """
    problems, width = [], len(start.first)
    lines: dict[int, list[int]] = {}  # number of cells: how many lines, and the first of them
    for number, (line, cells) in enumerate(_records(path, start)):
        lines.setdefault(len(cells), [0, line])[0] += 1
        if len(cells) != width + (unnamed_column and number > 0):
            problems.append(f"line {line}: {len(cells)} cells, not {width}; complete the line")
    if not unnamed_column:
        problems = _below_a_title(start, lines) or problems
    refuse(path, problems, [*filter(None, [divided(start.first)])])


def _below_a_title(start: Start, lines: Mapping[int, Sequence[int]]) -> list[str]:
    """Return a problem if most lines have more cells than the first, which are not numbers.

    ``lines``: by number of cells, how many there are and the first of them.
    """
    usual = max(lines, key=lambda cells: lines[cells][0], default=0)
    if usual <= len(start.first) or all(map(reads_as_number, start.first)):
        return []
    count, line = lines[usual]
    return [
        f"the first line has {len(start.first)} cells, and {count} lines from line {line} on have "
        f"{usual}; if line {line} names the columns, remove the lines before it"
    ]


def _without_row_names(path: Path, columns: Columns, names: Sequence[str]) -> Columns:
    """Return columns with the names of a header that is one short of every row.

    R writes row names into a first column without a name, and some programs end each line with a
    separator. Raises DataError if it may be neither.
    """
    first, last = columns.arrays[0], columns.arrays[-1]
    if compute.all(compute.equal(last, "")).as_py():
        arrays, note = columns.arrays[:-1], "lines end with a separator: an empty last column"
    elif compute.count_distinct(first).as_py() == len(first):
        arrays, note = columns.arrays[1:], "the first column has no name (row names, as R writes?)"
    else:
        raise DataError(
            f"{path}: the header has one name too few for the rows, and the cells of the first "
            "column repeat; name each column"
        )
    notes = (*columns.notes, f"{path}: {note}; it is left out")
    return replace(
        columns, names=tuple(names), arrays=arrays, first_row=2, has_names=True, notes=notes
    )


def misread(fault: Exception, codec: str) -> str:
    """Describe why a text cannot be read, and the setting that may help."""
    reason = str(fault).partition("\n")[0]
    if "field limit" in reason:
        limit = csv.field_size_limit()
        return f"a cell of more than {limit} characters; shorten it, or close its quote"
    if isinstance(fault, UnicodeError) or "UTF8" in reason:
        name = codec.removesuffix("-sig").upper()
        return f"bytes that are not {name} ({reason}); set data.encoding, such as 'cp1252'"
    return f"not CSV ({reason}); correct it, or set data.separator and data.encoding"


def divided(names: Sequence[str]) -> str:
    """Return a hint if names of columns contain possible separators."""
    marked = any(mark in name for name in names for mark in DIVIDERS)
    return "if its cells are divided by another character, set data.separator" if marked else ""
