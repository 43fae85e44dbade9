"""FedDyn against its equations."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.one_model.feddyn import Cloud, FedDyn, FedDynState
from pomona.methods.one_model.fedprox import FedProx
from problems import PASSES, Federation, Quadratics, a_round, quadratics, trained

pytestmark = pytest.mark.long


def linear_terms(run):
    return torch.cat([run.state(i).linear for i in run.ids])


def test_two_rounds_by_hand():
    """Samples 4 and 0, alpha = .5, two steps of .1 a round: plain numbers."""
    problem = Quadratics(torch.tensor([[4.0], [0.0]], dtype=torch.float64), [[0], [1]])
    run = Federation(FedDyn(alpha=0.5).method(), problem)
    w, h, linear = run.initial().item(), 0.0, [0.0, 0.0]
    for number in (1, 2):
        run.round(a_round(number, epochs=2))
        trained = []
        for i, a in enumerate((4.0, 0.0)):
            v = w
            for _ in range(2):
                v -= 0.1 * (v - a - linear[i] + 0.5 * (v - w))
            linear[i] -= 0.5 * (v - w)
            trained.append(v)
        h -= 0.5 / 2 * sum(v - w for v in trained)
        w = sum(trained) / 2 - h / 0.5
        assert run.server.model.item() == pytest.approx(w)
        assert run.server.linear.mean(0).item() == pytest.approx(h)
        assert linear_terms(run).flatten().tolist() == pytest.approx(linear)


@given(
    cohorts=st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=4),
    alpha=st.floats(1e-3, 2),
)
def test_h_is_the_mean_linear_term_whoever_takes_part(cohorts, alpha):
    run = Federation(FedDyn(alpha=alpha).method(), quadratics(4, samples=3))
    for number, ids in enumerate(cohorts, 1):
        run.round(a_round(number, **PASSES), ids=tuple(sorted(ids)))
        assert_close(linear_terms(run).mean(0), run.server.linear.mean(0))


@given(alpha=st.floats(1e-2, 10))
def test_an_exact_local_solve_makes_the_linear_term_the_gradient(alpha):
    """The local objective has curvature 1 + alpha: one full-batch step of 1 / (1 + alpha) is its
    optimum.
    """
    problem = quadratics(3)
    run = Federation(FedDyn(alpha=alpha).method(), problem)
    for number in (1, 2, 3):
        run.round(a_round(number, lr=1 / (1 + alpha)))
        for i in range(3):
            gradient = run.model(i, "local", "trained") - problem.targets[2 * i : 2 * i + 2].mean(0)
            assert_close(run.state(i).linear[0], gradient)


def test_it_converges_to_the_uniform_optimum_where_h_vanishes():
    """Clients of 1 and 3 samples with means 0 and 1: the optimum of the mean F_i is .5, and
    lambda_i = grad F_i(.5).
    """
    problem = Quadratics(
        torch.tensor([[0.0], [1.0], [1.0], [1.0]], dtype=torch.float64), [[0], [1, 2, 3]]
    )
    run = trained(FedDyn(alpha=0.5), problem, 200, epochs=2, batch_size=1, lr=0.2)
    assert run.server.model.item() == pytest.approx(0.5)
    assert run.server.linear.mean(0).item() == pytest.approx(0, abs=1e-9)
    assert linear_terms(run).flatten().tolist() == pytest.approx([0.5, -0.5])


def test_with_frozen_linear_terms_a_small_alpha_is_fedavg():
    """h and lambda put back to 0 after every round; w + h / alpha is the plain mean.

    Equal sizes make FedAvg uniform.
    """
    problem, alpha = quadratics(3, samples=4), 1e-9
    run = Federation(FedDyn(alpha=alpha).method(), problem)
    avg = Federation(FedAvg().method(), problem)
    for number in (1, 2, 3):
        run.round(a_round(number, **PASSES))
        avg.round(a_round(number, **PASSES))
        mean = run.server.model + run.server.linear.mean(0) / alpha
        assert_close(mean, avg.server)
        run.server = Cloud(mean, torch.zeros_like(run.server.linear))
        for i in run.ids:
            run.set_state(i, FedDynState(torch.zeros(1, 5, dtype=torch.float64)))


def test_without_linear_terms_clients_train_as_in_fedprox():
    """Round 1 from lambda = 0: the local objective is FedProx's with mu = alpha."""
    problem = quadratics(2, samples=3)
    run = Federation(FedDyn(alpha=0.7).method(), problem)
    prox = Federation(FedProx(mu=0.7).method(), problem)
    run.round(a_round(**PASSES))
    prox.round(a_round(**PASSES))
    for i in range(2):
        assert torch.equal(run.model(i, "local", "trained"), prox.model(i, "local", "trained"))
