"""Which figures a report has, and under which names."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import TypeAlias

from pomona.report import clients, curves, labels
from pomona.report.learned import learned
from pomona.report.numbers import Run
from pomona.report.picture import Picture

Draw: TypeAlias = Callable[[list[Run]], Picture | None]

SECTIONS = {
    "training": "How the training went",
    "outcome": "What the clients got",
    "learned": "What personalization learned",
    "data": "Who holds what",
}
"""The parts of the page: anchor -> heading."""


def pictures(runs: list[Run]) -> list[Picture]:
    """Every figure that the record has the numbers for, no two of one name. Call it inside ``style.drawing``."""

    def together(*draws: Draw) -> list[Picture]:
        return [picture for draw in draws if (picture := draw(runs))]

    return distinct(
        together(curves.curves, curves.traffic, curves.schedule)
        + together(clients.values, clients.spread, clients.confusion)
        + learned(runs)
        + together(labels.bubbles, labels.holders)
    )


def distinct(pictures: list[Picture]) -> list[Picture]:
    """The pictures, with a number behind a name that came before."""
    taken: set[str] = set()
    named = []
    for picture in pictures:
        name = next(n for k in count(1) if (n := picture.name + (f"-{k}" if k > 1 else "")) not in taken)
        taken.add(name)
        named.append(replace(picture, name=name))
    return named
