"""Pictures of an audit: ROC curves, rebuilt records, epsilon from both sides."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pomona.audit.findings import EVERYBODY, Findings
from pomona.audit.first_uplink import Rebuilt
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
Pair = tuple[Rebuilt, int]  # and the number of a record
LEAST = 1e-3  # share of false alarms where the logarithmic axes begin


def curves(found: Findings) -> ReportFigure | None:
    """Draw hits over false alarms of each attack on all clients together, on logarithmic axes."""
    own = [each for each in found.membership if each.client == EVERYBODY]
    if not own:
        return None
    figure, axes = plot.panels(5.2, 4.4)
    ax = axes[0, 0]
    for each in own:
        label = f"{NAMES[each.party]}, {ATTACKS[each.attack]}"
        ax.plot(*each.curve, STYLES[each.attack], color=COLOURS[each.party], label=label)
    ax.plot([LEAST, 1], [LEAST, 1], color=plot.FRAME, linewidth=1, label="guessing")
    ax.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1))
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
        + "; ".join(f"{e.party}, {e.attack}: AUC {e.auc.value:.3f}" for e in own)
        + ".",
        figure,
        [
            {"party": e.party, "attack": e.attack, "false alarms": x, "found": y}
            for e in own
            for x, y in zip(*e.curve, strict=True)
        ],
    )


def records(scenario: Scenario, made: Sequence[Rebuilt], name: str, title: str) -> ReportFigure:
    """Draw records beside what was rebuilt of them."""
    pairs = [(one, k) for one in made for k in range(len(one.truth))]
    draw = _tables if made[0].truth.dim() == 2 else _images
    figure = draw(scenario, pairs)
    recognised = sum(int(one.match.recognised.sum()) for one in made)
    how = "in closed form" if made[0].closed else "by a search"
    return ReportFigure(
        name,
        title,
        f"Rebuilt {how} from the first message. {recognised} of {len(pairs)} are nearer to their "
        "record than to any other.",
        f"Records beside what was rebuilt of them; {recognised} of {len(pairs)} are recognised.",
        figure,
        [
            {
                "client": one.client,
                "record": k,
                "likeness": float(one.match.likeness[k]),
                "recognised": bool(one.match.recognised[k]),
            }
            for one, k in pairs
        ],
    )


def image(scenario: Scenario, x: Tensor) -> Array:
    """Return a network's input (C, *S) as a picture (H, W) or (H, W, 3) of numbers in 0 to 1; of a
    volume its middle slice.
    """
    shift, scale = (np.asarray(part) for part in (scenario.dataset.shift, scenario.dataset.scale))
    pixels = x.movedim(0, -1).cpu().numpy() * scale + shift
    if pixels.ndim == 4:
        pixels = pixels[len(pixels) // 2]
    low, high = scenario.dataset.x.min(), scenario.dataset.x.max()
    shown = np.clip((pixels - low) / max(float(high - low), 1e-9), 0, 1)
    return np.asarray(shown if shown.shape[-1] == 3 else shown[..., 0])


def _images(scenario: Scenario, pairs: Sequence[Pair]) -> plot.Figure:
    """Draw records as pictures, the rebuilt ones below."""
    figure, axes = plot.panels(1.25 * len(pairs) + 0.6, 2.9, 2, len(pairs))
    for column, (one, k) in zip(axes.T, pairs, strict=True):
        for ax, x in zip(column, (one.truth[k], one.found[k]), strict=True):
            ax.imshow(image(scenario, x), cmap="gray", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
            plot.bare(ax)
        column[0].set_title(scenario.names[one.client], fontsize=8)
    axes[0, 0].set_ylabel("record")
    axes[1, 0].set_ylabel("rebuilt")
    return figure


def _tables(scenario: Scenario, pairs: Sequence[Pair]) -> plot.Figure:
    """Draw each feature of a table's records, and the rebuilt ones."""
    figure, axes = plot.panels(7.0, 1.7 * len(pairs), len(pairs))
    for ax, (one, k) in zip(axes.flat, pairs, strict=True):
        x = torch.arange(len(one.truth[k]))
        ax.plot(
            x, one.truth[k], "o", color=plot.INK, markersize=5, fillstyle="none", label="record"
        )
        ax.plot(x, one.found[k], "x", color=COLOURS["peer"], label="rebuilt")
        ax.set_ylabel("deviations")
        ax.set_title(scenario.names[one.client])
    axes[0, 0].legend(ncols=2)
    axes[-1, 0].set_xlabel("feature")
    return figure


def both_sides(found: Sequence[Findings]) -> ReportFigure | None:
    """Draw the epsilon that attacks prove beside the ledger's."""
    known = [(f, max(e for e in f.ledger if e is not None)) for f in found if any(f.ledger)]
    if not known:
        return None
    figure, axes = plot.panels(5.2, 3.2)
    ax, x = axes[0, 0], np.arange(len(known))
    upper = [ledger for _, ledger in known]
    lower = [max(each.proven[EVERYBODY], LEAST) for each, _ in known]
    ax.vlines(x, lower, upper, color=plot.FRAME)
    ax.plot(x, upper, "v", color=plot.INK, label="at most, by the ledger")
    ax.plot(x, lower, "^", color=COLOURS["peer"], label="at least, by the attacks")
    ax.set(yscale="log", ylabel="epsilon", xlim=(-0.5, len(known) - 0.5))
    ax.set_xticks(x, ["the run" if f.budget is None else f"{f.budget:g}" for f, _ in known])
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
            {"asked": f.budget, "at most": high, "at least": f.proven[EVERYBODY]}
            for f, high in known
        ],
    )
