"""Sections of a report and their figures."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, TypeAlias

from pomona.results.figures import calibration, clients, confusion, curves, kaplan_meier, masks, partition
from pomona.results.figures.diagnostics import learned
from pomona.results.figures.figure import ReportFigure
from pomona.results.run_numbers import Run

Draw: TypeAlias = Callable[[list[Run]], ReportFigure | None]

SECTIONS = {
    "training": "How the training went",
    "outcome": "What the clients got",
    "learned": "What personalization learned",
    "data": "Who holds what",
}
"""Sections of the page: anchor -> heading."""


def pictures(runs: list[Run]) -> list[ReportFigure]:
    """Draw every figure supported by the record, with unique names. Call it inside ``style.drawing``."""

    def together(*draws: Draw) -> list[ReportFigure]:
        return [picture for draw in draws if (picture := draw(runs))]

    return distinct(
        together(curves.curves, curves.traffic, curves.schedule)
        + together(
            clients.values,
            clients.spread,
            confusion.confusion,
            masks.masks,
            calibration.calibration,
            kaplan_meier.survival,
        )
        + learned(runs)
        + together(partition.bubbles, partition.holders)
    )


STILLS: Mapping[str, tuple[Draw, Callable[[Run], Any]]] = {
    "masks": (masks.masks, masks.examples),
    "survival": (kaplan_meier.survival, kaplan_meier.risk_groups),
}
"""Figures that the page shows as pictures instead of by script: how each is drawn, and what a run must have."""


def shows_stills(runs: list[Run]) -> bool:
    """Return whether a run has the numbers for a figure that the page shows as a picture."""
    return any(has(run) for _, has in STILLS.values() for run in runs)


def stills(runs: list[Run]) -> list[ReportFigure]:
    """Draw the figures that the page shows as pictures. Call it inside ``style.drawing``."""
    return [picture for draw, _ in STILLS.values() if (picture := draw(runs))]


def distinct(pictures: list[ReportFigure]) -> list[ReportFigure]:
    """Append a number to names of pictures that occurred before."""
    taken: set[str] = set()
    named = []
    for picture in pictures:
        name = next(n for k in count(1) if (n := picture.name + (f"-{k}" if k > 1 else "")) not in taken)
        taken.add(name)
        named.append(replace(picture, name=name))
    return named
