"""Sections of a report and their figures."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import TypeAlias

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
"""The parts of the page: anchor -> heading."""


def pictures(runs: list[Run]) -> list[ReportFigure]:
    """Every figure that the record has the numbers for, no two of one name. Call it inside ``style.drawing``."""

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


def distinct(pictures: list[ReportFigure]) -> list[ReportFigure]:
    """The pictures, with a number behind a name that came before."""
    taken: set[str] = set()
    named = []
    for picture in pictures:
        name = next(n for k in count(1) if (n := picture.name + (f"-{k}" if k > 1 else "")) not in taken)
        taken.add(name)
        named.append(replace(picture, name=name))
    return named
