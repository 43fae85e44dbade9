"""Columns of cells as texts and as numbers: what each distinct cell means."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from pomona.core.bounds import LARGEST
from pomona.core.errors import DataError, listed
from pomona.data import cell_values
from pomona.data.formats.columns import cell_text
from pomona.data.preprocessing import Floats, RawTable, TableColumn
from pomona.data.table_settings import DecimalMark
from pomona.data.tables.source import TableSource
from pomona.data.tables.strays import CellCount, Strays
from pomona.storage.mapped_array import allocate

_EXPONENT = r"([eE][-+]?\d+)?"
_NUMBER = rf"^[-+]?(\d+\.?\d*|\.\d+){_EXPONENT}$"
# numbers that show the decimal mark of their file
_COMMA = (
    rf"^\s*[-+]?(\d*,\d+|\d{{1,3}}(,\d{{3}})+(\.\d+)?|\d{{1,3}}(\.\d{{3}})+,\d+){_EXPONENT}\s*$"
)
_POINT = (
    rf"^\s*[-+]?(\d*\.\d+|\d{{1,3}}(\.\d{{3}})+(,\d+)?|\d{{1,3}}(,\d{{3}})+\.\d+){_EXPONENT}\s*$"
)
# cells that mean something else than they say
READINGS = {
    "bound": "bounds such as <5, read as the number behind the sign",
    "thousands": "marks of thousands, which count for nothing: 1.145 or 1,145 is 1145",
    "turned": "times of another time zone, turned to UTC",
    "named": "texts that are gaps, and no categories (write a category of this name otherwise)",
}
_MAYBE_THOUSANDS = r"^\s*([-+]?(\d{1,3}|[1-9]\d{0,2}\.\d{3}))?\s*$"


class Distinct(NamedTuple):
    """The distinct cells of a column as texts, in order of occurrence, and for each row (n,) the
    index of its cell.
    """

    cells: list[str]
    codes: NDArray[np.int64]


def distinct(array: Any) -> Distinct:
    """Return the distinct cells of a ``pyarrow.ChunkedArray``; gaps are empty texts."""
    if not len(array):  # Arrow cannot join no chunks of decimals, nor of half precision
        return Distinct([], np.zeros(0, np.int64))
    encoded = array.dictionary_encode("encode").combine_chunks()
    try:
        cells = [cell_text(cell) for cell in _values(encoded.dictionary)]
    except OverflowError:
        cells = [_temporal_text(scalar) for scalar in encoded.dictionary]
    return Distinct(cells, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64))


def _values(array: Any) -> list[Any]:
    """Return the values of an Arrow array; real numbers of few bits by their shortest decimals, as
    in CSV: 0.1, not 0.10000000149.
    """
    if not _has_few_bits(array.type):
        return list(array.to_pylist())
    decimals = array.to_numpy(zero_copy_only=False).astype(str)
    return list(decimals.astype(np.float64).tolist())


def _has_few_bits(arrow_type: pa.DataType) -> bool:
    """Return whether a type is of real numbers of 16 or 32 bits."""
    return bool(pa.types.is_float16(arrow_type) or pa.types.is_float32(arrow_type))


def _temporal_text(scalar: Any) -> str:
    """Return a date or time as text; one that Python cannot represent, such as a date after the
    year 9999, as a text that is no date.
    """
    try:
        return cell_text(scalar.as_py())
    except OverflowError:
        return f"<out of range: {scalar.value}>"


def texts(array: Any) -> list[str]:
    """Return the cells of a column as texts."""
    cells, codes = distinct(array)
    return [cells[code] for code in codes.tolist()]


def is_text(array: Any) -> bool:
    """Return whether the cells of an Arrow column are texts."""
    return bool(pa.types.is_string(array.type) or pa.types.is_large_string(array.type))


def unreadable(array: Any) -> str:
    """Describe why cells of an Arrow column are neither text nor number; empty if they are."""
    if pa.types.is_nested(array.type):
        return "holds lists or structures"
    binary = pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)
    return "holds bytes that are not UTF-8 text" if binary else ""


def numbers(array: Any, decimal: str) -> Floats:
    """Return the cells of a column (n,) that are plainly numbers, NaN for all others.

    Args:
        array: a ``pyarrow.ChunkedArray`` of any type.
        decimal: as in ``cell_values.pointed``.
    """
    try:
        # Arrow rounds decimals wrongly to numbers: 0.143 to 0.14300000000000002
        exact = array.cast(pa.string()) if pa.types.is_decimal(array.type) else array
        plain = _plain(array, decimal) if is_text(array) else exact
        floats = plain.cast(pa.float64(), safe=False).to_numpy()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return np.full(len(array), math.nan)
    return np.where(np.abs(floats) <= LARGEST, floats, math.nan)


def _plain(array: Any, decimal: str) -> Any:
    """Return texts with null for those that Arrow does not convert to numbers."""
    if decimal != "comma":
        try:
            return array.cast(pa.float64())
        except pa.ArrowInvalid:  # some are not numbers
            pass
    array = compute.utf8_trim_whitespace(array)
    if decimal == "comma":
        array = compute.replace_substring(compute.replace_substring(array, ".", "?"), ",", ".")
    matches = compute.match_substring_regex(array, _NUMBER)
    return compute.if_else(matches, array, pa.scalar(None, array.type))


@dataclass(frozen=True, eq=False)
class ColumnCells:
    """A column as read.

    Attributes:
        values: (N,) numbers, days or indices of categories; NaN for gaps and strays.
        categories: in order of occurrence.
        zoned: (N,) whether a date has a time zone.
        cells: the distinct cells that are not plainly values.
    """

    values: NDArray[np.float64]
    categories: tuple[str, ...]
    zoned: NDArray[np.bool_]
    cells: tuple[CellCount, ...]

    @property
    def readings(self) -> dict[str, str]:
        """How many cells mean something else than they say, by the keys of ``READINGS``."""
        counts = Counter[str]()
        for cell in self.cells:
            turned = cell.reading == "zoned" and cell_values.is_turned(cell.text)
            counts["turned" if turned else cell.reading] += cell.rows
        named = [
            f"{cell.text.strip()}: {cell.rows}"
            for cell in self.cells
            if self.categories and cell.text.strip() and cell_values.is_missing(cell.text)
        ]
        return {k: str(n) for k, n in counts.items()} | ({"named": listed(named)} if named else {})


def read_column(
    arrays: Sequence[Any], decimals: Sequence[str], column: TableColumn, limit: int = 2**24
) -> ColumnCells:
    """Read a column whose cells come from several sources, each with its decimal mark.

    ``limit``: maximum number of categories; cells with further ones are strays.
    """
    values, zoned = np.full(sum(map(len, arrays)), math.nan), list[NDArray[np.bool_]]()
    categories: dict[str, int] = {}
    cells: list[CellCount] = []
    start = 0
    for array, decimal in zip(arrays, decimals, strict=True):
        block = values[start : start + len(array)]
        marks = _marks(column, decimal, array.type)
        if column.kind == "number":
            block[:] = numbers(array, decimal)
            block[np.isin(block, marks)] = math.nan
        unread = np.isnan(block)
        rows = start + np.flatnonzero(unread)
        unread_cells, codes = distinct(array.filter(pa.array(unread)))
        read = [_meaning(cell, column, decimal, categories, limit) for cell in unread_cells]
        gaps = {(v, reading) for v in marks.tolist() for reading in ("", "thousands", "zoned")}
        read = [(math.nan, "gap") if pair in gaps else pair for pair in read]
        block[unread] = np.array([value for value, _ in read], float)[codes]
        unread[unread] = np.array([reading == "zoned" for _, reading in read], bool)[codes]
        zoned.append(unread)
        _, first, counts = np.unique(codes, return_index=True, return_counts=True)
        described = zip(unread_cells, read, counts.tolist(), rows[first].tolist(), strict=True)
        cells += [
            CellCount(cell, reading, count, row)
            for cell, (_, reading), count, row in described
            if reading
        ]
        start += len(array)
    return ColumnCells(values, tuple(categories), np.concatenate(zoned), tuple(cells))


def _marks(column: TableColumn, decimal: str, arrow_type: pa.DataType) -> NDArray[np.floating[Any]]:
    """Return the numbers or days that mark gaps in a column, written as settings or as the file
    write them, and as numbers of its type are rounded.
    """
    values: list[float] = []
    if column.kind == "number":
        values = [
            cell_values.number(cell, mark) for cell in column.missing for mark in ("", decimal)
        ]
    elif column.kind == "date":
        values = [*map(cell_values.days, column.missing)]
    marks = np.array(values, np.float64)
    return marks.astype(arrow_type.to_pandas_dtype()) if _has_few_bits(arrow_type) else marks


def _meaning(
    cell: str, column: TableColumn, decimal: str, categories: dict[str, int], limit: int
) -> tuple[float, str]:
    """Return the value of a cell, and how it was read if it is not plainly a value: a gap, a stray,
    a bound, a number with marks of thousands, or a date with a zone.
    """
    name = cell_values.plain(cell_values.with_point(cell, decimal) if "," in cell else cell)
    if {name, cell_values.plain(cell)} & {*column.missing}:
        return math.nan, "gap"
    if column.kind == "number":
        value, reading = _number(cell, decimal, column.censored)
    elif column.kind == "date":
        value, reading = cell_values.days(cell), "zoned" * cell_values.has_zone(cell)
    else:
        value, reading = _category(name, categories, limit), ""
    if math.isnan(value):
        return value, "gap" if column.is_gap(cell) else "stray"
    return value, reading


def _number(cell: str, decimal: str, censored: bool) -> tuple[float, str]:
    """Return the number in a cell, and how it was read."""
    value = cell_values.number(cell, decimal)
    if math.isnan(value) and censored:
        return cell_values.bound(cell, decimal), "bound"
    return value, "thousands" * cell_values.has_thousands(cell, decimal)


def _category(name: str, categories: dict[str, int], limit: int) -> float:
    """Return the index of a category, added if there are fewer than ``limit``; else NaN."""
    if cell_values.is_missing(name) or (name not in categories and len(categories) >= limit):
        return math.nan
    return categories.setdefault(name, len(categories))


def read(
    sources: Sequence[TableSource],
    decimals: Sequence[str],
    indices: Sequence[int],
    columns: Sequence[TableColumn],
    memory_share: float,
    limit: int = 2**24,
) -> tuple[RawTable, list[Strays]]:
    """Read columns as numbers, and report those with unreadable cells.

    Args:
        sources: files or frames with the same columns.
        decimals: the decimal mark of each, as in ``cell_values.pointed``.
        indices: of the F columns to read, in this order.
        columns: how to read each.
        memory_share: see ``allocate``.
        limit: maximum number of categories of a column; cells with further ones are unreadable.

    Returns:
        The table, with NaN for gaps and strays, and the columns with strays or refused gaps, in
        order.
    """
    x = allocate((sum(map(len, sources)), len(indices)), np.float64, memory_share)
    values, readings, zoned, unread = [], [], [], []
    for k, (index, column) in enumerate(zip(indices, columns, strict=True)):
        read = read_column([source.cells(index) for source in sources], decimals, column, limit)
        x[:, k] = read.values
        values.append(read.categories)
        readings.append(read.readings)
        zoned.append(read.zoned if column.kind == "date" else read.zoned[:0])
        unread.append(Strays(column.name, read.cells, column.kind, column.fill is not None))
    table = RawTable(tuple(columns), x, tuple(values), readings=tuple(readings), zoned=tuple(zoned))
    return table, [strays for strays in unread if strays.are_problem]


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
    columns = {source.names[i]: source.cells(i) for i in indices}
    columns = {name: array for name, array in columns.items() if is_text(array)}
    free = source.columns.free_commas
    comma = _first_match(columns, ",", _COMMA) if free else None
    if comma is None:
        points = {name: _maybe_thousands(array, free) for name, array in columns.items()}
        return "", [
            f"column {name}: each number has three digits behind its point, or none; {cell} is "
            f"read as {float(cell)!r}: if points part thousands, set data.decimal=comma"
            for name, cell in points.items()
            if cell
        ]
    name, cell = comma
    if point := _first_match(columns, ".", _POINT):
        raise DataError(
            f"{source.path}: numbers have commas and points, such as {cell_values.quoted(cell)} "
            f"in {name} and {cell_values.quoted(point[1])} in {point[0]}; set data.decimal to the "
            "decimal mark, comma or point; the other then separates thousands"
        )
    value = cell_values.number(cell, "comma")
    note = f"a comma in a number is its decimal mark: {cell} in {name} is read as {value}"
    return "comma", [f"{source.path}: {note}"]


def padded_numbers(sources: Sequence[TableSource], indices: Sequence[int]) -> list[str]:
    """Report columns of texts whose numbers may be codes: 0250 and 250 are one number, and so are
    1E2 and 100.
    """
    names = [
        source.names[i] for source in sources for i in indices if _may_be_codes(source.cells(i))
    ]
    line = (
        "numbers with zeros in front, or an E within, are read by value (025 is 25, 1E2 is 100): "
        f"{listed([*dict.fromkeys(names)], 8)}; if they are codes, name them in data.categories, "
        "or leave them out"
    )
    return [line] if names else []


def _may_be_codes(cells: Any) -> bool:
    """Return whether some texts are numbers with zeros in front or an exponent."""
    pattern = r"^\s*(0\d+|\d+[eE]\d+)\s*$"
    return is_text(cells) and bool(
        compute.any(compute.match_substring_regex(cells, pattern)).as_py()
    )


def _first_match(columns: dict[str, Any], mark: str, pattern: str) -> tuple[str, str] | None:
    """Return the column and the first cell that has the mark and matches."""
    for name, array in columns.items():
        marked = array.filter(compute.match_substring(array, mark))
        cells = marked.filter(compute.match_substring_regex(marked, pattern))
        if len(cells):
            return name, cells[0].as_py()
    return None


def _maybe_thousands(array: Any, foreign: bool) -> str:
    """Return the first cell of a column whose points may be marks of thousands: each number has
    three digits behind its point, or no point and at most three digits. Empty if there is none.

    Numbers with three decimals all have a point: these count only in a ``foreign`` file, whose
    cells are not divided by commas.
    """
    marked = array.filter(compute.match_substring(array, "."))
    if not len(marked) or (len(marked) == len(array) and not foreign):
        return ""
    all_match = all(
        compute.all(compute.match_substring_regex(cells, _MAYBE_THOUSANDS)).as_py()
        for cells in (array.slice(0, 100), array)
    )
    return str(marked[0].as_py()) if all_match else ""
