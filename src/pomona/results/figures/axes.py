"""Figures and axes of the report: layout, and elements shared by several figures."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Layout: TypeAlias = Literal["constrained", "compressed"]


def panels(
    width: float, height: float, rows: int = 1, columns: int = 1, *, layout: Layout = "constrained", **grid: Any
) -> tuple["Figure", NDArray[Any]]:
    """Return a figure of the given size in inches and its (rows, columns) array of axes.

    Axes with an image keep its proportions; only the "compressed" layout then places their labels in one pass.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    return figure, np.asarray(figure.subplots(rows, columns, squeeze=False, **grid))


def bare(ax: Any) -> None:
    """Remove the frame and the tick marks from axes with a picture."""
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


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
