"""Dates and times of SAS, SPSS and Stata: numbers whose column format says what they count.

The library knows some of these formats and leaves all others as numbers.
"""

import re
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pomona.data.formats.columns import number_array

EARLIEST, LATEST = np.datetime64("0001-01-01", "us"), np.datetime64("9999-12-31T23:59:59", "us")
ORIGINS = {"SPSS": "1582-10-14", "SAS": "1960-01-01", "Stata": "1960-01-01"}
_SAS_DATES = (
    r"DATE|DAY|DOWNAME|HEBDATE|MINGUO|MON(TH|NAME|YY)|NENGO|NLDATE[A-Z]*|QTRR?|YEAR|YYMON"
    r"|WEEK(DAT[EX]|DAY|[UVW])|WORDDAT[EX]|JUL(IAN|DAY)|(E|B|IS)8601DA|EURDF(D[DE]|MY)"
    r"|(DDMMYY|MMDDYY|YYMMDD)[BCDNPS]?|(MMYY|YYMM|YYQR?)[CDNPS]?"
)
_SAS_MOMENTS = (
    r"DATETIME|DATEAMPM|MDYAMPM|(E|B|IS)8601D[NTXZ]|DT(DATE|MONYY|WKDATX|YEAR|YYQC)"
    r"|NLDATM[A-Z]*|EURDFDT"
)
_SAS_TIMES = r"TIME|TIMEAMPM|HHMM|HOUR|MMSS|NLTIM[A-Z]*|TOD|(E|B|IS)8601(LZ|T[MXZ])"
_WIDTH = r"\d*(\.\d*)?"
# of each program: a pattern of formats, the unit of the numbers, and their content
_FORMATS = {
    "SPSS": (
        (rf"([AES]?DATE|JDATE|QYR|MOYR|WKYR){_WIDTH}", "seconds", "date"),
        (rf"(DATETIME|YMDHMS){_WIDTH}", "seconds", "moment"),
        (rf"[DM]?TIME{_WIDTH}", "seconds", "time"),
    ),
    "SAS": (
        (rf"({_SAS_DATES}){_WIDTH}", "days", "date"),
        (rf"({_SAS_MOMENTS}){_WIDTH}", "seconds", "moment"),
        (rf"({_SAS_TIMES}){_WIDTH}", "seconds", "time"),
    ),
    "Stata": (
        (r"%-?t?d.*", "days", "date"),
        (r"%-?tc.*", "milliseconds", "moment"),
        (r"%-?tw.*", "weeks", "date"),
        (r"%-?tm.*", "months", "date"),
        (r"%-?tq.*", "quarters", "date"),
        (r"%-?th.*", "half years", "date"),
    ),
}
# numpy's unit, and how many of them a unit has
_UNITS: dict[str, tuple[Literal["D", "M", "us"], int]] = {
    "days": ("D", 1),
    "months": ("M", 1),
    "quarters": ("M", 3),
    "half years": ("M", 6),
    "seconds": ("us", 10**6),
    "milliseconds": ("us", 10**3),
}
LIMITS = {"D": 1e8, "M": 3e6, "us": 8e18}  # outside the dates, but within 64 bits of microseconds


class Calendar(NamedTuple):
    """What the numbers of a column count: units since the date ``origin``."""

    unit: str
    content: str
    origin: str


def calendar(program: str, pattern: str) -> Calendar | None:
    """Return what a column with a format counts; None for plain numbers."""
    for expression, unit, content in _FORMATS[program]:
        if re.fullmatch(expression, pattern, re.IGNORECASE):
            return Calendar(unit, content, ORIGINS[program])
    return None


def clock(values: NDArray[np.float64], period: Calendar) -> NDArray[np.float64] | None:
    """Return a column of times and durations in seconds; None for dates.

    Stata stores a time of day as a moment of the first day.
    """
    if period.content == "time":
        return values
    of_first_day = period.unit == "milliseconds" and np.nanmax(values, initial=-1) < 86_400_000
    if of_first_day and np.nanmin(values, initial=0) >= 0 and not np.isnan(values).all():
        return values / 1000
    return None


def dates(values: NDArray[np.float64], period: Calendar) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return a column's dates, and which values lie outside the years 1 to 9999 (they become gaps).

    Args:
        values: (n,) numbers as stored; NaN is a gap.
        period: what they count.
    """
    missing = np.isnan(values)
    moments = _moments(np.where(missing, 0, values), period).astype("datetime64[us]")
    outside = ~missing & ((moments < EARLIEST) | (moments > LATEST))
    moments = np.where(outside, EARLIEST, moments)
    dtype = "datetime64[D]" if period.content == "date" else "datetime64[us]"
    return number_array(moments.astype(dtype), missing | outside), outside


def _moments(values: NDArray[np.float64], period: Calendar) -> NDArray[np.datetime64]:
    """Return the moments of numbers (n,), in a unit of numpy."""
    if period.unit == "weeks":  # Stata's years have 52
        weeks = np.clip(np.floor(values), -LIMITS["M"], LIMITS["M"]).astype(np.int64)
        days = (weeks % 52 * 7).astype("timedelta64[D]")
        years = np.datetime64(period.origin, "Y") + weeks // 52
        moments: NDArray[np.datetime64] = years.astype("datetime64[D]") + days
        return moments
    unit, factor = _UNITS[period.unit]
    counts = np.rint(values * factor) if unit == "us" else np.floor(values) * factor
    counts = np.clip(counts, -LIMITS[unit], LIMITS[unit])
    return np.datetime64(period.origin, unit) + counts.astype(np.int64)
