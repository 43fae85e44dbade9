"""Which figures show what each run's clients learned, beyond their models."""

from dataclasses import dataclass, replace

from pomona.report import clusters, relationships, values
from pomona.report.numbers import Run, leader
from pomona.report.picture import Picture, slug
from pomona.report.series import Series, recorded

ASIDE = ("schedule",)
"""What has a figure of its own in another section."""


@dataclass(frozen=True)
class Group:
    """Figures that stand together: those of one run under its label, or those of all runs under none."""

    label: str
    open: bool
    pictures: list[Picture]


def groups(runs: list[Run]) -> list[Group]:
    """The figures of every run that has some; names of files end in the method's where there are several runs."""
    found = [(run, drawn) for run in runs if (drawn := figures(run))]
    lead = leader([run for run, _ in found])
    if len(found) == 1:
        return [Group("", True, found[0][1])]
    return [
        Group(
            run.label,
            run is lead,
            [replace(p, name=f"{p.name}-{slug(run.result.name)}") for p in drawn],
        )
        for run, drawn in found
    ]


def figures(run: Run) -> list[Picture]:
    """All figures of what one run's methods recorded, in the order in which they did."""
    shown = {name: series for name, series in recorded(run).items() if name not in ASIDE}
    clustered = any(series.quantity.kind == "clusters" for series in shown.values())
    own = [series for name, series in shown.items() if not (clustered and name in clusters.NORMS)]
    return [picture for series in own for picture in _drawn(series, shown)]


def _drawn(series: Series, shown: dict[str, Series]) -> list[Picture]:
    match series.quantity.kind:
        case "matrix":
            return relationships.figures(series)
        case "clusters":
            return clusters.figures(series, shown)
        case "values":
            return values.figures(series)
