"""FFA-LoRA, FedSA-LoRA and FedDPA: rounds by hand, and on networks with low-rank changes."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import pomona
from pomona.core.errors import ConfigError
from pomona.experiments.job import read_state
from pomona.methods.base import Initial
from pomona.methods.low_rank.feddpa import Changes, FedDPA
from pomona.methods.low_rank.fedsa_lora import FedSALoRA
from pomona.methods.low_rank.ffa_lora import FFALoRA
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.shared_parts.fedper import FedPer
from pomona.models.lora import Lora, insert
from pomona.models.parameter_space import ParameterSpace
from pomona.scenario import Scenario
from problems import Federation, Notes, Quadratics, a_round, quadratics, tiny, trained

pytestmark = pytest.mark.long

A, B = 2 * 64, 2 * 8  # numbers of rank 2 at the mlp's first layer, of 64 inputs and 8 outputs
HEAD = 8 * 10 + 10


def lora(name, settings=None, rank=2, lora=None, **overrides):
    train = {"lora": {"rank": rank, "on": ["fc1"], **(lora or {})}}
    return tiny(name, settings, model={"name": "mlp", "hidden": [8], "train": train}, **overrides)


# FedSA-LoRA


def test_fedsa_averages_a_and_keeps_b_and_head():
    """Sizes 1 and 3, one full-batch step of .5: a number x becomes (x + its target) / 2; d = 5 has
    two numbers of A, two of B, one head.
    """
    samples = torch.tensor([[8.0] * 5, *[[-8.0] * 5] * 3], dtype=torch.float64)
    run = Federation(FedSALoRA().method(), Quadratics(samples, [[0], [1, 2, 3]]))
    w = run.initial()
    run.round(a_round(lr=0.5))
    assert_close(run.server, (w[:2] - 4) / 2)
    assert_close(run.state(0).kept[0], (w[2:] + 8) / 2)
    assert_close(run.state(1).kept[0], (w[2:] - 8) / 2)


@pytest.mark.parametrize(
    ("settings", "plain_settings", "d"),
    [
        ({}, FedPer(shared=("*.lora_A.*", "*.bias")), 7),
        ({}, FedPer(), 4),
        ({"head": "shared"}, FedPer(shared=("*.lora_A.*", "*.bias", "upper.*")), 7),
        ({"head": "shared"}, FedAvg(), 4),
    ],
)
def test_fedsa_becomes_other_methods_to_the_bit(settings, plain_settings, d):
    problem = quadratics(3, samples=5, d=d)
    run, plain = trained(FedSALoRA(**settings), problem), trained(plain_settings, problem)
    assert torch.equal(run.server, plain.server)
    for i in range(3):
        name = "global" if isinstance(plain_settings, FedAvg) else "personal"
        assert torch.equal(run.model(i, "personal", "received"), plain.model(i, name, "received"))


def test_fedsa_sends_a_of_a_network_and_trains_all():
    run = pomona.run(lora("fedsa-lora"))
    assert {tuple(r.bytes_up) for r in run.rounds} == {(4 * A,) * 4}
    assert {tuple(r.bytes_down) for r in run.rounds} == {(4 * A,) * 4}
    a, b = run.models[0], run.models[1]
    assert [name for name in a if torch.equal(a[name], b[name])] == ["fc1.lora_A.weight"]
    shared = pomona.run(lora("fedsa-lora", {"head": "shared"}))
    assert {tuple(r.bytes_up) for r in shared.rounds} == {(4 * (A + HEAD),) * 4}


# FFA-LoRA


def test_ffa_is_fedavg_on_a_network_of_which_a_is_frozen():
    config = lora("ffa-lora")
    scenario = Scenario.prepare(config)
    assert scenario.config.model.train.lora.trained == "B"
    assert {"fc1.lora_A.weight"} <= scenario.network.frozen.keys()
    assert len(scenario.initial()) == B + HEAD
    run, plain = pomona.run(config), pomona.run(lora("fedavg", lora={"trained": "B"}))
    assert {tuple(r.bytes_up) for r in run.rounds} == {(4 * (B + HEAD),) * 4}
    assert all(torch.equal(run.models[0][k], v) for k, v in plain.models[0].items())
    assert [e.value for e in run.evaluations] == [e.value for e in plain.evaluations]


def test_ffas_mean_of_b_is_the_mean_of_the_products():
    space = ParameterSpace(Scenario.prepare(lora("ffa-lora")).module())
    module, draw = Scenario.prepare(lora("ffa-lora")).module(), torch.Generator().manual_seed(0)
    rows = torch.randn(3, space.trained, generator=draw)

    def change(row):
        module.load_state_dict(space.unpack(row), strict=False)
        return module.fc1.weight - module.fc1.frozen.weight

    assert_close(change(rows.mean(0)), torch.stack([change(r) for r in rows]).mean(0))


def test_ffa_trains_a_network_without_changes_as_fedavg_and_a_resumed_run_is_the_whole(tmp_path):
    problem = quadratics(3, samples=5)
    assert torch.equal(trained(FFALoRA(), problem).server, trained(FedAvg(), problem).server)
    uninterrupted = pomona.run(lora("ffa-lora", rounds=3), tmp_path / "whole")
    pomona.run(lora("ffa-lora", rounds=2), tmp_path / "parts")
    resumed = pomona.run(lora("ffa-lora", rounds=3), tmp_path / "parts", resume=True)
    assert all(torch.equal(resumed.models[0][k], v) for k, v in uninterrupted.models[0].items())
    # as a bench looks for its cells
    status = read_state(tmp_path / "whole", lora("ffa-lora", rounds=3))
    assert status.state == "finished"


# FedDPA


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_feddpa_model_is_the_sum_of_two_changes(share):
    """W + s ((1 - c) B_g A_g + c B_l A_l), for a linear layer and for a convolution."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(), nn.Linear(20, 4))
    insert(module, 4, 0.5, ("0", "2"))
    space = ParameterSpace(module)
    row = torch.randn(space.trained)
    module.load_state_dict(space.unpack(row), strict=False)
    adapters = [part for part in module if isinstance(part, Lora)]
    pairs = [(p.lora_A.weight.flatten(1).clone(), p.lora_B.weight.flatten(1)) for p in adapters]
    expected = [
        p.frozen.weight.flatten(1)
        + 0.5 * ((1 - share) * b[:, :2] @ a[:2] + share * b[:, 2:] @ a[2:])
        for p, (a, b) in zip(adapters, pairs, strict=True)
    ]
    layout = Initial.from_space(space, lambda _: row, row[:0])
    changes = Changes.from_layout(layout)
    assert int(changes.local.sum()) == space.trained // 2
    module.load_state_dict(space.unpack(row * changes.sum(share, row)), strict=False)
    for adapter, weight in zip(adapters, expected, strict=True):
        assert_close(adapter.weight.flatten(1), weight)
    module.load_state_dict(space.unpack(row * changes.without_local(row)), strict=False)
    for adapter, (a, _) in zip(adapters, pairs, strict=True):
        assert not adapter.lora_A.weight[2:].any()
        assert not adapter.lora_B.weight[:, 2:].any()
        assert torch.equal(adapter.lora_A.weight.flatten(1)[:2], a[:2])


def test_a_feddpa_round_by_hand():
    """One sample, one step of .5 each, c = .25: a number moves by -.5 f (f x - a), f its factor.

    d = 5 has A = (g, l), B = (g, l), and the head, which is the global change's.
    """
    sample = torch.full((1, 5), 8.0, dtype=torch.float64)
    run = Federation(FedDPA(share=0.25).method(), Quadratics(sample, [[0]]))
    a_g, a_l, b_g, b_l, h = run.initial().tolist()
    run.round(a_round(lr=0.5))
    local = [(a_l + 8) / 2, b_l - 0.125 * (b_l / 4 - 8)]
    assert run.state(0).kept[0].tolist() == pytest.approx(local)
    assert run.server.tolist() == pytest.approx([(x + 8) / 2 for x in (a_g, b_g, h)])
    assert run.model(0, "global", "received").tolist() == [a_g, 0, b_g, 0, h]
    assert run.model(0, "personal", "received").tolist() == [a_g, a_l, 0.75 * b_g, b_l / 4, h]
    assert run.model(0, "personal", "trained").tolist() == pytest.approx(
        [a_g, local[0], 0.75 * b_g, local[1] / 4, h]
    )


def test_feddpas_global_change_is_fedavgs_and_without_changes_it_is_fedavg_to_the_bit():
    problem = quadratics(3, samples=5, d=7)
    run, plain = trained(FedDPA(), problem), trained(FedAvg(), problem)
    local = Changes.from_layout(run.initial).local
    assert torch.equal(run.server, plain.server[~local])
    problem = quadratics(3, samples=5, d=4)
    run, plain = trained(FedDPA(), problem), trained(FedAvg(), problem)
    assert torch.equal(run.server, plain.server)
    assert torch.equal(run.model(0, "personal", "received"), plain.model(0, "global", "received"))


def test_feddpa_halves_the_traffic_and_an_odd_rank_is_refused():
    run = pomona.run(lora("feddpa"))
    assert {tuple(r.bytes_up) for r in run.rounds} == {(4 * (A // 2 + B // 2 + HEAD),) * 4}
    with pytest.raises(ConfigError, match=r"model\.train\.lora\.rank is 3; .* make it even"):
        pomona.run(lora("feddpa", rank=3))


# all


@pytest.mark.parametrize(
    ("name", "settings", "title"),
    [
        ("ffa-lora", {}, "FedAvg"),
        ("fedsa-lora", {}, "FedPer"),
        ("fedsa-lora", {"head": "shared"}, "FedAvg"),
        ("feddpa", {}, "FedAvg"),
    ],
)
def test_a_run_says_that_there_is_no_low_rank_change(name, settings, title):
    notes, changed = Notes(), Notes()
    pomona.run(tiny(name, settings, rounds=1), callback=notes)
    pomona.run(lora(name, settings, rounds=1), callback=changed)
    assert [text for text in notes.said if f"{name} is {title} here: no low-rank" in text]
    assert not [text for text in changed.said if f"{name} is" in text]


@pytest.mark.parametrize("name", ["ffa-lora", "fedsa-lora", "feddpa"])
def test_workers_and_rows_of_one_call_give_the_same_models(name):
    runs = [pomona.run(lora(name, **keys)) for keys in ({}, {"workers": 2}, {"rows_per_call": 4})]
    for run in runs[1:]:
        for i in range(4):
            for k, v in runs[0].models[i].items():
                assert_close(run.models[i][k], v, rtol=1e-5, atol=1e-6)
