"""Colours of methods: visible on the light page, and no two alike."""

import pytest
from browsing import contrast

from pomona.results.figures.style import PALETTE, on_white

PAPER = [0xFD, 0xFD, 0xFB]


def channels(colour: str) -> list[float]:
    return [float(v) for v in bytes.fromhex(colour[1:])]


@pytest.mark.parametrize("colour", PALETTE)
def test_a_methods_colour_stands_out_from_the_light_page(colour: str) -> None:
    shown = on_white(colour)
    assert contrast(channels(shown), PAPER) >= 3
    if contrast(channels(colour), PAPER) >= 3.05:
        assert shown == colour
    else:
        assert contrast(channels(shown), PAPER) < 3.1, "no darker than it has to be"


def test_darkened_colours_stay_apart() -> None:
    assert len({on_white(colour) for colour in PALETTE}) == len(PALETTE)
