"""Dates that one client writes in another way than the others."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data.quality.cells import Cells, Values, without_gaps

ENOUGH_DATES = 20  # dates of a client that show how it writes them
FEWEST_DAYS = 3  # distinct days of the month; fewer mean that dates were rounded on purpose
COMPACT = 18800101, 20991231  # the first and the last date that a number may be
EPOCH = np.datetime64("2000-01-01")
EARLIEST, LATEST = (
    float((np.datetime64(day) - EPOCH).astype(int)) for day in ("1880-01-01", "2100-01-01")
)


def notes(cells: Cells) -> list[str]:
    """Warn about columns of dates that some clients alone write in another time zone, as whole
    days or with days and months exchanged, about impossible years, and about dates read as numbers.
    """
    lines = _compact(cells)
    for k, name in cells.columns("date"):
        zoned = cells.raw.zoned[k] if cells.raw.zoned else np.zeros(0, bool)
        lines += [
            f"column {name}: {line}"
            for line in (_zones(cells, zoned) if zoned.any() else _written(cells, k))
        ]
    return lines


def _compact(cells: Cells) -> list[str]:
    """Warn about columns whose numbers are all dates, as 20240301."""
    _, lows, highs = cells.extremes
    lines = []
    for k, name in cells.columns("number"):
        low, high = np.fmin.reduce(lows[:, k]), np.fmax.reduce(highs[:, k])
        if low >= COMPACT[0] and high <= COMPACT[1] and _are_dates(without_gaps(cells.column(k))):
            lines.append(
                f"column {name}: all numbers are dates such as {low:.0f}, and differ by up to 8870 "
                f"from one day to the next: read them as days, 'data.dates=[\"{name}\"]'"
            )
    return lines


def _are_dates(numbers: Values) -> bool:
    """Return whether several whole numbers end in a month and a day."""
    month, day = numbers // 100 % 100, numbers % 100
    valid = (month == month.clip(1, 12)) & (day == np.rint(day).clip(1, 31))
    return bool(valid.all()) and len(np.unique(numbers)) >= FEWEST_DAYS


def _zones(cells: Cells, zoned: NDArray[np.bool_]) -> list[str]:
    """Warn if the dates (N,) of some clients, or some of a client, alone have a time zone."""
    names = cells.names or ("the data",)
    shares = [float(zoned[rows].mean()) if len(rows) else 0.0 for rows in cells.by_client]
    by_name = [*zip(names, shares, strict=True)]
    with_zone, without_zone = ([n for n, share in by_name if share == value] for value in (1, 0))
    if mixed := [name for name in names if name not in {*with_zone, *without_zone}]:
        text = f"some times of {listed(mixed, 3)} have a time zone, and some have none"
    elif without_zone:
        zoneless = listed(without_zone, 3)
        text = f"times have a time zone at {listed(with_zone, 3)}, and none at {zoneless}"
    else:
        return []
    return [f"{text}: those with one are turned to UTC, the others are not; write all in one way"]


def _written(cells: Cells, k: int) -> Iterator[str]:
    """Yield notes on how each client writes the dates of a column."""
    days_by_client = [without_gaps(cells.raw.x[rows, k]) for rows in cells.by_client]
    if count := sum(int(((days < EARLIEST) | (days >= LATEST)).sum()) for days in days_by_client):
        yield (
            f"{count} dates are before 1880 or after 2099 (years in two digits, or marks of a "
            "gap?); correct them, or name them in data.missing_values"
        )
    for test, text in TESTS.items():
        yes, no = (
            [
                name
                for name, days in zip(cells.names, days_by_client, strict=False)
                if len(days) >= ENOUGH_DATES and test(days) is verdict
            ]
            for verdict in (True, False)
        )
        if yes and no:
            yield text.format(listed(yes, 3), listed(no, 3))


def _are_whole(days: Values) -> bool:
    """Return whether no date has a time of day other than that of one midnight."""
    return bool((days % 1 == 0).all()) or _are_shifted(days)


def _are_shifted(days: Values) -> bool:
    """Return whether all have one time of the day, or two as with summer time, in whole quarters
    of an hour and not midnight.
    """
    quarters = np.unique(np.round(days % 1 * 96, 6))
    return bool((quarters % 1 == 0).all() and quarters[0] > 0 and len(quarters) <= 2)


def _may_be_months(days: Values) -> bool:
    """Return whether no day of the month is after the 12th, as if the month were written there."""
    dates = EPOCH + np.floor(days).astype("timedelta64[D]")
    of_month = np.unique((dates - dates.astype("datetime64[M]")).astype(int)) + 1
    return bool(of_month[-1] <= 12 and len(of_month) >= FEWEST_DAYS)


TESTS: dict[Callable[[Values], bool], str] = {
    _are_whole: "dates without a time of day at {}, with one at {}; write all the same way",
    _are_shifted: (
        "all times are the same, not midnight, at {} (midnight of another time zone?), and not at "
        "{}; write dates without time, or all in one zone"
    ),
    _may_be_months: (
        "no day after the 12th at {}, but at {}: days and months exchanged? correct the dates"
    ),
}
