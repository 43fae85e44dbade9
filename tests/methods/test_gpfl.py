"""GPFL: rounds in plain PyTorch, written from the paper's equations, and its network."""

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy, layer_norm, linear

import pomona
from plain_pytorch import Plain, step
from pomona.core.errors import ConfigError
from pomona.models import ModelSettings, build
from pomona.personal import PersonalModel
from pomona.scenario import Scenario
from pomona.simulation import simulate
from problems import tiny

PRIVATE = {"valve.conditions", "head.weight", "head.bias"}


def conditioned(w, z, c):
    """Equation 3, with gamma and beta of a linear layer, ReLU and layer normalisation each."""

    def valve(name):
        hidden = torch.relu(linear(c, w[f"valve.{name}.0.weight"], w[f"valve.{name}.0.bias"]))
        norm = w[f"valve.{name}.2.weight"], w[f"valve.{name}.2.bias"]
        return layer_norm(hidden, hidden.shape, *norm)

    return torch.relu((valve("gamma") + 1) * z + valve("beta"))


def objective(w, x, y, received, lam, mu):
    """Equations 8 to 11, term by term, with the conditions and the embeddings as received."""
    p, g, C = received
    z = torch.relu(linear(x.flatten(1), w["body.fc1.weight"], w["body.fc1.bias"]))
    common, embeddings = conditioned(w, z, g), w["valve.embeddings"]
    similar = torch.stack([cosine_similarity(common, v.unsqueeze(0)) for v in embeddings], 1).exp()
    angle = -torch.log(similar[range(len(y)), y] / similar.sum(1)).mean()
    magnitude = sum(((a - C[k]) ** 2).sum() ** 0.5 for a, k in zip(common, y, strict=True)) / len(y)
    V = torch.cat([t.flatten() for k, t in w.items() if "gamma" in k or "beta" in k])
    outputs = linear(conditioned(w, z, p), w["head.weight"], w["head.bias"])
    norms = (V**2).sum() ** 0.5 + (embeddings**2).sum() ** 0.5
    return cross_entropy(outputs, y) + angle + lam * magnitude + mu * norms


@pytest.mark.long
@pytest.mark.parametrize(("lam", "mu"), [(0.0, 0.0), (0.3, 0.2)])
def test_three_rounds_are_those_of_plain_pytorch(lam, mu):
    plain = Plain("gpfl", {"lambda": lam, "mu": mu}, rounds=3, lr=0.05)
    models = [dict(model.named_parameters()) for model in plain.networks()]
    shares = [
        torch.tensor([plain.counts(i).get(k, 0) / n for k in range(plain.K)])
        for i, n in enumerate(plain.n)
    ]

    def receive():
        """Replace what is shared by its mean, and set the conditions (equations 5 and 7)."""
        mean = {
            k: sum(n * w[k].detach() for n, w in zip(plain.n, models, strict=True)) / sum(plain.n)
            for k in models[0].keys() - PRIVATE
        }
        for w, class_shares in zip(models, shares, strict=True):
            C = mean["valve.embeddings"]
            mean["valve.conditions"] = torch.stack([class_shares @ C, C.sum(0)]) / plain.K
            for k, tensor in mean.items():
                w[k].data = tensor.clone()

    for number in (1, 2, 3):
        receive()
        for i, w in enumerate(models):
            steps = plain.sgd([t for k, t in w.items() if k != "valve.conditions"])
            received = *w["valve.conditions"].detach(), w["valve.embeddings"].detach().clone()
            for x, y in plain.batches(i, number):
                step(steps, objective(w, x, y, received, lam, mu))
    receive()
    result = plain.run()
    for i, w in enumerate(models):
        assert result.models[i].keys() == w.keys()
        for k, tensor in result.models[i].items():
            torch.testing.assert_close(tensor, w[k].detach(), rtol=1e-5, atol=1e-6)


def test_the_method_sets_the_valve_and_shares_neither_head_nor_conditions():
    scenario = Scenario.prepare(tiny("gpfl"))
    assert scenario.config.model.valve
    module, network = scenario.module(), build(ModelSettings(hidden=(8,)), (1, 8, 8), 10)
    uplink_bytes = pomona.run(tiny("gpfl", rounds=1)).rounds[0].bytes_up[0]
    private = sum(p.numel() for k, p in module.named_parameters() if k in PRIVATE)
    assert uplink_bytes == 4 * (sum(p.numel() for p in module.parameters()) - private)
    assert private == 2 * 8 + sum(p.numel() for p in network[-1].parameters())


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18", "lenet5"])
def test_each_family_of_networks_takes_a_valve_and_keeps_its_last_layer(name):
    settings = ModelSettings(name=name, valve=True, train="head")
    module = build(settings, (1, 28, 28), 3, seed=1).eval()
    features = []
    module.valve.register_forward_hook(lambda *passed: features.append(passed[-1]))
    outputs = module(torch.zeros(2, 1, 28, 28))
    f = module.head.in_features
    assert features[0].shape == (2, 2 * f + 3)
    torch.testing.assert_close(
        outputs, linear(features[0][:, :f], module.head.weight, module.head.bias)
    )
    trained = {k.partition(".")[0] for k, p in module.named_parameters() if p.requires_grad}
    assert trained == {"valve", "head"}


def test_rows_are_near_by_the_features_that_the_head_answers_by():
    scenario = Scenario.prepare(tiny("gpfl", rounds=1))
    model = PersonalModel.of(simulate(scenario), 0)
    x = scenario.dataset.x[:5]
    features, head = model.features(x), model.module.get_submodule("head")
    torch.testing.assert_close(linear(features, head.weight, head.bias), model.outputs(x))


@pytest.mark.parametrize("train", [["fc2.*"], "head"])
def test_cached_features_below_the_valve_change_nothing(train):
    curves = []
    for cached in ("auto", "off"):
        network = {"name": "mlp", "hidden": [8, 8], "train": train, "cache_features": cached}
        scenario = Scenario.prepare(tiny("gpfl", model=network))
        assert scenario.network.keeps_features is (cached == "auto")
        curve = simulate(scenario).curve("personal", "received")
        curves.append([loss for e in curve for loss in e.loss])
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)


def test_a_network_without_a_linear_layer_above_others_is_refused():
    with pytest.raises(ConfigError, match=r"model\.valve.*nn\.Linear"):
        build(ModelSettings(name="logistic", valve=True), (1, 16, 16), 3)
