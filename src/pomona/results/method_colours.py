"""Looks of the methods on a page: a unique colour, dash and marker for each, assigned per page.

Frequently drawn methods have the same look on all pages; all others, including unknown ones, take
the remaining looks.
"""

from collections.abc import Iterable
from dataclasses import dataclass

KEPT = (
    "Separate",
    "FedAvg",
    "APPLE",
    "FedAvg-FT",
    "FedALA",
    "FedAMP",
    "FedFomo",
    "FedProx",
    "Ditto",
    "FedRep",
)
"""Titles with a fixed place in ``COLOURS``; the first is local training, grey and dashed."""
COLOURS = (
    ("#757c83", "#868d94"),
    ("#1d2125", "#e8eae6"),
    ("#cf5600", "#f07020"),
    ("#0067a8", "#3d9ee8"),
    ("#00835f", "#14b389"),
    ("#c559a0", "#e58cc0"),
    ("#b98500", "#f0b429"),
    ("#3a98c8", "#8fd6ff"),
    ("#7a3fc4", "#a77bf0"),
    ("#6f3f1f", "#b8835a"),
    ("#6d9400", "#a8d02c"),
    ("#a3123f", "#ff5c7a"),
)
"""(on white, on near black): hues after Okabe and Ito, and four more."""
DASHES: tuple[tuple[float, ...], ...] = (
    (4, 2),
    (),
    (9, 1.5),
    (6, 1.5, 1.2, 1.5),
    (2.2, 1.3),
    (6, 1.5, 1.2, 1.5, 1.2, 1.5),
    (9, 1.5, 3, 1.5),
    (3, 1.2, 1.2, 1.2),
    (6, 4),
    (9, 1.5, 3, 1.5, 3, 1.5),
    (14, 2, 1.2, 2),
    (2.2, 3),
)
"""Alternating lengths of line and gap, in line widths; empty for a solid line."""
MARKERS = "sDo^vP<X>p*h"
"""Matplotlib's names: square, diamond, circle, triangles, plus, cross, pentagon, star, hexagon."""
DISTINCT = len(COLOURS)
"""Number of looks that differ in colour, dash and marker; with more, names are written at the lines
themselves.
"""


@dataclass(frozen=True)
class Style:
    """A method's look: ``colour`` on white, ``bright`` on near black, ``dash`` and ``marker``."""

    colour: str
    bright: str
    dash: tuple[float, ...]
    marker: str

    @property
    def line(self) -> tuple[float, tuple[float, ...]] | str:
        """The dash in Matplotlib's format."""
        return (0, self.dash) if self.dash else "-"


def styles(titles: Iterable[str]) -> list[Style]:
    """Return a look for each title of a page, in their order; repeated titles get separate looks.

    Up to 144 are unique. Another title gets local training's look only with eleven others on the
    page.
    """
    found: list[int | None] = []
    for title in titles:
        place = KEPT.index(title) if title in KEPT else None
        found.append(None if place in found else place)
    order = [*range(1, DISTINCT), 0, *range(DISTINCT, DISTINCT + len(found))]
    free = iter([place for place in order if place not in found])
    return [_style(next(free) if place is None else place) for place in found]


def _style(place: int) -> Style:
    """Return the look at a place; after the first twelve, colours repeat with other dashes."""
    around, k = divmod(place, DISTINCT)
    return Style(*COLOURS[k], DASHES[(k + around) % DISTINCT], MARKERS[(k + around) % DISTINCT])
