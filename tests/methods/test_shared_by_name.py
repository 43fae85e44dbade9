"""Parts of rows by the names of parameters: what layers' counts share, and what they cannot."""

import pytest
import torch

import pomona
from pomona.core.errors import ConfigError
from pomona.methods import METHODS
from problems import PASSES, a_round, equal, quadratics, states, tiny, trained

ALIKE = {
    "fedper": ({}, {"shared": ("lower.*",)}),
    "fedrep": ({}, {"shared": ("lower.*",)}),
    "fedbabu": ({"finetune": "head"}, {"finetune": "head", "shared": ("lower.*",)}),
    "lg-fedavg": ({}, {"shared": ("upper.*",)}),
    "fedala": ({}, {"layers": ("upper.*",)}),
    "fedprox+ala": ({"layers": 2}, {"layers": ("*",)}),
}


@pytest.mark.parametrize("name", ALIKE)
def test_globs_over_whole_layers_are_counts_of_them_to_the_bit(name):
    problem = quadratics(3, samples=5, d=7)
    by_count, by_name = (trained(METHODS[name](**settings), problem) for settings in ALIKE[name])
    assert equal(states(by_count), states(by_name))
    for key, model in by_count.models(1).items():
        assert torch.equal(model["w"], by_name.models(1)[key]["w"])


@pytest.mark.parametrize("name", ["fedper", "fedrep", "lg-fedavg"])
def test_only_what_the_globs_match_travels(name):
    run = trained(METHODS[name](shared=("*.lora_A.*", "*.bias")), quadratics(3, samples=5, d=7), 1)
    assert [reply.uplink["model"].shape for reply in run.replies] == [(4,)] * 3
    assert "method.shared" in run.method.card.exchange.up


def test_weights_of_scattered_parameters_learn_and_the_rest_is_as_received():
    run = trained(
        METHODS["fedala"](layers=("*.lora_A.*", "upper.*")), quadratics(3, samples=5, d=7)
    )
    w = run.server.clone()
    run.round(a_round(4, **PASSES))
    mixture = run.model(0, "personal", "received")
    assert torch.equal(mixture[2:6], w[2:6])
    assert not torch.equal(mixture[:2], w[:2])
    assert not torch.equal(mixture[6], w[6])
    assert run.replies[0].info["ala_weight"].shape == (2,)


def test_a_networks_parameters_are_shared_by_their_names():
    """The mlp's first layer is ``fc1``."""
    by_count, by_name = (pomona.run(tiny("fedrep", {"shared": s})) for s in (1, ["fc1.*"]))
    bytes_of = [{tuple(r.bytes_up) for r in run.rounds} for run in (by_count, by_name)]
    assert bytes_of[0] == bytes_of[1]
    assert all(torch.equal(by_count.models[0][k], v) for k, v in by_name.models[0].items())
    biases = pomona.run(tiny("fedper", {"shared": ["*.bias"]}))
    assert {r.bytes_up[0] for r in biases.rounds} == {4 * (8 + 10)}


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbabu", "lg-fedavg"])
def test_a_glob_that_matches_nothing_says_so_and_lists_names(name):
    with pytest.raises(
        ConfigError, match=r"method\.shared: 'conv\.\*' matches no parameter .*fc1\.bias, fc2"
    ):
        pomona.run(tiny(name, {"shared": ["fc1.*", "conv.*"]}))


def test_other_values_are_refused_by_their_key():
    for value in (-1, [], [""], "fc1.*", 1.5):
        with pytest.raises(ConfigError, match=r"method\.shared"):
            tiny("fedper", {"shared": value})
