"""FedRep: shared and local parts, and its reductions."""

import pytest
import torch
from torch.testing import assert_close

from pomona.core.errors import ConfigError
from pomona.federation.exchange import received_bytes
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.shared_parts.fedper import FedPer
from pomona.methods.shared_parts.fedrep import FedRep
from problems import Federation, Quadratics, a_round, quadratics, trained


def test_a_round_by_hand():
    """Two clients, base and head one number each.

    Head first: h + .5 (a - h), twice; then the base: b + .5 (a - b).

    With sizes 1 and 1 the server's base is the mean of both clients' bases.
    """
    samples = torch.tensor([[4.0, 8.0], [2.0, -8.0]], dtype=torch.float64)
    run = Federation(FedRep(head_epochs=2).method(), Quadratics(samples, [[0], [1]]))
    b, h = run.initial().tolist()
    run.round(a_round(lr=0.5))
    assert run.server.item() == pytest.approx(0.5 * b + 1.5)
    for i, (base, top) in enumerate(samples.tolist()):
        assert run.state(i).kept.item() == pytest.approx(top + (h - top) / 4)
        assert run.model(i, "personal", "received").tolist() == pytest.approx(
            [b, top + (h - top) / 4]
        )
        assert run.model(i, "personal", "trained").tolist() == pytest.approx(
            [(b + base) / 2, top + (h - top) / 4]
        )


def test_with_all_layers_shared_it_is_fedavg_to_the_bit():
    problem = quadratics(3, samples=5)
    rep, avg = (trained(FedRep(shared=2, head_epochs=3), problem), trained(FedAvg(), problem))
    assert torch.equal(rep.server, avg.server)


def test_with_a_frozen_head_the_base_is_fedavgs():
    """The coordinates of these quadratics do not meet, so FedAvg's base is the same whatever its
    head does.
    """
    problem = quadratics(3, samples=5)
    rep, avg = (trained(FedRep(head_epochs=0), problem), trained(FedAvg(), problem))
    assert torch.equal(rep.server, avg.server[:-1])
    assert torch.equal(rep.state(0).kept[0], rep.initial()[-1:])


def test_heads_reach_each_clients_optimum_and_the_base_the_common_one():
    problem = quadratics(3, samples=4)
    run = trained(FedRep(), problem, 249, lr=0.1)
    assert_close(run.server, problem.targets[:, :-1].mean(0), atol=1e-8, rtol=0)
    for i in range(3):
        assert_close(
            run.state(i).kept[0], problem.targets[4 * i : 4 * i + 4, -1:].mean(0), atol=1e-8, rtol=0
        )


def test_only_the_shared_layers_travel():
    run = Federation(FedRep().method(), quadratics(3, d=7))
    downlink = run.downlink(a_round(), (0, 2))
    assert received_bytes(downlink, (0, 1)) == (6 * 8,) * 2  # six float64 of seven
    run.round(a_round())
    assert [sum(t.nbytes for t in reply.uplink.values()) for reply in run.replies] == [6 * 8] * 3


@pytest.mark.parametrize("settings_type", [FedRep, FedPer])
def test_more_layers_than_there_are_is_refused(settings_type):
    with pytest.raises(
        ConfigError, match=r"method\.shared is 3, and the network has 2 layers; set it to 2 or less"
    ):
        Federation(settings_type(shared=3).method(), quadratics(2))
