"""Figures of quantities that clients learned besides their models."""

from dataclasses import replace

from pomona.results.figures import client_values, clusters, relationships, weight_learning
from pomona.results.figures.figure import ReportFigure
from pomona.results.figures.series import Series, recorded
from pomona.results.run_numbers import Run
from pomona.results.wording import slug

ASIDE = ("schedule",)
"""Quantities with their own figure in another section."""


def learned(runs: list[Run]) -> list[ReportFigure]:
    """Draw the figures of every run that has some; with several such runs, names and titles end with the method's."""
    found = [(run, drawn) for run in runs if (drawn := figures(run))]
    if len(found) < 2:
        return [picture for _, drawn in found for picture in drawn]
    return [
        replace(p, name=f"{p.name}-{slug(run.result.name)}", title=f"{p.title}, {run.label}")
        for run, drawn in found
        for p in drawn
    ]


def figures(run: Run) -> list[ReportFigure]:
    """Draw all figures of one run's quantities, in the order of the record."""
    shown = {name: series for name, series in recorded(run).items() if name not in ASIDE}
    clustered = any(series.quantity.kind == "clusters" for series in shown.values())
    own = [series for name, series in shown.items() if not (clustered and name in clusters.NORMS)]
    return [picture for series in own for picture in _drawn(series, shown)]


def _drawn(series: Series, shown: dict[str, Series]) -> list[ReportFigure]:
    match series.quantity.kind:
        case "matrix":
            return relationships.figures(series)
        case "clusters":
            return clusters.figures(series, shown)
        case "values":
            return client_values.figures(series)
        case "epochs":
            return weight_learning.figures(series.run, series.quantity)
