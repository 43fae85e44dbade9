"""Figures of two tasks: survival by predicted risk, and masks.

Survival: Kaplan-Meier curves of all clients' test samples with low, medium and high risk. Masks:
each client's best and worst test image.
"""

from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from pomona.core.table import PLACEHOLDER
from pomona.metrics.nan_safe import Array
from pomona.metrics.survival import kaplan_meier, risk
from pomona.record.predictions import MAX_EXAMPLE_CLIENTS, MaskExamples, read_examples
from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure, Rows
from pomona.results.run_numbers import Run, evaluated, leader
from pomona.results.tables.outcomes import outcome_names
from pomona.tasks import TASKS

if TYPE_CHECKING:
    from matplotlib.patches import Patch


GROUPS = {"low": "#0072b2", "medium": "#8b9198", "high": "#d55e00"}
DASHES = ("-", (0, (3, 1.5)), (0, (7, 2)))
MIN_SAMPLES = 6  # minimum number of samples for informative thirds
MOMENTS = 5


@dataclass(frozen=True)
class Group:
    """The test samples (n, 2) of one predicted risk, times and events, and their curve at each
    ``time`` (m,).
    """

    name: str
    targets: Array
    time: Array
    share: Array

    @property
    def events(self) -> int:
        """Number of events."""
        return int(self.targets[:, 1].sum())

    def at_risk(self, moment: float) -> int:
        """Return the number of samples at risk just before a moment."""
        return int((self.targets[:, 0] >= moment).sum())


def risk_groups(run: Run) -> list[Group]:
    """Split all clients' test samples into thirds by the headline model's risk; none without times
    on record.

    Samples of equal risk are in one group, the lower.
    """
    metadata = run.result.about
    if metadata.get("targets") != "survival":
        return []
    predictions = [
        prediction for i in range(run.result.clients) if (prediction := run.result.predictions(i))
    ]
    if sum(len(targets) for _, targets in predictions) < MIN_SAMPLES:
        return []
    task = TASKS["survival"]
    risks = np.concatenate([risk(task.natural(outputs)) for outputs, _ in predictions])
    targets = np.concatenate([truth for _, truth in predictions]).astype(float)
    group = np.searchsorted(np.quantile(risks, [1 / 3, 2 / 3]), risks, side="left")
    return [
        _group(name, targets[group == k]) for k, name in enumerate(GROUPS) if (group == k).any()
    ]


def survival(runs: list[Run]) -> ReportFigure | None:
    """Draw the curves of the leading run that has times on record, with the numbers at risk below
    them.
    """
    run = leader([run for run in runs if risk_groups(run)])
    groups = risk_groups(run) if run else []
    if run is None or not groups:
        return None
    return ReportFigure(
        name="survival",
        title="Survival by predicted risk",
        caption=f"{run.label}, {run.model}, {evaluated(run)}: Kaplan-Meier estimates of all "
        "clients' test samples, in thirds by the risk that the model of their client predicts; "
        "ticks are censored samples. Where the model separates high from low risk, the curves lie "
        "apart. Below: the number of samples still at risk.",
        alt=f"Kaplan-Meier curves of {run.label} by predicted risk. "
        f"{' '.join(map(_alt_text, groups))}",
        figure=_draw_survival(groups),
        rows=_rows(groups),
    )


def _group(name: str, targets: Array) -> Group:
    time = np.unique(np.append(0.0, targets[:, 0]))
    return Group(name, targets, time, kaplan_meier(targets, np.ones((1, len(targets))), time)[0])


def _draw_survival(groups: list[Group]) -> plot.Figure:
    from matplotlib.ticker import MaxNLocator

    end = max(group.time[-1] for group in groups)
    moments = [float(tick) for tick in MaxNLocator(MOMENTS).tick_values(0, end) if 0 <= tick <= end]
    figure, axes = plot.panels(plot.WIDTH, 4.4, 2, 1, sharex=True, height_ratios=[4, 1])
    curves, table = axes[:, 0]
    for group, dash in zip(groups, DASHES, strict=False):
        colour = GROUPS[group.name]
        style = {"color": colour, "linestyle": dash, "label": f"{group.name} risk"}
        curves.step(group.time, group.share, where="post", **style)
        censored = np.unique(group.targets[group.targets[:, 1] == 0, 0])
        height = group.share[np.searchsorted(group.time, censored)]
        curves.plot(censored, height, "|", color=colour, markersize=5, alpha=0.7)
    curves.set(ylabel="share without the event", ylim=(-0.02, 1.02))
    curves.legend(loc="upper right")
    plot.grid(curves)
    for k, group in enumerate(groups):
        for moment in moments:
            table.text(
                moment, -k, f"{group.at_risk(moment):,}", ha="center", va="center", fontsize=8
            )
    table.set_yticks(
        [-k for k in range(len(groups))], [f"{group.name} risk" for group in groups], fontsize=8
    )
    table.set(ylim=(0.6 - len(groups), 0.6), xlabel="time", title="number at risk")
    table.title.set_fontsize(9)
    table.spines[:].set_visible(False)
    table.spines["bottom"].set_visible(True)
    table.tick_params(axis="y", length=0)
    table.set_xticks(moments, [f"{moment:,g}" for moment in moments])
    return figure


def _rows(groups: list[Group]) -> Rows:
    lines = (
        (group.name, float(time), float(share), group.at_risk(time))
        for group in groups
        for time, share in zip(group.time, group.share, strict=True)
    )
    return plot.records("risk time share at_risk", lines)


def _alt_text(group: Group) -> str:
    return (
        f"Of {len(group.targets)} samples of {group.name} risk {group.events} had the event; by "
        f"time {group.time[-1]:g} {100 * group.share[-1]:.0f} % are left."
    )


EXTREMES = ("best", "worst")


def masks(runs: list[Run]) -> ReportFigure | None:
    """Draw two rows per client: image, truth and prediction of the test images with the best and
    the worst Dice.
    """
    lead = leader([run for run in runs if examples(run)])
    if lead is None:
        return None
    by_client = examples(lead)
    lines = (
        (client, lead.client(client), extreme, float(example.dice[k]))
        for client, example in by_client.items()
        for k, extreme in enumerate(EXTREMES)
    )
    rows = plot.records("client name which dice", lines)
    worst = min(rows, key=lambda row: 2.0 if isnan(row["dice"]) else float(row["dice"]))
    return ReportFigure(
        name="masks",
        title="Images with truth and prediction",
        caption=f"{lead.label}, {lead.model}, {evaluated(lead)}: of "
        f"{'each client' if len(by_client) < MAX_EXAMPLE_CLIENTS else 'the first clients'} the "
        "test image with the best and that with the worst Dice, mean over the classes without the "
        "background. Of a volume, the slice with most true pixels.",
        alt=f"Images, true and predicted masks of {len(by_client)} clients, best and worst. The "
        f"worst of all has a Dice of {_number(worst['dice'])}, at {worst['name']}.",
        figure=_draw_masks(lead, by_client),
        rows=rows,
    )


def _draw_masks(run: Run, by_client: dict[int, MaskExamples]) -> plot.Figure:
    lines = [(*item, k) for item in by_client.items() for k in range(len(EXTREMES))]
    figure, axes = plot.panels(
        plot.WIDTH, 1.75 * len(lines) + 0.5, len(lines), 3, layout="compressed"
    )
    max_class = max(1, *(int(max(e.truth.max(), e.predicted.max())) for e in by_client.values()))
    for line, (client, example, k) in zip(axes, lines, strict=True):
        _triple(line, example, k, max_class)
        line[0].set_ylabel(plot.shorten(run.client(client)), fontsize=9)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    figure.legend(
        handles=_legend_handles(outcome_names(run, max_class + 1)[: max_class + 1]),
        loc="outside lower center",
        ncols=min(3, max_class + 1),
        fontsize=9,
    )
    return figure


def _triple(axes: Any, example: MaskExamples, k: int, max_class: int) -> None:
    """Draw example k: image, truth and prediction, with class numbers up to ``max_class``."""
    image, truth, predicted = axes
    image.imshow(
        example.image[k].squeeze(-1) if example.image.shape[-1] == 1 else example.image[k],
        cmap="gray",
    )
    for ax, numbers in ((truth, example.truth[k]), (predicted, example.predicted[k])):
        ax.imshow(numbers, cmap="cividis", vmin=0, vmax=max_class, interpolation="nearest")
    image.set_title(f"{EXTREMES[k]}: image", fontsize=9)
    truth.set_title("truth", fontsize=9)
    predicted.set_title(f"predicted, Dice {_number(example.dice[k])}", fontsize=9)


def _legend_handles(names: list[str]) -> list["Patch"]:
    """Return the colours of the classes, in the order of their numbers."""
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    colours = colormaps["cividis"](np.linspace(0, 1, len(names)))
    return [
        Patch(facecolor=c, edgecolor=plot.FRAME, label=plot.shorten(n))
        for n, c in zip(names, colours, strict=True)
    ]


def examples(run: Run) -> dict[int, MaskExamples]:
    """Return the examples on record, by client."""
    folder = run.result.folder
    if folder is None or run.result.about.get("targets") != "segmentation":
        return {}
    clients = range(min(MAX_EXAMPLE_CLIENTS, run.result.clients))
    return {
        i: example
        for i in clients
        if (example := read_examples(folder, i)) and len(example.dice) == len(EXTREMES)
    }


def _number(dice: float) -> str:
    return PLACEHOLDER if isnan(dice) else f"{dice:.2f}"
