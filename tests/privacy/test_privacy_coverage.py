"""What privacy does not cover: named per method, refused with a remedy, accepted by name."""

import tomllib
from pathlib import Path

import pytest
from private_problem import privacy
from pydantic import ValidationError

from pomona.core.errors import ConfigError
from pomona.methods import METHODS
from pomona.privacy.projection import projected_epsilon
from pomona.privacy.releases import OWN, RELEASES, REMEDIES, check, uncovered
from pomona.privacy.settings import Privacy

BUDGET = {"epsilon_budget": 8.0}


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_says_what_is_not_covered(name):
    names = uncovered(privacy(**BUDGET), METHODS[name]())
    assert set(names) <= set(RELEASES)
    own = {"fedfomo": {"validation-losses"}, "fedfomo-ma": {"validation-losses"}, "fedphp": {"output-criterion"},
           "fedphp+ala": {"output-criterion"}, "fedavg-data": {"shared-samples"}}  # fmt: skip
    assert set(names) == {"sample-counts", "metrics"} | own.get(name, set())


def test_names_are_consistent():
    assert set(OWN) <= set(METHODS)
    assert set(REMEDIES) <= set(RELEASES)
    assert {n for names in OWN.values() for n in names} <= set(RELEASES)


def test_what_follows_from_the_data_and_the_budget():
    fedavg = METHODS["fedavg"]()
    assert "feature-moments" in uncovered(privacy(**BUDGET), fedavg, "table")
    assert "vocabulary" in uncovered(privacy(**BUDGET), fedavg, "text")
    assert "unlimited-epsilon" in uncovered(privacy(), fedavg)
    assert "output-criterion" not in uncovered(privacy(), METHODS["fedphp"](transfer_weight=0.0))


def test_the_refusal_names_each_release_and_the_line_that_accepts_all():
    with pytest.raises(ConfigError) as told:
        check(privacy(acknowledge=("metrics",)), METHODS["fedfomo"](), [50])
    for part in ("sample-counts", "validation-losses", "unlimited-epsilon", "privacy.epsilon_budget"):
        assert part in str(told.value)
    accepted = str(told.value).partition("privacy.acknowledge = ")[2]
    names = tomllib.loads(f"v = {accepted}")["v"]
    check(privacy(acknowledge=names), METHODS["fedfomo"](), [50])


def test_unknown_names_and_a_large_delta_and_split_batches_are_refused():
    with pytest.raises(ConfigError, match="did you mean metrics"):
        check(privacy(acknowledge=("metric",)), METHODS["fedavg"](), [50])
    with pytest.raises(ConfigError, match="1 / 200000"):
        check(privacy(), METHODS["fedavg"](), [50, 200_000])
    with pytest.raises(ConfigError, match="lower-shared"):
        check(privacy(), METHODS["partialfed"](rule="adaptive"), [50])


def test_settings_say_when_there_is_no_privacy():
    assert privacy(seed=None).void is None
    assert "test seed" in privacy(seed=0).void
    assert "noise_multiplier" in privacy(seed=None, noise_multiplier=0).void
    for wrong in ({"noise_multiplier": -1}, {"max_grad_norm": 0}, {"delta": 0}, {"delta": 1}, {"epsilon_budget": 0}):
        with pytest.raises(ValidationError):
            privacy(**wrong)


def test_fedfomos_table_is_accepted_as_it_stands():
    root = Path(__file__).parents[2] / "configs" / "fedfomo-dp"
    files = sorted(root.glob("*.toml"))
    assert files
    for file in files:
        tree = tomllib.loads(file.read_text())
        settings, method = (
            Privacy(**tree["privacy"]),
            METHODS[tree["method"]["name"]](**{k: v for k, v in tree["method"].items() if k != "name"}),
        )
        check(settings, method, [tree["data"]["train_limit"] // tree["clients"]])
        asked = method.method().card.gradients
        n = tree["data"]["train_limit"] * (1 - tree["data"]["validation_share"]) // tree["clients"]
        assert projected_epsilon(settings, asked, int(n), tree["batch_size"], tree["local_epochs"], tree["rounds"]) > 0
