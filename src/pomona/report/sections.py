"""The parts of the page: which figures stand where."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias

from pomona.report import clients, curves, labels
from pomona.report.learned import Group, groups
from pomona.report.numbers import Run
from pomona.report.picture import Picture

Draw: TypeAlias = Callable[[list[Run]], Picture | None]


@dataclass(frozen=True)
class Section:
    """A part of the page and its figures."""

    anchor: str
    heading: str
    groups: list[Group]

    @property
    def pictures(self) -> list[Picture]:
        """All its figures."""
        return [picture for group in self.groups for picture in group.pictures]


def sections(runs: list[Run]) -> list[Section]:
    """Every part that has a figure; no two figures have one name. Call it inside ``style.drawing``."""

    def together(*draws: Draw) -> list[Group]:
        return [Group("", True, [picture for draw in draws if (picture := draw(runs))])]

    parts = [
        Section("training", "How the training went", together(curves.curves, curves.traffic, curves.schedule)),
        Section("outcome", "What the clients got", together(clients.accuracies, clients.spread, clients.confusion)),
        Section("learned", "What personalization learned", groups(runs)),
        Section("data", "Who holds what", together(labels.bubbles, labels.holders)),
    ]
    drawn = [part for part in parts if part.pictures]
    named = iter(distinct([picture for part in drawn for picture in part.pictures]))
    return [
        replace(part, groups=[replace(group, pictures=[next(named) for _ in group.pictures]) for group in part.groups])
        for part in drawn
    ]


def distinct(pictures: list[Picture]) -> list[Picture]:
    """The pictures, with a number behind a name that came before."""
    taken: set[str] = set()
    named = []
    for picture in pictures:
        name = next(n for k in count(1) if (n := picture.name + (f"-{k}" if k > 1 else "")) not in taken)
        taken.add(name)
        named.append(replace(picture, name=name))
    return named
