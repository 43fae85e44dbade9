"""Masks: each client's best and worst test image, with truth and prediction."""

from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from pomona.core.table import NOTHING
from pomona.record.mask_examples import MOST_CLIENTS, MaskExamples, read
from pomona.results.figures.axes import panels
from pomona.results.figures.figure import ReportFigure, Rows
from pomona.results.figures.style import FRAME, shorten
from pomona.results.run_numbers import Run, evaluated, leader

if TYPE_CHECKING:
    from matplotlib.patches import Patch

WHICH = ("best", "worst")


def masks(runs: list[Run]) -> ReportFigure | None:
    """Draw one row per client: image, truth and prediction of the test images with the best and the worst Dice."""
    lead = leader([run for run in runs if examples(run)])
    shown = examples(lead) if lead else {}
    if lead is None:
        return None
    figure, axes = panels(10.5, 1.85 * len(shown) + 0.5, len(shown), 6, layout="compressed")
    most = max(1, *(int(max(e.truth.max(), e.predicted.max())) for e in shown.values()))
    for line, (client, found) in zip(axes, shown.items(), strict=True):
        for k, which in enumerate(WHICH):
            image, truth, predicted = line[3 * k : 3 * k + 3]
            image.imshow(found.image[k].squeeze(-1) if found.image.shape[-1] == 1 else found.image[k], cmap="gray")
            for ax, numbers in ((truth, found.truth[k]), (predicted, found.predicted[k])):
                ax.imshow(numbers, cmap="cividis", vmin=0, vmax=most, interpolation="none")
            image.set_title(f"{which}: image", fontsize=9)
            truth.set_title("truth", fontsize=9)
            predicted.set_title(f"predicted, Dice {_number(found.dice[k])}", fontsize=9)
        line[0].set_ylabel(shorten(lead.client(client)), fontsize=9)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    names = [str(name) for name in lead.result.about.get("classes") or ()]
    names += [f"class {k}" for k in range(len(names), most + 1)]
    figure.legend(handles=_key(names[: most + 1]), loc="outside lower center", ncols=min(6, most + 1), fontsize=9)
    rows: Rows = [
        {"client": client, "name": lead.client(client), "which": which, "dice": float(found.dice[k])}
        for client, found in shown.items()
        for k, which in enumerate(WHICH)
    ]
    worst = min(rows, key=lambda row: 2.0 if isnan(row["dice"]) else float(row["dice"]))
    return ReportFigure(
        name="masks",
        title="Images with truth and prediction",
        caption=f"{lead.label}, {lead.model}, {evaluated(lead)}: of "
        f"{'each client' if len(shown) < MOST_CLIENTS else 'the first clients'} "
        "the test image with the best and that with the worst Dice, mean over the classes but the background. "
        "Of a volume, the slice with most true pixels.",
        alt=f"Images, true and predicted masks of {len(shown)} clients, best and worst. The worst of all has a Dice of "
        f"{_number(worst['dice'])}, at {worst['name']}.",
        figure=figure,
        rows=rows,
    )


def _key(names: list[str]) -> list["Patch"]:
    """Return the colours of the classes, in the order of their numbers."""
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    colours = colormaps["cividis"](np.linspace(0, 1, len(names)))
    return [Patch(facecolor=c, edgecolor=FRAME, label=shorten(n)) for n, c in zip(names, colours, strict=True)]


def examples(run: Run) -> dict[int, MaskExamples]:
    """Return the examples on record, by client."""
    folder = run.result.folder
    if folder is None or run.result.about.get("targets") != "segmentation":
        return {}
    clients = range(min(MOST_CLIENTS, len(run.result.about.get("clients") or ())))
    return {i: found for i in clients if (found := read(folder, i)) and len(found.dice) == len(WHICH)}


def _number(dice: float) -> str:
    return NOTHING if isnan(dice) else f"{dice:.2f}"
