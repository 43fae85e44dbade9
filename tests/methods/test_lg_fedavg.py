"""LG-FedAvg: shared and local parts, and its reductions."""

import pytest
import torch

from pomona.federation.exchange import received_bytes
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.personal_regularisation.separate import Separate
from pomona.methods.shared_parts.lg_fedavg import LGFedAvg
from problems import Federation, Quadratics, a_round, quadratics, trained


def test_a_round_by_hand():
    """Sizes 1 and 3, one full-batch step of .5 on lower and upper number: l_i <- (l + a) / 2; g <-
    (g + (a_1 + 3 a_2) / 4) / 2.
    """
    samples = torch.tensor([[4.0, 8.0], *[[2.0, -8.0]] * 3], dtype=torch.float64)
    run = Federation(LGFedAvg().method(), Quadratics(samples, [[0], [1, 2, 3]]))
    lower, g = run.initial().tolist()
    run.round(a_round(lr=0.5))
    assert run.server.item() == pytest.approx((g - 4) / 2)
    assert [run.state(i).kept.item() for i in (0, 1)] == pytest.approx(
        [(lower + 4) / 2, (lower + 2) / 2]
    )
    run.round(a_round(2, lr=0.0))
    assert run.model(1, "personal", "received").tolist() == pytest.approx(
        [(lower + 2) / 2, (g - 4) / 2]
    )


def test_with_everything_shared_it_is_fedavg_to_the_bit():
    problem = quadratics(3, samples=5)
    lg, avg = (trained(LGFedAvg(shared=2), problem), trained(FedAvg(), problem))
    assert torch.equal(lg.server, avg.server)


def test_with_nothing_shared_it_is_separate_training_to_the_bit():
    problem = quadratics(3, samples=5)
    lg, separate = (trained(LGFedAvg(shared=0), problem), trained(Separate(), problem))
    assert all(torch.equal(lg.state(i).kept, separate.state(i)) for i in range(3))
    assert all(not reply.uplink["model"].nbytes for reply in lg.replies)


def test_only_the_shared_layer_travels():
    run = Federation(LGFedAvg().method(), quadratics(3, d=7))
    assert received_bytes(run.downlink(a_round(), (0, 1, 2)), (0, 1, 2)) == (8,) * 3
    run.round(a_round())
    assert [sum(t.nbytes for t in reply.uplink.values()) for reply in run.replies] == [8] * 3
