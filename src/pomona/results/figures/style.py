"""How figures look: one colour and marker a method in every figure, readable on a light and on a dark page.

The eight most drawn methods wear the Okabe-Ito palette (separate training grey and dashed, FedAvg in the colour of the
text), the others tab20.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from warnings import catch_warnings, filterwarnings

INK = "#1d2125"
"""The colour of text: becomes the page's own in the inlined drawing, so nothing else may use it."""
FRAME = "#8b9198"
"""A grey for axes and guides that reads on white and on near black."""
DARK, PALE, MISSING = "#111111", "#f7f7f7", "#9aa0a6"
"""Fixed colours for what is drawn on top of a picture: they must not follow the page."""
KIN = "#009e73"
"""The colour of clients of the same true group."""

METHODS = {
    "separate": ("Separate", "#7f868d"),
    "fedavg": ("FedAvg", INK),
    "apple": ("APPLE", "#d55e00"),
    "fedavg-ft": ("FedAvg-FT", "#0072b2"),
    "fedala": ("FedALA", "#009e73"),
    "fedamp": ("FedAMP", "#cc79a7"),
    "fedfomo": ("FedFomo", "#e69f00"),
    "fedprox": ("FedProx", "#56b4e9"),
    "fedprox-ft": ("FedProx-FT", "#17becf"),
    "heurfedamp": ("HeurFedAMP", "#e377c2"),
    "apfl": ("APFL", "#9467bd"),
    "ditto": ("Ditto", "#8c564b"),
    "pfedme": ("pFedMe", "#bcbd22"),
    "fedrep": ("FedRep", "#2ca02c"),
    "per-fedavg": ("Per-FedAvg", "#1f77b4"),
    "scaffold": ("SCAFFOLD", "#d62728"),
    "feddyn": ("FedDyn", "#ff9896"),
    "fedphp": ("FedPHP", "#c5b0d5"),
    "partialfed": ("PartialFed", "#98df8a"),
    "lg-fedavg": ("LG-FedAvg", "#c49c94"),
    "mocha": ("MOCHA", "#aec7e8"),
    "cfl": ("CFL", "#ffbb78"),
    "fedavg-c": ("FedAvg-C", "#9edae5"),
    "fedprox-c": ("FedProx-C", "#dbdb8d"),
    "fedavg-data": ("FedAvg+Data", "#f7b6d2"),
    "fedfomo-ma": ("FedFomo-MA", "#ff7f0e"),
}
MARKERS = "oDs^vPX<>p"
DASHES: tuple[Any, ...] = ("-", (0, (7, 2)), (0, (7, 2, 1.5, 2)), (0, (3, 1.5)))


def _index(method: str) -> int:
    """A method's place in the table; one outside it (a user's own) gets a place from its name."""
    return list(METHODS).index(method) if method in METHODS else zlib.crc32(method.encode()) % len(METHODS)


def label_of(method: str) -> str:
    """A method's name as its paper writes it."""
    own, plus, wrapper = method.partition("+")
    return METHODS[own][0] + plus + wrapper.upper() if own in METHODS else method


def colour_of(method: str) -> str:
    """A method's colour, the same in every figure."""
    return list(METHODS.values())[_index(method)][1]


def marker_of(method: str) -> str:
    """A method's marker, the same in every figure."""
    return MARKERS[_index(method) % len(MARKERS)]


def dash_of(method: str, twin: int) -> Any:
    """A line style: separate training is dashed, runs that share a method differ."""
    return (0, (4, 2)) if method == "separate" else DASHES[twin % len(DASHES)]


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
