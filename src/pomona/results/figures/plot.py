"""A figure with its text and numbers, the folder that contains the figures of one page, and the
house style of Matplotlib: axes, legends, labels of curves.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from warnings import catch_warnings, filterwarnings

import numpy as np
from numpy.typing import NDArray

from pomona.core.bounds import parse
from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import anew, content, safe_path
from pomona.core.table import csv_text
from pomona.results.method_colours import DISTINCT

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure


Figure: TypeAlias = "MatplotlibFigure"
Rows: TypeAlias = list[Mapping[str, Any]]

DRAWINGS = {"png": "Creation Time", "svg": "Date", "pdf": "CreationDate"}
"""Formats of the drawing, with the metadata for the date, which is omitted so that files are
reproducible.
"""
FORMATS = (*DRAWINGS, "csv")
INDEX = "index.json"
"""List of files written by the report; no other files are ever deleted."""


def parse_formats(text: str) -> tuple[str, ...]:
    """Parse the formats in a list such as ``svg,pdf``, each once, in the order of ``FORMATS``; none
    for an empty list.

    Raises:
        ConfigError: an unknown format.
    """
    names = {name.strip().lower() for name in text.split(",") if name.strip()}
    if unknown := sorted(names - set(FORMATS)):
        raise ConfigError(
            f"figures are written as {', '.join(FORMATS)}; unknown: {', '.join(unknown)}"
        )
    return tuple(name for name in FORMATS if name in names)


def records(columns: str, lines: Iterable[Iterable[Any]]) -> Rows:
    """Return a figure's numbers from lines of values; ``columns``: their names, between spaces."""
    return [dict(zip(columns.split(), line, strict=True)) for line in lines]


@dataclass(frozen=True)
class ReportFigure:
    """A figure of the report.

    Attributes:
        name: file name without suffix, unique in a report.
        title: heading.
        caption: content of the figure and how to read it.
        alt: text alternative for readers who cannot see it.
        figure: the drawing.
        rows: the numbers drawn, one mapping per row of the CSV, all with the same keys.
        tips: texts of the marks of each artist with a gid, for the page.
    """

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure
    rows: Rows
    tips: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def save(self, folder: Path, formats: Sequence[str] = FORMATS) -> None:
        """Write the figure in some ``FORMATS`` into a folder, which is made if there is none."""
        folder.mkdir(parents=True, exist_ok=True)
        for suffix in formats:
            path = anew(folder / f"{self.name}.{suffix}")
            if suffix == "csv":
                path.write_text(csv_text(self.rows), encoding="utf-8")
            else:
                with drawing():  # also for a figure that was drawn before
                    self.draw(path, suffix)

    def pixels(self) -> bytes:
        """Return the drawing as a PNG."""
        buffer = BytesIO()
        self.draw(buffer, "png")
        return buffer.getvalue()

    def draw(
        self, target: Path | BytesIO, suffix: str, letters: str = "path", paper: str = "white"
    ) -> None:
        """Write the drawing in one of ``DRAWINGS``; by default for use in slides and papers, on
        white, and as SVG with letters as paths.
        """
        from matplotlib import rc_context

        for axes in self.figure.axes:
            _bound(axes)
        if engine := self.figure.get_layout_engine():
            # Once for all formats; savefig would walk through the figure for it once more.
            engine.execute(self.figure)
            self.figure.set_layout_engine(None)
        with rc_context({"svg.fonttype": letters}):
            self.figure.savefig(
                target, format=suffix, dpi=150, facecolor=paper, metadata={DRAWINGS[suffix]: None}
            )


LARGEST = float(np.finfo(np.float32).max)
"""Larger numbers are drawn as this one."""


def _bound(axes: Any) -> None:
    """Limit axes to numbers whose differences are finite."""
    for name in "xy":
        low, high = getattr(axes, f"get_{name}lim")()
        if not np.isfinite(high - low):
            getattr(axes, f"set_{name}lim")(max(low, -LARGEST), min(high, LARGEST))


def estimates(
    axes: Any,
    x: NDArray[Any],
    y: NDArray[Any],
    hollow: Sequence[bool],
    style: Mapping[str, Any],
    **whiskers: Any,
) -> None:
    """Draw points (n,) with whiskers, arguments of ``errorbar``; those in ``hollow`` also unfilled,
    as an artist with a gid of its own.
    """
    raster = style.get("rasterized", False)
    axes.errorbar(x, y, fmt="none", ecolor=style["color"], zorder=2, rasterized=raster, **whiskers)
    axes.plot(x, y, **style)
    gid = f"{style.get('gid', 'points')}-hollow"
    hollow_style = {**style, "markerfacecolor": "white", "alpha": 1, "label": None, "gid": gid}
    axes.plot(x[hollow], y[hollow], zorder=3, **hollow_style)


def save(pictures: Sequence[ReportFigure], folder: Path, formats: Sequence[str] = FORMATS) -> None:
    """Save all pictures in some formats, then delete files of earlier calls that were not written
    again.

    Raises:
        OSError: the folder cannot be created or written.
        StorageError: it is a link, so that files of another folder would be replaced.
    """
    safe_path(folder.parent, folder.name).mkdir(parents=True, exist_ok=True)
    new = {f"{picture.name}.{suffix}": picture.title for picture in pictures for suffix in formats}
    old = listed(folder)
    # Both lists, until the old files are deleted: a kill in between leaves no unlisted file.
    _list(folder, dict.fromkeys(old, "") | new)
    for picture in pictures:
        picture.save(folder, formats)
    for name in old - new.keys():
        (folder / name).unlink(missing_ok=True)
    _list(folder, new)


def listed(folder: Path) -> set[str]:
    """Return the names of figure files in the list; anything else in it is ignored."""
    try:
        names = parse(content(folder / INDEX), StorageError)
    except (OSError, StorageError):
        return set()
    if isinstance(names, dict):
        return {n for n in names if re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(FORMATS)})", n)}
    return set()


def _list(folder: Path, names: dict[str, str]) -> None:
    text = json.dumps(names, indent=2, ensure_ascii=False) + "\n"
    anew(folder / INDEX).write_text(text, encoding="utf-8")


WIDTH = 4.8
"""Width of a figure in inches: half of the page; on a phone its letters shrink by a quarter."""
INK = "#1d2125"
"""Text colour."""
FRAME = "#8b9198"
"""A grey for axes and guides that is legible on white and on near black."""
DARK, PALE, MISSING = "#111111", "#f7f7f7", "#9aa0a6"
"""Fixed colours for marks on top of a picture, independent of the page's theme."""
LUMINANCE = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue in the lightness of a colour."""
GROUP = "#009e73"
"""Colour of clients of the same true group."""


def client_colours(n: int) -> list[Any]:
    """Return a colour for each of n clients, repeating after twenty."""
    from matplotlib import colormaps

    tab = colormaps["tab20"]
    return [tab(2 * i % tab.N + i % tab.N // (tab.N // 2)) for i in range(n)]


def shorten(name: str, limit: int = 14) -> str:
    """Shorten a name in its middle to fit an axis: many differ in their last letters only."""
    suffix = (limit - 1) // 2
    return name if len(name) <= limit else f"{name[: limit - 1 - suffix]}…{name[-suffix:]}"


@contextmanager
def drawing() -> Iterator[None]:
    """Context in which figures are created and saved in the house style."""
    from matplotlib import rc_context

    style: Any = {
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "axes.edgecolor": FRAME,
        "grid.color": FRAME,
        "xtick.color": FRAME,
        "ytick.color": FRAME,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": False,
        # Names come from data: dollar signs must not start formulas.
        "text.parse_math": False,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "font.size": 10,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "font.family": "DejaVu Sans",
        "axes.titlesize": 10.5,
        "axes.titlelocation": "left",
        "axes.titley": 1.0,  # nothing is above the axes: finding out takes a third of the layout
        "legend.fontsize": 9.5,
        "axes.axisbelow": True,
        "grid.alpha": 0.3,
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.8,
        "lines.solid_capstyle": "round",
        "svg.hashsalt": "pomona",
        # Keep text as text: TrueType, which journals accept (they refuse the default, Type 3).
        "pdf.fonttype": 42,
    }
    with rc_context(style), catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; the tables and CSVs have the
        # text.
        filterwarnings("ignore", message=r"Glyph .* missing from font")
        yield


Layout: TypeAlias = Literal["constrained", "compressed"]


def panels(
    width: float,
    height: float,
    rows: int = 1,
    columns: int = 1,
    *,
    layout: Layout | None = "constrained",
    **grid: Any,
) -> tuple[Figure, NDArray[Any]]:
    """Return a figure of the given size in inches and its (rows, columns) array of axes.

    Axes with an image keep its proportions; only the "compressed" layout then places their labels
    in one pass.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    axes = np.asarray(figure.subplots(rows, columns, squeeze=False, **grid))
    for ax in axes.flat:
        # Every tick and every spine that the layout measures costs a millisecond.
        ax.locator_params(nbins=5)
        ax.spines[:].set_in_layout(False)
    return figure, axes


MAX_LABELS = 45
"""Maximum number of names on an axis of a matrix."""


def matrix(
    values: NDArray[np.float64],
    texts: Sequence[Sequence[str]],
    names: Sequence[str],
    style: Mapping[str, Any],
    label: str,
) -> tuple[Figure, Any]:
    """Draw a square matrix (n, n) as a picture.

    Args:
        values: the colours.
        texts: (n, n) written into the fields; empty for none.
        names: (n,) of the rows, which are those of the columns.
        style: of ``imshow``, as of ``relationships.scale``.
        label: of the colours.

    Returns the figure and its axes.
    """
    n = len(values)
    figure, axes = panels(WIDTH, min(max(0.36 * n + 0.9, 2.8), 4.2), layout="compressed")
    ax = axes[0, 0]
    image = ax.imshow(values, interpolation="nearest", **style)
    text_style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9 if n <= 10 else 8}
    dark = image.to_rgba(values)[..., :3] @ LUMINANCE < 0.5
    for row, line in enumerate(texts):
        for column, text in enumerate(line):
            colour = PALE if dark[row, column] else DARK
            ax.text(column, row, text, color=colour, **text_style)
    labels = [shorten(name, 12) for name in names]
    upright = n > 3 and max(map(len, labels)) > 2
    label_ticks(ax.xaxis, labels, MAX_LABELS, rotation=90 if upright else 0)
    label_ticks(ax.yaxis, labels, MAX_LABELS)
    bare(ax)
    bar = figure.colorbar(image, ax=ax, label=label, fraction=0.046, pad=0.03)
    bar.outline.set_visible(False)
    return figure, ax


def bare(ax: Any) -> None:
    """Remove the frame and the tick marks from axes with a picture."""
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def label_ticks(axis: Any, names: Sequence[str], limit: int, **style: Any) -> None:
    """Label the positions 0, 1, ... of an axis with names; with none above ``limit`` names."""
    if len(names) <= limit:
        axis.set_ticks(range(len(names)), names, **style)
    else:
        axis.set_ticks([])


def grid(*axes: Any, along: str = "both") -> None:
    """Show the grid lines of some axes."""
    for ax in axes:
        ax.grid(visible=True, axis=along)


def over_rounds(*axes: Any) -> None:
    """Set the x axis of some axes to rounds, which are integers."""
    for ax in axes:
        ax.set_xlabel("round")
        ax.locator_params(axis="x", integer=True, min_n_ticks=1)


def bundle(ax: Any, x: NDArray[Any], curves: NDArray[np.float64], **style: Any) -> None:
    """Draw curves (T, k) over x (T,) with one style as a single path, to keep the page small."""
    along = np.tile(np.append(x.astype(np.float64), np.nan), curves.shape[1])
    ax.plot(along, np.vstack([curves, np.full((1, curves.shape[1]), np.nan)]).T.ravel(), **style)


def legend_below(figure: Figure, columns: int) -> None:
    """Add a legend below the axes of a figure, in fewer columns for long names; with more than
    three rows, enlarge it.
    """
    labels = [label for ax in figure.axes for label in ax.get_legend_handles_labels()[1]]
    columns = max(1, min(columns, int(58 / (6 + max(map(len, labels), default=0)))))
    legend = figure.legend(loc="outside lower center", ncols=columns)
    rows = -(-len(legend.get_texts()) // columns)
    figure.set_figheight(figure.get_figheight() + 0.22 * max(0, rows - 3))


Points = Sequence[tuple[float, float]]


def name_ends(ax: Any, curves: Mapping[str, tuple[Points, str]]) -> None:
    """Write each curve's name to the right of its end, without overlaps, if there are more than
    ``DISTINCT``.

    Args:
        ax: axes with the curves drawn already.
        curves: name -> (points, colour).
    """
    if len(curves) <= DISTINCT:
        return
    low, high = ax.get_ylim()
    step = max((high - low) / 24, (high - low) / len(curves))
    endpoints = sorted(
        ((points[-1][1], name) for name, (points, _) in curves.items()), key=lambda end: end[0]
    )
    height = low - step
    for y, name in endpoints:
        height = max(height + step, min(y, high - step * (len(endpoints) - 1)))
        points, colour = curves[name]
        ax.annotate(
            shorten(name),
            points[-1],
            (1.02, (height - low) / (high - low)),
            textcoords="axes fraction",
            color=colour,
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5},
        )


def coinciding(curves: Mapping[str, Points], panel: str = "") -> str:
    """Describe curves that coincide in every point, so that one hides the other, and the panel if
    it is one of several; empty without such curves.
    """
    by_points: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for name, points in curves.items():
        by_points.setdefault(tuple(points), []).append(name)
    groups = [" = ".join(names) for names in by_points.values() if len(names) > 1]
    return f" Curves that coincide{panel}: {'; '.join(groups)}." if groups else ""
