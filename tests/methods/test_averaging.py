"""FedAvg, its fine-tuning, FedProx and Separate: reductions, and numbers by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from pomona.core.round import Roster
from pomona.methods.base import floored, weighted_mean
from pomona.methods.mixtures import apple
from pomona.methods.one_model.fedavg import FedAvg, FedAvgFT, FedAvgLocal
from pomona.methods.one_model.fedprox import FedProx, FedProxFT
from pomona.methods.personal_regularisation.separate import Separate
from pomona.methods.robustness import robust_rules
from pomona.methods.shared_parts import fedcac, fedselect
from problems import Federation, Quadratics, a_round, quadratics, trained


def numbers(*samples):
    """Clients with one-dimensional samples, one list per client."""
    rows, flat = [], []
    for values in samples:
        rows.append(list(range(len(flat), len(flat) + len(values))))
        flat += values
    return Quadratics(torch.tensor(flat, dtype=torch.float64).unsqueeze(1), rows)


def test_fedavg_by_hand():
    """Clients with samples {4} and {1, 1, 1}, w = w0, one full-batch step of .5: w_1 = w0 - .5 (w0
    - 4), w_2 = w0 - .5 (w0 - 1).

    Weights 1/4 and 3/4: w = .5 w0 + .5 (4 / 4 + 3 / 4) = .5 w0 + .875.
    """
    run = Federation(FedAvg().method(), numbers([4.0], [1.0, 1.0, 1.0]))
    w0 = run.initial().item()
    run.round(a_round(lr=0.5))
    assert run.server.item() == pytest.approx(0.5 * w0 + 0.875)
    assert run.model(0, "global", "received").item() == pytest.approx(w0)
    assert run.model(0, "local", "trained").item() == pytest.approx(0.5 * w0 + 2)


def test_a_full_batch_step_of_fedavg_is_a_step_on_the_pooled_loss():
    problem = quadratics(3, samples=4)
    run = Federation(FedAvg().method(), problem)
    w0 = run.initial()
    run.round(a_round(lr=0.2))
    assert_close(run.server, w0 - 0.2 * (w0 - problem.targets.mean(0)))


def test_fedprox_by_hand():
    """mu = 2, lr = .1, two steps from w on F(v) = (v - a)^2 / 2: v1 = w - .1 (w - a); v2 = v1 - .1
    (v1 - a + 2 (v1 - w)).
    """
    run = Federation(FedProx(mu=2.0).method(), numbers([3.0]))
    w = run.initial().item()
    run.round(a_round(epochs=2, lr=0.1))
    v1 = w - 0.1 * (w - 3)
    v2 = v1 - 0.1 * (v1 - 3 + 2 * (v1 - w))
    assert run.server.item() == pytest.approx(v2)


def test_fedprox_without_its_term_is_fedavg_to_the_bit():
    problem = quadratics(3, samples=5)
    prox, avg = (trained(FedProx(mu=0.0), problem), trained(FedAvg(), problem))
    assert torch.equal(prox.server, avg.server)


def test_a_heavy_proximal_term_holds_clients_at_the_received_model():
    """lr mu < 1 stays stable; after many steps the distance to w shrinks as 1 / (1 + mu)."""
    problem = numbers([5.0])
    run = Federation(FedProx(mu=99.0).method(), problem)
    w = run.initial().item()
    run.round(a_round(epochs=400, lr=0.01))
    assert run.server.item() - w == pytest.approx((5.0 - w) / 100, rel=1e-6)


@pytest.mark.parametrize(("tuned", "plain"), [(FedAvgFT, FedAvg), (FedProxFT, FedProx)])
def test_fine_tuning_never_enters_the_average(tuned, plain):
    problem = quadratics(3, samples=4)
    tuned_run, plain_run = (trained(tuned(), problem, 2), trained(plain(), problem, 2))
    assert torch.equal(tuned_run.server, plain_run.server)


def test_no_fine_tuning_is_the_global_model():
    run = Federation(FedAvgFT(finetune_epochs=0).method(), quadratics(2))
    run.round(a_round())
    assert torch.equal(run.model(1, "personal", "received"), run.model(1, "global", "received"))


def test_fine_tuning_by_hand():
    """Two full-batch epochs of .5 from w on (v - a)^2 / 2: the distance to a falls to a quarter."""
    run = Federation(FedAvgFT(finetune_epochs=2).method(), numbers([3.0], [0.0]))
    w = run.initial().item()
    run.round(a_round(lr=0.5))
    assert run.model(0, "personal", "received").item() == pytest.approx(3 + (w - 3) / 4)


def test_without_a_learning_rate_the_local_copy_is_the_global_model():
    run = Federation(FedAvgLocal().method(), quadratics(2))
    run.round(a_round(lr=0.0))
    assert torch.equal(run.model(0, "local", "trained"), run.model(0, "global", "received"))


def test_one_client_makes_fedavg_centralised_training():
    problem = quadratics(1, samples=6)
    avg, separate = (trained(FedAvg(), problem, 2), trained(Separate(), problem, 2))
    assert torch.equal(avg.server, separate.state(0)[0])


def test_separate_converges_to_each_clients_own_optimum():
    problem = quadratics(3, samples=2)
    run = trained(Separate(), problem, 200, lr=0.1)
    for i in range(3):
        assert_close(
            run.model(i, "personal", "trained"),
            problem.targets[2 * i : 2 * i + 2].mean(0),
            atol=1e-8,
            rtol=0,
        )


def test_weight_decay_and_momentum_are_pytorchs():
    problem = numbers([3.0])
    run = Federation(Separate().method(), problem)
    parameter = torch.nn.Parameter(run.initial())
    optimiser = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, weight_decay=0.05)
    run.round(a_round(epochs=4, lr=0.1, momentum=0.9, weight_decay=0.05))
    for _ in range(4):
        optimiser.zero_grad()
        ((parameter - 3) ** 2 / 2).sum().backward()
        optimiser.step()
    assert_close(run.state(0)[0], parameter.detach())


def test_the_mean_of_equal_models_is_that_model_to_the_bit():
    w = torch.randn(50, generator=torch.Generator().manual_seed(1))
    assert torch.equal(weighted_mean(w.repeat(7, 1), Roster((3, 1, 4, 1, 5, 9, 2)).shares), w)


def test_absent_clients_are_unchanged_and_uncounted():
    problem = quadratics(3, samples=2)
    run = Federation(FedAvg().method(), problem)
    w = run.initial()
    run.round(a_round(lr=0.1), ids=(0, 2))
    steps = [w - 0.1 * (w - problem.targets[2 * i : 2 * i + 2].mean(0)) for i in (0, 2)]
    assert_close(run.server, (steps[0] + steps[1]) / 2)


@given(st.integers(0, 10**6), st.integers(1, 10**8))
def test_a_share_rounded_down_is_that_of_the_decimal_number(millionths, n):
    """0.29 of 100 is 29, though 0.29 * 100 is 28.999999999999996."""
    assert floored(millionths / 10**6, n) == millionths * n // 10**6
    assert floored(0.29, 100) == 29


@given(st.integers(1, 10**8), st.data())
def test_a_share_that_is_a_quotient_gives_its_numerator(n, data):
    k = data.draw(st.integers(0, n))
    assert floored(k / n, n) == k


def test_every_share_that_is_rounded_down_is_rounded_alike():
    """29 of a hundred rounds, numbers of a layer, or clients."""
    settings = apple.APPLE(schedule_share=0.29)
    weights = [apple.schedule(settings, a_round(r, total=100)) for r in range(1, 101)]
    assert sum(weight > 0 for weight in weights) == 29
    c, layer = torch.linspace(1, 2, 100).unsqueeze(0), (slice(0, 100),)
    assert fedcac.critical(c, layer, 0.29).sum() == 29
    settings = fedselect.FedSelect(rate=1.0, limit=0.29)
    assert (
        fedselect.grow_masks(torch.zeros(1, 100, dtype=torch.bool), c, layer, settings).sum() == 29
    )
    assert robust_rules.tolerated(100, 0.29) == 29
