"""Figures of per-client quantities, such as APFL's α or the gates of layers.

The loss of ALA's weight learning is drawn by epoch, as in FedALA's figure 3.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.record.presentation import Quantity
from pomona.record.rows import RoundRow
from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure
from pomona.results.figures.series import Series, Values
from pomona.results.run_numbers import Run
from pomona.results.wording import slug

COUNT = "ala_epochs"
"""Quantity in ``info``, in addition to the losses: each client's number of learning epochs in a
round.
"""


@dataclass(frozen=True)
class EpochLosses:
    """The epochs of weight learning, counted for each client from its first.

    Attributes:
        losses: (E, N), NaN after a client's last epoch.
        rounds: (E, N), the round of each epoch, 0 after a client's last.
        stage: number of epochs of each client's initial stage; 0 if it never learned.
    """

    losses: NDArray[np.float64]
    rounds: NDArray[np.int64]
    stage: list[int]


def epoch_losses(run: Run, name: str) -> EpochLosses | None:
    """Return the losses recorded as ``name``, in order; None if no epoch was counted, or the losses
    are private.
    """
    by_client: dict[int, list[tuple[int, float]]] = {}
    for row in run.result.rounds:
        for client, losses, count in _recorded_losses(row, name):
            by_client.setdefault(client, []).extend(
                (row.round, float(loss)) for loss in losses[: int(count)]
            )
    if not any(loss for epochs in by_client.values() for _, loss in epochs):
        return None
    n = run.result.clients
    shape = (max(map(len, by_client.values())), n)
    history = EpochLosses(np.full(shape, np.nan), np.zeros(shape, dtype=np.int64), [0] * n)
    for client, epochs in by_client.items():
        rounds, losses = np.array(epochs, dtype=np.float64).reshape(-1, 2).T
        history.rounds[: len(rounds), client] = rounds
        history.losses[: len(rounds), client] = losses
        history.stage[client] = int((rounds == rounds[:1]).sum())
    return history


def _recorded_losses(row: RoundRow, name: str) -> Iterator[tuple[int, NDArray[np.float64], float]]:
    """Yield each client, its losses and the number of them that count.

    A record may use the name for another quantity, so the shapes are checked.
    """
    losses, counts = row.info.get(name), row.info.get(COUNT)
    if losses is None or counts is None or losses.ndim != 2:
        return
    if counts.shape == (len(row.cohort),):
        yield from zip(row.cohort, losses, counts, strict=True)


def learning_curves(run: Run, quantity: Quantity) -> list[ReportFigure]:
    """Draw a curve per client over the epochs, with a dot at the end of its initial stage; empty
    without learning.
    """
    history = epoch_losses(run, quantity.name)
    if history is None:
        return []
    losses, rounds = history.losses, history.rounds
    epochs = np.arange(1, len(losses) + 1)
    figure, axes = plot.panels(plot.WIDTH, 3.6)
    ax = axes[0, 0]
    plot.bundle(ax, epochs, losses, color=run.style.colour, linewidth=1, alpha=0.7)
    ax.plot([], [], color=run.style.colour, linewidth=1, label="each client")
    stage_ends = {i: (k, losses[k - 1, i]) for i, k in enumerate(history.stage) if k}
    dots: dict[str, Any] = {"color": plot.INK, "markersize": 4, "label": "end of the initial stage"}
    ax.plot(*zip(*stage_ends.values(), strict=True), "o", **dots)
    ax.set(xlabel="epoch of weight learning, over all rounds", ylabel=quantity.symbol)
    ax.locator_params(axis="x", integer=True, min_n_ticks=1)
    plot.grid(ax)
    plot.legend_below(figure, 2)
    return [
        ReportFigure(
            name="ala-losses",
            title=quantity.title,
            caption=f"{run.label}: {quantity.meaning} The dot is the end of a client's initial "
            "stage.",
            alt=f"Line chart of the {quantity.symbol} of {len(stage_ends)} clients of {run.label} "
            f"over at most {len(epochs)} epochs. {_alt_text(history, stage_ends)}",
            figure=figure,
            rows=plot.records(
                "run client name epoch round loss",
                (
                    (run.label, i, run.client(i), e + 1, int(rounds[e, i]), float(losses[e, i]))
                    for i in stage_ends
                    for e in np.flatnonzero(rounds[:, i]).tolist()
                ),
            ),
        )
    ]


def _alt_text(history: EpochLosses, stage_ends: Mapping[int, tuple[int, float]]) -> str:
    """Describe the initial stage in numbers, averaged over the clients that had one."""
    first, last = (
        float(np.mean(v))
        for v in (history.losses[0, list(stage_ends)], [loss for _, loss in stage_ends.values()])
    )
    lengths = [stage for stage, _ in stage_ends.values()]
    return (
        f"In the initial stage, {min(lengths)} to {max(lengths)} epochs long, the mean over "
        f"clients goes from {first:.3g} to {last:.3g}."
    )


MAX_LABELS = 25
"""Maximum number of clients or layers with name labels."""
MAX_LEGEND = 10
"""Maximum number of layers with legend entries."""


def figures(series: Series) -> list[ReportFigure]:
    """Draw the quantity over the rounds, and at the last round by client unless all are equal."""
    return [vectors(series.thinned()) if series.values.shape[2] > 1 else scalars(series.thinned())]


def scalars(series: Series) -> ReportFigure:
    """Draw every client's number over the rounds with their mean, and the last ones as dots."""
    values, n = series.values[:, :, 0], series.n
    alike, colour = uniform(series.values), series.run.style.colour
    figure, upper, lower = _axes_pair(series, 2.9)
    upper.set_ylabel(series.quantity.symbol)
    if not alike:
        plot.bundle(
            upper,
            series.rounds,
            values,
            color=plot.FRAME,
            linewidth=0.9,
            alpha=0.8,
            rasterized=values.size > 3000,
        )
        upper.plot([], [], color=plot.FRAME, linewidth=0.9, label="each client")
    mean = "every client" if alike else "mean over clients"
    _line(upper, series, np.nanmean(values, axis=1), color=plot.INK, label=mean)
    if lower:
        lower.plot(
            range(n), values[-1], "o", color=colour, markersize=5.5 if n <= MAX_LABELS else 3
        )
        lower.axhline(np.nanmean(values[-1]), color=plot.INK, linewidth=1, linestyle=(0, (4, 2)))
        lower.set(xlim=(-0.7, n - 0.3), ylabel=series.quantity.symbol)
        plot.grid(lower, along="y")
    plot.legend_below(figure, 2)
    return _picture(series, figure, [series.quantity.symbol])


def vectors(series: Series) -> ReportFigure:
    """Draw the mean over clients of every entry over the rounds, and all clients' entries at the
    last round.
    """
    from matplotlib import colormaps

    quantity, k = series.quantity, series.values.shape[2]
    names = [f"{quantity.entries} {j + 1}" for j in range(k)]
    figure, upper, lower = _axes_pair(series, 3.0)
    upper.set_ylabel(quantity.symbol + ("" if uniform(series.values) else ", mean over clients"))
    in_legend = set(np.linspace(0, k - 1, min(k, MAX_LEGEND)).round().astype(int).tolist())
    means = np.nanmean(series.values, axis=1)
    for j, colour in enumerate(plot.client_colours(k)):
        _line(upper, series, means[:, j], color=colour, label=names[j] if j in in_legend else None)
    if lower:
        colours = colormaps["viridis"].with_extremes(bad=plot.MISSING)
        cells = {"aspect": "auto", "interpolation": "nearest", "origin": "lower"}
        image = lower.imshow(series.values[-1].T, cmap=colours, **cells)
        figure.colorbar(image, ax=lower, label=quantity.symbol).outline.set_visible(False)
        plot.bare(lower)
        lower.set_yticks(*((range(k), names) if k <= MAX_LABELS else ([],)))
        lower.set_ylabel("" if k <= MAX_LABELS else f"{k} {quantity.entries}s")
    plot.legend_below(figure, 3)
    return _picture(series, figure, names)


def _axes_pair(series: Series, height: float) -> tuple[Any, Any, Any]:
    """Return a figure, its axes over rounds, and below them axes over clients at the last round
    (None if all are equal).
    """
    level = uniform(series.values[-1:])
    rows = 1 if level else 2
    figure, axes = plot.panels(plot.WIDTH, height * rows, rows)
    plot.over_rounds(axes[0, 0])
    plot.grid(axes[0, 0])
    if level:
        return figure, axes[0, 0], None
    lower = axes[1, 0]
    lower.set_title(f"round {series.rounds[-1]}")
    if series.n <= MAX_LABELS:
        lower.set_xticks(range(series.n), series.names, rotation=90)
    else:
        lower.set(xlabel=f"{series.n} clients", xticks=[])
    return figure, axes[0, 0], lower


def uniform(values: Values) -> bool:
    """Return whether all clients that took part have the same numbers (T, n, K), in every round."""
    low, high = np.nanmin(values, axis=1), np.nanmax(values, axis=1)
    return bool((low == high).all())


def _line(ax: Any, series: Series, values: Values, **style: Any) -> None:
    """Draw a curve over the rounds; a single round is a dot."""
    ax.plot(
        series.rounds,
        values,
        linewidth=2.2,
        marker="o" if len(series.rounds) == 1 else None,
        **style,
    )


def _picture(series: Series, figure: Any, names: list[str]) -> ReportFigure:
    """Return the figure with its text and numbers."""
    quantity, run = series.quantity, series.run
    columns = [quantity.name]
    if len(names) > 1:
        columns = [f"{quantity.name}_{j + 1}" for j in range(len(names))]
    return ReportFigure(
        name=f"{slug(quantity.name)}-values",
        title=quantity.title,
        caption=f"{run.label}: {quantity.meaning}{_legend_text(series)}{series.absence}",
        alt=_values_alt_text(series, names),
        figure=figure,
        rows=series.records(columns),
    )


def _legend_text(series: Series) -> str:
    """Describe the lines and the picture below."""
    lines, mean = " Lines are means over clients.", ""
    if series.values.shape[2] == 1:
        lines, mean = (
            " Thin lines are clients, the thick one their mean.",
            ", and the mean (dashed)",
        )
    alike = uniform(series.values)
    text = "" if alike else lines
    if not uniform(series.values[-1:]):
        text += f" Below: each client after round {series.rounds[-1]}{mean}."
    if alike and len(series.participants) > 1:
        text += " It is the same for every client."
    return text


def _values_alt_text(series: Series, names: list[str]) -> str:
    """Describe the means over clients over the rounds, and the extremes at the end."""
    run, rounds, values = series.run, series.rounds, series.values
    level = uniform(values[-1:])
    first, last = np.nanmean(values[0], axis=0), np.nanmean(values[-1], axis=0)
    changes = [
        f"{name} {a:.3g} to {b:.3g}"
        for name, a, b in zip(names[:MAX_LEGEND], first, last, strict=False)
    ]
    text = (
        f"{'Line chart' if level else 'Line chart and chart by client'} of "
        f"{series.quantity.symbol} with {run.label}. "
        f"From round {rounds[0]} to {rounds[-1]} the mean over clients changes: "
        f"{', '.join(changes)}."
    )
    if level or len(names) > 1:
        return text
    low, high = (int(pick(values[-1, :, 0])) for pick in (np.nanargmin, np.nanargmax))
    return (
        f"{text} At the end {run.client(low)} has the lowest, {values[-1, low, 0]:.3g}, and "
        f"{run.client(high)} the highest, {values[-1, high, 0]:.3g}."
    )
