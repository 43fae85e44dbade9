"""What a table's cell means: a number, a date, a name or a missing value."""

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from unicodedata import normalize

import numpy as np

LARGEST = float(np.finfo(np.float32).max)
GAPS = {"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "missing", "unknown", "?", "-", "."}
EPOCH = datetime(2000, 1, 1)
WORDS = {"none", "unknown", "missing", "-", "."}  # gaps in numeric columns, but possibly categories
BOOLEANS = {"true": 1.0, "false": 0.0}
_DECIMAL = re.compile(r"[-+]?\d+\.\d*")
_WHOLE = re.compile(r"^([-+]?\d+)\.0*$")
_BOUND = re.compile(r"(?:[<>]=?|[≤≥])\s*([-+\d.].*)")


def real(cell: str) -> float:
    """Return the number in a cell; ValueError also for the underscores that Python allows in it."""
    return float(cell.replace("_", "!"))


def number(cell: str) -> float:
    """Return the number in a cell, 1 for true and 0 for false; NaN for anything else, and beyond
    the range of float32.
    """
    try:
        value = real(cell)
    except ValueError:
        return BOOLEANS.get(cell.strip().lower(), math.nan)
    return value if abs(value) <= LARGEST else math.nan


def bound(cell: str) -> float:
    """Return the number in a censored value, such as 5 for ``<5``; NaN for anything else."""
    return number(found[1]) if (found := _BOUND.fullmatch(cell.strip())) else math.nan


def is_gap(cell: str) -> bool:
    """Return whether a cell marks a missing value."""
    return cell.strip().lower() in GAPS


def is_missing(cell: str) -> bool:
    """Return whether a cell in a column of names marks a missing value: "none" and "-" may be
    names.
    """
    return is_gap(cell) and cell.strip().lower() not in WORDS


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
    return "" if is_missing(cell) else given(cell)


def given(name: str) -> str:
    """Return the canonical form of a name that a person gave. No text marks a gap here: NA may be
    Namibia.
    """
    return _WHOLE.sub(r"\1", normalize("NFC", name.strip()))


def alike(names: Iterable[str]) -> list[str]:
    """Return the names that differ from another one only in case, whitespace or Unicode form."""
    forms: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        forms.setdefault("".join(normalize("NFKC", name).casefold().split()), []).append(name)
    return sorted(name for same in forms.values() if len(same) > 1 for name in same)


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


def short(cell: str) -> str:
    """Quote a cell for a message, truncated if long."""
    return repr(cell if len(cell) <= 30 else f"{cell[:27]}...")
