"""FedPer: base layers and head in the same steps, with only the base sent; and its reductions."""

import pytest
import torch
from torch.testing import assert_close

from pomona.federation.exchange import received_bytes
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.personal_regularisation.separate import Separate
from pomona.methods.shared_parts.fedper import FedPer
from pomona.methods.shared_parts.lg_fedavg import LGFedAvg
from pomona.methods.shared_parts.partialfed import PartialFed
from problems import PASSES, Federation, Quadratics, a_round, quadratics, trained


def test_a_round_by_hand():
    """Sizes 1 and 3, one full-batch step of .5 on base and head: h_i <- (h + a) / 2; phi <- (phi +
    (a_1 + 3 a_2) / 4) / 2.
    """
    samples = torch.tensor([[8.0, 4.0], *[[-8.0, 2.0]] * 3], dtype=torch.float64)
    run = Federation(FedPer().method(), Quadratics(samples, [[0], [1, 2, 3]]))
    phi, head = run.initial().tolist()
    run.round(a_round(lr=0.5))
    assert run.server.item() == pytest.approx((phi - 4) / 2)
    assert [run.state(i).kept.item() for i in (0, 1)] == pytest.approx(
        [(head + 4) / 2, (head + 2) / 2]
    )
    run.round(a_round(2, lr=0.0))
    assert run.model(1, "personal", "received").tolist() == pytest.approx(
        [(phi - 4) / 2, (head + 2) / 2]
    )


def test_with_all_layers_shared_it_is_fedavg_to_the_bit():
    problem = quadratics(3, samples=5)
    assert torch.equal(trained(FedPer(shared=2), problem).server, trained(FedAvg(), problem).server)


def test_with_no_layer_shared_it_is_separate_training_to_the_bit():
    problem = quadratics(3, samples=5)
    run, separate = trained(FedPer(shared=0), problem), trained(Separate(), problem)
    assert all(torch.equal(run.state(i).kept, separate.state(i)) for i in range(3))
    assert all(not reply.uplink["model"].nbytes for reply in run.replies)


def test_it_is_partialfeds_rule_with_less_traffic():
    problem = quadratics(3, samples=5, d=7)
    run, partial = trained(FedPer(), problem), trained(PartialFed(rule="lower-shared"), problem)
    assert_close(run.server, partial.server[:-1])
    for i in range(3):
        assert_close(run.model(i, "personal", "trained"), partial.model(i, "personal", "trained"))
    downlink = run.downlink(a_round(), (0, 1, 2))
    assert received_bytes(downlink, (0, 1, 2)) == (6 * 8,) * 3  # six float64 of seven
    assert [sum(t.nbytes for t in reply.uplink.values()) for reply in run.replies] == [6 * 8] * 3


def test_it_shares_what_lg_fedavg_keeps():
    """Turned round, a row of two layers of one number each: FedPer's base is LG-FedAvg's upper
    layer.
    """
    samples = torch.randn(12, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rows = [list(range(4 * i, 4 * i + 4)) for i in range(3)]
    run, turned = (Federation(m, Quadratics(x, rows)) for m, x in
                   ((FedPer().method(), samples), (LGFedAvg().method(), samples.flip(1))))  # fmt: skip
    run.server, turned.server = torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    for number in (1, 2, 3):
        run.round(a_round(number, **PASSES))
        turned.round(a_round(number, **PASSES))
    assert torch.equal(run.server, turned.server)
