"""All figures, and the command that makes each: for reports and for the gallery of the site."""

from dataclasses import dataclass

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
