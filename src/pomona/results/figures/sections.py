"""Sections of a report and their figures."""

from dataclasses import replace
from itertools import count

from pomona.core.registry import load
from pomona.record.result import Result
from pomona.results.figures import client_values, clusters, curves, plot, relationships
from pomona.results.figures.plot import ReportFigure
from pomona.results.figures.series import Series, recorded
from pomona.results.run_numbers import Run
from pomona.results.run_numbers import runs as labelled
from pomona.results.wording import slug


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
    by_name = recorded(run)
    if not run.setting("method.mu"):  # APPLE's scheduler of a penalty that it does not have
        by_name.pop("schedule", None)
    return [picture for series in by_name.values() for picture in _draw(series)]


def _draw(series: Series) -> list[ReportFigure]:
    match series.quantity.kind:
        case "matrix":
            return relationships.figures(series)
        case "clusters":
            return [clusters.clusters(series.thinned())]
        case "values":
            return client_values.figures(series)
        case "epochs":
            return client_values.learning_curves(series.run, series.quantity)


SECTIONS = {
    "training": "Training",
    "outcome": "Results by client",
    "learned": "What personalization learned",
    "data": "Data by client",
}
"""Sections of the page: anchor -> heading."""


def sections(runs: list[Run]) -> dict[str, list[ReportFigure]]:
    """Draw every figure supported by the record, with unique names, by section; "gain" is the
    first one of the page.

    Call it inside ``plot.drawing``.
    """
    order = ("gain", "outcome", "training", "learned", "data")
    drawn = {
        section: [p for draw in DRAWN.get(section, ()) if (p := load(f"{FOLDER}.{draw}")(runs))]
        for section in order
    }
    return {**drawn, "learned": distinct(learned(runs))}


def figures_of(*results: Result) -> dict[str, ReportFigure]:
    """Draw the figures of the report of one or more runs.

    Args:
        results: the runs, with that of ``separate`` if gains are to be drawn.

    Returns:
        The figures by name. ``figure`` is a Matplotlib figure, whose texts and axes may be changed;
        ``save(folder, formats)`` writes it as png, svg, pdf or csv.
    """
    with plot.drawing():
        by_section = sections(labelled(list(results)))
    return {picture.name: picture for group in by_section.values() for picture in group}


def running(run: Run) -> dict[str, list[ReportFigure]]:
    """Draw the figures of a run that goes on: few, since they are drawn again and again."""
    picture = curves.curves([run])
    return {"training": [picture] if picture else []}


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


FOLDER = "pomona.results.figures"
DRAWN = {
    "gain": ("gain:gain",),
    "outcome": (
        "clients:values",
        "elsewhere:matrix",
        "classification:confusion",
        "stills:masks",
        "classification:calibration",
        "classification:calibration_by_client",
        "stills:survival",
    ),
    "training": ("curves:curves", "curves:traffic"),
    "data": ("partition:bubbles",),
}
"""Figures of a report by its section, in their order: functions of ``FOLDER``, as module:function,
that take a list of runs.
"""
