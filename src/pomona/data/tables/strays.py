"""Cells of a column that are not numbers, and suggested remedies."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pomona.core.bounds import LARGEST
from pomona.core.errors import listed
from pomona.data.cell_values import bound, days, quoted, real
from pomona.data.table_settings import Features

FEW = 20  # maximum number of distinct values of a category
EXPECTED = {
    "number": "finite numbers",
    "date": "dates such as 2024-03-01",
    "category": "categories",
}
_BLANKS = " \u00a0\u2009\u202f"  # between digits: a space, and those that do not break a line
# gaps: of SAS and Stata (.a, ._), of REDCap and HL7 (UNK), of a spreadsheet (#DIV/0!)
_MARKERS = (
    r"\.[A-Za-z_]|[A-EG-LO-SU-XZ]"  # not F, M, N, T, Y, which are answers
    r"|UNK|NASK|ASKU|NAVU?|NI|INV|MSK|NP|QS|QI|TRC|UNC|DER|OTH|PINF|NINF"
    r"|#(DIV/0|VALUE|REF|NUM|NAME|NULL|SPILL|CALC)[!?]"
)
# 01.03.2024, 3/1/24, 01MAR2024, 1-Mar-24, 2024-03
_DATES = (
    r"(\d{1,4}([-/.])\d{1,2}\2\d{1,4}"
    r"|\d{1,2}[-. ]?(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[-. ]*\d{2,4}).*"
    r"|(19|20)\d\d[-/.](0[1-9]|1[0-2])"
)


class CellCount(NamedTuple):
    """A distinct cell that is not plainly a value.

    Attributes:
        text: the cell.
        reading: ``gap``, ``stray``, ``bound``, ``thousands`` or ``zoned``.
        rows: how many rows have it.
        first: the number of the first of them.
    """

    text: str
    reading: str
    rows: int
    first: int


class Appearance(NamedTuple):
    """What cells that are not numbers look like.

    Attributes:
        matches: whether a cell does.
        guess: for the problem.
        remedy: with ``{names}`` of the columns, or ``{markers}``, their entries of
            ``data.missing_values``.
    """

    matches: Callable[[str], object]
    guess: str
    remedy: str


def _is_large(cell: str) -> bool:
    """Return whether a cell is a number that cannot be a measurement."""
    try:
        return abs(real(cell)) > LARGEST
    except ValueError:
        return False


# in order of precedence
APPEARANCES = {
    "gaps": Appearance(
        lambda _: False, "", "gaps: fill them with medians and flag them, data.missing=median"
    ),
    "large": Appearance(
        _is_large,
        f"beyond {LARGEST:.3g}",
        "numbers that cannot be measurements: correct them, give them in another unit, or, if they "
        "mark gaps, 'data.missing_values={{{markers}}}'",
    ),
    "commas": Appearance(
        re.compile(r"[-+]?\d*[\d,]*,\d+(\.\d+)?([eE][-+]?\d+)?").fullmatch,
        "decimal commas?",
        "commas in numbers: if they are decimal marks, data.decimal=comma; if they separate "
        "thousands, data.decimal=point, or remove them",
    ),
    "points": Appearance(
        re.compile(r"[-+]?\d*\.\d*([eE][-+]?\d+)?").fullmatch,
        "points, and data.decimal is comma",
        "points in numbers: if they are decimal marks, data.decimal=point; a point that parts "
        "thousands has three digits behind it",
    ),
    "dates": Appearance(
        lambda cell: "-" in cell and not math.isnan(days(cell)),
        "dates",
        "dates: read them as days, 'data.dates=[{names}]'",
    ),
    "foreign dates": Appearance(
        re.compile(_DATES).fullmatch,
        "dates in another form",
        "dates in another form: write them as 2024-03-01 (year, month, day)",
    ),
    "bounds": Appearance(
        lambda cell: not math.isnan(bound(cell)),
        "bounds?",
        "bounds such as <5: read them as the number behind the sign, data.censored=limit",
    ),
    "signs": Appearance(
        re.compile(
            rf"[-+]?([\d.,]+\s*%|\d{{1,3}}(['`\u2019{_BLANKS}]\d{{3}})+([.,]\d+)?)"
        ).fullmatch,
        "percent signs or marks of thousands?",
        "signs, apostrophes or blanks in numbers: remove them, so that a cell is a number",
    ),
    "markers": Appearance(
        re.compile(_MARKERS).fullmatch,
        "markers of gaps?",
        "markers of gaps: declare them, 'data.missing_values={{{markers}}}'",
    ),
    "strays": Appearance(
        lambda _: False,
        "",
        "single cells: correct them, take out their rows, or, if they mark gaps, "
        "'data.missing_values={{{markers}}}'",
    ),
    "category": Appearance(
        lambda _: False,
        "a category?",
        "categories: one column of 0 and 1 for each value, 'data.categories=[{names}]'",
    ),
    "texts": Appearance(lambda _: False, "an identifier, or texts?", ""),
}


@dataclass(frozen=True)
class Strays:
    """Cells of one column that are not what they should be, in reading order.

    Attributes:
        name: the column, for messages.
        cells: its cells that are not plainly values; some of them gaps and strays.
        kind: of the column, as in ``TableColumn``.
        fills: whether gaps are filled, and therefore not a problem.
    """

    name: str
    cells: Sequence[CellCount]
    kind: str = "number"
    fills: bool = False

    @cached_property
    def gaps(self) -> list[CellCount]:
        """The gaps that are not filled."""
        return [cell for cell in self.cells if cell.reading == "gap" and not self.fills]

    @cached_property
    def strays(self) -> list[CellCount]:
        """The cells that are neither values nor gaps."""
        return [cell for cell in self.cells if cell.reading == "stray"]

    @property
    def are_problem(self) -> bool:
        """Return whether any cell is a problem."""
        return bool(self.strays or self.gaps)

    @cached_property
    def values(self) -> list[str]:
        """The distinct strays, sorted."""
        return sorted({cell.text.strip() for cell in self.strays})

    @property
    def count(self) -> int:
        """The number of rows with strays, or with gaps if there are no strays."""
        return sum(cell.rows for cell in self.strays or self.gaps)

    @cached_property
    def matching(self) -> list[str]:
        """The keys of ``APPEARANCES`` that all strays match."""
        return [
            key
            for key, appearance in APPEARANCES.items()
            if all(map(appearance.matches, self.values))
        ]

    def appearance(self, rows: int) -> str:
        """Return what the cells look like, a key of ``APPEARANCES``."""
        if not self.strays:
            return "gaps"
        filled = rows - sum(cell.rows for cell in self.cells if cell.reading == "gap")
        if self.kind != "number":
            foreign = "foreign dates" in self.matching or 2 * self.count >= filled
            return "foreign dates" if self.kind == "date" and foreign else "strays"
        matching = [key for key in self.matching if key != "markers" or self.count < filled]
        if matching:
            return matching[0]
        if 2 * self.count < filled:
            return "strays"
        return "category" if len(self.values) <= min(FEW, self.count - 1) else "texts"

    def problem(self, rows: int, location: Callable[[int], str]) -> str:
        """Describe the problem in one line: number of bad cells, the first one, and their apparent
        type; ``location`` gives the location of a row.
        """
        first = min(self.strays or self.gaps, key=lambda cell: cell.first)
        example = f"first {quoted(first.text)} in {location(first.first)}"
        if not self.strays:
            return f"column {self.name}: {self.count} of {rows} cells are gaps, {example}"
        if self.kind == "category":
            return (
                f"column {self.name}: a category with too many values (one too many is "
                f"{quoted(first.text)} in {location(first.first)}); leave it out, group its "
                "values, or raise data.category_limit"
            )
        appearance = self.appearance(rows)
        guess = f": {APPEARANCES[appearance].guess}" if APPEARANCES[appearance].guess else ""
        values = f" ({listed(self.values, 4)})" if appearance in {"category", "markers"} else ""
        also = f"; and {sum(cell.rows for cell in self.gaps)} gaps" if self.gaps else ""
        expected = f"{EXPECTED[self.kind]}, {example}{guess}{values}{also}"
        return f"column {self.name}: {self.count} of {rows} are not {expected}"


def remedies(columns: Sequence[Strays], rows: int, settings: Features) -> list[str]:
    """Return remedies for these columns: one line for each type, and the setting that drops
    them. A setting that is advised keeps what ``settings`` name already.
    """
    lines = []
    categories = () if isinstance(settings.categories, str) else settings.categories
    current = {"category": categories, "dates": settings.dates}
    for key, appearance in APPEARANCES.items():
        alike = [
            column
            for column in columns
            if column.appearance(rows) == key or (key == "gaps" and column.gaps)
        ]
        if alike and appearance.remedy:
            names = _names(current.get(key, ()), alike)
            markers = _markers(settings.missing_values, alike)
            lines.append(appearance.remedy.format(names=names, markers=markers))
    if droppable := [column for column in columns if column.appearance(rows) != "strays"]:
        dropped = _names(settings.drop_columns, droppable)
        lines.append(f"to leave columns out: 'data.drop_columns=[{dropped}]'")
    return lines


def _names(current: Iterable[str | int], columns: Iterable[Strays]) -> str:
    """Return the names of columns as settings write them, after the ``current`` ones."""
    return ", ".join(f'"{name}"' for name in (*current, *(column.name for column in columns)))


def _markers(current: Mapping[str, Sequence[Any]], columns: Iterable[Strays]) -> str:
    """Return data.missing_values, the ``current`` ones with the first strays of each column."""
    added = {c.name: (*current.get(c.name, ()), *c.values[:5]) for c in columns}
    return ", ".join(
        f"{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else json.dumps(name)} = "
        f"{json.dumps(values, ensure_ascii=False)}"
        for name, values in {**current, **added}.items()
    )
