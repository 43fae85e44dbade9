"""The suites of papers: their files, what they name, and their cells."""

from functools import cache
from pathlib import Path
from typing import get_args

from pomona.experiments.grid import plan
from pomona.experiments.suite import Size, read_suite

FOLDER = Path(__file__).parents[2] / "reproduction"
SUITES = sorted(FOLDER.glob("*.toml"))
SIZES = get_args(Size)


@cache
def suite(name):
    return read_suite(FOLDER / f"{name}.toml")


@cache
def planned(name, size):
    """The groups of a size: seconds for a large suite, so several tests share them."""
    return plan(suite(name), size)


def cells(name, size):
    """Every run that a size may need."""
    return [cell for group in planned(name, size) for cell in group.cells()]
