"""Each suite is listed with its cost in runs: the package's on the page of suites, the papers' in their folder."""

import re
from pathlib import Path

import pytest

from pomona.experiments.grid import plan
from pomona.experiments.packaged_suites import suites
from pomona.experiments.reference import Reference, ReferenceScenario
from pomona.experiments.suite import MethodPart, ScenarioPart, SizePart, Suite, read_suite

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "suites.md").read_text(encoding="utf-8")
PAPERS = {file.stem: file for file in (ROOT / "reproduction").glob("*.toml")}
ALL = {**suites(), **PAPERS}


def listed(page):
    """Rows of the page's table of suites, by suite."""
    rows = (line.strip("| ").split(" | ") for line in page.splitlines())
    return {row[0].strip("` "): row for row in rows if len(row) == 5 and row[0] not in ("suite", "---")}


ROWS = listed(PAGE) | listed((ROOT / "reproduction" / "README.md").read_text(encoding="utf-8"))


def runs(suite, size):
    """Number of runs of a size: the search, and the final runs of one point, one of them made by the search."""
    made = 0
    for group in plan(suite, size):
        made += len({c.folder for c in (*group.trials, *group.finals[0])})
    return made


def test_every_suite_is_listed():
    assert set(listed(PAGE)) == set(suites())
    assert set(ROWS) == set(ALL)


@pytest.mark.parametrize("name", sorted(ALL))
def test_its_title_and_runs_are_those_of_the_file(name):
    suite = read_suite(ALL[name])
    _, title, cpu, minutes, full = ROWS[name]
    assert title == suite.title
    assert (int(cpu), int(full)) == (runs(suite, "cpu"), runs(suite, "full"))
    assert re.fullmatch(r"\d+ min|minutes|.*h", minutes)


def test_every_key_of_a_file_of_reference_numbers_is_on_the_page():
    table = PAGE[PAGE.index("| part | key |") :].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", table))
    for kind in (Reference, ReferenceScenario):
        assert kind.model_fields.keys() - {"scenario"} <= named


def test_every_key_of_a_suite_is_on_the_page():
    table = PAGE[PAGE.rindex("| part | key |") :].split("\n\n")[0]
    named = {name for cell in re.findall(r"`([\w.]+)`", table) for name in (cell, cell.partition(".")[0])}
    parts = {"base", "size", "scenario", "method", "run"}  # sections, and the keys of a run
    for kind in (Suite, ScenarioPart, MethodPart, SizePart):
        assert kind.model_fields.keys() - parts <= named
