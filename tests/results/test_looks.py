"""Styles of methods on a page: distinct by colour and by another cue, and visible on light and dark
pages.
"""

from itertools import combinations
from math import dist

import numpy as np
import pytest
from browsing import contrast

from pomona.methods import METHODS
from pomona.results.figures.plot import shorten
from pomona.results.method_colours import COLOURS, DASHES, DISTINCT, FIXED, MARKERS, styles

TITLES = [settings().method().card.presentation.title for settings in METHODS.values()]
INVENTED = [
    "FedAS",
    "FedProto",
    "GPFL",
    "FedGH",
    "FedCP",
    "FedDBE",
    "pFedFDA",
    "my own",
    "Ünser Verfahren",
    "x" * 90,
]
PAPERS = ([0xFD, 0xFD, 0xFB], [0x15, 0x18, 0x1A])


def channels(colour: str) -> list[float]:
    return [float(v) for v in bytes.fromhex(colour[1:])]


def oklab(colour: str) -> tuple[float, float, float]:
    """Björn Ottosson's colour space, in which distances roughly match perception."""
    r, g, b = (
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
        for v in (c / 255 for c in channels(colour))
    )
    cones = (
        0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
        0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
        0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
    )
    x, y, z = (v ** (1 / 3) for v in cones)
    return (
        0.2104542553 * x + 0.7936177850 * y - 0.0040720468 * z,
        1.9779984951 * x - 2.4285922050 * y + 0.4505937099 * z,
        0.0259040371 * x + 0.7827717662 * y - 0.8086757660 * z,
    )


@pytest.mark.parametrize("side", [0, 1])
def test_every_colour_stands_out_from_its_page_and_from_the_others(side: int) -> None:
    colours = [pair[side] for pair in COLOURS]
    assert all(contrast(channels(colour), PAPERS[side]) >= 3 for colour in colours)
    assert min(dist(oklab(a), oklab(b)) for a, b in combinations(colours, 2)) >= 0.1


@pytest.mark.parametrize("size", range(1, DISTINCT + 1))
def test_no_two_methods_of_a_page_look_alike(size: int) -> None:
    random, every = np.random.default_rng(size), [*TITLES, *INVENTED]
    assert len(every) > 55
    for _ in range(200):
        chosen = styles(random.permutation(every)[:size].tolist())
        for values in zip(*[(x.colour, x.bright, x.dash, x.marker) for x in chosen], strict=True):
            assert len(set(values)) == size, "colour, dash and marker each tell them apart"


def test_runs_of_one_method_look_unlike_too() -> None:
    assert len(set(styles(["FedAvg"] * 5 + ["FedAS"] * 5))) == 10


def test_with_more_methods_a_colour_comes_with_another_dash() -> None:
    chosen = styles([*TITLES, *INVENTED])
    assert len({(style.colour, style.dash) for style in chosen}) == len(TITLES) + len(INVENTED)


def test_methods_that_are_drawn_often_keep_their_look() -> None:
    assert set(FIXED) <= set(TITLES)
    for title, style in zip(FIXED, styles(FIXED), strict=True):
        assert styles(["FedAS", "FedBN", title, "my own"])[2] == style
    assert styles(["FedAS"])[0] != styles(["Separate"])[0]


def test_there_are_as_many_dashes_and_markers_as_colours() -> None:
    assert len(set(DASHES)) == len(set(MARKERS)) == len(COLOURS) == DISTINCT == 12


def test_long_names_that_differ_at_their_end_stay_apart() -> None:
    assert len({shorten(f"Krankenhaus der Barmherzigen Brüder {k:02d}") for k in range(60)}) == 60
