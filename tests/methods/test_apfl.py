"""APFL against its equations."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from pomona.methods.mixtures.apfl import APFL, APFLState
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.personal_regularisation.separate import Separate
from problems import PASSES, Federation, Quadratics, a_round, quadratics, trained

pytestmark = pytest.mark.long


def one_client(value, v, alpha, **settings):
    """A single client with one sample, its own model at v."""
    run = Federation(
        APFL(alpha=alpha, **settings).method(),
        Quadratics(torch.tensor([[value]], dtype=torch.float64), [[0]]),
    )
    run.set_state(0, APFLState(torch.tensor([[v]], dtype=torch.float64), run.state(0).alpha))
    return run


def test_two_steps_by_hand():
    """Sample 2, alpha = .25, v = 1, lr .1: both gradients before either step, the next mixture from
    both new models.
    """
    run = one_client(2.0, 1.0, 0.25)
    w, v = run.initial().item(), 1.0
    run.round(a_round(epochs=2))
    for _ in range(2):
        m = 0.25 * v + 0.75 * w
        w, v = w - 0.1 * (w - 2), v - 0.1 * 0.25 * (m - 2)
    assert run.server.item() == pytest.approx(w)
    assert run.state(0).model.item() == pytest.approx(v)
    assert run.model(0, "personal", "trained").item() == pytest.approx(0.25 * v + 0.75 * w)


def test_adaptive_steps_by_hand():
    """The first batch moves alpha, by the gradient taken before any step; v's own first step still
    has the old alpha.
    """
    run = one_client(2.0, 1.0, 0.25, adaptive=True)
    w, v, alpha = run.initial().item(), 1.0, 0.25
    run.round(a_round(epochs=2))
    g = alpha * v + (1 - alpha) * w - 2
    w, v, alpha = w - 0.1 * (w - 2), v - 0.1 * alpha * g, alpha - 0.1 * (v - w) * g
    g = alpha * v + (1 - alpha) * w - 2
    w, v = w - 0.1 * (w - 2), v - 0.1 * alpha * g
    assert run.state(0).alpha.item() == pytest.approx(alpha)
    assert 0 < alpha < 1
    assert run.state(0).model.item() == pytest.approx(v)
    assert run.server.item() == pytest.approx(w)


def test_gradients_are_finite_differences_of_the_mixtures_loss():
    """With lr small enough to stay in [0, 1], what v and alpha move by is lr times the slope of
    F_i(alpha v + (1 - alpha) w).
    """
    problem, lr, alpha = quadratics(3), 1e-3, 0.4
    run = Federation(APFL(alpha=alpha, adaptive=True).method(), problem)
    w = run.initial()
    v = torch.randn(3, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for i in range(3):
        run.set_state(i, replace(run.state(i), model=v[i : i + 1].clone()))
    run.round(a_round(lr=lr))
    for i in range(3):

        def loss(v, a, i=i):
            return float(problem.losses(a * v + (1 - a) * w, i, "train").mean())

        slope = (loss(v[i], alpha + 1e-6) - loss(v[i], alpha - 1e-6)) / 2e-6
        assert (alpha - run.state(i).alpha.item()) / lr == pytest.approx(slope, rel=1e-6)
        for k in range(5):
            step = 1e-6 * torch.eye(5, dtype=torch.float64)[k]
            slope = (loss(v[i] + step, alpha) - loss(v[i] - step, alpha)) / 2e-6
            assert (v[i, k] - run.state(i).model[0, k]).item() / lr == pytest.approx(
                slope, rel=1e-6, abs=1e-8
            )


def test_alpha_one_is_separate_training_to_the_bit():
    problem = quadratics(3, samples=4)
    run = Federation(APFL(alpha=1.0).method(), problem)
    separate = Federation(Separate().method(), problem)
    for number in (1, 2, 3):
        run.round(a_round(number, **PASSES))
        separate.round(a_round(number, **PASSES))
        for i in range(3):
            assert torch.equal(run.state(i).model, separate.state(i))
            assert torch.equal(
                run.model(i, "personal", "trained"), separate.model(i, "personal", "trained")
            )


def test_alpha_zero_is_fedavg_local_to_the_bit():
    problem = quadratics(3, samples=4)
    run, avg = Federation(APFL(alpha=0.0).method(), problem), Federation(FedAvg().method(), problem)
    for number in (1, 2, 3):
        run.round(a_round(number, **PASSES))
        avg.round(a_round(number, **PASSES))
        for i in range(3):
            assert torch.equal(
                run.model(i, "personal", "trained"), avg.model(i, "local", "trained")
            )


@pytest.mark.parametrize("settings", [APFL(), APFL(alpha=0.9, adaptive=True)])
def test_the_global_part_is_fedavg_to_the_bit(settings):
    problem = quadratics(3, samples=4)
    run, avg = Federation(settings.method(), problem), Federation(FedAvg().method(), problem)
    for number in (1, 2, 3):
        run.round(a_round(number, **PASSES))
        avg.round(a_round(number, **PASSES))
        assert torch.equal(run.server, avg.server)
        assert torch.equal(run.model(1, "global", "received"), avg.model(1, "global", "received"))


def test_alpha_moves_once_a_round():
    one_epoch, five_epochs = (one_client(2.0, 1.0, 0.25, adaptive=True) for _ in range(2))
    one_epoch.round(a_round(epochs=1))
    five_epochs.round(a_round(epochs=5))
    assert one_epoch.state(0).alpha.item() != 0.25
    assert torch.equal(one_epoch.state(0).alpha, five_epochs.state(0).alpha)


@given(value=st.floats(-50, 50), v=st.floats(-50, 50), alpha=st.floats(0, 1), lr=st.floats(1e-3, 1))
def test_alpha_stays_a_share(value, v, alpha, lr):
    run = one_client(value, v, alpha, adaptive=True)
    w = run.initial().item()
    run.round(a_round(lr=lr))
    unclipped = alpha - lr * (v - w) * (alpha * v + (1 - alpha) * w - value)
    assert run.state(0).alpha.item() == pytest.approx(min(max(unclipped, 0), 1), abs=1e-9)


def test_a_fixed_alpha_stays_and_people_see_it():
    run = Federation(APFL(alpha=0.3).method(), quadratics(2))
    run.round(a_round(epochs=3))
    assert [reply.info["alpha"].item() for reply in run.replies] == [0.3, 0.3]
    assert run.state(1).alpha.tolist() == [0.3]


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_mixture_received_converges_to_each_clients_own_optimum(adaptive):
    """One step a round: v rests where the mixture with the received w has gradient 0, that is where
    it is a_i.

    The copy of w then still moves by lr (a_i - w), of which the trained mixture gets the share 1 -
    alpha.
    """
    problem = quadratics(3)
    run = trained(APFL(alpha=0.5, adaptive=adaptive), problem, 300, lr=0.5)
    w = problem.targets.mean(0)
    assert_close(run.server, w)
    for i in range(3):
        best, alpha = problem.targets[2 * i : 2 * i + 2].mean(0), run.state(i).alpha
        assert_close(torch.lerp(w, run.state(i).model[0], alpha), best)
        assert_close(run.model(i, "personal", "trained"), best + (1 - alpha) * 0.5 * (best - w))
        assert (alpha != 0.5) == adaptive
