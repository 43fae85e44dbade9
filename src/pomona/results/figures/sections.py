"""Sections of a report and their figures."""

from dataclasses import dataclass, replace
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
        section: [p for e in OF_RUNS.get(section, ()) if (p := load(f"{FOLDER}.{e.draw}")(runs))]
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
REPORT = "pomona report RUN... --figures svg"
BENCH = "pomona report BENCH --figures svg"
PREVIEW = "pomona data show ... --out FOLDER"
TRAJECTORY = "pomona trajectory RUN..."


@dataclass(frozen=True)
class Entry:
    """A figure.

    Attributes:
        draw: the function that draws it, as module:function of this folder; a report's takes a list
            of runs.
        name: of its files without suffix, as a pattern: several runs and scenarios have one each.
        shows: what is to be seen.
        command: what makes it.
    """

    draw: str
    name: str
    shows: str
    command: str = REPORT


OF_RUNS = {
    "gain": (Entry("gain:gain", "gain", "each client's gain over training alone, with intervals"),),
    "outcome": (
        Entry("clients:values", "clients", "the metric of each client"),
        Entry(
            "elsewhere:matrix",
            "elsewhere",
            "each client's model on each client's test rows (after pomona elsewhere)",
        ),
        Entry("classification:confusion", "confusion", "which class is taken for which"),
        Entry("stills:masks", "masks*", "images with truth and prediction"),
        Entry("classification:calibration", "calibration", "whether probabilities come true"),
        Entry(
            "classification:calibration_by_client",
            "calibration-by-client",
            "whether each client's probabilities come true",
        ),
        Entry("stills:survival", "survival", "survival by predicted risk"),
    ),
    "training": (
        Entry("curves:curves", "curves", "loss and metric over the rounds"),
        Entry("curves:traffic", "traffic", "the metric against what was sent"),
    ),
    "data": (Entry("partition:bubbles", "labels", "the labels of each client"),),
}
"""Figures of a report by its section, in their order."""
LEARNED = (
    Entry("relationships:heatmap", "*-heatmap", "how much each client uses each other's model"),
    Entry("relationships:trajectories", "*-trajectories", "relationships over the rounds"),
    Entry("relationships:diagonal", "*-self", "how much each client relies on itself"),
    Entry("clusters:clusters", "cluster-map", "who is in which cluster, over the rounds"),
    Entry("client_values:scalars", "alpha-values", "a number that each client has learned"),
    Entry(
        "client_values:vectors", "ala-weight-values", "several numbers that each client has learned"
    ),
    Entry(
        "client_values:learning_curves", "ala-losses", "the loss while FedALA learns its weights"
    ),
)
"""Figures of what methods have learned, by the kind of a quantity."""
WITHOUT_SECTION = (
    Entry("comparison_figures:diagram", "critical-difference", "mean ranks of methods", BENCH),
    Entry("comparison_figures:curves", "curves-*", "methods over the rounds, over seeds", BENCH),
    Entry(
        "comparison_figures:gains_by_client", "gains-*", "gains of each client, by method", BENCH
    ),
    Entry("comparison_figures:ablations", "ablation-*", "the metric by a varied setting", BENCH),
    Entry("contact_sheet:contact_sheet", "images", "an image of each client", PREVIEW),
    Entry(
        "trajectory:trajectory", "trajectory", "a client's way over its loss surface", TRAJECTORY
    ),
)
CATALOGUE = (
    *(entry for entries in OF_RUNS.values() for entry in entries),
    *LEARNED,
    *WITHOUT_SECTION,
)
