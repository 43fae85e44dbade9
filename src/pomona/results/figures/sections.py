"""Sections of a report and their figures."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import TypeAlias

from pomona.results.figures import (
    classification,
    client_values,
    clients,
    clusters,
    curves,
    partition,
    relationships,
    stills,
)
from pomona.results.figures.plot import ReportFigure
from pomona.results.figures.series import Series, recorded
from pomona.results.run_numbers import Run
from pomona.results.wording import slug

EXCLUDED = ("schedule",)
"""Quantities with their own figure in another section."""


def learned(runs: list[Run]) -> list[ReportFigure]:
    """Draw the figures of every run that has some; for several such runs, names and titles end
    with the method's.
    """
    by_run = [(run, drawings) for run in runs if (drawings := figures(run))]
    if len(by_run) < 2:
        return [picture for _, drawings in by_run for picture in drawings]
    return [
        replace(p, name=f"{p.name}-{slug(run.result.name)}", title=f"{p.title}, {run.label}")
        for run, drawings in by_run
        for p in drawings
    ]


def figures(run: Run) -> list[ReportFigure]:
    """Draw all figures of one run's quantities, in the order of the record."""
    main, norms = quantities(run)
    return [picture for series in main for picture in _draw(series, norms)]


def quantities(run: Run) -> tuple[list[Series], dict[str, Series]]:
    """Return the quantities with a figure each, and by name the norms in the clusters' figure."""
    by_name = {name: series for name, series in recorded(run).items() if name not in EXCLUDED}
    clustered = any(series.quantity.kind == "clusters" for series in by_name.values())
    norms = (
        {name: by_name.pop(name) for name in clusters.NORMS if name in by_name} if clustered else {}
    )
    return list(by_name.values()), norms


def _draw(series: Series, norms: dict[str, Series]) -> list[ReportFigure]:
    match series.quantity.kind:
        case "matrix":
            return relationships.figures(series)
        case "clusters":
            return clusters.figures(series, norms)
        case "values":
            return client_values.figures(series)
        case "epochs":
            return client_values.learning_curves(series.run, series.quantity)


Draw: TypeAlias = Callable[[list[Run]], ReportFigure | None]

SECTIONS = {
    "training": "Training",
    "outcome": "Results by client",
    "learned": "What personalization learned",
    "data": "Data by client",
}
"""Sections of the page: anchor -> heading."""


def pictures(runs: list[Run]) -> list[ReportFigure]:
    """Draw every figure supported by the record, with unique names.

    Call it inside ``plot.drawing``.
    """

    def together(*draws: Draw) -> list[ReportFigure]:
        return [picture for draw in draws if (picture := draw(runs))]

    return distinct(
        together(curves.curves, curves.traffic, curves.schedule)
        + together(
            clients.values,
            clients.spread,
            classification.confusion,
            stills.masks,
            classification.calibration,
            stills.survival,
        )
        + learned(runs)
        + together(partition.bubbles, partition.holders)
    )


def distinct(pictures: list[ReportFigure]) -> list[ReportFigure]:
    """Append a number to names of pictures that occurred before."""
    names: set[str] = set()
    renamed = []
    for picture in pictures:
        name = next(
            n for k in count(1) if (n := picture.name + (f"-{k}" if k > 1 else "")) not in names
        )
        names.add(name)
        renamed.append(replace(picture, name=name))
    return renamed
