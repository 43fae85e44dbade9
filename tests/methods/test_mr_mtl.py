"""MR-MTL against its equations, its limits, and its fixed point."""

import pytest
import torch
from torch.testing import assert_close

from pomona.methods.one_model.fedprox import FedProx
from pomona.methods.personal_regularisation.ditto import Ditto
from pomona.methods.personal_regularisation.mr_mtl import MRMTL
from pomona.methods.personal_regularisation.separate import Separate
from problems import PASSES, Federation, Quadratics, a_round, quadratics

pytestmark = pytest.mark.long


def mr_mtl(weight):
    return MRMTL(**{"lambda": weight}).method()


def test_two_rounds_by_hand():
    """Samples 3 and, thrice, -1; lambda = 2, two steps of .1 a round, pulled to the mean as it was
    received.
    """
    samples = torch.tensor([[3.0], [-1.0], [-1.0], [-1.0]], dtype=torch.float64)
    run = Federation(mr_mtl(2.0), Quadratics(samples, [[0], [1, 2, 3]]))
    mean = run.initial().item()
    w = [mean, mean]
    for number in (1, 2):
        run.round(a_round(number, epochs=2))
        for i, a in enumerate((3.0, -1.0)):
            for _ in range(2):
                w[i] -= 0.1 * (w[i] - a + 2 * (w[i] - mean))
            assert run.state(i).item() == pytest.approx(w[i])
            assert run.model(i, "personal", "trained").item() == pytest.approx(w[i])
        mean = w[0] / 4 + 3 * w[1] / 4
        assert run.server.item() == pytest.approx(mean)


def test_without_the_pull_it_is_separate_training_to_the_bit():
    problem = quadratics(3, samples=4)
    run, separate = Federation(mr_mtl(0.0), problem), Federation(Separate().method(), problem)
    for number in (1, 2, 3):
        run.round(a_round(number, **PASSES))
        separate.round(a_round(number, **PASSES))
        assert all(torch.equal(run.state(i), separate.state(i)) for i in range(3))


@pytest.mark.parametrize("weight", [0.5, 3.0])
def test_one_client_is_held_at_its_rounds_start_as_fedprox_is_to_the_bit(weight):
    problem = quadratics(1, samples=4)
    run = Federation(mr_mtl(weight), problem)
    prox = Federation(FedProx(mu=weight).method(), problem)
    for number in (1, 2, 3):
        run.round(a_round(number, **PASSES))
        prox.round(a_round(number, **PASSES))
        assert torch.equal(run.server, prox.server)


def test_its_first_round_is_dittos_to_the_bit():
    """Both pull a common initial model towards itself; from then on the means differ."""
    problem = quadratics(3, samples=4)
    run = Federation(mr_mtl(1.5), problem)
    ditto = Federation(Ditto(**{"lambda": 1.5}).method(), problem)
    for number in (1, 2):
        run.round(a_round(number, **PASSES))
        ditto.round(a_round(number, **PASSES))
        assert all(torch.equal(run.state(i), ditto.state(i)) for i in range(3)) == (number == 1)


@pytest.mark.parametrize("weight", [0.1, 1.0, 4.0])
def test_it_converges_to_the_mean_regularised_optimum(weight):
    """w_i - a_i + lambda (w_i - m) = 0, whose mean is m = mean of a: w_i = (a_i + lambda m) / (1 +
    lambda).
    """
    problem = Quadratics(quadratics(1, samples=7).targets, [[0], [1, 2], [3, 4, 5, 6]])
    run = Federation(mr_mtl(weight), problem)
    for number in range(1, 1001):
        run.round(a_round(number, lr=0.15))
    mean = problem.targets.mean(0)
    assert_close(run.server, mean)
    for i, rows in enumerate(problem.rows):
        optimum = problem.targets[rows].mean(0)
        assert_close(run.state(i)[0], (optimum + weight * mean) / (1 + weight))


def test_a_heavy_pull_makes_one_model_of_all():
    """lr lambda = 1/2: what is left of a distance to the mean is halved in every step."""
    problem = quadratics(3)
    run = Federation(mr_mtl(500.0), problem)
    for number in range(1, 21):
        run.round(a_round(number, lr=1e-3, epochs=10))
    spread = torch.stack([run.state(i)[0] - run.server for i in range(3)]).abs().max()
    assert spread < 0.01 * (problem.targets[:2].mean(0) - problem.targets.mean(0)).abs().max()


def test_absent_clients_keep_their_models_and_do_not_count_in_the_mean():
    run = Federation(mr_mtl(1.0), quadratics(3))
    run.round(a_round(1))
    model = run.state(1).clone()
    run.round(a_round(2), ids=(0, 2))
    assert torch.equal(run.state(1), model)
    assert_close(run.server, (run.state(0)[0] + run.state(2)[0]) / 2)
