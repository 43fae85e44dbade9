"""FedAvg-C and FedProx-C: fine-tuning first, then training from there."""

import pytest
import torch
from torch.testing import assert_close

from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.one_model.fedavg_c import FedAvgC, FedProxC
from pomona.methods.one_model.fedprox import FedProx
from problems import PASSES, Federation, Quadratics, a_round, quadratics, trained


@pytest.mark.parametrize(
    ("tuned", "plain"),
    [
        (FedAvgC(finetune_epochs=0), FedAvg()),
        (FedProxC(finetune_epochs=0, mu=0.3), FedProx(mu=0.3)),
    ],
)
def test_no_fine_tuning_is_the_plain_method_to_the_bit(tuned, plain):
    problem = quadratics(3, samples=5)
    a, b = Federation(tuned.method(), problem), Federation(plain.method(), problem)
    for number in (1, 2, 3):
        a.round(a_round(number, **PASSES))
        b.round(a_round(number, **PASSES))
        assert torch.equal(a.server, b.server)
        assert torch.equal(a.model(1, "personal", "received"), b.model(1, "global", "received"))


def test_without_a_proximal_term_both_are_one():
    problem = quadratics(3, samples=5)
    prox, avg = (trained(FedProxC(mu=0.0), problem, 2), trained(FedAvgC(), problem, 2))
    assert torch.equal(prox.server, avg.server)


def test_full_batch_descent_is_fedavg_with_the_epochs_added():
    problem = quadratics(3, samples=4)
    tuned = trained(FedAvgC(finetune_epochs=3), problem, 2, epochs=2)
    longer = trained(FedAvg(), problem, 2, epochs=5)
    assert_close(tuned.server, longer.server)


def test_fedprox_c_by_hand():
    """a = 3, lr .1, mu 2, one epoch each: t = w - .1 (w - 3) without the term; v = t - .1 ((t - 3)
    + 2 (t - w)).
    """
    run = Federation(
        FedProxC(mu=2.0).method(), Quadratics(torch.tensor([[3.0]], dtype=torch.float64), [[0]])
    )
    w = run.initial().item()
    run.round(a_round(lr=0.1))
    t = w - 0.1 * (w - 3)
    assert run.model(0, "personal", "received").item() == pytest.approx(t)
    assert run.server.item() == pytest.approx(t - 0.1 * ((t - 3) + 2 * (t - w)))


def test_its_fine_tuning_is_training_and_follows_the_schedule():
    """Two steps of .05, a tenth of lr .5, and one more from there: each takes .05 of the distance
    to 3.
    """
    settings = FedAvgC(finetune_epochs=2)
    run = Federation(
        settings.method(), Quadratics(torch.tensor([[3.0]], dtype=torch.float64), [[0]])
    )
    w = run.initial().item()
    run.round(a_round(2, lr=0.05, decay=0.1))
    assert run.model(0, "personal", "received").item() == pytest.approx(3 + (w - 3) * 0.95**2)
    assert run.server.item() == pytest.approx(3 + (w - 3) * 0.95**3)
