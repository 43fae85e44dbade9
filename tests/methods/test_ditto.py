"""Ditto against its equations."""

import pytest
import torch
from torch.testing import assert_close

from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.personal_regularisation.ditto import Ditto
from pomona.methods.personal_regularisation.separate import Separate
from problems import PASSES, Federation, Quadratics, a_round, quadratics

pytestmark = pytest.mark.long


def ditto(weight, **settings):
    return Ditto(**{"lambda": weight, **settings}).method()


def test_two_rounds_by_hand():
    """Sample 3, lambda = 2, two steps of .1 a round: v is pulled to the model received, not to the
    trained copy.
    """
    run = Federation(ditto(2.0), Quadratics(torch.tensor([[3.0]], dtype=torch.float64), [[0]]))
    w = v = run.initial().item()
    for number in (1, 2):
        run.round(a_round(number, epochs=2))
        for _ in range(2):
            v -= 0.1 * (v - 3 + 2 * (v - w))
        assert run.state(0).item() == pytest.approx(v)
        assert run.model(0, "personal", "trained").item() == pytest.approx(v)
        w = 3 + (w - 3) * 0.9**2
        assert run.server.item() == pytest.approx(w)


def test_without_the_pull_the_personal_model_is_separate_to_the_bit():
    problem = quadratics(3, samples=4)
    run, separate = Federation(ditto(0.0), problem), Federation(Separate().method(), problem)
    for number in (1, 2, 3):
        run.round(a_round(number, **PASSES))
        separate.round(a_round(number, **PASSES))
        for i in range(3):
            assert torch.equal(run.state(i), separate.state(i))


@pytest.mark.parametrize("method", [ditto(0.0), ditto(3.0), ditto(1.0, personal_epochs=1)])
def test_the_global_part_is_fedavg_to_the_bit(method):
    problem = quadratics(3, samples=4)
    run, avg = Federation(method, problem), Federation(FedAvg().method(), problem)
    for number in (1, 2, 3):
        run.round(a_round(number, **PASSES))
        avg.round(a_round(number, **PASSES))
        assert torch.equal(run.server, avg.server)
        assert torch.equal(run.model(2, "local", "trained"), avg.model(2, "local", "trained"))
        assert torch.equal(run.model(2, "global", "received"), avg.model(2, "global", "received"))


@pytest.mark.parametrize("weight", [0.1, 1.0, 4.0])
def test_it_converges_to_a_point_between_the_own_and_the_global_optimum(weight):
    """F_i' (v) + lambda (v - w) = 0 with w = mean of all targets: v = (a_i + lambda w) / (1 +
    lambda).
    """
    problem = quadratics(3)
    run = Federation(ditto(weight), problem)
    for number in range(1, 201):
        run.round(a_round(number, lr=0.2))
    w = problem.targets.mean(0)
    for i in range(3):
        optimum = problem.targets[2 * i : 2 * i + 2].mean(0)
        assert_close(run.model(i, "personal", "trained"), (optimum + weight * w) / (1 + weight))


@pytest.mark.parametrize("weight", [1e2, 1e6])
def test_a_heavy_pull_holds_the_personal_model_at_the_received_one(weight):
    """With lr = 1 / lambda a step ends at w - grad F_i(v) / lambda, which tends to w."""
    problem = quadratics(2)
    run = Federation(ditto(weight), problem)
    v = torch.full((1, 5), 9.0, dtype=torch.float64)
    run.set_state(0, v.clone())
    run.round(a_round(lr=1 / weight))
    gradient = v[0] - problem.targets[:2].mean(0)
    assert_close(run.state(0)[0], run.initial() - gradient / weight)


def test_personal_epochs_are_the_personal_models_alone():
    problem = quadratics(2, samples=3)
    untrained, two_epochs, unset = (
        Federation(ditto(1.0, personal_epochs=e), problem) for e in (0, 2, None)
    )
    expected = Federation(ditto(1.0), problem)
    for run, epochs in ((untrained, 2), (two_epochs, 1), (unset, 1), (expected, 2)):
        run.round(a_round(**{**PASSES, "epochs": epochs}))
    assert torch.equal(untrained.state(0)[0], untrained.initial())
    assert torch.equal(two_epochs.state(0), expected.state(0))
    assert not torch.equal(two_epochs.state(0), unset.state(0))
    assert torch.equal(two_epochs.server, unset.server)


def test_the_key_is_lambda_in_and_out():
    settings = Ditto.model_validate({"lambda": 0.5})
    assert settings.model_dump()["lambda"] == 0.5
    assert Ditto.model_validate(settings.model_dump()) == settings
    assert Ditto(lambda_=0.5) == settings
