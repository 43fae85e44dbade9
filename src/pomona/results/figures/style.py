"""Style of the Matplotlib figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from warnings import catch_warnings, filterwarnings

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
        # A name in a script that the font lacks is drawn as boxes; the tables and CSVs have the text.
        filterwarnings("ignore", message=r"Glyph .* missing from font")
        yield
