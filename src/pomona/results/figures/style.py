"""Style of the figures that Matplotlib draws."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from warnings import catch_warnings, filterwarnings

INK = "#1d2125"
"""The colour of text."""
FRAME = "#8b9198"
"""A grey for axes and guides that reads on white and on near black."""
DARK, PALE, MISSING = "#111111", "#f7f7f7", "#9aa0a6"
"""Fixed colours for what is drawn on top of a picture: they must not follow the page."""
KIN = "#009e73"
"""The colour of clients of the same true group."""


def client_colours(n: int) -> list[Any]:
    """A colour for each of n clients; they come round again after twenty."""
    from matplotlib import colormaps

    tab = colormaps["tab20"]
    return [tab(2 * i % tab.N + i % tab.N // (tab.N // 2)) for i in range(n)]


def shorten(name: str, limit: int = 14) -> str:
    """A name cut to what an axis has room for."""
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


@contextmanager
def drawing() -> Iterator[None]:
    """Inside, figures are made and saved in the house style; outside, nothing has changed."""
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
        # Names come from data: a dollar sign in one is a dollar sign.
        "text.parse_math": False,
        "svg.fonttype": "path",
        "svg.hashsalt": "pomona",
        # Text stays text: TrueType, which journals take (they refuse the default, Type 3).
        "pdf.fonttype": 42,
    }
    with rc_context(look), catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; the tables and CSVs spell it.
        filterwarnings("ignore", message=r"Glyph .* missing from font")
        yield
