"""Pictures of an audit: ROC curves, rebuilt records, epsilon from both sides."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pomona.audit.findings import ALL_CLIENTS, Findings
from pomona.audit.first_uplink import Reconstruction
from pomona.metrics.nan_safe import Array
from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure
from pomona.scenario import Scenario

COLOURS = {"server": "#0072b2", "peer": "#d55e00"}
ATTACKS = {
    "threshold": "low loss",
    "lira": "likelihood ratio",
    "differences": "difference of messages",
}
STYLES = {"threshold": ":", "lira": "-", "differences": "--"}
NAMES = {"server": "server", "peer": "another client"}
Pair = tuple[Reconstruction, int]  # and the number of a record
AXIS_MIN = 1e-3  # share of false alarms where the logarithmic axes begin


def curves(findings: Findings) -> ReportFigure | None:
    """Draw hits over false alarms of each attack on all clients together, on logarithmic axes."""
    attacks = [attack for attack in findings.membership if attack.client == ALL_CLIENTS]
    if not attacks:
        return None
    figure, axes = plot.panels(plot.WIDTH, 4.4)
    ax = axes[0, 0]
    for attack in attacks:
        label = f"{NAMES[attack.party]}, {ATTACKS[attack.attack]}"
        ax.plot(*attack.curve, STYLES[attack.attack], color=COLOURS[attack.party], label=label)
    ax.plot([AXIS_MIN, 1], [AXIS_MIN, 1], color=plot.FRAME, linewidth=1, label="guessing")
    ax.set(xscale="log", yscale="log", xlim=(AXIS_MIN, 1), ylim=(AXIS_MIN, 1))
    ax.set(xlabel="share of false alarms", ylabel="share of training records found")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    plot.grid(ax)
    ax.legend()
    return ReportFigure(
        "curves",
        "Training records found, by false alarms accepted",
        "Each curve is one attack, all clients together. Along the grey line an attack finds "
        "training records as often as it names others by mistake: it knows nothing.",
        "Curves of training records found over false alarms: "
        + "; ".join(f"{e.party}, {e.attack}: AUC {e.auc.value:.3f}" for e in attacks)
        + ".",
        figure,
        [
            {"party": e.party, "attack": e.attack, "false alarms": x, "found": y}
            for e in attacks
            for x, y in zip(*e.curve, strict=True)
        ],
    )


def records(
    scenario: Scenario, reconstructions: Sequence[Reconstruction], name: str, title: str
) -> ReportFigure:
    """Draw records next to their reconstructions."""
    pairs = [(rebuilt, k) for rebuilt in reconstructions for k in range(len(rebuilt.truth))]
    draw = _tables if reconstructions[0].truth.dim() == 2 else _images
    figure = draw(scenario, pairs)
    recognised = sum(int(rebuilt.match.recognised.sum()) for rebuilt in reconstructions)
    how = "in closed form" if reconstructions[0].closed else "by a search"
    return ReportFigure(
        name,
        title,
        f"Rebuilt {how} from the first message. {recognised} of {len(pairs)} are nearer to their "
        "record than to any other.",
        f"Records next to their reconstructions; {recognised} of {len(pairs)} are recognised.",
        figure,
        plot.records(
            "client record likeness recognised",
            (
                (r.client, k, float(r.match.likeness[k]), bool(r.match.recognised[k]))
                for r, k in pairs
            ),
        ),
    )


def image(scenario: Scenario, x: Tensor) -> Array:
    """Return a network's input (C, *S) as a picture (H, W) or (H, W, 3) of numbers in 0 to 1; of a
    volume its middle slice.
    """
    shift, scale = (
        np.asarray(values) for values in (scenario.dataset.shift, scenario.dataset.scale)
    )
    pixels = x.movedim(0, -1).cpu().numpy() * scale + shift
    if pixels.ndim == 4:
        pixels = pixels[len(pixels) // 2]
    low, high = scenario.dataset.x.min(), scenario.dataset.x.max()
    scaled = np.clip((pixels - low) / max(float(high - low), 1e-9), 0, 1)
    return np.asarray(scaled if scaled.shape[-1] == 3 else scaled[..., 0])


def _images(scenario: Scenario, pairs: Sequence[Pair]) -> plot.Figure:
    """Draw records as pictures, the rebuilt ones below, four in a row."""
    bands, columns = -(-len(pairs) // 4), min(len(pairs), 4)
    figure, axes = plot.panels(plot.WIDTH, 2.6 * bands, 2 * bands, columns)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        plot.bare(ax)
    for number, (rebuilt, k) in enumerate(pairs):
        band, column = divmod(number, columns)
        upper, lower = axes[2 * band : 2 * band + 2, column]
        upper.imshow(image(scenario, rebuilt.truth[k]), cmap="gray", vmin=0, vmax=1)
        lower.imshow(image(scenario, rebuilt.estimate[k]), cmap="gray", vmin=0, vmax=1)
        upper.set_title(scenario.names[rebuilt.client], fontsize=9)
    for band in range(bands):
        axes[2 * band, 0].set_ylabel("record")
        axes[2 * band + 1, 0].set_ylabel("rebuilt")
    return figure


def _tables(scenario: Scenario, pairs: Sequence[Pair]) -> plot.Figure:
    """Draw each feature of a table's records, and the rebuilt ones."""
    figure, axes = plot.panels(plot.WIDTH, 1.7 * len(pairs), len(pairs))
    for ax, (rebuilt, k) in zip(axes.flat, pairs, strict=True):
        x = torch.arange(len(rebuilt.truth[k]))
        ax.plot(
            x, rebuilt.truth[k], "o", color=plot.INK, markersize=5, fillstyle="none", label="record"
        )
        ax.plot(x, rebuilt.estimate[k], "x", color=COLOURS["peer"], label="rebuilt")
        ax.set_ylabel("deviations")
        ax.set_title(scenario.names[rebuilt.client])
    axes[0, 0].legend(ncols=2)
    axes[-1, 0].set_xlabel("feature")
    return figure


def both_sides(findings: Sequence[Findings]) -> ReportFigure | None:
    """Draw the epsilon that attacks prove next to the ledger's."""
    bounded = [(f, max(e for e in f.ledger if e is not None)) for f in findings if any(f.ledger)]
    if not bounded:
        return None
    figure, axes = plot.panels(plot.WIDTH, 3.2)
    ax, x = axes[0, 0], np.arange(len(bounded))
    upper = [ledger for _, ledger in bounded]
    lower = [max(finding.proven[ALL_CLIENTS], AXIS_MIN) for finding, _ in bounded]
    ax.vlines(x, lower, upper, color=plot.FRAME)
    ax.plot(x, upper, "v", color=plot.INK, label="at most, by the ledger")
    ax.plot(x, lower, "^", color=COLOURS["peer"], label="at least, by the attacks")
    ax.set(yscale="log", ylabel="epsilon", xlim=(-0.5, len(bounded) - 0.5))
    ax.set_xticks(x, ["the run" if f.budget is None else f"{f.budget:g}" for f, _ in bounded])
    ax.set_xlabel("epsilon asked for")
    plot.grid(ax)
    ax.legend()
    return ReportFigure(
        "epsilon",
        "What was promised, and what could be proven",
        "The ledger's epsilon bounds what parties can learn from what they receive; the attacks "
        "show how much they did.",
        "Epsilon from above and below: "
        + "; ".join(f"{low:.2g} to {high:.3g}" for low, high in zip(lower, upper, strict=True)),
        figure,
        [
            {"asked": f.budget, "at most": high, "at least": f.proven[ALL_CLIENTS]}
            for f, high in bounded
        ],
    )
