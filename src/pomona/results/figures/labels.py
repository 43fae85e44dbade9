"""Names of curves: beside their ends where a page has more of them than looks, and of curves that hide each other."""

from collections.abc import Mapping, Sequence
from typing import Any

from pomona.results.figures.style import shorten
from pomona.results.look import DISTINCT

Points = Sequence[tuple[float, float]]


def name_ends(ax: Any, curves: Mapping[str, tuple[Points, str]]) -> None:
    """Write each curve's name right of its end, none over another, where there are more than ``DISTINCT``.

    Args:
        ax: axes that hold the curves already.
        curves: name -> (points, colour).
    """
    if len(curves) <= DISTINCT:
        return
    low, high = ax.get_ylim()
    step = max((high - low) / 24, (high - low) / len(curves))
    ends = sorted(((points[-1][1], name) for name, (points, _) in curves.items()), key=lambda end: end[0])
    place = low - step
    for y, name in ends:
        place = max(place + step, min(y, high - step * (len(ends) - 1)))
        points, colour = curves[name]
        ax.annotate(
            shorten(name), points[-1], (1.02, (place - low) / (high - low)), textcoords="axes fraction", color=colour,
            fontsize=8, va="center", arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5},
        )  # fmt: skip


def hidden(curves: Mapping[str, Points]) -> str:
    """A sentence on curves that are the same in every point, so that one hides the other; empty if there is none."""
    alike: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for name, points in curves.items():
        alike.setdefault(tuple(points), []).append(name)
    same = [" = ".join(names) for names in alike.values() if len(names) > 1]
    return f" One curve lies on another: {'; '.join(same)}." if same else ""
