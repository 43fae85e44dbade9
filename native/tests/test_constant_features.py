"""Features of frozen layers: bit-identical numbers, computed once per batch."""

import pytest
import torch

import pomona
from native_checks import NativeNetwork
from pomona.methods.mixtures.fedala import FedALA
from pomona.models import ModelSettings
from pomona.objective.batches import View
from pomona.objective.objective import ConstantFeatures
from pomona.scenario import Scenario
from problems import tiny

pytestmark = pytest.mark.long
ROUNDS = {"rounds": 3, "data": {"name": "digits"}, "lr": 0.1, "engine": "native"}


def objective_of(name, **settings):
    scenario = Scenario.prepare(
        tiny("fedavg", model=ModelSettings(name=name), engine="native", **settings)
    )
    return scenario.objective(), scenario.initial()


@pytest.mark.parametrize("model", ["small", "mlp", "logistic"])
@pytest.mark.parametrize("augment", [[], ["flip"]])
def test_gradients_are_the_same_to_the_bit(model, augment):
    objective, row = objective_of(model, augment=augment)
    batches = [[objective.data.rows["train"][0][:5]], [objective.data.rows["train"][0][5:6]]]
    for columns in (*objective.layers, slice(len(row), len(row))):
        cache, above = ConstantFeatures(), columns.start
        for epoch in range(3):
            W = row.clone().unsqueeze(0)
            W[:, above:] += 0.1 * epoch  # the layers below stay
            for step, indices in enumerate(batches):
                views = [View(0, 1, 1, "ala", step)]
                losses, G = objective.gradient(W, indices, above=above, views=views, cache=cache)
                expected, expected_gradient = objective.gradient(W, indices, None, above, views)
                assert torch.equal(losses, expected)
                assert torch.equal(G, expected_gradient)


def test_beyond_the_limit_features_are_made_each_time():
    computed = []

    def compute():
        computed.append(torch.ones(4))
        return computed[-1]

    cache = ConstantFeatures(limit=20)
    for _ in range(2):
        assert cache.get("first", compute) is computed[0]
        assert cache.get("second", compute) is computed[-1]
    assert len(computed) == 3


@pytest.mark.parametrize("layers", [0, 1])
def test_a_run_of_fedala_is_the_same_and_its_stage_computes_lower_layers_once(monkeypatch, layers):
    def run():
        passes = []
        below = NativeNetwork.below
        monkeypatch.setattr(NativeNetwork, "below", lambda *a: passes.append(1) or below(*a))
        method = {"layers": layers, "stage_epochs": 6}
        result = pomona.run(tiny("fedala", method, **ROUNDS, workers=1))
        monkeypatch.setattr(NativeNetwork, "below", below)
        return result, len(passes)

    ours, fewer = run()
    monkeypatch.setattr(ConstantFeatures, "get", lambda self, batch, compute: compute())
    theirs, uncached = run()
    assert fewer < uncached
    for client, model in theirs.models.items():
        assert all(torch.equal(model[name], ours.models[client][name]) for name in model)
    assert [r.loss for r in ours.rounds] == [r.loss for r in theirs.rounds]
    assert [r.info["ala_losses"].tolist() for r in ours.rounds] == [
        r.info["ala_losses"].tolist() for r in theirs.rounds
    ]
    # In round 2 the stage takes six epochs over each batch of which five need no lower layers.
    config = tiny("fedala", {"layers": layers}, **ROUNDS)
    sizes = [
        round(FedALA().sample_share * len(c.train))
        for c in Scenario.prepare(config).partition.clients
    ]
    assert uncached - fewer == 5 * sum(-(-n // config.batch_size) for n in sizes)
