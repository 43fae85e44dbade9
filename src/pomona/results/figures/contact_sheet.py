"""One image of each client with its mask over it; of a volume, a slice in each of three planes."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.results.figures import plot
from pomona.results.figures.plot import ReportFigure
from pomona.scenario import Scenario

MAX_CLIENTS = 12
CANDIDATE_ROWS = 16  # of a client; the one with the largest mask is drawn
COLUMNS = 4  # of two-dimensional images
OPPOSITE = {"R": "L", "L": "R", "A": "P", "P": "A", "S": "I", "I": "S"}
PLANES = (("axial", 0), ("coronal", 1), ("sagittal", 2))
"""Names of the planes, and the axis of (z, y, x) that each cuts."""


class Sample(NamedTuple):
    """An image (*S, C), its mask (*S) or None, and its heading."""

    image: NDArray[Any]
    mask: NDArray[Any] | None
    title: str


def contact_sheet(scenario: Scenario) -> ReportFigure | None:
    """Draw an image of each client; None for data without images. Call it in ``plot.drawing``.

    Images are drawn as the model gets them, before normalisation: turned, cropped and resized.
    """
    if scenario.dataset.kind != "image":
        return None
    samples = _samples(scenario)
    if not samples:
        return None
    volumetric = samples[0].image.ndim == 4
    figure = _volumes(samples, scenario) if volumetric else _images(samples, scenario)
    omitted = len(scenario.names) - len(samples)
    title = "One image of each client" + (f" ({omitted} clients are left out)" if omitted else "")
    figure.suptitle(title, fontsize=11)
    return ReportFigure("images", title, "", title, figure, [])


def _samples(scenario: Scenario) -> list[Sample]:
    data, masked = scenario.dataset, scenario.targets == "segmentation"
    samples: list[Sample] = []
    for name, client in zip(scenario.names, scenario.partition.clients, strict=True):
        rows = client.train[:CANDIDATE_ROWS] if masked else client.train[:1]
        if not len(rows) or len(samples) == MAX_CLIENTS:
            continue
        row = max(rows, key=lambda k: np.count_nonzero(data.y[k])) if masked else rows[0]
        label = data.classes[int(data.y[row])] if scenario.targets == "classes" else ""
        title = f"{plot.shorten(name, 20)}, row {int(row)}" + (
            f": {plot.shorten(label, 20)}" if label else ""
        )
        mask = np.asarray(data.y[row]) if masked else None
        samples.append(Sample(np.asarray(data.x[row]), mask, title))
    return samples


def _images(samples: list[Sample], scenario: Scenario) -> plot.Figure:
    columns = min(COLUMNS, len(samples))
    rows = -(-len(samples) // columns)
    figure, axes = plot.panels(2.6 * columns, 2.8 * rows + 0.6, rows, columns, layout="compressed")
    for ax in axes.flat[len(samples) :]:
        ax.set_axis_off()
    for ax, sample in zip(axes.flat, samples, strict=False):
        _draw(ax, sample.image, sample.mask, "upper")
        ax.set_title(sample.title, fontsize=8)
    _legend(figure, scenario)
    return figure


def _volumes(samples: list[Sample], scenario: Scenario) -> plot.Figure:
    """Draw three planes of each volume, with the letters of its sides."""
    data, lines = scenario.dataset, len(samples)
    figure, axes = plot.panels(8.4, 2.8 * lines + 0.6, lines, 3, layout="compressed")
    spacing = data.spacings[0] if data.spacings else (1.0, 1.0, 1.0)
    for line, sample in zip(axes, samples, strict=True):
        for ax, (plane, axis) in zip(line, PLANES, strict=True):
            index = _slice_index(sample, axis)
            mask = None if sample.mask is None else sample.mask.take(index, axis)
            image = sample.image.take(index, axis)
            vertical, horizontal = (k for k in range(3) if k != axis)
            aspect = spacing[vertical] / spacing[horizontal]
            _draw(ax, image, mask, "lower", aspect)
            _sides(ax, data.orientation, vertical, horizontal)
            depth = sample.image.shape[axis]
            ax.set_title(f"{plane}, {index + 1} of {depth}", fontsize=8)
        line[0].set_ylabel(sample.title, fontsize=8, labelpad=12)
    _legend(figure, scenario)
    return figure


def _slice_index(sample: Sample, axis: int) -> int:
    """Return the slice with most of the mask, or the middle one."""
    plane_axes = tuple(k for k in range(3) if k != axis)
    if sample.mask is not None and sample.mask.any():
        return int(np.count_nonzero(sample.mask, axis=plane_axes).argmax())
    return int(sample.image.shape[axis]) // 2


def _draw(
    ax: Any, image: NDArray[Any], mask: NDArray[Any] | None, origin: str, aspect: float = 1.0
) -> None:
    """Draw an image (H, W, C), its mask half transparent over it."""
    channels = image if image.shape[-1] == 3 else image[..., 0]
    low, high = np.percentile(channels, (0.5, 99.5))
    grey = ((channels - low) / (high - low if high > low else 1)).clip(0, 1).astype(np.float32)
    ax.imshow(grey, cmap="gray", vmin=0, vmax=1, origin=origin, aspect=aspect)
    if mask is not None:
        cover = np.ma.masked_equal(mask, 0)
        style = {"cmap": "tab10", "vmin": 1, "vmax": 10, "interpolation": "none"}
        ax.imshow((cover - 1) % 10 + 1, origin=origin, aspect=aspect, alpha=0.45, **style)
    ax.set(xticks=[], yticks=[])


def _sides(ax: Any, orientation: str, vertical: int, horizontal: int) -> None:
    """Write the letters of a plane's four sides; ``?`` if the orientation is unknown."""
    letters = orientation[::-1] if len(orientation) == 3 else ""  # of z, y and x
    style: Any = {"transform": ax.transAxes, "fontsize": 8, "color": "#d55e00", "weight": "bold"}
    right, top = (letters[horizontal], letters[vertical]) if letters else ("?", "?")
    left, bottom = OPPOSITE.get(right, "?"), OPPOSITE.get(top, "?")
    ax.text(0.99, 0.5, right, ha="right", va="center", **style)
    ax.text(0.01, 0.5, left, ha="left", va="center", **style)
    ax.text(0.5, 0.99, top, ha="center", va="top", **style)
    ax.text(0.5, 0.01, bottom, ha="center", va="bottom", **style)


def _legend(figure: plot.Figure, scenario: Scenario) -> None:
    """Name the colours of the mask's classes."""
    if scenario.targets != "segmentation":
        return
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    colours = colormaps["tab10"]
    names = map(plot.shorten, scenario.dataset.classes[1:11])
    handles = [Patch(color=colours(k), alpha=0.6, label=name) for k, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8)
