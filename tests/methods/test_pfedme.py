"""pFedMe against its equations."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from pomona.methods.personal_regularisation.pfedme import PFedMe
from problems import Federation, Quadratics, a_round, quadratics

pytestmark = pytest.mark.long


def pfedme(weight, **settings):
    return PFedMe(**{"lambda": weight, **settings}).method()


def one_sample(value):
    return Quadratics(torch.tensor([[value]], dtype=torch.float64), [[0]])


def test_two_batches_by_hand():
    """Sample 3, lambda = 2, K = 2, personal_lr .1, lr .05: theta goes on from the batch before, w_i
    follows it.
    """
    run = Federation(pfedme(2.0, inner_steps=2, personal_lr=0.1), one_sample(3.0))
    w = run.initial().item()
    run.round(a_round(epochs=2, lr=0.05))
    theta = w
    for _ in range(2):
        for _ in range(2):
            theta -= 0.1 * (theta - 3 + 2 * (theta - w))
        w -= 0.05 * 2 * (w - theta)
    assert run.model(0, "personal", "trained").item() == pytest.approx(theta)
    assert run.server.item() == pytest.approx(w)


def test_every_round_starts_theta_at_the_received_model():
    """A second round from w is what a first round from w would be: a client keeps nothing."""
    problem = quadratics(2)
    run, fresh = Federation(pfedme(5.0), problem), Federation(pfedme(5.0), problem)
    run.round(a_round(1))
    fresh.server = run.server.clone()
    for federation in (run, fresh):
        federation.round(a_round(2))
    assert torch.equal(run.model(0, "personal", "trained"), fresh.model(0, "personal", "trained"))
    assert run.clients.store.private(0) == {}


@given(weight=st.floats(0.1, 20), lr=st.floats(1e-3, 0.05))
def test_an_exact_inner_solve_is_a_step_on_the_moreau_envelope(weight, lr):
    """The inner objective has curvature 1 + lambda: one step of 1 / (1 + lambda) ends at theta = (a
    + lambda w) / (1 + lambda).

    The envelope of (w - a)^2 / 2 has the gradient lambda (w - theta) = lambda / (1 + lambda) (w -
    a).
    """
    problem = quadratics(2)
    run = Federation(pfedme(weight, inner_steps=1, personal_lr=1 / (1 + weight)), problem)
    w = run.initial()
    run.round(a_round(lr=lr))
    for i in range(2):
        a = problem.targets[2 * i : 2 * i + 2].mean(0)
        assert_close(run.model(i, "personal", "trained"), (a + weight * w) / (1 + weight))
        assert_close(run.replies[i].uplink["model"], w - lr * weight / (1 + weight) * (w - a))


def test_without_the_pull_the_global_model_stays_to_the_bit():
    run = Federation(pfedme(0.0), quadratics(3, samples=4))
    for number in (1, 2, 3):
        run.round(a_round(number, epochs=2, batch_size=1, momentum=0.9, weight_decay=0.1))
    assert torch.equal(run.server, run.initial())
    assert not torch.equal(run.model(0, "personal", "trained"), run.initial())


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 2.0])
def test_beta_mixes_the_weighted_mean_into_the_old_model(beta):
    """Clients of 1 and 3 samples: w <- (1 - beta) w + beta (w_1 / 4 + 3 w_2 / 4); 0 freezes w to
    the bit.
    """
    problem = quadratics(2)
    problem = Quadratics(problem.targets, [[0], [1, 2, 3]])
    run = Federation(pfedme(15.0, beta=beta), problem)
    w = run.initial()
    run.round(a_round(lr=0.01))
    first, second = (reply.uplink["model"] for reply in run.replies)
    assert_close(run.server, (1 - beta) * w + beta * (first / 4 + 3 * second / 4))
    assert torch.equal(run.server, w) == (beta == 0)


def test_it_converges_to_the_optimum_of_the_envelopes():
    """Equal curvature: the envelopes' weighted optimum is the pooled mean, and theta_i = (a_i +
    lambda w) / (1 + lambda).
    """
    problem = Quadratics(quadratics(2).targets, [[0], [1, 2, 3]])
    run = Federation(pfedme(4.0, inner_steps=40, personal_lr=0.15), problem)
    for number in range(1, 121):
        run.round(a_round(number, lr=0.2))
    w = problem.targets.mean(0)
    assert_close(run.server, w)
    assert_close(run.model(0, "personal", "trained"), (problem.targets[0] + 4 * w) / 5)


def test_momentum_and_weight_decay_are_pytorchs_on_theta():
    run = Federation(pfedme(2.0, inner_steps=4, personal_lr=0.1), one_sample(3.0))
    w = run.initial()
    theta = torch.nn.Parameter(w.clone())
    optimiser = torch.optim.SGD([theta], lr=0.1, momentum=0.9, weight_decay=0.05)
    run.round(a_round(lr=0.03, momentum=0.9, weight_decay=0.05))
    for _ in range(4):
        optimiser.zero_grad()
        ((theta - 3) ** 2 / 2 + (theta - w) ** 2).sum().backward()
        optimiser.step()
    assert_close(run.model(0, "personal", "trained"), theta.detach())
    assert_close(run.server, w - 0.03 * 2 * (w - theta.detach()))


def test_decay_reaches_both_rates():
    """Round 3 with decay .81: theta's rate is .1 * .81; the round's lr comes decayed."""
    run = Federation(pfedme(2.0, inner_steps=1, personal_lr=0.1), one_sample(3.0))
    w = run.initial().item()
    run.round(a_round(3, lr=0.05 * 0.81, decay=0.81))
    theta = w - 0.081 * (w - 3)
    assert run.model(0, "personal", "trained").item() == pytest.approx(theta)
    assert run.server.item() == pytest.approx(w - 0.0405 * 2 * (w - theta))


def test_absent_clients_are_uncounted_and_theta_stays_home():
    problem = quadratics(3)
    run = Federation(pfedme(4.0), problem)
    run.round(a_round(lr=0.02), ids=(0, 2))
    assert all(reply.uplink.keys() == {"model"} for reply in run.replies)
    assert_close(run.server, (run.replies[0].uplink["model"] + run.replies[1].uplink["model"]) / 2)


def test_the_key_is_lambda_in_and_out():
    settings = PFedMe.model_validate({"lambda": 1.5, "inner_steps": 2})
    assert settings.model_dump()["lambda"] == 1.5
    assert PFedMe.model_validate(settings.model_dump()) == settings
