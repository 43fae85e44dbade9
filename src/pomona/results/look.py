"""Looks of the methods on a page: a colour, a dash and a marker each, given out page by page so that no two are alike.

A method that is drawn often keeps its look from page to page; all others, strangers too, take what is free.
"""

from collections.abc import Iterable
from dataclasses import dataclass

KEPT = ("Separate", "FedAvg", "APPLE", "FedAvg-FT", "FedALA", "FedAMP", "FedFomo", "FedProx", "Ditto", "FedRep")
"""The titles with a place of their own in ``COLOURS``; first training alone, grey and dashed."""
# fmt: off
COLOURS = (
    ("#757c83", "#868d94"), ("#1d2125", "#e8eae6"), ("#cf5600", "#f07020"), ("#0067a8", "#3d9ee8"),
    ("#00835f", "#14b389"), ("#c559a0", "#e58cc0"), ("#b98500", "#f0b429"), ("#3a98c8", "#8fd6ff"),
    ("#7a3fc4", "#a77bf0"), ("#6f3f1f", "#b8835a"), ("#6d9400", "#a8d02c"), ("#a3123f", "#ff5c7a"),
)
"""(on white, on near black): hues after Okabe and Ito, and four more."""
DASHES: tuple[tuple[float, ...], ...] = (
    (4, 2), (), (9, 1.5), (6, 1.5, 1.2, 1.5), (2.2, 1.3), (6, 1.5, 1.2, 1.5, 1.2, 1.5),
    (9, 1.5, 3, 1.5), (3, 1.2, 1.2, 1.2), (6, 4), (9, 1.5, 3, 1.5, 3, 1.5), (14, 2, 1.2, 2), (2.2, 3),
)
"""Lengths of line and gap by turns, in widths of the line; none for a solid one."""
# fmt: on
MARKERS = "sDo^vP<X>p*h"
"""Matplotlib's names: square, diamond, circle, triangles, plus, cross, pentagon, star, hexagon."""
DISTINCT = len(COLOURS)
"""So many looks differ in colour and in dash and in marker; with more, names stand at the lines themselves."""


@dataclass(frozen=True)
class Look:
    """How a method is drawn: ``colour`` on white, ``bright`` on near black, ``dash`` and ``marker``."""

    colour: str
    bright: str
    dash: tuple[float, ...]
    marker: str

    @property
    def line(self) -> tuple[float, tuple[float, ...]] | str:
        """The dash as Matplotlib takes it."""
        return (0, self.dash) if self.dash else "-"


def looks(titles: Iterable[str]) -> list[Look]:
    """A look for each title of a page, in their order; a title that comes again gets a look of its own.

    No two of 144 are alike. Only where eleven others are on the page does one of them look as training alone does.
    """
    found: list[int | None] = []
    for title in titles:
        place = KEPT.index(title) if title in KEPT else None
        found.append(None if place in found else place)
    order = [*range(1, DISTINCT), 0, *range(DISTINCT, DISTINCT + len(found))]
    free = iter([place for place in order if place not in found])
    return [_look(next(free) if place is None else place) for place in found]


def _look(place: int) -> Look:
    """Beyond the first twelve every colour comes again with another dash."""
    around, k = divmod(place, DISTINCT)
    return Look(*COLOURS[k], DASHES[(k + around) % DISTINCT], MARKERS[(k + around) % DISTINCT])
