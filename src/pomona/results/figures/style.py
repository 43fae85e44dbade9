"""Style of figures: one colour and marker a method, readable on light and dark pages.

A method says its place in the palette on its card, and a record carries it.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from warnings import catch_warnings, filterwarnings

from pomona.record.presentation import Presentation

INK = "#1d2125"
"""The colour of text: becomes the page's own in the inlined drawing, so nothing else may use it."""
FRAME = "#8b9198"
"""A grey for axes and guides that reads on white and on near black."""
DARK, PALE, MISSING = "#111111", "#f7f7f7", "#9aa0a6"
"""Fixed colours for what is drawn on top of a picture: they must not follow the page."""
KIN = "#009e73"
"""The colour of clients of the same true group."""

# fmt: off
PALETTE = (
    "#7f868d", INK, "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
    "#17becf", "#e377c2", "#9467bd", "#8c564b", "#bcbd22", "#2ca02c", "#1f77b4", "#d62728",
    "#ff9896", "#c5b0d5", "#98df8a", "#c49c94", "#aec7e8", "#ffbb78", "#9edae5", "#dbdb8d",
    "#f7b6d2", "#ff7f0e",
)
# fmt: on
"""By a method's place: first training alone, then the most drawn ones (Okabe-Ito), then tab20."""
PAPER_LUMINANCE = 0.98
"""Of the light page, #fdfdfb; white has 1."""
CONTRAST = 3.0
"""Lines and markers that are paler to the page than this ratio are hard to see."""
MARKERS = "oDs^vPX<>p"
BASELINE = 0
"""The place in the palette of training alone."""
BASELINE_DASH = (0, (4, 2))
DASHES: tuple[Any, ...] = ("-", (0, (7, 2)), (0, (7, 2, 1.5, 2)), (0, (3, 1.5)))


def _place(shown: Presentation) -> int:
    """A method's place in the palette; without one of its own, one that follows from its title."""
    place = zlib.crc32(shown.title.encode()) if shown.palette is None else shown.palette
    return place % len(PALETTE)


def colour_of(shown: Presentation) -> str:
    """A method's colour on white, the same in every figure: that of the palette, darkened where it would be pale."""
    return on_white(bright_colour_of(shown))


def bright_colour_of(shown: Presentation) -> str:
    """A method's colour on near black, as the palette has it."""
    return PALETTE[_place(shown)]


def on_white(colour: str) -> str:
    """A colour #rrggbb, darkened in its own hue until it has ``CONTRAST`` to the light page (WCAG 2.1, 1.4.11)."""
    shares = [v / 255 for v in bytes.fromhex(colour[1:])]
    light = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in shares]
    luminance = 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]
    kept = ((PAPER_LUMINANCE + 0.05) / CONTRAST - 0.05) / luminance
    if kept >= 1:
        return colour
    dimmed = [v * kept * 12.92 if v * kept <= 0.0031308 else 1.055 * (v * kept) ** (1 / 2.4) - 0.055 for v in light]
    return "#" + bytes(int(255 * v) for v in dimmed).hex()


def marker_of(shown: Presentation) -> str:
    """A method's marker, the same in every figure."""
    return MARKERS[_place(shown) % len(MARKERS)]


def dash_of(shown: Presentation, twin: int) -> Any:
    """A line style: separate training is dashed, runs that share a method differ."""
    return BASELINE_DASH if shown.palette == BASELINE else DASHES[twin % len(DASHES)]


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
