"""Labels of curves: at their ends if a page has more than there are looks, and for curves that coincide."""

from collections.abc import Mapping, Sequence
from typing import Any

from pomona.results.figures.style import shorten
from pomona.results.look import DISTINCT

Points = Sequence[tuple[float, float]]


def name_ends(ax: Any, curves: Mapping[str, tuple[Points, str]]) -> None:
    """Write each curve's name to the right of its end, without overlaps, if there are more than ``DISTINCT``.

    Args:
        ax: axes with the curves drawn already.
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
    """Describe curves that coincide in every point, so that one hides the other; empty if there are none."""
    alike: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for name, points in curves.items():
        alike.setdefault(tuple(points), []).append(name)
    same = [" = ".join(names) for names in alike.values() if len(names) > 1]
    return f" One curve lies on another: {'; '.join(same)}." if same else ""
