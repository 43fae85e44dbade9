"""Dates that one client writes in another way than the others."""

from collections.abc import Callable, Iterator
from datetime import date

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data.quality.cells import Cells, without_gaps

ENOUGH_DATES = 20  # dates of a client that show how it writes them
FEWEST_DAYS = 3  # distinct days of the month; fewer mean that dates were rounded on purpose
EPOCH = np.datetime64("2000-01-01")
EARLIEST, LATEST = (float((date(year, 1, 1) - date(2000, 1, 1)).days) for year in (1880, 2100))
Days = NDArray[np.float64]
_MIXED = (
    "some times{} have a time zone, and some have none: those with one are turned to UTC, the "
    "others are not; write all in one way"
)


def notes(cells: Cells) -> list[str]:
    """Warn about columns of dates that some clients alone write as whole days, as first days of a
    month, in another time zone or with days and months exchanged, and about impossible years.
    """
    lines = []
    for k, column in enumerate(cells.columns):
        if column.kind != "date":
            continue
        days_by_client = [without_gaps(cells.x[rows, k]) for rows in cells.by_client]
        zoned = cells.zoned[k] if k < len(cells.zoned) else np.zeros(0, bool)
        sites = _with_zones(cells, zoned) if zoned.any() else []
        phrases = [*sites, *(_of_column(days_by_client, cells.names) if not sites else ())]
        lines += [f"column {column.name}: {line}" for line in phrases]
    return lines


def _with_zones(cells: Cells, zoned: NDArray[np.bool_]) -> list[str]:
    """Warn if the dates (N,) of some clients, or some of a client, alone have a time zone."""
    shares = [float(zoned[rows].mean()) if len(rows) else 0.0 for rows in cells.by_client]
    if not cells.names:
        return [_MIXED.format("")] if shares[0] < 1 else []
    mixed = [name for name, share in zip(cells.names, shares, strict=True) if 0 < share < 1]
    if mixed:
        return [_MIXED.format(f" of {listed(mixed, 3)}")]
    zones = [name for name, share in zip(cells.names, shares, strict=True) if share]
    plain = [name for name, share in zip(cells.names, shares, strict=True) if not share]
    if not plain:
        return []
    return [
        f"times have a time zone at {listed(zones, 3)}, and none at {listed(plain, 3)}: those with "
        "one are turned to UTC, the others are not; write all in one way"
    ]


def _of_column(days_by_client: list[Days], names: tuple[str, ...]) -> Iterator[str]:
    """Iterate over notes on the dates of each client."""
    implausible = int(sum(((days < EARLIEST) | (days >= LATEST)).sum() for days in days_by_client))
    if implausible:
        yield (
            f"{implausible} dates are before 1880 or after 2099 (years in two digits, or marks of "
            "a "
            "gap?); correct them, or name them in data.missing_values"
        )
    for test, text in (
        (_whole_days, "dates without a time of day at {}, with one at {}; write all alike"),
        (
            _shifted,
            "all times are the same, not midnight, at {} (midnight of another time zone?), and not "
            "at {}; write dates without time, or all in one zone",
        ),
        (
            _first_days,
            "only first days of a month or a year at {}, any days at {}; the dates are less exact "
            "there",
        ),
        (
            _exchanged,
            "no day after the 12th at {}, but at {}: days and months exchanged? correct the dates",
        ),
    ):
        yield from _compared(days_by_client, names, test, text)


def _compared(
    days_by_client: list[Days], names: tuple[str, ...], test: Callable[[Days], bool], text: str
) -> Iterator[str]:
    """Yield the text with the clients that pass a test and those that do not, if both exist."""
    enough = [
        (name, days)
        for name, days in zip(names, days_by_client, strict=False)
        if len(days) >= ENOUGH_DATES
    ]
    judged = [(name, test(days)) for name, days in enough]
    passing, failing = (
        [name for name, result in judged if result is verdict] for verdict in (True, False)
    )
    if passing and failing:
        yield text.format(listed(passing, 3), listed(failing, 3))


def _whole_days(days: Days) -> bool:
    """Return whether no date has a time of day other than that of one midnight."""
    return bool((days == np.floor(days)).all()) or _shifted(days)


def _shifted(days: Days) -> bool:
    """Return whether all have one time of the day, or two as with summer time, in whole quarters
    of an hour and not midnight.
    """
    quarters = np.unique(np.round((days - np.floor(days)) * 96, 6))
    quarters_only = bool((quarters == np.rint(quarters)).all() and (quarters > 0).all())
    return quarters_only and len(quarters) <= 2


def _of_month(days: Days) -> NDArray[np.int64]:
    """Return the days of the month of dates."""
    dates = EPOCH + np.floor(days).astype("timedelta64[D]")
    of_month: NDArray[np.int64] = (dates - dates.astype("datetime64[M]")).astype(np.int64) + 1
    return of_month


def _first_days(days: Days) -> bool:
    """Return whether all are the first days of months."""
    return bool((_of_month(days) == 1).all())


def _exchanged(days: Days) -> bool:
    """Return whether no day is after the 12th, as if the month were written there."""
    of_month = np.unique(_of_month(days))
    return bool(of_month[-1] <= 12 and len(of_month) >= FEWEST_DAYS)
