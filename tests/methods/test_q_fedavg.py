"""q-FedAvg: a round by hand, FedAvg at q = 0, the stationary point of its objective, and the worst
client's loss.
"""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.one_model.q_fedavg import QFedAvg, shares
from problems import Federation, a_round, judged, trained, uneven


def risks(problem, w):
    """F_i(w) of all clients."""
    return torch.stack([((w - problem.targets[r]) ** 2).sum(1).mean() / 2 for r in problem.rows])


def test_without_q_it_is_fedavg_to_the_bit():
    problem, passes = uneven(5, 3, 1), {"epochs": 2, "batch_size": 1, "lr": 0.05}
    assert torch.equal(
        trained(QFedAvg(q=0.0), problem, 4, **passes).server,
        trained(FedAvg(), problem, 4, **passes).server,
    )


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_a_round_by_hand(q):
    """The paper's sums, with p_i: D_i = (w - w_i) / lr, h_i = q F^(q - 1) |D|^2 + F^q / lr."""
    lr, problem = 0.1, uneven(4, 2)
    run = Federation(QFedAvg(q=q).method(), problem)
    w = run.initial()
    F, p = risks(problem, w), torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)
    run.round(a_round(lr=lr, epochs=2))
    D = torch.stack([(w - r.uplink["model"]) / lr for r in run.replies])
    h = q * F ** (q - 1) * (D**2).sum(1) + F**q / lr
    assert_close(run.server, w - (p * F**q) @ D / (p @ h))
    assert_close(torch.stack([r.info["risk"] for r in run.replies]), F)


@pytest.mark.parametrize("q", [0.0, 1.0, 2.0])
@pytest.mark.long
def test_it_settles_where_its_objective_is_stationary(q):
    """One full-batch step a round: at rest sum_i p_i F_i^q grad F_i = 0."""
    problem = uneven(6, 3, 1)
    w = trained(QFedAvg(q=q), problem, 800, lr=0.5).server.requires_grad_()
    p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    (p @ risks(problem, w) ** (q + 1) / (q + 1)).backward()
    assert w.grad.norm() < 1e-6


@pytest.mark.long
def test_a_larger_q_helps_the_worst_client():
    problem = uneven(10, 1)
    worst = [
        risks(problem, trained(QFedAvg(q=q), problem, 300, lr=0.5).server).max()
        for q in (0.0, 1.0, 4.0)
    ]
    assert worst[0] > worst[1] > worst[2]


def test_a_loss_of_zero_counts_for_nothing_and_breaks_nothing():
    F = torch.tensor([0.0, 2.0]).double()
    squares = torch.tensor([0.0, 1.0]).double()
    p = torch.tensor([0.5, 0.5]).double()
    for q in (0.0, 0.5, 1.0, 5.0):
        weights = shares(q, F, squares, p, 0.1)
        assert torch.isfinite(weights).all()
        assert (weights >= 0).all()
    assert shares(5.0, F, squares, p, 0.1)[0] < 1e-9


def test_clients_alike_share_equally_whatever_q():
    equal = torch.ones(3, dtype=torch.float64)
    weights = shares(2.0, equal, equal, equal / 3, 0.5)
    assert_close(weights, weights[0].expand(3))


def test_a_negative_loss_is_refused():
    """Its square root would make the global model NaN."""
    run = Federation(QFedAvg(q=0.5).method(), uneven(4, 2, 3))
    run.round(a_round())
    assert judged(run).rejected == ()
    run.replies[1] = replace(
        run.replies[1], uplink={**run.replies[1].uplink, "risk": torch.tensor([-1.0]).double()}
    )
    (rejection,) = judged(run).rejected
    assert "client 1, round 1: tensor 'risk' holds -1" in rejection.line


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0, 100.0])
@pytest.mark.parametrize("scale", [1e-5, 1e300])
def test_powers_of_losses_never_leave_the_range_of_numbers(q, scale):
    """Losses scale and 2 scale without any way gone: h_i = F_i^q / lr, and what counts is 1 :
    2^q.
    """
    p = torch.tensor([0.5, 0.5]).double()
    h = shares(
        q, torch.tensor([scale, 2 * scale], dtype=torch.float64), torch.zeros(2).double(), p, 0.1
    )
    ratio = 2.0**-q
    assert_close(
        h, torch.tensor([2 * ratio / (1 + ratio), 2 / (1 + ratio)]).double(), rtol=1e-2, atol=0
    )


def test_one_huge_loss_breaks_nothing():
    for q in (0.0, 0.5, 2.0):
        weights = shares(
            q,
            torch.tensor([1e300, 1.0], dtype=torch.float64),
            torch.ones(2).double(),
            torch.tensor([0.5, 0.5]).double(),
            0.1,
        )
        assert torch.isfinite(weights).all()
