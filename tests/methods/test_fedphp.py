"""FedPHP: the inherited model and its distillation, against plain PyTorch."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pomona.methods.one_model.fedavg import FedAvg, FedAvgLocal
from pomona.methods.personal_regularisation.fedphp import (
    TEMPERATURE,
    FedPHP,
    FedPHPState,
    Teacher,
    client,
    discrepancy,
)
from pomona.objective.training import LocalTraining
from pomona.scenario import Scenario
from pomona.tasks import TASKS
from problems import PASSES, Federation, Quadratics, a_round, quadratics, tiny, trained


def test_without_transfer_and_inheritance_it_is_fedavg_local_to_the_bit():
    problem = quadratics(3, samples=5)
    php = Federation(FedPHP(mu=0.0, transfer_weight=0.0).method(), problem)
    avg = Federation(FedAvgLocal().method(), problem)
    for number in (1, 2, 3):
        php.round(a_round(number, **PASSES))
        avg.round(a_round(number, **PASSES))
        assert torch.equal(php.server, avg.server)
        assert torch.equal(php.model(1, "personal", "trained"), avg.model(1, "local", "trained"))


def test_inheritance_by_hand():
    """Ten rounds, mu = .5: the first h is w_1; then h <- m h + (1 - m) w_r with m = .5 (r - 1) /
    10.
    """
    problem = Quadratics(torch.tensor([[3.0]], dtype=torch.float64), [[0]])
    run = Federation(FedPHP(mu=0.5, transfer_weight=0.0).method(), problem)
    w, h = run.initial().item(), 0.0
    for number, m in ((1, 0.0), (2, 0.05), (3, 0.1)):
        run.round(a_round(number, total=10, lr=0.5))
        w = (w + 3) / 2
        h = m * h + (1 - m) * w
        assert run.model(0, "personal", "trained").item() == pytest.approx(h)
        assert run.replies[0].info["inheritance"].item() == pytest.approx(m)


def test_past_the_last_round_no_more_than_mu_is_inherited():
    """A client that is never trained with adapts in rounds 11 to 20 of 10: 19 / 10 of its past
    would be too much.
    """
    run = Federation(FedPHP(mu=0.9, transfer_weight=0.0).method(), quadratics(1))
    run.round(a_round(11))
    inherited = run.state(0).inherited[0].clone()
    run.round(a_round(20))
    assert run.replies[0].info["inheritance"].item() == pytest.approx(0.9)
    assert_close(run.state(0).inherited[0], 0.9 * inherited + 0.1 * run.replies[0].uplink["model"])


def test_a_late_client_inherits_nothing_from_the_untrained_model():
    run = Federation(FedPHP(transfer_weight=0.0).method(), quadratics(2))
    run.round(a_round(1), ids=(0,))
    inherited = run.state(1).inherited.clone()
    run.round(a_round(5))
    assert run.replies[1].info["inheritance"] == 0
    assert torch.equal(run.state(1).inherited[0], run.replies[1].uplink["model"])
    assert not torch.equal(run.state(1).inherited, inherited)


def plain(objective, row, index, loss):
    """The gradient (d,) of ``loss(outputs, labels, features)`` by plain PyTorch, on a copy of the
    network.
    """
    space = objective.space
    module = Scenario.prepare(tiny("fedavg")).module()
    module.load_state_dict(space.unpack(row), strict=False)
    x, y = objective.data.gather(index)
    features = nn.Sequential(*list(module)[:-1])(x)
    loss(module[-1](features), y, features).backward()
    gradient = torch.empty_like(row)
    for entry, parameter in zip(space.parameters, module.parameters(), strict=True):
        entry.view(gradient).copy_(parameter.grad)
    return gradient


def answers(objective, row, index):
    """A network's outputs and features on some samples."""
    got = {}
    plain(objective, row, index, lambda o, y, f: got.update(o=o.detach(), f=f.detach()) or o.sum())
    return got["o"], got["f"]


def published_mmd(x, y):
    """Kernel sums in loops: widths 1/4, 1/2, 1, 2, 4 of the mean squared distance over different
    samples.
    """
    z = [*x, *y]
    d = [[((a - b) ** 2).sum() for b in z] for a in z]
    width = float(sum(v.detach() for row in d for v in row)) / (len(z) * (len(z) - 1))
    b, total = len(x), 0.0
    for i in range(b):
        for j in range(b):
            for pair, sign in (
                ((i, j), 1),
                ((b + i, b + j), 1),
                ((i, b + j), -1),
                ((b + i, j), -1),
            ):
                distance = d[pair[0]][pair[1]]
                total += (
                    sign
                    * sum(torch.exp(-distance / (width * 2.0**k)) for k in (-2, -1, 0, 1, 2))
                    / b**2
                )
    return total


@pytest.mark.parametrize("transfer", ["mmd", "distillation"])
def test_a_step_is_the_gradient_of_the_papers_loss(transfer):
    """One step of one client on digits: (1 - .3) cross-entropy + .3 R, R written out again here."""
    scenario = Scenario.prepare(tiny("fedavg"))
    objective = scenario.objective()
    w, h = scenario.initial(), scenario.initial(7)
    index = objective.data.rows["train"][1]
    teacher_out, teacher_features = answers(objective, h, index)

    def loss(outputs, labels, features):
        if transfer == "mmd":
            r = published_mmd(features[:12], teacher_features[:12])
        else:
            r = -((teacher_out[:12] / 4).softmax(1) * outputs[:12].log_softmax(1)).sum(1).mean()
        return 0.7 * nn.functional.cross_entropy(outputs[:12], labels[:12]) + 0.3 * r

    settings = FedPHP(transfer=transfer, transfer_weight=0.3)
    teacher = Teacher.for_client(settings, h, 1, objective)
    _, G = objective.gradient(w.unsqueeze(0), [index[:12]], [teacher.criterion(index[:12])])
    assert_close(G[0], plain(objective, w, index, loss), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("transfer", "lr"), [("mmd", 0.01), ("distillation", 0.5)])
def test_the_transfer_pulls_training_towards_the_teacher(transfer, lr):
    """With the whole weight on the transfer, the network's features or answers come closer to the
    inherited model's.
    """
    scenario = Scenario.prepare(tiny("fedavg"))
    objective = scenario.objective()
    w, h = scenario.initial().unsqueeze(0), scenario.initial(7).unsqueeze(0)
    round_ = a_round(2, lr=lr, epochs=10, batch_size=32)
    php_client = client(FedPHP(transfer=transfer, transfer_weight=1.0))
    state = FedPHPState(h, torch.tensor([True]))
    training = LocalTraining(objective, (0,), None, round_)
    _, uplink, _ = php_client.train(state, {"model": w}, training, round_)
    index = objective.data.rows["train"][0]
    gaps = []
    for row in (w[0], uplink["model"][0]):
        (o, f), (t, g) = (answers(objective, row, index), answers(objective, h[0], index))
        pair = (f, g) if transfer == "mmd" else (o.softmax(1), (t / 4).softmax(1))
        gaps.append(
            float(discrepancy(*pair))
            if transfer == "mmd"
            else float((pair[0] - pair[1]).abs().mean())
        )
    assert gaps[1] < 0.9 * gaps[0]


def test_a_teacher_has_its_outputs_of_each_sample():
    scenario = Scenario.prepare(tiny("fedavg"))
    objective = scenario.objective()
    rows = objective.data.rows["train"]
    shuffled = rows[2][torch.randperm(len(rows[2]), generator=torch.Generator().manual_seed(0))]
    rows[2] = shuffled  # a partition's rows need not be in order
    teacher = Teacher.for_client(FedPHP(transfer="distillation"), scenario.initial(3), 2, objective)
    outputs, _ = objective.outputs(scenario.initial(3), 2, "train")
    for position in (0, 5, len(shuffled) - 1):
        values = teacher.cached.lookup(shuffled[position : position + 1])[0]
        assert_close(values, (outputs[position] / 4).softmax(0))


def test_discrepancy_is_zero_for_equal_samples_and_symmetric():
    x, y = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(discrepancy(x, x[torch.tensor([5, 0, 3, 1, 2, 4])])) == pytest.approx(0, abs=1e-12)
    assert float(discrepancy(x, y)) == pytest.approx(float(discrepancy(y, x)))
    assert float(discrepancy(x, y)) == pytest.approx(float(published_mmd(x, y)))
    assert float(discrepancy(x[:1], x[:1])) == pytest.approx(0, abs=1e-12)


def test_a_batch_of_one_sample_has_no_discrepancy():
    """Its two features would be the only pair: the nearer, the steeper, without bound."""
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    discrepancy(x, x.detach() + 1e-3).backward()
    assert torch.equal(x.grad, torch.zeros(1, 2))


def test_a_small_distance_of_large_features_is_not_lost_in_rounding():
    offsets = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(2)).double() / 64
    x, y = (100 + offsets).float()
    assert float(discrepancy(x, y)) == pytest.approx(float(published_mmd(x, y)), rel=1e-3)


def test_soft_answers_by_kind_of_targets():
    outputs = torch.tensor([[4.0 * math.log(3.0), 0.0]])
    assert TASKS["classes"].soften(outputs, TEMPERATURE)[0].tolist() == pytest.approx([0.75, 0.25])
    assert TASKS["multilabel"].soften(outputs, TEMPERATURE)[0].tolist() == pytest.approx(
        [0.75, 0.5]
    )
    assert torch.equal(TASKS["regression"].soften(outputs, TEMPERATURE), outputs)


def test_a_visit_that_only_looks_asks_no_teacher():
    run = Federation(FedPHP().method(), quadratics(2))
    training = LocalTraining(run.problem, (0,), run.roster, a_round(), trains=False)
    received = {"model": run.server.unsqueeze(0)}
    state = run.state(0)
    assert isinstance(replace(state), FedPHPState)
    _, uplink, _ = run.method.client.train(state, received, training, a_round())
    assert torch.equal(uplink["model"][0], run.server)


def test_the_server_is_fedavgs():
    problem = quadratics(3, samples=2)
    php = trained(FedPHP(transfer_weight=0.0), problem, lr=0.1)
    avg = trained(FedAvg(), problem, lr=0.1)
    assert torch.equal(php.server, avg.server)
