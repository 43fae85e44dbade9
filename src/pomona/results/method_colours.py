"""Styles of the methods on a page: a unique colour, dash and marker for each, assigned per page.

Frequently drawn methods have the same style on all pages; all others, including unknown ones, take
the remaining styles.
"""

from collections.abc import Iterable
from dataclasses import dataclass

FIXED = (
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
"""Titles with a fixed index in ``COLOURS``; the first is local training, grey and dashed."""
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
"""Number of styles that differ in colour, dash and marker; with more, names are written at the
lines.
"""


@dataclass(frozen=True)
class Style:
    """A method's style: ``colour`` on white, ``bright`` on near black, ``dash`` and ``marker``."""

    colour: str
    bright: str
    dash: tuple[float, ...]
    marker: str

    @property
    def line(self) -> tuple[float, tuple[float, ...]] | str:
        """The dash in Matplotlib's format."""
        return (0, self.dash) if self.dash else "-"


def styles(titles: Iterable[str]) -> list[Style]:
    """Return a style for each title of a page, in their order; repeated titles get separate styles.

    Up to 144 are unique. Another title gets local training's style only with eleven others on the
    page.
    """
    slots: list[int | None] = []
    for title in titles:
        slot = FIXED.index(title) if title in FIXED else None
        slots.append(None if slot in slots else slot)
    order = [*range(1, DISTINCT), 0, *range(DISTINCT, DISTINCT + len(slots))]
    free = iter([slot for slot in order if slot not in slots])
    return [_style(next(free) if slot is None else slot) for slot in slots]


def _style(slot: int) -> Style:
    """Return the style with a number; after the first twelve, colours repeat with other dashes."""
    around, k = divmod(slot, DISTINCT)
    return Style(*COLOURS[k], DASHES[(k + around) % DISTINCT], MARKERS[(k + around) % DISTINCT])
