"""FedBN: normalisation layers stay at the client, everything else is averaged."""

import sys

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import pomona
from pomona.federation.exchange import received_bytes
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.personal_regularisation.separate import Separate
from pomona.methods.shared_parts.fedbn import FedBN
from problems import Federation, Notes, Quadratics, a_round, quadratics, tiny, trained

pytestmark = pytest.mark.long

NORMS = (slice(1, 2), slice(2, 3), slice(4, 5))


def normed(network):
    """A network with the named normalisation between two layers: BatchNorm, group or layer
    normalisation.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), network(16), nn.ReLU(), nn.Linear(16, 10))


def batch_norm(settings, input_shape, n_outputs, vocabulary):
    return normed(nn.BatchNorm1d)


def layer_norm(settings, input_shape, n_outputs, vocabulary):
    return normed(nn.LayerNorm)


@pytest.fixture(autouse=True)
def own_networks(monkeypatch):
    monkeypatch.setitem(sys.modules, "fedbn_networks", sys.modules[__name__])


def test_a_round_by_hand():
    """Sizes 1 and 3, the second of three numbers a norm; a step of .5: b_i <- (b + a_i) / 2, s <-
    the mean of (s + a) / 2.
    """
    samples = torch.tensor([[8.0, 4.0, 0.0], *[[-8.0, 2.0, 4.0]] * 3], dtype=torch.float64)
    problem = Quadratics(samples, [[0], [1, 2, 3]], norms=(slice(1, 2),))
    run = Federation(FedBN().method(), problem)
    s, b, t = run.initial().tolist()
    run.round(a_round(lr=0.5))
    assert run.server.tolist() == pytest.approx([(s - 4) / 2, (t + 3) / 2])
    assert [run.state(i).kept.item() for i in (0, 1)] == pytest.approx([(b + 4) / 2, (b + 2) / 2])
    run.round(a_round(2, lr=0.0))
    assert run.model(0, "personal", "received").tolist() == pytest.approx(
        [(s - 4) / 2, (b + 4) / 2, (t + 3) / 2]
    )


def test_without_normalisation_layers_it_is_fedavg_to_the_bit():
    problem = quadratics(3, samples=5)
    run, avg = trained(FedBN(), problem), trained(FedAvg(), problem)
    assert torch.equal(run.server, avg.server)
    for i in range(3):
        assert torch.equal(run.model(i, "personal", "received"), avg.model(i, "global", "received"))
        assert torch.equal(run.model(i, "personal", "trained"), avg.model(i, "local", "trained"))


def test_a_network_of_normalisation_alone_is_separate_training_to_the_bit():
    problem = quadratics(3, samples=5)
    separate = trained(Separate(), problem)
    problem.norms = (slice(0, 2), slice(2, 5))
    run = trained(FedBN(), problem)
    assert all(torch.equal(run.state(i).kept, separate.state(i)) for i in range(3))
    assert all(not reply.uplink["model"].nbytes for reply in run.replies)


def test_only_what_is_no_norm_travels():
    problem = quadratics(3, d=7)
    problem.norms = NORMS
    run = trained(FedBN(), problem, rounds=1)
    downlink = run.downlink(a_round(), (0, 2))
    assert received_bytes(downlink, (0, 1)) == (4 * 8,) * 2  # four float64 of seven
    assert [sum(t.nbytes for t in reply.uplink.values()) for reply in run.replies] == [4 * 8] * 3


def test_each_clients_norms_reach_its_own_optimum_and_the_rest_the_common_one():
    problem = quadratics(3, samples=4)
    problem.norms = NORMS
    run = trained(FedBN(), problem, 249, lr=0.1)
    optima = [problem.targets[4 * i : 4 * i + 4].mean(0) for i in range(3)]
    assert_close(run.server, problem.targets.mean(0)[[0, 3]], atol=1e-8, rtol=0)
    for i in range(3):
        assert_close(run.state(i).kept[0], optima[i][[1, 2, 4]], atol=1e-8, rtol=0)


@pytest.mark.parametrize("network", ["batch_norm", "layer_norm"])
def test_a_run_is_partialfeds_with_less_traffic(network):
    """The rule "local-norm" sends everything, and uses the same numbers of it: 32 of 1,242 are a
    norm's.
    """
    runs = [
        pomona.run(tiny(name, settings, model={"name": f"fedbn_networks:{network}"}, lr=0.05))
        for name, settings in (("fedbn", {}), ("partialfed", {"rule": "local-norm"}))
    ]
    for a, b in zip(*(r.rounds for r in runs), strict=True):
        assert_close(list(a.loss), list(b.loss), rtol=1e-4, atol=1e-4)
        assert set(a.bytes_up) == {4 * (1242 - 32)}
        assert set(a.bytes_down) == {4 * (1242 - 32)}
        assert set(b.bytes_up) == {4 * 1242}
    for when in ("received", "trained"):
        for e, f in zip(*(r.curve("personal", when) for r in runs), strict=True):
            assert_close(e.loss, f.loss, rtol=1e-4, atol=1e-4)
    norms = [runs[0].models[i]["2.weight"] for i in (0, 1)]
    assert not torch.equal(*norms)


@pytest.mark.parametrize(
    ("method", "model", "alone"),
    [("fedper", "logistic", True), ("fedper", "mlp", False), ("separate", "logistic", False)],
)
def test_a_run_says_that_nothing_of_a_network_is_shared(method, model, alone):
    """A network of one layer is all head: FedPer then is Separate, and says so once."""
    notes = Notes()
    pomona.run(tiny(method, model={"name": model}, rounds=2), callback=notes)
    assert len([text for text in notes.said if "each client trains alone" in text]) == alone


def test_a_run_says_that_there_are_no_normalisation_layers():
    notes, quiet = Notes(), Notes()
    pomona.run(tiny("fedbn", rounds=1), callback=notes)
    pomona.run(tiny("fedbn", model={"name": "fedbn_networks:batch_norm"}, rounds=1), callback=quiet)
    assert [text for text in notes.said if "fedbn is FedAvg here" in text]
    assert not [text for text in quiet.said if "fedbn is FedAvg here" in text]
