"""Cells of Arrow columns as texts and as numbers, whole columns at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from pomona.core.bounds import LARGEST
from pomona.core.errors import DataError
from pomona.data import cell_values
from pomona.data.formats.columns import cell_text
from pomona.data.preprocessing import Floats, RawTable, TableColumn
from pomona.data.settings import DecimalMark
from pomona.data.tables.source import TableSource
from pomona.data.tables.strays import WANTED, Strays
from pomona.storage.mapped_array import allocate

AT_ONCE = 1 << 22  # cells in memory as numbers, before they are written row by row
_EXPONENT = r"([eE][-+]?\d+)?"
_NUMBER = {mark: rf"^[-+]?(\d+{mark}?\d*|{mark}\d+){_EXPONENT}$" for mark in (r"\.", ",")}
_WITH_COMMA = (
    rf"^\s*[-+]?(\d*,\d+|\d{{1,3}}(,\d{{3}})+(\.\d+)?|\d{{1,3}}(\.\d{{3}})+,\d+){_EXPONENT}\s*$"
)
_WITH_POINT = (
    rf"^\s*[-+]?(\d*\.\d+|\d{{1,3}}(\.\d{{3}})+(,\d+)?|\d{{1,3}}(,\d{{3}})+\.\d+){_EXPONENT}\s*$"
)
_MAYBE_THOUSANDS = r"^\s*[-+]?(\d{1,3}|[1-9]\d{0,2}\.\d{3})\s*$"


class Distinct(NamedTuple):
    """The distinct cells of a column as texts, in order of occurrence, and for each row (n,) the
    index of its cell.
    """

    cells: list[str]
    codes: NDArray[np.int64]

    @property
    def rows(self) -> NDArray[np.int64]:
        """The first row of each cell."""
        first = np.empty(len(self.cells), np.int64)
        first[self.codes[::-1]] = np.arange(len(self.codes))[::-1]
        return first


def distinct(array: Any) -> Distinct:
    """Return the distinct cells of a ``pyarrow.ChunkedArray``; gaps are empty texts."""
    whole = array.dictionary_encode("encode").combine_chunks()
    return Distinct(
        [cell_text(cell) for cell in whole.dictionary.to_pylist()],
        whole.indices.to_numpy(zero_copy_only=False).astype(np.int64),
    )


def texts(array: Any) -> list[str]:
    """Return the cells of a column as texts."""
    if is_text(array.type):
        return [cell or "" for cell in array.to_pylist()]
    cells, codes = distinct(array)
    return [cells[code] for code in codes.tolist()]


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def unreadable(kind: Any) -> str:
    """Describe why cells of an Arrow type are neither text nor number; empty if they are."""
    if pa.types.is_nested(kind):
        listed = pa.types.is_struct(kind) or pa.types.is_map(kind)
        return "holds structures" if listed else "holds lists"
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return "holds bytes that are not UTF-8 text" if binary else ""


def numbers(array: Any, decimal: str) -> Floats:
    """Return the cells of a column (n,) that are plainly numbers, NaN for all others.

    Args:
        array: a ``pyarrow.ChunkedArray`` of any type.
        decimal: as in ``cell_values.pointed``.
    """
    chunks = [_numbers(chunk, decimal) for chunk in array.chunks]
    values = np.concatenate([np.zeros(0), *chunks])
    values[~(np.abs(values) <= LARGEST)] = np.nan
    return values


def _numbers(chunk: Any, decimal: str) -> Floats:
    try:
        if is_text(chunk.type):
            chunk = _plain_numbers(chunk, decimal)
        return np.array(chunk.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return np.full(len(chunk), np.nan)


def _plain_numbers(chunk: Any, decimal: str) -> Any:
    """Return texts with null for those that Arrow does not convert to numbers."""
    if decimal != "comma":
        try:
            return chunk.cast(pa.float64())
        except pa.ArrowInvalid:  # some are not numbers
            pass
    chunk = compute.utf8_trim_whitespace(chunk)
    pattern = _NUMBER["," if decimal == "comma" else r"\."]
    matches = compute.match_substring_regex(chunk, pattern)
    chunk = compute.if_else(matches, chunk, pa.scalar(None, chunk.type))
    return compute.replace_substring(chunk, ",", ".") if decimal == "comma" else chunk


@dataclass
class ColumnReader:
    """Reads one column in blocks of rows.

    Attributes:
        column: how to read it.
        most: maximum number of categories; cells with further ones are unreadable.
        strays: unreadable cells, and gaps.
        codes: the categories so far, with their codes.
        bounds, thousands: numbers of cells that were bounds, and that had marks of thousands.
        zoned: numbers of the rows whose date has a time zone, by block.
    """

    column: TableColumn
    most: int
    strays: Strays = field(init=False)
    codes: dict[str, int] = field(default_factory=dict)
    bounds: int = 0
    thousands: int = 0
    zoned: list[NDArray[np.int64]] = field(default_factory=list)

    def __post_init__(self) -> None:
        fills = self.column.fill is not None
        self.strays = Strays(self.column.name, WANTED[self.column.kind], fills)

    def __call__(self, array: Any, decimal: str, start: int) -> Floats:
        """Return the numbers of a column's cells (n,), NaN for gaps and strays.

        ``decimal`` as in ``cell_values.pointed``; ``start``: the number of the first row.
        """
        values = np.full(len(array), math.nan)
        if self.column.kind == "number":
            values = numbers(array, decimal)
            values[np.isin(values, list(map(cell_values.number, self.column.missing)))] = math.nan
        rest = np.flatnonzero(np.isnan(values))
        if not len(rest):
            return values
        cells = distinct(array.filter(pa.array(np.isnan(values))))
        counts = np.bincount(cells.codes, minlength=len(cells.cells)).tolist()
        each = zip(cells.cells, counts, cells.rows.tolist(), strict=True)
        parsed = [
            self._one(cell, count, decimal, start + int(rest[row])) for cell, count, row in each
        ]
        values[rest] = np.array(parsed)[cells.codes]
        if self.column.kind == "date":
            zoned = np.array([cell_values.has_zone(cell) for cell in cells.cells])
            self.zoned.append(start + rest[zoned[cells.codes]])
        return values

    def _one(self, cell: str, count: int, decimal: str, row: int) -> float:
        """Return the number of a cell that occurs ``count`` times; NaN for a gap or a stray."""
        value = self._value(cell, decimal)
        if math.isnan(value) and self.column.censored:
            value = cell_values.bound(cell, decimal)
            self.bounds += count * (not math.isnan(value))
        elif self.column.kind == "number" and cell_values.has_thousands(cell, decimal):
            self.thousands += count
        if math.isnan(value):
            self.strays.add(cell, row, self.column.is_gap(cell), count)
        return value

    def _value(self, cell: str, decimal: str) -> float:
        kind, name = self.column.kind, cell_values.plain(cell)
        if name in self.column.missing:
            return math.nan
        if kind == "number":
            return cell_values.number(cell, decimal)
        if kind == "date":
            return cell_values.days(cell)
        full = name not in self.codes and len(self.codes) >= self.most
        if full or cell_values.is_missing(name):
            return math.nan
        return self.codes.setdefault(name, len(self.codes))


def read(
    sources: Sequence[TableSource],
    decimals: Sequence[str],
    indices: Sequence[int],
    columns: Sequence[TableColumn],
    memory_share: float,
    most: int = 2**24,
) -> tuple[RawTable, list[Strays]]:
    """Read columns as numbers, and report those with unreadable cells.

    Args:
        sources: files or frames with the same columns.
        decimals: the decimal mark of each, as in ``cell_values.pointed``.
        indices: of the F columns to read, in this order.
        columns: how to read each.
        memory_share: see ``allocate``.
        most: maximum number of categories of a column; cells with further ones are unreadable.

    Returns:
        The table, with NaN for gaps and strays, and the columns with strays or refused gaps, in
        order.
    """
    readers = [ColumnReader(column, most) for column in columns]
    x = allocate((sum(map(len, sources)), len(indices)), np.float64, memory_share)
    step, end = max(1, AT_ONCE // max(1, len(indices))), 0
    for source, decimal in zip(sources, decimals, strict=True):
        for start in range(0, len(source), step):
            count = min(step, len(source) - start)
            block = np.empty((len(indices), count))
            for k, index in enumerate(indices):
                block[k] = readers[k](source.cells(index, start, count), decimal, end)
            x[end : end + count] = block.T
            end += count
    table = RawTable(
        tuple(columns),
        x,
        tuple(tuple(reader.codes) for reader in readers),
        bounds=tuple(reader.bounds for reader in readers),
        thousands=tuple(reader.thousands for reader in readers),
        zoned=tuple(_zoned(reader, len(x)) for reader in readers),
    )
    return table, [reader.strays for reader in readers if reader.strays.wrong]


def _zoned(reader: ColumnReader, count: int) -> NDArray[np.bool_]:
    """Return whether each cell of a column of dates names a time zone; empty for other columns."""
    zoned = np.zeros(count if reader.column.kind == "date" else 0, bool)
    for rows in reader.zoned:
        zoned[rows] = True
    return zoned


def decimal_mark(
    source: TableSource, indices: Sequence[int], settings: object
) -> tuple[str, list[str]]:
    """Return the decimal mark of a source's numbers in these columns, as in
    ``cell_values.pointed``, and what was assumed.

    It is the one that is set; else a comma if some numbers have one, and cells are not divided by
    commas.

    Raises DataError if other numbers have a point.
    """
    if isinstance(settings, DecimalMark) and settings.decimal:
        return settings.decimal, []
    indices = [i for i in indices if is_text(source.columns.arrays[i].type)]
    comma = source.columns.free_commas and _first(source, indices, ",", _WITH_COMMA)
    if not comma:
        foreign = source.columns.free_commas
        points = [(source.names[i], may_have_thousands(source.cells(i), foreign)) for i in indices]
        return "", [
            f"column {name}: each number has three digits behind its point, or none; {cell} is "
            f"read as {float(cell)!r}: if points part thousands, set data.decimal=comma"
            for name, cell in points
            if cell
        ]
    if point := _first(source, indices, ".", _WITH_POINT):
        shown = " and ".join(
            f"{cell_values.short(cell)} in {name}" for name, cell in (comma, point)
        )
        raise DataError(
            f"{source.path}: numbers have commas and points, such as {shown}; set data.decimal to "
            "the mark of decimals, comma or point, and the other parts thousands"
        )
    name, cell = comma
    value = cell_values.number(cell, "comma")
    note = f"a comma in a number is its decimal mark: {cell} in {name} is read as {value}"
    return "comma", [f"{source.path}: {note}"]


def _first(
    source: TableSource, indices: Sequence[int], mark: str, pattern: str
) -> tuple[str, str] | None:
    """Return the column and the first cell that matches."""
    for index in indices:
        cells = source.cells(index)
        cells = cells.filter(compute.match_substring(cells, mark))
        cells = cells.filter(compute.match_substring_regex(cells, pattern)) if len(cells) else cells
        if len(cells):
            return source.names[index], cells[0].as_py()
    return None


def may_have_thousands(array: Any, foreign: bool = False) -> str:
    """Return the first cell of a column whose points may be marks of thousands: each number has
    three digits behind its point, or no point and at most three digits. Empty if there is none.

    Numbers with three decimals all have a point: these count only in a ``foreign`` file, whose
    cells are not divided by commas.
    """
    if not is_text(array.type):
        return ""
    marked = array.filter(compute.match_substring(array, "."))
    if not len(marked) or (len(marked) == len(array) and not foreign):
        return ""
    for cells in (array.slice(0, 100), array):
        gaps = compute.equal(compute.utf8_trim_whitespace(cells), "")
        matches = compute.or_(gaps, compute.match_substring_regex(cells, _MAYBE_THOUSANDS))
        if not compute.all(matches).as_py():
            return ""
    return str(marked[0].as_py())
