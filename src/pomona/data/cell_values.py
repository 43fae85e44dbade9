"""What a table's cell means: a number, a date, a name or a missing value."""

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from unicodedata import normalize

from pomona.core.bounds import LARGEST
from pomona.core.errors import listed

GAPS = {"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "missing", "unknown", "?", "-", "."}
GAPS |= {r"\n"}  # of MySQL, PostgreSQL and Hive, \N
EPOCH = datetime(2000, 1, 1)
# gaps in numeric columns, but possibly categories
AMBIGUOUS_GAPS = {"none", "unknown", "missing", "-"}
BOOLEANS = {"true": 1.0, "false": 0.0}
_DECIMAL = re.compile(r"[-+]?\d+\.\d*")
_WHOLE_NUMBER = re.compile(r"^([-+]?\d+)\.0*$")
_NUMERAL = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d{1,3})?")
_BOUND = re.compile(r"(?:[<>]=?|[≤≥])\s*([-+\d.,].*)")
# cells with marks of thousands, by the decimal mark
_THOUSANDS = {
    "comma": re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?"),
    "point": re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?"),
}
_SWAPPED = str.maketrans(".,", ",.")


def real(cell: str) -> float:
    """Return the number in a cell, whose minus may be a typographic one; ValueError also for the
    underscores that Python allows in it.
    """
    return float(cell.replace("_", "!").replace("\u2212", "-"))


def has_thousands(cell: str, decimal: str) -> bool:
    """Return whether a cell is a number with marks of thousands: 1.145 where the decimal mark is a
    comma, 1,145 where it is a point; with an empty ``decimal``, for none.
    """
    return decimal in _THOUSANDS and _THOUSANDS[decimal].fullmatch(cell.strip()) is not None


def pointed(cell: str, decimal: str) -> str:
    """Return a number's cell with a decimal point and without marks of thousands.

    Args:
        cell: any other cell is returned unchanged, but not as a number: a point where the decimal
            mark is a comma becomes a comma.
        decimal: the decimal mark, "comma" or "point"; if empty, a comma is never part of a number.
    """
    if has_thousands(cell, decimal):
        cell = cell.replace("." if decimal == "comma" else ",", "")
    return cell.translate(_SWAPPED) if decimal == "comma" else cell


def number(cell: str, decimal: str = "") -> float:
    """Return the number in a cell, 1 for true and 0 for false; NaN for anything else, and beyond
    ``LARGEST``; ``decimal`` as in ``pointed``.
    """
    try:
        value = real(pointed(cell, decimal))
    except ValueError:
        return BOOLEANS.get(cell.strip().lower(), math.nan)
    return value if abs(value) <= LARGEST else math.nan


def with_point(cell: str, decimal: str) -> str:
    """Return a cell with a decimal point if it is a number where the decimal mark is a comma."""
    is_number = decimal == "comma" and not math.isnan(number(cell, decimal))
    return pointed(cell, decimal) if is_number else cell


def bound(cell: str, decimal: str = "") -> float:
    """Return the number in a censored value, such as 5 for ``<5``; NaN for anything else."""
    return number(match[1], decimal) if (match := _BOUND.fullmatch(cell.strip())) else math.nan


def is_gap(cell: str) -> bool:
    """Return whether a cell marks a missing value."""
    return cell.strip().lower() in GAPS


def is_missing(cell: str) -> bool:
    """Return whether a cell in a column of names marks a missing value: "none" and "-" may be
    names.
    """
    return is_gap(cell) and cell.strip().lower() not in AMBIGUOUS_GAPS


def plain(cell: str) -> str:
    """Return the canonical form for comparing labels and categories: NFC, and numbers by value.

    3, 3. and 3.0 are equal, and so are 0.5 and 0.50; 03 is different, since it may be a code.
    """
    cell = normalize("NFC", cell.strip())
    return cell.rstrip("0").rstrip(".") if _DECIMAL.fullmatch(cell) else cell


def name(cell: str) -> str:
    """Return the canonical form of the name of a client, patient or subgroup: NFC, and 3 for 3.0,
    as columns of numbers with gaps are often written; empty if it marks a missing value.
    """
    return "" if is_missing(cell) else normalized_name(cell)


def normalized_name(name: str) -> str:
    """Return the canonical form of a name that a person gave. No text marks a gap here: NA may be
    Namibia.
    """
    return _WHOLE_NUMBER.sub(r"\1", normalize("NFC", name.strip()))


def alike(names: Iterable[str]) -> list[str]:
    """Return the names that differ from another one only in case, whitespace or Unicode form, or
    that are the same number: 007 and 7, and 1e+05, as R writes 100000.
    """
    spellings: dict[str | Decimal, list[str]] = {}
    for name in dict.fromkeys(names):
        folded = "".join(normalize("NFKC", name).casefold().split())
        key = Decimal(folded) if _NUMERAL.fullmatch(folded) else folded
        spellings.setdefault(key, []).append(name)
    return sorted(name for group in spellings.values() if len(group) > 1 for name in group)


def alike_notes(noun: str, names: Iterable[str]) -> list[str]:
    """Warn if names differ only in spelling."""
    if not (similar := alike(names)):
        return []
    return [
        f"{noun} that differ in capital letters, blanks, zeros or the form of characters only: "
        f"{listed(similar)}; if they are one, write them the same way"
    ]


def days(cell: str) -> float:
    """Return days from 2000-01-01 to an ISO date, with a fraction for the time (UTC if it has a
    zone); else NaN.
    """
    try:
        moment = datetime.fromisoformat(cell.strip())
    except ValueError:
        return math.nan
    if moment.tzinfo:
        try:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
        except OverflowError:
            return math.nan
    return (moment - EPOCH) / timedelta(days=1)


def has_zone(cell: str) -> bool:
    """Return whether a cell is an ISO date with a time zone."""
    if ":" not in cell:
        return False
    try:
        return datetime.fromisoformat(cell.strip()).tzinfo is not None
    except ValueError:
        return False


def is_turned(cell: str) -> bool:
    """Return whether an ISO date with a time zone is another time in UTC."""
    return has_zone(cell) and bool(datetime.fromisoformat(cell.strip()).utcoffset())


def quoted(cell: str) -> str:
    """Quote a cell for a message, truncated if long."""
    return repr(cell if len(cell) <= 30 else f"{cell[:27]}...")
