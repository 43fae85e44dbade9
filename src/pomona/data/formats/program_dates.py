"""Dates and times of SAS, SPSS and Stata: numbers whose column format says what they count.

The library knows some spellings of these formats and leaves all others as numbers, so the formats
are read here, by their grammar.
"""

import re
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pomona.data.formats.arrow_arrays import number_array

EARLIEST, LATEST = np.datetime64("0001-01-01", "us"), np.datetime64("9999-12-31T23:59:59", "us")
SPSS_DATES = {"DATE", "ADATE", "EDATE", "SDATE", "JDATE", "QYR", "MOYR", "WKYR"}
SPSS_MOMENTS = {"DATETIME", "YMDHMS"}
SPSS_TIMES = {"TIME", "DTIME", "MTIME"}
# each letter stands for a separator: blank, colon, dash, none, point, slash
_SEPARATED = {f"{order}{mark}" for order in ("DDMMYY", "MMDDYY", "YYMMDD") for mark in "BCDNPS"}
_PARTIAL = {f"{order}{mark}" for order in ("MMYY", "YYMM", "YYQ", "YYQR") for mark in "CDNPS"}
SAS_DATES = (
    {"DATE", "DDMMYY", "MMDDYY", "YYMMDD", "WEEKDATE", "WEEKDATX", "WORDDATE", "WORDDATX"}
    | {"JULIAN", "JULDAY", "MONYY", "YYMON", "YEAR", "QTR", "QTRR", "MONTH", "MONNAME", "DAY"}
    | {"DOWNAME", "WEEKDAY", "WEEKU", "WEEKV", "WEEKW", "MMYY", "YYMM", "YYQ", "YYQR", "NENGO"}
    | {"E8601DA", "B8601DA", "IS8601DA", "NLDATE", "NLDATEW", "EURDFDD", "EURDFDE", "EURDFMY"}
    | _SEPARATED
    | _PARTIAL
)
SAS_MOMENTS = {"DATETIME", "DATEAMPM", "MDYAMPM", "E8601DT", "B8601DT", "IS8601DT", "B8601DN"} | {
    "E8601DN", "DTDATE", "DTMONYY", "DTWKDATX", "DTYEAR", "DTYYQC", "NLDATM", "EURDFDT"
}  # fmt: skip
SAS_TIMES = {"TIME", "HHMM", "HOUR", "MMSS", "TOD", "TIMEAMPM", "E8601TM", "B8601TM", "IS8601TM"}
_STATA = re.compile(r"%-?(?:t([cCdwmqhybg])|d)(.*)")
_STATA_CLOCK = re.compile(r"(?:[Hh]{2}|MM|mm|SS|ss|\.s+|[aA]\.?[mM]\.?|[:_.,!])+")
STATA_MONTHS = {"M": 1, "Q": 3, "H": 6}
# about 30 times the range of dates: far below an overflow of 64 bits
LIMITS = {"D": 1e8, "W": 1e7, "M": 3e6, "Q": 1e6, "H": 5e5, "s": 8e12, "ms": 8e15}

Content = Literal["date", "moment", "time"]


class Calendar(NamedTuple):
    """What the numbers of a column count.

    Attributes:
        content: dates, dates with a time, or times and durations alone.
        unit: "s", "ms" and "D"; "M", "Q" and "H" (half years) and "W" (Stata's 52 weeks a year).
        origin: the date that is 0.
    """

    content: Content
    unit: str
    origin: str


def calendar(program: str, pattern: str) -> Calendar | None:
    """Return what a column of SAS, SPSS or Stata with this format counts; None for plain numbers.

    Stata's business calendars lie in files of their own, so their columns are plain numbers.
    """
    if program == "Stata":
        return _stata(pattern)
    name = re.sub(r"\d*(\.\d*)?$", "", pattern.upper())
    if program == "SPSS":
        origin = "1582-10-14"
        names: tuple[set[str], ...] = (SPSS_DATES, SPSS_MOMENTS, SPSS_TIMES)
        units = "s", "s", "s"
    else:
        origin, names, units = "1960-01-01", (SAS_DATES, SAS_MOMENTS, SAS_TIMES), ("D", "s", "s")
    contents: tuple[Content, ...] = ("date", "moment", "time")
    for content, unit, names_of_content in zip(contents, units, names, strict=True):
        if name in names_of_content:
            return Calendar(content, unit, origin)
    return None


def _stata(pattern: str) -> Calendar | None:
    match = _STATA.fullmatch(pattern)
    letter = (match[1] or "d") if match else ""
    if letter in {"c", "C"}:
        clock = match and _STATA_CLOCK.fullmatch(match[2])
        return Calendar("time" if clock else "moment", "ms", "1960-01-01")
    if letter and letter in "dwmqh":
        return Calendar("date", letter.upper(), "1960-01-01")
    return None


def dated(values: NDArray[np.float64], period: Calendar) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return a column's dates, and which values lie outside the years 1 to 9999 (they become gaps).

    Args:
        values: (n,) numbers as stored; NaN is a gap.
        period: what they count.
    """
    missing = np.isnan(values)
    moments = _moments(np.where(missing, 0, values), period)
    outside = ~missing & ((moments < EARLIEST) | (moments > LATEST))
    moments = np.where(outside, EARLIEST, moments)
    dtype = "datetime64[D]" if period.content == "date" else "datetime64[us]"
    return number_array(moments.astype(dtype), missing | outside), outside


def _moments(values: NDArray[np.float64], period: Calendar) -> NDArray[np.datetime64]:
    """Return moments (n,) in microseconds; for numbers beyond their range, one after ``LATEST``."""
    beyond = ~(np.abs(values) < LIMITS[period.unit])
    values = np.where(beyond, 0, values)
    count = np.floor(values).astype(np.int64)
    moments: NDArray[Any]
    if period.unit in STATA_MONTHS:
        moments = np.datetime64(period.origin, "M") + count * STATA_MONTHS[period.unit]
    elif period.unit == "W":
        years = np.datetime64(period.origin, "Y") + count // 52
        moments = years.astype("datetime64[D]") + count % 52 * 7
    elif period.unit == "D":
        moments = np.datetime64(period.origin, "D") + count
    else:
        micro = 10**6 if period.unit == "s" else 10**3
        fraction = np.rint((values - count) * micro).astype(np.int64)
        moments = np.datetime64(period.origin, "us") + (count * micro + fraction)
    return np.where(beyond, LATEST + np.timedelta64(1, "D"), moments.astype("datetime64[us]"))


def is_clock(values: NDArray[np.float64], period: Calendar) -> bool:
    """Return whether a column holds times alone: Stata shows dates without their day as well."""
    of_first_day = (values >= 0) & (values < 86_400_000)
    return period.unit != "ms" or bool(np.all(of_first_day | np.isnan(values)))


def seconds(values: NDArray[np.float64], period: Calendar) -> NDArray[np.float64]:
    """Return times of day and durations in seconds."""
    return values / 1000 if period.unit == "ms" else values
