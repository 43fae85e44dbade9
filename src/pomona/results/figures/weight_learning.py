"""The loss of ALA's weight learning by epoch, as in FedALA's figure 3."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pomona.record.presentation import Quantity
from pomona.results.figures.axes import bundle, grid, legend_below, panels
from pomona.results.figures.figure import ReportFigure
from pomona.results.figures.style import INK
from pomona.results.run_numbers import Run

COUNT = "ala_epochs"
"""Quantity in ``info``, besides the losses: each client's number of learning epochs in a round."""


@dataclass(frozen=True)
class Course:
    """The epochs of weight learning, counted for each client from its first.

    Attributes:
        losses: (E, N), NaN after a client's last epoch.
        rounds: (E, N), the round of each epoch, 0 after a client's last.
        stage: the epochs of each client's initial stage; 0 if it never learned.
    """

    losses: NDArray[np.float64]
    rounds: NDArray[np.int64]
    stage: list[int]


def course(run: Run, name: str) -> Course | None:
    """Return the losses recorded as ``name``, in order; None if no epoch was counted, or the losses are private."""
    known: dict[int, list[tuple[int, float]]] = {}
    for row in run.result.rounds:
        if name not in row.info or row.info.get(COUNT, np.empty(0)).shape != (len(row.cohort),):
            continue
        if row.info[name].ndim != 2:  # a record may use this name for any quantity
            continue
        for client, losses, count in zip(row.cohort, row.info[name], row.info[COUNT], strict=True):
            known.setdefault(client, []).extend((row.round, float(loss)) for loss in losses[: int(count)])
    if not any(loss for epochs in known.values() for _, loss in epochs):
        return None
    n = max(len(run.result.about.get("clients") or ()), 1 + max(known))
    shape = (max(map(len, known.values())), n)
    found = Course(np.full(shape, np.nan), np.zeros(shape, dtype=np.int64), [0] * n)
    for client, epochs in known.items():
        for e, (number, loss) in enumerate(epochs):
            found.losses[e, client], found.rounds[e, client] = loss, number
        found.stage[client] = sum(number == epochs[0][0] for number, _ in epochs)
    return found


def figures(run: Run, what: Quantity) -> list[ReportFigure]:
    """Draw a curve per client over the epochs, with a dot at the end of its initial stage; empty without learning."""
    found = course(run, what.name)
    if found is None:
        return []
    epochs = np.arange(1, len(found.losses) + 1)
    figure, axes = panels(5.4, 3.6)
    ax = axes[0, 0]
    bundle(ax, epochs, found.losses, color=run.look.colour, linewidth=1, alpha=0.7)
    ax.plot([], [], color=run.look.colour, linewidth=1, label="each client")
    ends = {client: (stage, found.losses[stage - 1, client]) for client, stage in enumerate(found.stage) if stage}
    ax.plot(*zip(*ends.values(), strict=True), "o", color=INK, markersize=4, label="end of the initial stage")
    ax.set(xlabel="epoch of weight learning, counted through", ylabel=what.symbol)
    ax.locator_params(axis="x", integer=True, min_n_ticks=1)
    grid(ax)
    legend_below(figure, 2)
    return [
        ReportFigure(
            name="ala-losses",
            title=what.title,
            caption=f"{run.label}: {what.meaning} The dot is the end of a client's initial stage.",
            alt=f"Line chart of the {what.symbol} of {len(ends)} clients of {run.label} over at most {len(epochs)} "
            f"epochs. {_spoken(found, ends)}",
            figure=figure,
            rows=[
                {
                    "run": run.label,
                    "client": client,
                    "name": run.client(client),
                    "epoch": int(e) + 1,
                    "round": int(found.rounds[e, client]),
                    "loss": float(found.losses[e, client]),
                }
                for client in ends
                for e in np.flatnonzero(found.rounds[:, client])
            ],
        )
    ]


def _spoken(found: Course, ends: Mapping[int, tuple[int, float]]) -> str:
    """Describe the initial stage in numbers, averaged over the clients that had one."""
    first, last = (float(np.mean(v)) for v in (found.losses[0, list(ends)], [loss for _, loss in ends.values()]))
    lengths = [stage for stage, _ in ends.values()]
    return (
        f"In the initial stage, {min(lengths)} to {max(lengths)} epochs long, the mean over clients goes from "
        f"{first:.3g} to {last:.3g}."
    )
