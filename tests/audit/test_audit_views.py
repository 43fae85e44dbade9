"""What the parties of a run receive is read from its messages, for every method alike."""

import numpy as np
import pytest
import torch

from pomona.audit.views import Readable, Recorder, Records, received
from pomona.federation.callbacks import CallbackList, NullCallback
from pomona.methods import METHODS
from pomona.methods.base import Rows
from pomona.scenario import Scenario
from pomona.simulation import simulate
from problems import tiny
from representatives import representatives

pytestmark = pytest.mark.long

WITHOUT_MODELS = {"separate", "fedproto", "fedtgp", "fedavg-data"}
READ_METHODS = ("apple", "fedavg", "fedproto", "fedrep", "mocha", "scaffold")


def recorded(name, **changes):
    scenario = Scenario.prepare(tiny(name, **changes))
    recorder = Recorder(scenario, Records.build(scenario), frozenset({1}))
    return recorder, simulate(scenario, None, recorder)


@pytest.mark.parametrize(
    ("name", "numbers_of"),
    [
        ("fedavg", lambda initial: range(len(initial()))),
        ("apple", lambda initial: range(len(initial()))),
        ("fedrep", lambda initial: range(initial.layers[-1].start)),
        ("mocha", lambda initial: range(initial.layers[-1].start, initial.layers[-1].stop)),
        ("fedproto", lambda initial: None),
    ],
)
def test_models_are_told_by_their_numbered_parameters(name, numbers_of):
    scenario = Scenario.prepare(tiny(name))
    expected = numbers_of(scenario.initial)
    indices = [numbers.tolist() for numbers in Readable.build(scenario).uplink.values()]
    assert indices == ([list(expected)] if expected is not None else [])


@pytest.mark.parametrize("name", representatives(sorted(METHODS), READ_METHODS))
def test_every_method_is_read(name):
    if METHODS[name]().method().share:
        pytest.skip("its samples are shared")
    recorder, _ = recorded(name)
    parties = set(recorder.losses)
    if name == "separate":
        assert not parties
        assert not recorder.messages
    elif name in WITHOUT_MODELS:
        assert sorted(recorder.messages) == [0, 1, 2, 3]
    else:
        assert "server" in parties
    for losses in recorder.losses.values():
        assert all(np.isfinite(values).all() for values in losses)
        assert {values.shape for values in losses} == {(len(recorder.records),)}


class Uplinks(NullCallback):
    def on_exchange(self, visit, downlink, arrivals):
        if visit.trains and visit.round.number == visit.round.total:
            self.down = {k: Rows(r.bank.clone(), r.index) for k, r in downlink.items()}
            self.sent = {a.reply.client: a.reply.uplink for a in arrivals}


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_the_server_sees_the_loss_of_each_clients_model(name):
    """A change of a model is read as the model that it makes."""
    scenario = Scenario.prepare(tiny(name))
    recorder = Recorder(scenario, Records.build(scenario), frozenset())
    uplinks = Uplinks()
    simulate(scenario, None, CallbackList(recorder, uplinks))
    objective = scenario.objective()
    for client, message in uplinks.sent.items():
        row = message.get("model", uplinks.down["model"].bank[0] + message.get("model_delta", 0))
        train_rows = scenario.partition.clients[client].train
        columns = np.searchsorted(recorder.records.rows, train_rows)
        exact = objective.losses(row, client, "train").double().numpy()
        assert recorder.losses["server"][0][columns] == pytest.approx(exact, rel=1e-5)
        assert recorder.sites["server"][client][columns] == pytest.approx(exact, rel=1e-5)


def test_a_peer_sees_the_mean_or_single_models():
    recorder, _ = recorded("fedavg")
    assert "peer" not in recorder.sites
    recorder, _ = recorded("apple")
    assert set(recorder.sites) == {"server", "peer"}  # the last cores are handed out once more
    assert recorder.sites["peer"] == pytest.approx(recorder.sites["server"])
    assert recorder.losses["peer"][-1] == pytest.approx(recorder.losses["server"][-1])


def test_with_secure_aggregation_the_server_sees_the_mean():
    recorder, _ = recorded("fedavg", secure_aggregation={"max_norm": 10})
    for losses in recorder.sites["server"]:
        assert losses == pytest.approx(recorder.sites["server"][0])
    single, _ = recorded("fedavg")
    assert np.abs(single.sites["server"] - single.sites["server"][0]).max() > 0.1


def test_an_empty_place_is_received_by_nobody():
    rows = Rows(torch.zeros(3, 2), torch.tensor([[1, 0], [2, 0]]))
    assert received("cores", rows, (0, 1)) == {
        ("cores", 1): {0},
        ("cores", 2): {1},
        ("cores", 0): {1},
    }
    broadcast = Rows.broadcast(torch.zeros(2), 2)
    assert received("model", broadcast, (0, 1)) == {("model", 0): {0, 1}}


def test_a_run_is_the_same_with_a_witness():
    _, watched = recorded("apple")
    plain = simulate(Scenario.prepare(tiny("apple")))
    assert [e.loss for e in plain.evaluations] == [e.loss for e in watched.evaluations]
    assert all(
        torch.equal(plain.models[i][name], watched.models[i][name])
        for i in plain.models
        for name in plain.models[i]
    )
