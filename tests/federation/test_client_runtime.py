"""What the clients of one process read and copy: nothing for each client that once is enough for."""

from collections.abc import Mapping

import pytest
import torch

from pomona.federation import client
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import ClientRequest
from pomona.federation.scoring import Scoring
from pomona.methods import METHODS
from pomona.metrics.metric import METRICS
from pomona.objective.dataset import DeviceDataset
from pomona.scenario import Scenario
from problems import Federation, a_round, quadratics, tiny


class Counted(Mapping):
    """Tensors by name that count how often their names are gone through."""

    def __init__(self, tensors):
        self.tensors, self.read = tensors, 0

    def __getitem__(self, name):
        return self.tensors[name]

    def __iter__(self):
        self.read += 1
        return iter(self.tensors)

    def __len__(self):
        return len(self.tensors)


@pytest.mark.parametrize("name", ["apple", "scaffold"])
def test_a_checkpoints_names_are_read_as_often_for_one_client_as_for_all(name):
    run = Federation(METHODS[name]().method(), quadratics(3))
    run.round(a_round())
    stored = {path: t for i in run.ids for path, t in run.clients.store.stored(i).items()}
    read = set()
    for ids in (run.ids[:1], run.ids):
        counted = Counted(stored)
        clients = Federation(METHODS[name]().method(), quadratics(3)).clients
        clients.restore(ids, counted, run.roster)
        read.add(counted.read)
        for i in ids:
            restored = clients.store.stored(i)
            assert restored.keys() == run.clients.store.stored(i).keys()
            assert all(torch.equal(t, stored[path]) for path, t in restored.items())
    assert len(read) == 1


def test_a_visit_that_only_evaluates_copies_no_state(monkeypatch):
    run = Federation(METHODS["ditto"]().method(), quadratics(3))
    runtime = ClientRuntime(run.method.client, run.problem, run.initial, (run.ids,), 0)
    runtime.add_clients(run.ids, run.roster, None)
    states = [runtime.store.state(i) for i in run.ids]
    monkeypatch.setattr(client, "row", None)  # a call would fail
    downlink = run.downlink(a_round())
    visit = ClientRequest(a_round(), run.roster, run.ids, False, frozenset({"received"}), True)
    assert len(runtime.visit(visit, downlink)) == len(run.ids)
    assert all(runtime.store.state(i) is state for i, state in zip(run.ids, states, strict=True))


def test_answers_are_put_into_units_once_a_score(monkeypatch):
    scenario = Scenario.prepare(tiny("fedavg"))
    objective, calls, units = scenario.objective(), [], DeviceDataset.in_units

    def noted(self, *args):
        calls.append(args[2:])
        return units(self, *args)

    monkeypatch.setattr(DeviceDataset, "in_units", noted)
    for metric in ("loss", "macro_f1"):
        row = scenario.initial().unsqueeze(0)
        Scoring(METRICS[metric]).scores(objective, ("global", "received"), (1,), row, ("test",))
        assert calls.pop() == (1, "test")
        assert not calls
