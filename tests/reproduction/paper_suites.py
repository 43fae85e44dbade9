"""The suites of papers: their files, what they name, and their cells."""

from pathlib import Path

from pomona.experiments.grid import plan
from pomona.experiments.suite import read_suite

FOLDER = Path(__file__).parents[2] / "reproduction"
SUITES = sorted(FOLDER.glob("*.toml"))


def suite(name):
    return read_suite(FOLDER / f"{name}.toml")


def cells(name, size):
    """Every run that a size may need."""
    return [cell for group in plan(suite(name), size) for cell in group.cells()]
