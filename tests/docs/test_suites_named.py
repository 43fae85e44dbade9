"""The page of the suites: each of the package with its cost in runs, and every key."""

import re
from pathlib import Path

import pytest

from pomona.experiments.grid import plan
from pomona.experiments.reference import Reference, ReferenceScenario
from pomona.experiments.suite import MethodPart, ScenarioPart, SizePart, Suite, read_suite, suites
from suites_listed import assert_runs, listed

PAGE = (Path(__file__).parents[2] / "docs" / "suites.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_every_suite_is_listed_with_its_runs():
    rows = listed(PAGE)
    assert rows.keys() == suites().keys()
    for name, file in suites().items():
        assert_runs(
            rows[name], read_suite(file), lambda size, file=file: plan(read_suite(file), size)
        )


def test_every_key_of_a_file_of_reference_numbers_is_on_the_page():
    table = PAGE[PAGE.index("| part | key |") :].split("\n\n")[0]
    keys = set(re.findall(r"`(\w+)`", table))
    for record in (Reference, ReferenceScenario):
        assert record.model_fields.keys() - {"scenario"} <= keys


def test_every_key_of_a_suite_is_on_the_page():
    table = PAGE[PAGE.rindex("| part | key |") :].split("\n\n")[0]
    keys = {
        name for cell in re.findall(r"`([\w.]+)`", table) for name in (cell, cell.partition(".")[0])
    }
    sections = {"base", "size", "scenario", "method", "run"}  # sections, and the keys of a run
    for record in (Suite, ScenarioPart, MethodPart, SizePart):
        assert record.model_fields.keys() - sections <= keys
