"""Figures and axes of the report: their layout, and what is drawn the same way in several figures."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Layout: TypeAlias = Literal["constrained", "compressed"]


def panels(
    width: float, height: float, rows: int = 1, columns: int = 1, *, layout: Layout = "constrained", **grid: Any
) -> tuple["Figure", NDArray[Any]]:
    """A figure of the given size in inches and its (rows, columns) array of axes.

    Axes that hold an image keep its proportions; only the "compressed" layout finds room for their labels in one go.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    return figure, np.asarray(figure.subplots(rows, columns, squeeze=False, **grid))


def bare(ax: Any) -> None:
    """Take the frame and the tick marks off axes that hold a picture."""
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def grid(*axes: Any, along: str = "both") -> None:
    """Switch on the guide lines of some axes."""
    for ax in axes:
        ax.grid(visible=True, axis=along)


def over_rounds(*axes: Any) -> None:
    """Make the x axis of some axes one of rounds, which are whole numbers."""
    for ax in axes:
        ax.set_xlabel("round")
        ax.locator_params(axis="x", integer=True, min_n_ticks=1)


def bundle(ax: Any, x: NDArray[Any], curves: NDArray[np.float64], **look: Any) -> None:
    """Draw curves (T, k) over x (T,) that look the same, as one path: many would be a page of paths."""
    along = np.tile(np.append(x.astype(np.float64), np.nan), curves.shape[1])
    ax.plot(along, np.vstack([curves, np.full((1, curves.shape[1]), np.nan)]).T.ravel(), **look)


def legend_below(figure: "Figure", columns: int) -> None:
    """A legend below the axes of a figure, which grows by what a legend of more than three rows needs."""
    legend = figure.legend(loc="outside lower center", ncols=columns)
    rows = -(-len(legend.get_texts()) // columns)
    figure.set_figheight(figure.get_figheight() + 0.22 * max(0, rows - 3))
