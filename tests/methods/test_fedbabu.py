"""FedBABU: the head keeps its initial values, the body is averaged, a copy is fine-tuned."""

import pytest
import torch
from torch.testing import assert_close

from pomona.federation.exchange import received_bytes
from pomona.methods.one_model.fedavg import FedAvg, FedAvgFT
from pomona.methods.shared_parts.fedbabu import FedBABU
from problems import Federation, Quadratics, a_round, quadratics, trained


@pytest.mark.parametrize("decay", [1.0, 1e-3])
@pytest.mark.parametrize(
    ("name", "tuned"), [("all", [True, True]), ("head", [False, True]), ("body", [True, False])]
)
def test_a_round_by_hand(name, tuned, decay):
    """Sizes 1 and 3, a step of .5 halves the distance to the sample, twice of what is fine-tuned;
    the body's is decayed.
    """
    samples = torch.tensor([[8.0, 4.0], *[[-8.0, 2.0]] * 3], dtype=torch.float64)
    run = Federation(
        FedBABU(finetune=name, finetune_epochs=2).method(), Quadratics(samples, [[0], [1, 2, 3]])
    )
    phi, head = run.initial().tolist()
    step = 0.5 * decay
    run.round(a_round(lr=step, decay=decay))
    assert run.server.item() == pytest.approx(phi + step * (-4 - phi))
    for i, sample in enumerate(samples[:2].tolist()):
        expected = [
            a + (w - a) / 4 if moves else w
            for a, w, moves in zip(sample, (phi, head), tuned, strict=True)
        ]
        assert run.model(i, "personal", "received").tolist() == pytest.approx(expected)
        assert run.model(i, "global", "received").tolist() == pytest.approx([phi, head])
        assert run.model(i, "local", "trained").tolist() == pytest.approx(
            [phi + step * (sample[0] - phi), head]
        )


def test_the_head_is_never_changed_not_even_by_weight_decay():
    run = trained(FedBABU(), quadratics(3, samples=5))
    for i in range(3):
        assert torch.equal(run.state(i).kept[0], run.initial()[-1:])


def test_with_all_layers_shared_it_is_fedavg_ft_to_the_bit():
    problem = quadratics(3, samples=5)
    run, tuned = trained(FedBABU(shared=2), problem), trained(FedAvgFT(), problem)
    assert torch.equal(run.server, tuned.server)
    for i in range(3):
        for model, when in (("personal", "received"), ("global", "received"), ("local", "trained")):
            assert torch.equal(run.model(i, model, when), tuned.model(i, model, when))


def test_the_body_is_fedavgs_where_the_head_does_not_reach_it():
    """The coordinates of these quadratics do not meet."""
    problem = quadratics(3, samples=5)
    assert torch.equal(trained(FedBABU(), problem).server, trained(FedAvg(), problem).server[:-1])


def test_with_no_epochs_the_personal_model_is_the_global_one():
    run = trained(FedBABU(finetune_epochs=0), quadratics(3, samples=5))
    for i in range(3):
        assert torch.equal(run.model(i, "personal", "received"), run.model(i, "global", "received"))


def test_how_it_is_fine_tuned_changes_nothing_of_the_federation():
    problem = quadratics(3, samples=5)
    servers = [trained(FedBABU(finetune=layers, finetune_epochs=e), problem).server
               for layers in ("all", "head", "body") for e in (0, 3)]  # fmt: skip
    assert all(torch.equal(server, servers[0]) for server in servers)


def test_fine_tuning_the_head_reaches_the_best_head_on_the_body():
    problem = quadratics(2, samples=4)
    run = Federation(FedBABU(finetune="head", finetune_epochs=300).method(), problem)
    run.round(a_round())
    for i in range(2):
        expected = run.initial().clone()
        expected[-1] = problem.targets[4 * i : 4 * i + 4, -1].mean()
        assert_close(run.model(i, "personal", "received"), expected)


def test_only_the_body_travels():
    run = trained(FedBABU(), quadratics(3, d=7), rounds=1)
    downlink = run.downlink(a_round(), (0, 2))
    assert received_bytes(downlink, (0, 1)) == (6 * 8,) * 2  # six float64 of seven
    assert [sum(t.nbytes for t in reply.uplink.values()) for reply in run.replies] == [6 * 8] * 3


def test_a_newcomer_has_the_common_head_and_the_global_body():
    run = Federation(FedBABU(finetune_epochs=0).method(), quadratics(3), members=(0, 1))
    run.round(a_round(1))
    run.only(0, 1, 2)
    body = run.server.clone()
    run.round(a_round(2))
    assert torch.equal(run.model(2, "personal", "received"), torch.cat([body, run.initial()[-1:]]))
