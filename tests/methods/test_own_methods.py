"""A custom method from outside the package: named as module:Class, and described by its card."""

import importlib
import sys

import pytest

import pomona
from pomona.cli import main
from pomona.config import resolve
from pomona.core.errors import CheckpointError, ConfigError
from pomona.lifecycle import require_matching_files
from pomona.results.figures.plot import drawing
from pomona.results.figures.sections import sections
from pomona.results.run_numbers import runs
from pomona.results.web.report_page import page as report_page
from pomona.scenario import Scenario
from pomona.scenario.description import epsilons
from pomona.testing import conformance
from problems import tiny

pytestmark = pytest.mark.long

MODULE = '''
import torch
from pydantic import Field
from pomona.methods import base
from pomona.methods.one_model import fedavg


class Thrice(base.MethodSettings):
    """The mean of three gradients at the same place is a step."""

    strength: float = Field(1.0, gt=0, description="factor on the step")

    def method(self):
        def train(state, received, training, round_):
            training.observe("global", received["model"], "received")
            W = received["model"].clone()
            for batch, w in training.steps(round_.passes, W):
                for _ in range(3):
                    w.sub_(training.gradient(w, batch)[1], alpha=self.strength * round_.lr / 3)
            return None, {"model": W}, {"way": (W - received["model"]).norm(dim=1)}

        return base.Method(fedavg.server(), base.Client(base.stateless, train), CARD)


way = base.Quantity("way", "values", "How far each client went", "distance", "the distance from the received model.")
CARD = base.Card(
    base.Presentation("Thrice Tuned", quantities=(way,)), "none", "three gradients a batch", ("global", "received"),
    joining="a newcomer starts from the global model",
    exchange=base.Exchange("1", "1", private="nothing", keeps="nothing"),
    privacy=base.PrivacyCost(
        (base.Gradients(per_batch=3),),
        (base.Release("gossip", "what the neighbours say", "set method.strength=0"),),
    ),
    needs=base.Needs(steps="plain"),
)


class Bare:
    """No method."""
'''
PRIVACY = {
    "noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-3, "epsilon_budget": 1000.0, "seed": 1,
}  # fmt: skip


@pytest.fixture
def method_name(tmp_path, monkeypatch):
    """The name of a method in a module that only this test can import."""
    (tmp_path / "elsewhere.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "elsewhere:Thrice"
    sys.modules.pop("elsewhere", None)


def private(name, *acknowledged, **changes):
    settings = {**PRIVACY, "acknowledge": ["sample-counts", "metrics", *acknowledged]}
    return tiny(name, privacy=settings, **changes)


def test_it_passes_the_checks(method_name):
    settings_type = importlib.import_module("elsewhere").Thrice
    for check in conformance(settings_type(strength=0.5)):
        check()


def test_three_gradients_a_batch_cost_what_less_noise_costs(method_name):
    """Three releases on one batch with noise sigma are one with sigma / sqrt(3)."""
    scenario = Scenario.prepare(private(method_name, "gossip"))
    louder = {**PRIVACY, "noise_multiplier": 3**-0.5, "acknowledge": ["sample-counts", "metrics"]}
    single_release = Scenario.prepare(tiny("fedavg", privacy=louder))
    assert epsilons(scenario) == pytest.approx(epsilons(single_release), rel=1e-9)
    assert min(epsilons(scenario)) > max(epsilons(Scenario.prepare(private("fedavg"))))


def test_its_release_is_refused_until_it_is_acknowledged(method_name):
    with pytest.raises(
        ConfigError, match=r"gossip \(what the neighbours say; or set method.strength=0\)"
    ):
        Scenario.prepare(private(method_name))
    with pytest.raises(ConfigError, match="unknown name 'gosip'; did you mean gossip"):
        Scenario.prepare(private(method_name, "gosip"))


def test_a_report_has_its_title_and_words_without_its_code(method_name, tmp_path, monkeypatch):
    pomona.run(tiny(method_name, {"strength": 0.5}), tmp_path / "run")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    monkeypatch.delitem(sys.modules, "elsewhere")
    loaded = runs([pomona.load(tmp_path / "run")])
    with drawing():
        page = report_page(loaded, sections(loaded))
    assert "Thrice Tuned" in page
    assert "How far each client went" in page
    assert "elsewhere" not in sys.modules


def test_a_run_goes_on_and_a_name_of_other_code_is_not_imported_for_it(method_name, tmp_path):
    config = tiny(method_name, {"strength": 0.5})
    two_rounds = config.model_copy(update={"rounds": 2})
    pomona.run(two_rounds, tmp_path / "two")
    assert pomona.run(config, tmp_path / "two", resume=True).final == pomona.run(config).final
    path = tmp_path / "two" / "config.toml"
    (tmp_path / "trap.py").write_text("raise SystemExit(1)")
    path.write_text(path.read_text().replace(method_name, "trap:Mine"))
    with pytest.raises(CheckpointError, match="is of method trap:Mine, not of elsewhere:Thrice"):
        require_matching_files(config, "", tmp_path / "two")
    assert "trap" not in sys.modules


def test_a_quantity_that_no_record_can_keep_is_refused_at_once(method_name, tmp_path):
    """Else the record cannot be read after the last round, and a silo's visit is lost."""
    module = tmp_path / "elsewhere.py"
    module.write_text(MODULE.replace('{"way": (W', '{"way:1": (W'))
    with pytest.raises(ConfigError, match=r"a quantity named 'way:1', .* name it with 1 to 40"):
        pomona.run(tiny(method_name, {"strength": 0.5}))


def test_its_settings_are_checked_like_everybodys(method_name):
    for tree, message in (
        (
            {"name": method_name, "strenght": 1},
            "unknown key 'method.strenght'; did you mean method.strength",
        ),
        ({"name": method_name, "strength": 0}, "method.strength = 0: must be greater than 0"),
        ({"name": "elsewhere:Thrize"}, "cannot load 'elsewhere:Thrize'"),
        ({"name": "elsewhere:Bare"}, "elsewhere:Bare is not a method"),
        ({"name": "nowhere:Thrice"}, "cannot load 'nowhere:Thrice'"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve({"method": tree})


def test_the_command_line_names_it(method_name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["run", method_name, "data=digits", "method.strength=0.5", "--dry-run"])
    assert not stop.value.code
    assert 'name = "elsewhere:Thrice"' in capsys.readouterr().out
