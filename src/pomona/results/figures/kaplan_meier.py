"""Survival by predicted risk: Kaplan-Meier curves of all clients' test samples with low, medium and high risk."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pomona.metrics.nan_safe import Array
from pomona.metrics.survival import kaplan_meier, risk
from pomona.results.figures.axes import grid, panels
from pomona.results.figures.figure import ReportFigure, Rows
from pomona.results.run_numbers import Run, evaluated, leader
from pomona.tasks import TASKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPS = {"low": "#0072b2", "medium": "#8b9198", "high": "#d55e00"}
DASHES = ("-", (0, (3, 1.5)), (0, (7, 2)))
LEAST = 6  # minimum number of samples for informative thirds
MOMENTS = 5


@dataclass(frozen=True)
class Group:
    """The test samples (n, 2) of one predicted risk, times and events, and their curve at each ``time`` (m,)."""

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
    """Split all clients' test samples into thirds by the headline model's risk; none without times on record.

    Samples of equal risk are in one group, the lower.
    """
    about = run.result.about
    if about.get("targets") != "survival":
        return []
    known = [found for i in range(len(about.get("clients") or ())) if (found := run.result.predictions(i))]
    if sum(len(targets) for _, targets in known) < LEAST:
        return []
    task = TASKS["survival"]
    risks = np.concatenate([risk(task.natural(outputs)) for outputs, _ in known])
    targets = np.concatenate([truth for _, truth in known]).astype(float)
    group = np.searchsorted(np.quantile(risks, [1 / 3, 2 / 3]), risks, side="left")
    return [_group(name, targets[group == k]) for k, name in enumerate(GROUPS) if (group == k).any()]


def survival(runs: list[Run]) -> ReportFigure | None:
    """Draw the curves of the leading run that has times on record, with the numbers at risk below them."""
    run = leader([run for run in runs if risk_groups(run)])
    groups = risk_groups(run) if run else []
    if run is None or not groups:
        return None
    return ReportFigure(
        name="survival",
        title="Survival by predicted risk",
        caption=f"{run.label}, {run.model}, {evaluated(run)}: Kaplan-Meier estimates of all clients' test samples, in "
        "thirds by the risk that the model of their client predicts; ticks are censored samples. "
        "Where the model separates high from low risk, the curves "
        "lie apart. Below: how many are still seen without the event.",
        alt=f"Kaplan-Meier curves of {run.label} by predicted risk. {' '.join(map(_said, groups))}",
        figure=_drawn(groups),
        rows=_rows(groups),
    )


def _group(name: str, targets: Array) -> Group:
    time = np.unique(np.append(0.0, targets[:, 0]))
    return Group(name, targets, time, kaplan_meier(targets, np.ones((1, len(targets))), time)[0])


def _drawn(groups: list[Group]) -> "Figure":
    from matplotlib.ticker import MaxNLocator

    end = max(group.time[-1] for group in groups)
    moments = [float(tick) for tick in MaxNLocator(MOMENTS).tick_values(0, end) if 0 <= tick <= end]
    figure, axes = panels(6.4, 4.6, 2, 1, sharex=True, height_ratios=[4, 1])
    curves, table = axes[:, 0]
    for group, dash in zip(groups, DASHES, strict=False):
        colour = GROUPS[group.name]
        curves.step(group.time, group.share, where="post", color=colour, linestyle=dash, label=f"{group.name} risk")
        censored = np.unique(group.targets[group.targets[:, 1] == 0, 0])
        height = group.share[np.searchsorted(group.time, censored)]
        curves.plot(censored, height, "|", color=colour, markersize=5, alpha=0.7)
    curves.set(ylabel="share without the event", ylim=(-0.02, 1.02))
    curves.legend(loc="lower left")
    grid(curves)
    for k, group in enumerate(groups):
        for moment in moments:
            table.text(moment, -k, f"{group.at_risk(moment):,}", ha="center", va="center", fontsize=8)
    table.set_yticks([-k for k in range(len(groups))], [f"{group.name} risk" for group in groups], fontsize=8)
    table.set(ylim=(0.6 - len(groups), 0.6), xlabel="time", title="number at risk")
    table.title.set_fontsize(9)
    table.spines[:].set_visible(False)
    table.spines["bottom"].set_visible(True)
    table.tick_params(axis="y", length=0)
    table.set_xticks(moments, [f"{moment:,g}" for moment in moments])
    return figure


def _rows(groups: list[Group]) -> Rows:
    return [
        {"risk": group.name, "time": float(time), "share": float(share), "at_risk": group.at_risk(time)}
        for group in groups
        for time, share in zip(group.time, group.share, strict=True)
    ]


def _said(group: Group) -> str:
    return (
        f"Of {len(group.targets)} samples of {group.name} risk {group.events} had the event; by time "
        f"{group.time[-1]:g} {100 * group.share[-1]:.0f} % are left."
    )
