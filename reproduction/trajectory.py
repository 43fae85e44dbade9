"""A client's path over its own loss surface, in the plane of the largest variation: FedALA's figure
4.

    pomona run fedavg OPTIONS --out runs/fedavg
    pomona run fedala OPTIONS method.start_round=7 --out runs/fedala
    python reproduction/trajectory.py runs/fedavg runs/fedala --client 1 --since 4

The models at the start and the end of local training are projected on their two principal
components; around them the client's training loss on that plane (Li et al., NeurIPS 2018). Records
do not contain the models of every round, so the runs are repeated.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from cyclopts import Parameter
from cyclopts import run as run_command
from numpy.typing import NDArray
from torch import Tensor

from pomona.cli.output import echo
from pomona.cli.progress import progress_display
from pomona.config import Config, resolve
from pomona.core.errors import ConfigError, PomonaError
from pomona.core.membership import PlannedMembership
from pomona.core.registry import own_code_barred
from pomona.core.round import Roster, Round
from pomona.federation.callbacks import Callback, NullCallback
from pomona.federation.checkpointing import Checkpointing
from pomona.federation.client import ClientRuntime
from pomona.federation.loop import Loop
from pomona.federation.transport import Inline, grouped
from pomona.methods.base import Info, Received, Uplink
from pomona.objective.training import LocalTraining
from pomona.record.presentation import Presentation
from pomona.record.run_folder import RunRecord, load
from pomona.results.figures import plot
from pomona.results.figures.plot import FORMATS, ReportFigure, Rows, drawing
from pomona.results.method_colours import Style, styles
from pomona.scenario import Scenario

START, END = "#d62728", "#2ca02c"


@dataclass(frozen=True)
class Trace:
    """A client's models in one run: ``initial`` and ``final`` (T, d), before and after local
    training in ``rounds``.
    """

    method: str
    presentation: Presentation
    rounds: list[int]
    initial: Tensor
    final: Tensor


def trace(
    scenario: Scenario, client: int, first_round: int, callback: Callback | None = None
) -> Trace:
    """Run a scenario in memory with a callback, and collect a client's models from round
    ``first_round`` on.

    Raises:
        ConfigError: the settings give fewer than two such rounds, or no single model from which
            training starts.
    """
    config, method = scenario.config, scenario.config.method.method()
    name, (model, _) = config.method.name, method.card.headline
    _require_traceable(config, method.card.headline, client)
    rounds, initial, final = list[int](), list[Tensor](), list[Tensor]()

    def train(
        state: Any, received: Received, training: LocalTraining, round_: Round
    ) -> tuple[Any, Uplink, Info]:
        state, uplink, info = method.client.train(state, received, training, round_)
        if training.trains and client in training.clients and round_.number >= first_round:
            k = training.clients.index(client)
            rounds.append(round_.number)
            initial.append(training.observed[model, "received"][k].cpu().clone())
            final.append(uplink["model"][k].cpu().clone())
        return state, uplink, info

    torch.set_num_threads(1)
    roster = Roster(tuple(len(c.train) for c in scenario.partition.clients), config.largest_share)
    groups = grouped(roster.sizes, config.rows)
    traced = replace(method.client, train=train)
    transport = Inline(
        lambda g: ClientRuntime(traced, scenario.objective(), scenario.initial, g, config.seed),
        groups,
    )
    record, schedule = RunRecord(None, config.tree()), PlannedMembership(config.membership, roster)
    checkpoints = Checkpointing(None, 1, {})
    Loop(
        config,
        method.server,
        schedule,
        scenario.initial,
        transport,
        record,
        callback or NullCallback(),
        checkpoints,
    ).run()
    if len(rounds) < 2:
        raise ConfigError(
            f"client {client} trains in {len(rounds)} rounds from round {first_round} on; give at "
            "least 2"
        )
    return Trace(name, method.card.presentation, rounds, torch.stack(initial), torch.stack(final))


def _require_traceable(config: Config, headline: tuple[str, str], client: int) -> None:
    """Raise ConfigError if a run has no single model from which a client's training starts."""
    if headline[1] != "received":
        raise ConfigError(
            f"{config.method.name} reports a different model from the one that local training "
            f"starts with; use fedavg or fedala"
        )
    if config.privacy or config.buffers != "local":
        raise ConfigError(
            "a loss surface needs the plain training data and buffers=local; remove privacy and "
            "buffers"
        )
    if config.attack:
        raise ConfigError("a trajectory needs honest clients; remove attack")
    if client not in range(config.clients):
        raise ConfigError(f"client {client}: there are {config.clients}, numbered from 0")


def surface(scenario: Scenario, client: int, models: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the mean training loss of a client at each of the models (..., d): (...)."""
    objective = scenario.objective()
    flat = torch.from_numpy(models.reshape(-1, models.shape[-1])).to(objective.data.x.device)
    losses = [float(objective.losses(row, client, "train").mean()) for row in flat]
    return np.array(losses).reshape(models.shape[:-1])


def trajectory(
    configs: Sequence[Config],
    client: int,
    first_round: int,
    folder: Path,
    points: int = 25,
    watch: Callable[[Config], Callback | None] = lambda _: None,
) -> ReportFigure:
    """Write ``trajectory.*`` in all formats: a client's path in some runs over its
    training-loss surface.

    Args:
        configs: the runs, with equal data, partition and model; for the paper's figure FedAvg, and
            FedALA whose ``start_round`` is later than ``first_round``, so that both have the same
            path until the weights begin to learn.
        client: its number.
        first_round: the first round drawn; the last is that of the run.
        folder: the folder; created if missing.
        points: of the surface along each axis; each costs a pass over the client's training data.
        watch: creates a callback for a run's rounds while it is repeated.

    Returns:
        The figure, whose rows have plane coordinates and the training loss of the models
        themselves.

    Raises:
        ConfigError: see ``trace``; or no run is given, or the runs do not share data, partition and
            model.
    """
    if not configs:
        raise ConfigError("a trajectory needs at least one run")
    # The start of local training is observed in evaluated rounds.
    scenarios = [Scenario.prepare(c.model_copy(update={"eval_every": 1})) for c in configs]
    if len({(s.partition.sha256, s.config.model.model_dump_json()) for s in scenarios}) > 1:
        raise ConfigError(
            "the runs differ in data, partition or model, so their models do not share a loss "
            "surface"
        )
    traces = [
        trace(scenario, client, first_round, watch(scenario.config)) for scenario in scenarios
    ]
    picture = _draw(traces, scenarios[0], client, points)
    folder.mkdir(parents=True, exist_ok=True)
    with drawing():
        picture.save(folder)
    return picture


def _draw(traces: list[Trace], scenario: Scenario, client: int, points: int) -> ReportFigure:
    """Draw the figure: contours of the loss, and every run's path."""
    from sklearn.decomposition import PCA

    models = torch.cat([tensor for t in traces for tensor in (t.initial, t.final)]).double().numpy()
    plane = PCA(2, svd_solver="full").fit(models)
    shares = plane.explained_variance_ratio_
    projected = plane.transform(models)
    low, high = projected.min(0), projected.max(0)
    margin = 0.15 * np.maximum(high - low, 1e-6)
    x, y = (np.linspace(low[k] - margin[k], high[k] + margin[k], points) for k in (0, 1))
    mesh = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    heights = np.concatenate(
        [
            surface(scenario, client, plane.inverse_transform(mesh[k : k + points]).astype("f4"))
            for k in range(0, len(mesh), points)
        ]
    )
    with drawing():
        figure, axes = plot.panels(6.4, 4.8)
        ax = axes[0, 0]
        image = ax.contourf(
            x, y, heights.reshape(points, points), levels=20, cmap="Greys", alpha=0.8
        )
        figure.colorbar(image, ax=ax, label="training loss on the plane").outline.set_visible(False)
        rows: Rows = []
        for t, style in zip(traces, styles(t.presentation.title for t in traces), strict=True):
            rows += _draw_path(
                ax,
                t,
                style,
                plane,
                surface(scenario, client, torch.stack([t.initial, t.final]).numpy()),
            )
        ax.plot([], [], "o", color=START, markersize=5, label="start of local training")
        ax.plot([], [], "s", color=END, markersize=5, label="end of local training")
        ax.set(
            xlabel=f"C1 ({shares[0]:.0%} of the variance)",
            ylabel=f"C2 ({shares[1]:.0%} of the variance)",
        )
        plot.legend_below(figure, 2)
    first, last = traces[0].rounds[0], traces[0].rounds[-1]
    names = " and ".join(t.presentation.title for t in traces)
    return ReportFigure(
        name="trajectory",
        title="Trajectory of one client on its loss surface",
        caption=f"{names}: the models of {scenario.names[client]} at the start and at the end of "
        f"local training in rounds {first} to {last}, projected on their two principal components "
        f"C1 and C2, which explain {shares.sum():.0%} of their variance, over its training loss on "
        "that plane. The models lie off the plane: their own losses are in the CSV.",
        alt=f"Contour chart of a training loss with the trajectory of {scenario.names[client]} "
        f"under {names}, rounds {first} to {last}. "
        + " ".join(
            _alt_text(t.presentation.title, [r for r in rows if r["method"] == t.method])
            for t in traces
        ),
        figure=figure,
        rows=rows,
    )


def _draw_path(
    ax: Any, trace: Trace, style: Style, plane: Any, losses: NDArray[np.float64]
) -> Rows:
    """Draw one run's path; return its rows: round, moment, position on the plane, the model's own
    loss.
    """
    initial, final = (
        plane.transform(tensor.double().numpy()) for tensor in (trace.initial, trace.final)
    )
    path = np.stack([initial, final], axis=1).reshape(-1, 2)
    ax.plot(*path.T, color=plot.FRAME, linewidth=0.8, linestyle=":")
    steps = final - initial
    ax.quiver(
        *initial.T,
        *steps.T,
        color=style.colour,
        angles="xy",
        scale_units="xy",
        scale=1,
        width=0.005,
        zorder=2,
    )
    ax.plot([], [], color=style.colour, label=trace.presentation.title)
    ax.plot(*initial.T, "o", color=START, markersize=4)
    ax.plot(*final.T, "s", color=END, markersize=4)
    lines = (
        (trace.method, number, moment, *map(float, points[t]), float(loss[t]))
        for t, number in enumerate(trace.rounds)
        for moment, points, loss in (("start", initial, losses[0]), ("end", final, losses[1]))
    )
    return plot.records("method round moment c1 c2 loss", lines)


def _alt_text(title: str, rows: Rows) -> str:
    return f"The loss goes from {rows[0]['loss']:.3g} to {rows[-1]['loss']:.3g} with {title}."


def command(
    *runs: Path,
    client: int = 0,
    since: int = 1,
    out: Path | None = None,
    own_code: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Draw a client's path over its own training-loss surface, round by round; the runs are
    repeated for it.

    Parameters
    ----------
    runs
        folders that `pomona run` wrote, with the same data, partition and model
    client
        number of the client
    since
        first round that is drawn
    out
        folder for the figure; default the first run's
    own_code
        allow the runs to import modules that they name
    """
    try:
        with progress_display(stays=False) as display, own_code_barred(not own_code):
            configs = [resolve(load(run).config) for run in runs]
            folder = out or (runs[0] if runs else Path())
            trajectory(configs, client, since, folder, watch=display)
    except PomonaError as fault:
        sys.exit(fault.text())
    echo(*(str(folder / f"trajectory.{suffix}") for suffix in FORMATS))


if __name__ == "__main__":
    run_command(command)
