"""A client's path over its own loss surface, in the plane of the largest variation: FedALA's figure
4.

The models at the start and the end of local training are projected on their two principal
components; around them the client's training loss on that plane (Li et al., NeurIPS 2018). Records
do not contain the models of every round, so the runs are repeated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pomona.config import Config
from pomona.core.errors import ConfigError
from pomona.core.membership import Planned
from pomona.core.round import Roster, Round
from pomona.federation.callbacks import Callback, NullCallback
from pomona.federation.checkpointing import Checkpointing
from pomona.federation.client import ClientRuntime
from pomona.federation.loop import Loop
from pomona.federation.transport import Inline, grouped
from pomona.methods.base import Info, Received, Uplink
from pomona.objective.training import LocalTraining
from pomona.record.presentation import Presentation
from pomona.record.run_folder import RunRecord
from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure, Rows, drawing
from pomona.results.method_colours import Look, looks
from pomona.scenario import Scenario

START, END = "#d62728", "#2ca02c"


@dataclass(frozen=True)
class Trace:
    """A client's models in one run: ``starts`` and ``ends`` (T, d) of local training in
    ``rounds``.
    """

    method: str
    shown: Presentation
    rounds: list[int]
    starts: Tensor
    ends: Tensor


def trace(scenario: Scenario, client: int, since: int, watcher: Callback | None = None) -> Trace:
    """Run a scenario in memory with a callback, and collect a client's models from round ``since``
    on.

    Raises:
        ConfigError: the settings give fewer than two such rounds, or no single model from which
            training starts.
    """
    config, method = scenario.config, scenario.config.method.method()
    name, (model, _) = config.method.name, method.card.headline
    _require_traceable(config, method.card.headline, client)
    rounds, starts, ends = list[int](), list[Tensor](), list[Tensor]()

    def train(
        state: Any, received: Received, training: LocalTraining, round_: Round
    ) -> tuple[Any, Uplink, Info]:
        state, uplink, info = method.client.train(state, received, training, round_)
        if training.trains and client in training.clients and round_.number >= since:
            k = training.clients.index(client)
            rounds.append(round_.number)
            starts.append(training.observed[model, "received"][k].cpu().clone())
            ends.append(uplink["model"][k].cpu().clone())
        return state, uplink, info

    torch.set_num_threads(1)
    roster = Roster(tuple(len(c.train) for c in scenario.partition.clients), config.largest_share)
    groups = grouped(roster.sizes, config.rows)
    half = replace(method.client, train=train)
    transport = Inline(
        lambda g: ClientRuntime(half, scenario.objective(), scenario.initial, g, config.seed),
        groups,
    )
    record, attendance = RunRecord(None, config.tree()), Planned(config.membership, roster)
    commits = Checkpointing(None, 1, {})
    Loop(
        config,
        method.server,
        attendance,
        scenario.initial,
        transport,
        record,
        watcher or NullCallback(),
        commits,
    ).run()
    if len(rounds) < 2:
        raise ConfigError(
            f"client {client} trains in {len(rounds)} rounds from round {since} on; give at least 2"
        )
    return Trace(name, method.card.presentation, rounds, torch.stack(starts), torch.stack(ends))


def _require_traceable(config: Config, headline: tuple[str, str], client: int) -> None:
    """Raise ConfigError if a run has no single model from which a client's training starts."""
    if headline[1] != "received":
        raise ConfigError(
            f"{config.method.name} reports another model than the one that local training starts "
            "from; take fedavg or fedala"
        )
    if config.privacy or config.buffers != "local":
        raise ConfigError(
            "a loss surface needs the plain training data and buffers=local; leave privacy and "
            "buffers out"
        )
    if config.attack:
        raise ConfigError("a trajectory is one of honest clients; leave attack out")
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
    since: int,
    out: Path,
    points: int = 25,
    watch: Callable[[Config], Callback | None] = lambda _: None,
) -> ReportFigure:
    """Write ``out/trajectory.*`` in all formats: a client's path in some runs over its
    training-loss surface.

    Args:
        configs: the runs, with equal data, partition and model; for the paper's figure FedAvg, and
            FedALA whose ``start_round`` is later than ``since``, so that both have the same path
            until the weights begin to learn.
        client: its number.
        since: the first round drawn; the last is that of the run.
        out: the folder; created if missing.
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
            "the runs differ in data, partition or model; their models share no surface"
        )
    traces = [trace(scenario, client, since, watch(scenario.config)) for scenario in scenarios]
    picture = _drawn(traces, scenarios[0], client, points)
    out.mkdir(parents=True, exist_ok=True)
    with drawing():
        picture.save(out)
    return picture


def _drawn(traces: list[Trace], scenario: Scenario, client: int, points: int) -> ReportFigure:
    """Draw the figure: contours of the loss, and every run's path."""
    from sklearn.decomposition import PCA

    every = torch.cat([part for t in traces for part in (t.starts, t.ends)]).double().numpy()
    plane = PCA(2, svd_solver="full").fit(every)
    shares = plane.explained_variance_ratio_
    seen = plane.transform(every)
    low, high = seen.min(0), seen.max(0)
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
        for t, look in zip(traces, looks(t.shown.title for t in traces), strict=True):
            rows += _way(
                ax,
                t,
                look,
                plane,
                surface(scenario, client, torch.stack([t.starts, t.ends]).numpy()),
            )
        ax.plot([], [], "o", color=START, markersize=5, label="start of local training")
        ax.plot([], [], "s", color=END, markersize=5, label="end of local training")
        ax.set(
            xlabel=f"C1 ({shares[0]:.0%} of the variance)",
            ylabel=f"C2 ({shares[1]:.0%} of the variance)",
        )
        plot.legend_below(figure, 2)
    first, last = traces[0].rounds[0], traces[0].rounds[-1]
    names = " and ".join(t.shown.title for t in traces)
    return ReportFigure(
        name="trajectory",
        title="The way of one client over its loss surface",
        caption=f"{names}: the models of {scenario.names[client]} at the start and at the end of "
        "local training in "
        f"rounds {first} to {last}, projected on their two principal components C1 and C2, which "
        "hold "
        f"{shares.sum():.0%} of their variance, over its training loss on that plane. The models "
        "lie off the plane: "
        "their own losses are in the CSV.",
        alt=f"Contour chart of a training loss with the way of {scenario.names[client]} under "
        f"{names}, rounds {first} "
        f"to {last}. "
        + " ".join(
            _spoken(t.shown.title, [r for r in rows if r["method"] == t.method]) for t in traces
        ),
        figure=figure,
        rows=rows,
    )


def _way(ax: Any, own: Trace, look: Look, plane: Any, losses: NDArray[np.float64]) -> Rows:
    """Draw one run's path; return its rows: round, moment, position on the plane, the model's own
    loss.
    """
    starts, ends = (plane.transform(part.double().numpy()) for part in (own.starts, own.ends))
    way = np.stack([starts, ends], axis=1).reshape(-1, 2)
    ax.plot(*way.T, color=plot.FRAME, linewidth=0.8, linestyle=":")
    steps = ends - starts
    ax.quiver(
        *starts.T,
        *steps.T,
        color=look.colour,
        angles="xy",
        scale_units="xy",
        scale=1,
        width=0.005,
        zorder=2,
    )
    ax.plot([], [], color=look.colour, label=own.shown.title)
    ax.plot(*starts.T, "o", color=START, markersize=4)
    ax.plot(*ends.T, "s", color=END, markersize=4)
    return [
        {
            "method": own.method,
            "round": number,
            "moment": moment,
            "c1": float(place[t][0]),
            "c2": float(place[t][1]),
            "loss": float(loss[t]),
        }
        for t, number in enumerate(own.rounds)
        for moment, place, loss in (("start", starts, losses[0]), ("end", ends, losses[1]))
    ]


def _spoken(title: str, rows: Rows) -> str:
    return f"The loss goes from {rows[0]['loss']:.3g} to {rows[-1]['loss']:.3g} with {title}."
