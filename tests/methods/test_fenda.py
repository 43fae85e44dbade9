"""FENDA-FL and PerFCL: rounds in plain PyTorch with two bodies, and their network."""

from copy import deepcopy

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

import pomona
from plain_pytorch import Plain, assert_same, averaged, step
from pomona.core.errors import ConfigError
from pomona.methods import METHODS
from pomona.models import ModelSettings, build
from pomona.scenario import Scenario
from problems import tiny


def contrast(z, positive, negative, tau):
    """The paper's logarithm, as printed, of the mean over samples."""
    a, b = (torch.exp(cosine_similarity(z, w) / tau) for w in (positive, negative))
    return -torch.log(a / (a + b)).mean()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "mu", "gamma"), [("fenda", 0.0, 0.0), ("perfcl", 0.7, 0.0), ("perfcl", 0.5, 0.3)]
)
def test_three_rounds_are_those_of_plain_pytorch(name, mu, gamma):
    settings = {"mu": mu, "gamma": gamma, "temperature": 0.4} if name == "perfcl" else {}
    plain = Plain(name, settings, rounds=3, lr=0.05)
    models, p = plain.networks(), [n / sum(plain.n) for n in plain.n]
    last = [None] * len(models)
    for number in (1, 2, 3):
        common = averaged([model.shared_body for model in models], p)
        for i, model in enumerate(models):
            model.shared_body.load_state_dict(common)
            received = deepcopy(model)
            steps = plain.sgd(model.parameters())
            for x, y in plain.batches(i, number):
                a, b = model.own_body(x), model.shared_body(x)
                loss = cross_entropy(model.fc2(torch.cat([a, b], 1)), y)
                if last[i] is not None:
                    with torch.no_grad():
                        private, shared = received.own_body(x), received.shared_body(x)
                        older = last[i](x)
                    loss = loss + mu * contrast(b, shared, older, 0.4)
                    loss = loss + gamma * contrast(a, private, shared, 0.4)
                step(steps, loss)
            last[i] = deepcopy(model.shared_body)
    common, result = averaged([model.shared_body for model in models], p), plain.run()
    for i, model in enumerate(models):  # the headline model is what comes after the last round
        model.shared_body.load_state_dict(common)
        assert_same(result.models[i], model)


@pytest.mark.long
def test_without_contrasts_perfcl_is_fenda_to_the_bit():
    runs = [
        pomona.run(tiny(*case)) for case in (("perfcl", {"mu": 0.0, "gamma": 0.0}), ("fenda", {}))
    ]
    losses = [[e.loss for e in run.curve("personal", "received")] for run in runs]
    assert losses[0] == losses[1]
    assert not METHODS["perfcl"](mu=0.0, gamma=0.0).method().card.privacy.releases


def test_bodies_differ_and_the_method_sets_them():
    scenario = Scenario.prepare(tiny("fenda"))
    module = scenario.module()
    assert scenario.config.model.bodies == 2
    private, shared = module.own_body.fc1.weight, module.shared_body.fc1.weight
    assert private.shape == shared.shape
    assert not torch.equal(private, shared)
    assert module.fc2.weight.shape[1] == 2 * len(private)


def test_a_network_without_a_linear_layer_above_others_is_refused():
    for settings in (
        ModelSettings(name="logistic", bodies=2),
        ModelSettings(name="unet", bodies=2),
    ):
        shape = (1, 16, 16)
        with pytest.raises(ConfigError, match=r"bodies = 2.*nn\.Linear"):
            build(settings, shape, 3, output_shape=(3, 16, 16) if settings.name == "unet" else None)


def test_each_family_of_networks_has_two_bodies():
    for name in ("mlp", "cnn", "resnet18", "lenet5"):
        module = build(ModelSettings(name=name, bodies=2), (1, 28, 28), 3)
        assert module.eval()(torch.zeros(2, 1, 28, 28)).shape == (2, 3)
