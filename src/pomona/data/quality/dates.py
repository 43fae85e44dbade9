"""Dates that one client writes in another way than the others."""

from collections.abc import Callable, Iterator
from datetime import date

import numpy as np
from numpy.typing import NDArray

from pomona.core.errors import listed
from pomona.data.quality.cells import Cells, known

MANY = 20  # dates of a client that show how it writes them
FEWEST_DAYS = 3  # distinct days of the month; fewer mean that dates were rounded on purpose
EPOCH = np.datetime64("2000-01-01")
EARLIEST, LATEST = (float((date(year, 1, 1) - date(2000, 1, 1)).days) for year in (1880, 2100))
Days = NDArray[np.float64]


def notes(cells: Cells) -> list[str]:
    """Warn about columns of dates that are whole days, first days of a month, shifted midnights or
    exchanged days and months at some clients alone, and about years that cannot be.
    """
    lines = []
    for k, column in enumerate(cells.columns):
        if column.kind != "date":
            continue
        every = [known(cells.x[rows, k]) for rows in cells.by_client]
        lines += [f"column {column.name}: {line}" for line in _of_column(every, cells.names)]
    return lines


def _of_column(every: list[Days], names: tuple[str, ...]) -> Iterator[str]:
    """Iterate over notes on the dates of each client."""
    early = int(sum(((own < EARLIEST) | (own >= LATEST)).sum() for own in every))
    if early:
        yield (
            f"{early} dates are before 1880 or after 2099 (years in two digits, or marks of a "
            "gap?); correct them, or name them in data.missing_values"
        )
    for test, text in (
        (_whole_days, "dates without a time of day at {}, with one at {}; give all the same"),
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
        yield from _alone(every, names, test, text)


def _alone(
    every: list[Days], names: tuple[str, ...], test: Callable[[Days], bool], text: str
) -> Iterator[str]:
    """Yield the text with the clients that pass a test and those that do not, if both exist."""
    known_well = [(name, own) for name, own in zip(names, every, strict=False) if len(own) >= MANY]
    judged = [(name, test(own)) for name, own in known_well]
    yes, no = ([name for name, passed in judged if passed is here] for here in (True, False))
    if yes and no:
        yield text.format(listed(yes, 3), listed(no, 3))


def _whole_days(days: Days) -> bool:
    return bool((days == np.floor(days)).all())


def _shifted(days: Days) -> bool:
    """Return whether all have one time of the day, or two as with summer time, in whole quarters
    of an hour and not midnight.
    """
    quarters = np.unique(np.round((days - np.floor(days)) * 96, 6))
    whole = bool((quarters == np.rint(quarters)).all() and (quarters > 0).all())
    return whole and len(quarters) <= 2


def _of_month(days: Days) -> NDArray[np.int64]:
    """Return the days of the month of dates."""
    at = EPOCH + np.floor(days).astype("timedelta64[D]")
    of_month: NDArray[np.int64] = (at - at.astype("datetime64[M]")).astype(np.int64) + 1
    return of_month


def _first_days(days: Days) -> bool:
    return bool((_of_month(days) == 1).all())


def _exchanged(days: Days) -> bool:
    of_month = np.unique(_of_month(days))
    return bool(of_month[-1] <= 12 and len(of_month) >= FEWEST_DAYS)
