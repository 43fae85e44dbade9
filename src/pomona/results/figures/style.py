"""House style of the Matplotlib figures, and what several share: axes, legends, labels of
curves.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from warnings import catch_warnings, filterwarnings

import numpy as np
from numpy.typing import NDArray

from pomona.results.method_colours import DISTINCT

if TYPE_CHECKING:
    from matplotlib.figure import Figure


INK = "#1d2125"
"""Text colour."""
FRAME = "#8b9198"
"""A grey for axes and guides that is legible on white and on near black."""
DARK, PALE, MISSING = "#111111", "#f7f7f7", "#9aa0a6"
"""Fixed colours for marks on top of a picture, independent of the page's theme."""
KIN = "#009e73"
"""Colour of clients of the same true group."""


def client_colours(n: int) -> list[Any]:
    """Return a colour for each of n clients, repeating after twenty."""
    from matplotlib import colormaps

    tab = colormaps["tab20"]
    return [tab(2 * i % tab.N + i % tab.N // (tab.N // 2)) for i in range(n)]


def shorten(name: str, limit: int = 14) -> str:
    """Shorten a name to fit an axis."""
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


@contextmanager
def drawing() -> Iterator[None]:
    """Context in which figures are created and saved in the house style."""
    from matplotlib import rc_context

    look: Any = {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "axes.titlesize": 10.5,
        "axes.titlelocation": "left",
        "axes.labelsize": 10,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "legend.fontsize": 9.5,
        "legend.frameon": False,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "axes.edgecolor": FRAME,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": False,
        "grid.color": FRAME,
        "grid.alpha": 0.3,
        "grid.linewidth": 0.6,
        "xtick.color": FRAME,
        "ytick.color": FRAME,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "lines.linewidth": 1.8,
        "lines.solid_capstyle": "round",
        "figure.facecolor": "none",
        # Names come from data: dollar signs must not start formulas.
        "text.parse_math": False,
        "svg.fonttype": "path",
        "svg.hashsalt": "pomona",
        # Keep text as text: TrueType, which journals accept (they refuse the default, Type 3).
        "pdf.fonttype": 42,
    }
    with rc_context(look), catch_warnings():
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
    layout: Layout = "constrained",
    **grid: Any,
) -> tuple["Figure", NDArray[Any]]:
    """Return a figure of the given size in inches and its (rows, columns) array of axes.

    Axes with an image keep its proportions; only the "compressed" layout then places their labels
    in one pass.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    return figure, np.asarray(figure.subplots(rows, columns, squeeze=False, **grid))


def bare(ax: Any) -> None:
    """Remove the frame and the tick marks from axes with a picture."""
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def named(axis: Any, names: Sequence[str], most: int, **look: Any) -> None:
    """Label the places 0, 1, ... of an axis with names; not if there are more than ``most``."""
    axis.set_ticks(range(len(names)), names, **look) if len(names) <= most else axis.set_ticks([])


def grid(*axes: Any, along: str = "both") -> None:
    """Show the grid lines of some axes."""
    for ax in axes:
        ax.grid(visible=True, axis=along)


def over_rounds(*axes: Any) -> None:
    """Set the x axis of some axes to rounds, which are integers."""
    for ax in axes:
        ax.set_xlabel("round")
        ax.locator_params(axis="x", integer=True, min_n_ticks=1)


def bundle(ax: Any, x: NDArray[Any], curves: NDArray[np.float64], **look: Any) -> None:
    """Draw curves (T, k) over x (T,) with one style as a single path, to keep the page small."""
    along = np.tile(np.append(x.astype(np.float64), np.nan), curves.shape[1])
    ax.plot(along, np.vstack([curves, np.full((1, curves.shape[1]), np.nan)]).T.ravel(), **look)


def legend_below(figure: "Figure", columns: int) -> None:
    """Add a legend below the axes of a figure, enlarging it for more than three rows."""
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
    ends = sorted(
        ((points[-1][1], name) for name, (points, _) in curves.items()), key=lambda end: end[0]
    )
    place = low - step
    for y, name in ends:
        place = max(place + step, min(y, high - step * (len(ends) - 1)))
        points, colour = curves[name]
        ax.annotate(
            shorten(name),
            points[-1],
            (1.02, (place - low) / (high - low)),
            textcoords="axes fraction",
            color=colour,
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5},
        )


def hidden(curves: Mapping[str, Points]) -> str:
    """Describe curves that coincide in every point, so that one hides the other; empty if there are
    none.
    """
    alike: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for name, points in curves.items():
        alike.setdefault(tuple(points), []).append(name)
    same = [" = ".join(names) for names in alike.values() if len(names) > 1]
    return f" Curves that coincide: {'; '.join(same)}." if same else ""
