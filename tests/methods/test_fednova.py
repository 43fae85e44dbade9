"""FedNova: training length against the paper's closed forms, a round by hand, the fixed point
FedAvg misses.
"""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.one_model.fednova import FedNova
from pomona.methods.one_model.fedprox import FedProx
from problems import Federation, a_round, judged, quadratics, trained, uneven


@pytest.mark.parametrize("tau", [1, 2, 7])
def test_the_size_of_a_training_is_the_papers_closed_form(tau):
    """tau full-batch steps: plain, with momentum rho, and with a proximal term; both together by
    the sum of all weights.
    """
    rho, lr, mu, problem = 0.9, 0.1, 2.0, quadratics(1)

    def size(m, **optimizer):
        run = trained(FedNova(mu=m), problem, 1, epochs=tau, lr=lr, **optimizer)
        return float(run.replies[0].info["steps"])

    assert size(0.0) == tau
    assert size(0.0, momentum=rho) == pytest.approx(
        (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    )
    assert size(mu) == pytest.approx((1 - (1 - lr * mu) ** tau) / (lr * mu))


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"momentum": 0.0}])
@pytest.mark.parametrize("mu", [0.0, 1.5])
def test_the_size_is_the_way_that_constant_gradients_go(optimizer, mu):
    """On a loss with the gradient 1 everywhere a client goes lr |a|: far targets make the gradients
    all but constant.
    """
    problem = quadratics(1, samples=6)
    problem.targets.sub_(1e9)
    run = trained(FedNova(mu=mu), problem, 1, epochs=2, batch_size=2, lr=1e-3, **optimizer)
    distance = (run.initial() - run.server)[0] / 1e-3 / 1e9
    assert float(run.replies[0].info["steps"]) == pytest.approx(float(distance), rel=1e-2)


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9, "lr": 0.03}, {"lr": 0.1}])
def test_with_as_many_steps_for_all_it_is_fedavg_to_the_bit(optimizer):
    problem = quadratics(4, samples=3)
    nova, fedavg = (
        trained(m, problem, 4, epochs=2, batch_size=1, **optimizer) for m in (FedNova(), FedAvg())
    )
    assert torch.equal(nova.server, fedavg.server)
    prox = trained(FedNova(mu=0.4), problem, epochs=2, batch_size=1, lr=0.1)
    assert torch.equal(
        prox.server, trained(FedProx(mu=0.4), problem, epochs=2, batch_size=1, lr=0.1).server
    )


def test_a_round_by_hand():
    """Clients with 4 and 2 samples in batches of 1: 4 and 2 steps, p = (2/3, 1/3), tau_eff = 8/3 +
    2/3 = 10/3.
    """
    problem = uneven(4, 2)
    run = Federation(FedNova().method(), problem)
    w = run.initial()
    run.round(a_round(batch_size=1))
    first, second = (r.uplink["model"] for r in run.replies)
    mean_step = 2 / 3 * (first - w) / 4 + 1 / 3 * (second - w) / 2
    assert_close(run.server, w + 10 / 3 * mean_step)


@pytest.mark.slow
def test_it_settles_at_the_optimum_of_the_stated_objective_where_fedavg_does_not():
    """Small full passes, 8 and 2 samples: FedNova nears sum p_i centre_i, FedAvg the centres
    weighted by n_i squared.

    To first order in lr a client goes tau_i lr (centre_i - w): FedAvg's weights are p_i tau_i, 64 :
    4 against 8 : 2.
    """
    problem = uneven(8, 2)
    nova, avg = (
        trained(m, problem, 1500, batch_size=1, lr=0.002).server for m in (FedNova(), FedAvg())
    )
    centres = torch.stack([problem.targets[r].mean(0) for r in problem.rows])
    assert_close(nova, 0.8 * centres[0] + 0.2 * centres[1], atol=0.02, rtol=0)
    assert_close(avg, (64 * centres[0] + 4 * centres[1]) / 68, atol=0.02, rtol=0)


@pytest.mark.parametrize("steps", [0.0, -3.0, 1e-300])
def test_a_training_without_length_is_refused(steps):
    """Its change is divided by that: 0 or 1e-300 would make the global model NaN or infinite."""
    run = Federation(FedNova().method(), uneven(4, 2, 3))
    run.round(a_round(batch_size=1))
    assert judged(run).rejected == ()
    forged = {**run.replies[1].uplink, "steps": torch.tensor([steps]).double()}
    run.replies[1] = replace(run.replies[1], uplink=forged)
    (rejection,) = judged(run).rejected
    assert rejection.client == 1
    assert "tensor 'steps' holds" in rejection.reason


def test_a_strong_pull_makes_no_honest_training_too_short():
    """lr mu = 1.9: two steps go (1 - 0.9^2) / 1.9 = 0.1."""
    run = Federation(FedNova(mu=19.0).method(), quadratics(1))
    run.round(a_round(epochs=2))
    assert float(run.replies[0].info["steps"]) == pytest.approx(0.1)
    assert judged(run).rejected == ()
