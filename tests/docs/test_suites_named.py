"""The page of the suites lists each with its cost in runs."""

import re
from pathlib import Path

import pytest

from pomona.experiments.grid import plan
from pomona.experiments.packaged_suites import suites
from pomona.experiments.suite import MethodPart, ScenarioPart, SizePart, Suite, read_suite

PAGE = (Path(__file__).parents[2] / "docs" / "suites.md").read_text(encoding="utf-8")
ROWS = {
    row[0].strip("` "): row for row in (line.strip("| ").split(" | ") for line in PAGE.splitlines()) if len(row) == 5
}


def runs(suite, size):
    """Number of runs of a size: the search, and the final runs of one point, one of them made by the search."""
    made = 0
    for group in plan(suite, size):
        made += len({c.folder for c in (*group.trials, *group.finals[0])})
    return made


def test_every_suite_is_on_the_page():
    assert set(suites()) == set(ROWS) - {"suite", "---"}


@pytest.mark.parametrize("name", suites())
def test_its_title_and_runs_are_those_of_the_file(name):
    suite = read_suite(suites()[name])
    _, title, cpu, minutes, full = ROWS[name]
    assert title == suite.title
    assert (int(cpu), int(full)) == (runs(suite, "cpu"), runs(suite, "full"))
    assert re.fullmatch(r"\d+ min|minutes|.*h", minutes)


def test_every_key_of_a_suite_is_on_the_page():
    table = PAGE[PAGE.index("| part | key |") :].split("\n\n")[0]
    named = {name for cell in re.findall(r"`([\w.]+)`", table) for name in (cell, cell.partition(".")[0])}
    parts = {"base", "size", "scenario", "method", "run"}  # sections, and the keys of a run
    for kind in (Suite, ScenarioPart, MethodPart, SizePart):
        assert kind.model_fields.keys() - parts <= named
