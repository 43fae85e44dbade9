"""The reference of settings: complete, explained, and searchable by any of its words."""

import re
from contextlib import suppress
from pathlib import Path

import pytest

from pomona.cli import main
from pomona.cli.settings import all_settings, find
from pomona.config import Config, keys
from pomona.core.errors import ConfigError
from pomona.methods import METHODS
from pomona.objective.learning_rate_range_test import ADAPTIVE_RATES, RATES
from pomona.partition import RECIPES
from pomona_federation.agreement import Federation
from settings_pages import pages

pytestmark = pytest.mark.long

DOCS = Path(__file__).parents[2] / "docs"


def test_every_key_that_a_run_knows_is_in_the_reference_with_its_meaning():
    listed = {s.key: s for s in all_settings()}
    of_runs = {
        key
        for method in METHODS
        for recipe in RECIPES
        for key in keys({"method": {"name": method}, "partition": {"name": recipe}})
    }
    chosen = {"method.name", "partition.name", "privacy", "membership"}
    assert of_runs - chosen <= set(listed)
    assert [key for key, s in listed.items() if not s.meaning or s.kind == "any"] == []


def test_defaults_and_limits_are_those_of_the_settings_records():
    (rounds,) = (s for s in find("rounds", all_settings()) if not s.owner)
    assert rounds.default == str(Config.model_fields["rounds"].default)
    assert rounds.kind.startswith("whole number, from 1")
    (lr,) = find("lr", all_settings())
    assert (lr.default, lr.kind) == ("auto", "number, above 0 or auto")
    for clause, rates in zip(lr.meaning.split("; with adam"), (RATES, ADAPTIVE_RATES), strict=True):
        assert [float(rate) for rate in clause.rpartition("from ")[2].split(", ")] == list(rates)


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("method.mu", "method.mu"),
        ("mu", "method.mu"),
        ("apple", "method.dr_lr"),
        ("data", "data.path"),
    ],
)
def test_a_key_a_section_and_a_method_find_their_settings(query, key):
    assert key in {s.key for s in find(query, all_settings())}


def test_an_unknown_word_gets_near_names():
    with pytest.raises(ConfigError, match="no setting 'batchsize'; did you mean batch_size"):
        find("batchsize", all_settings())


def test_the_settings_that_other_frameworks_settings_become_exist():
    text, _, _ = (DOCS / "guides/migrate.md").read_text().partition("## What goes wrong")
    cells = [line.split(" | ")[-1] for line in text.splitlines() if line.startswith("| ")]
    targets = {key.partition("=")[0] for cell in cells for key in re.findall(r"`([\w.=-]+)`", cell)}
    elsewhere = {"CUDA_VISIBLE_DEVICES", "quorum"}
    chosen = {"method.name", "partition.name"}
    assert targets - {s.key for s in all_settings()} - {*METHODS, *elsewhere, *chosen} == set()
    assert len(targets) > 40


def test_the_pages_of_the_site_have_a_line_for_each_key():
    runs, files, _ = pages().values()
    assert [
        s.key
        for s in all_settings()
        if f"| `{s.key}` | " not in runs and not s.key.startswith("method.")
    ] == []
    keys_of_file = Federation.model_fields.keys() - {"study"}  # the study's keys are the file's
    assert [key for key in keys_of_file if f"| `{key}` | " not in files] == []


@pytest.mark.parametrize(
    "argv", [["run", "--help"], ["settings"], ["settings", "lr"], ["settings", "lr", "--json"]]
)
def test_help_of_run_and_the_command_show_settings(capsys, argv):
    with suppress(SystemExit):
        main(argv)
    assert "learning rate; auto: chosen by a range test" in " ".join(
        capsys.readouterr().out.split()
    )
