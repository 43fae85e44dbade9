"""Whole runs with privacy: their cost is announced, and an exhausted budget stops nothing else."""

import numpy as np
import pytest

import pomona
from pomona.core.errors import ConfigError, PrivacyError
from pomona.scenario import Scenario
from pomona.scenario.description import epsilons
from problems import Notes, tiny

pytestmark = pytest.mark.long

PRIVATE = {
    "noise_multiplier": 1.0,
    "max_grad_norm": 1.0,
    "delta": 1e-3,
    "acknowledge": ["sample-counts", "metrics"],
    "seed": 1,
}


def config(budget, name="mr-mtl", **options):
    return tiny(name, privacy={**PRIVATE, "epsilon_budget": budget}, **options)


@pytest.mark.parametrize(("name", "rounds"), [("mr-mtl", 10), ("fedavg", 1)])
def test_the_projection_counts_the_rounds_of_the_unseen(name, rounds):
    """Client 3 trains its model 10 rounds alone where the others train 2; from FedAvg's model it
    would begin 10 times.
    """
    unseen = {"unseen": [3], "adapt_rounds": 10}
    run = config(1e6, name, rounds=2, membership=unseen)
    plan = epsilons(Scenario.prepare(run))
    assert plan[3] == pytest.approx(epsilons(Scenario.prepare(config(1e6, name, rounds=rounds)))[3])
    used = pomona.run(run, callback=(notes := Notes())).summary["privacy"]["clients"]
    assert used == pytest.approx(plan, rel=1e-9)
    assert any(f"at most epsilon {max(plan):.3g}" in note for note in notes.said)


def test_an_unseen_client_that_runs_out_is_left_without_a_model_and_the_run_ends_well(tmp_path):
    run = config(1e6, rounds=2)
    enough = max(epsilons(Scenario.prepare(run))) * 1.05
    notes = Notes()
    unseen = {"unseen": [0, 3], "adapt_rounds": 40}
    result = pomona.run(config(enough, rounds=2, membership=unseen), tmp_path / "r", callback=notes)
    assert [
        sum(f"client {i}, which never trained" in text for text in notes.said) for i in (0, 3)
    ] == [1, 1]
    assert sorted(f.name for f in (tmp_path / "r/models").glob("*.safetensors")) == [
        "client-01.safetensors",
        "client-02.safetensors",
    ]
    assert max(result.summary["privacy"]["clients"]) <= enough


@pytest.mark.parametrize("name", ["q-fedavg", "ifca"])
def test_a_method_that_reads_training_losses_trains_once_its_card_is_acknowledged(name):
    accepted = {
        **PRIVATE,
        "epsilon_budget": 1e6,
        "acknowledge": [*PRIVATE["acknowledge"], "training-loss"],
    }
    result = pomona.run(tiny(name, privacy=accepted, rounds=2))
    assert max(result.summary["privacy"]["clients"]) > 0
    with pytest.raises(ConfigError, match="training-loss"):
        Scenario.prepare(tiny(name, privacy={**accepted, "acknowledge": PRIVATE["acknowledge"]}))


def test_the_remedy_that_the_error_names_works(tmp_path):
    """A run that stopped at its budget goes on with a larger one, and ends as if it had had that
    from the start.
    """
    uninterrupted = pomona.run(config(1e6))
    little = max(epsilons(Scenario.prepare(config(1e6, rounds=2)))) * 1.001
    with pytest.raises(PrivacyError, match="raise it and continue with --resume"):
        pomona.run(config(little), tmp_path / "r")
    resumed = pomona.run(config(1e6), tmp_path / "r", resume=True)
    assert resumed.summary["privacy"] == uninterrupted.summary["privacy"]
    assert resumed.evaluations == uninterrupted.evaluations


def test_class_names_found_in_the_data_are_a_release(tmp_path):
    draw = np.random.default_rng(0)
    lines = [f"{a:.3f},{b:.3f},{'ill' if a > 0 else 'well'}" for a, b in draw.normal(size=(80, 2))]
    (tmp_path / "t.csv").write_text("a,b,state\n" + "\n".join(lines) + "\n")
    table = {"name": "table", "path": str(tmp_path / "t.csv"), "label_column": "state"}
    base = {
        "privacy": {
            **PRIVATE,
            "epsilon_budget": 1e6,
            "acknowledge": ["sample-counts", "metrics", "feature-moments"],
        }
    }
    small = {"data": table, "clients": 2, "partition": {"name": "iid"}}
    with pytest.raises(ConfigError, match=r"class-names .*name them in data\.classes"):
        Scenario.prepare(tiny("fedavg", **base, **small))
    with_classes = {**small, "data": {**table, "classes": ["ill", "well"]}}
    Scenario.prepare(tiny("fedavg", **base, **with_classes))
    base["privacy"]["acknowledge"].append("class-names")
    Scenario.prepare(tiny("fedavg", **base, **small))


def test_a_private_run_whose_models_overflow_asks_nothing_of_its_training_samples():
    """Its last steps, with noise, can be too long for any loss to be finite."""
    result = pomona.run(config(1e6, "fedavg", rounds=1, lr=1e20))
    assert "lower lr" in result.summary["diverging"]
