"""Releases that privacy does not cover: named per method, refused with a remedy, accepted by
name.
"""

import re
import tomllib
from pathlib import Path

import pytest
from private_problem import privacy
from pydantic import ValidationError

from pomona.core.errors import ConfigError
from pomona.methods import METHODS
from pomona.privacy.settings import RELEASES, release_problems, uncovered
from pomona.scenario import Scenario
from problems import tiny

BUDGET = {"epsilon_budget": 8.0}


def releases_of(name, **settings):
    return METHODS[name](**settings).method().card.privacy.releases


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_says_what_is_not_covered(name):
    names = {release.name for release in uncovered(privacy(**BUDGET), releases_of(name))}
    assert names <= set(RELEASES)
    theirs = {"fedfomo": {"validation-losses"}, "fedfomo-ma": {"validation-losses"}, "fedphp": {"output-criterion"},
           "fedphp+ala": {"output-criterion"}, "fed-rod": {"output-criterion"}, "moon": {"output-criterion"},
           "fedavg-data": {"shared-samples"},
           "fedas": {"output-criterion"}, "feddbe": {"class-means", "output-criterion"},
           "fedpac": {"class-means", "output-criterion"}, "fedproto": {"class-means", "output-criterion"},
           "fedtgp": {"class-means", "output-criterion"},
           "ifca": {"training-loss"}, "q-fedavg": {"training-loss"},
           "gpfl": {"output-criterion"}, "perfcl": {"output-criterion"},
           "pgfed": {"training-loss"}, "pgfedmo": {"training-loss"}}  # fmt: skip
    assert names == {"sample-counts", "metrics"} | theirs.get(name, set())


def test_the_page_names_the_methods_of_each_release():
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| (.*) \|$", page, re.MULTILINE)
    assert {name for name, _ in rows} == set(RELEASES)
    cards = [config().method().card for config in METHODS.values()]
    titles = {card.presentation.title.removesuffix("+ALA") for card in cards}
    by_title = {config().method().card.presentation.title: config for config in METHODS.values()}
    for release, cell in rows:
        making = {c.presentation.title.removesuffix("+ALA") for c in cards if release in names(c)}
        assert set(re.findall(r"[\w+-]+", cell)) & titles == making, release
        for title, key, value in re.findall(r"([\w+-]+), unless `method\.(\w+) = (\d+)`", cell):
            assert release not in names(by_title[title](**{key: int(value)}).method().card)


def names(card):
    return {release.name for release in card.privacy.releases}


def test_what_follows_from_the_data_and_the_budget():
    assert RELEASES["feature-moments"] in uncovered(privacy(**BUDGET), content="table")
    assert RELEASES["vocabulary"] in uncovered(privacy(**BUDGET), content="text")
    assert RELEASES["unlimited-epsilon"] in uncovered(privacy())
    assert not releases_of("fedphp", transfer_weight=0.0)


def test_the_refusal_names_each_release_and_the_line_that_accepts_all():
    (problem,) = release_problems(privacy(acknowledge=("metrics",)), [50], releases_of("fedfomo"))
    for name in (
        "sample-counts",
        "validation-losses",
        "unlimited-epsilon",
        "privacy.epsilon_budget",
    ):
        assert name in problem
    accepted = problem.partition("privacy.acknowledge = ")[2]
    names = tomllib.loads(f"v = {accepted}")["v"]
    assert not [*release_problems(privacy(acknowledge=names), [50], releases_of("fedfomo"))]


def test_unknown_names_and_a_large_delta_and_split_batches_are_refused():
    problems = [*release_problems(privacy(acknowledge=("metric",)), [50, 200_000])]
    for problem, phrase in zip(
        problems, ("did you mean metrics", "1 / 200000", "metrics ("), strict=True
    ):
        assert phrase in problem
    for name, bad, good, remedy in (
        ("partialfed", {"rule": "adaptive"}, {"rule": "lower-shared"}, "lower-shared"),
        ("per-fedavg", {"order": "exact"}, {"order": "hf"}, "method.order to first or hf"),
    ):
        assert METHODS[name](**good).method().card.privacy.not_private is None
        with pytest.raises(ConfigError, match=remedy):
            Scenario.prepare(tiny(name, bad, privacy=privacy().model_dump()))


def test_settings_say_when_there_is_no_privacy():
    assert privacy(seed=None).void is None
    assert "test seed" in privacy(seed=0).void
    assert "noise_multiplier" in privacy(seed=None, noise_multiplier=0).void
    for changes in (
        {"noise_multiplier": -1},
        {"max_grad_norm": 0},
        {"delta": 0},
        {"delta": 1},
        {"epsilon_budget": 0},
    ):
        with pytest.raises(ValidationError):
            privacy(**changes)


def test_the_guide_names_what_a_private_study_has_to_acknowledge():
    """A study on tables needs one name more."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "federation.md").read_text()
    sentence = guide.partition("a private study needs at least")[2].partition("own code")[0]
    general, tables = (re.findall('"(.+?)"', clause) for clause in sentence.split("of tables also"))
    for content, names in (("image", general), ("table", general + tables)):
        assert {r.name for r in uncovered(privacy(**BUDGET), content=content)} == set(names)
