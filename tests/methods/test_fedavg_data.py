"""FedAvg+Data: the training data of each client."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pomona
from pomona.config import resolve
from pomona.core.rng import stream
from pomona.methods.one_model.fedavg_data import FedAvgData, balanced
from pomona.partition.partition import ClientRows, Partition
from pomona.scenario import Scenario
from pomona.scenario.description import about
from problems import tiny

pytestmark = pytest.mark.long

EMPTY = np.empty(0, dtype=np.int64)


def two_clients():
    """Client 0 holds twelve samples of class 0, client 1 four of class 1 and four of class 2."""
    labels = np.array([0] * 12 + [1] * 4 + [2] * 4)
    rows = (ClientRows(np.arange(12), EMPTY, EMPTY), ClientRows(np.arange(12, 20), EMPTY, EMPTY))
    return Partition(rows, {}), labels


def test_the_shared_set_is_balanced_and_everybodys():
    """beta = .3 of 20 samples: six, two of each class."""
    partition, labels = two_clients()
    new = FedAvgData(shared_share=0.3).divide(partition, labels, seed=0)
    shared = np.intersect1d(new.clients[0].train, new.clients[1].train)
    assert np.bincount(labels[shared]).tolist() == [2, 2, 2]
    assert len(new.clients[0].train) == 12 + 4
    assert len(new.clients[1].train) == 8 + 2
    assert np.array_equal(np.union1d(new.clients[0].train, new.clients[1].train), np.arange(20))


def test_a_share_of_every_client_where_it_comes_from_clients():
    """beta = .25: three of the twelve and two of the eight."""
    partition, labels = two_clients()
    shared = FedAvgData(shared_share=0.25, shared_from="clients").shared(partition, labels, seed=0)
    assert ((shared < 12).sum(), (shared >= 12).sum()) == (3, 2)


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(0, 50))
def test_balance_is_as_even_as_the_pool_allows(labels, size):
    labels = np.array(labels, dtype=np.int64)
    picked = balanced(np.arange(len(labels)), labels, min(size, len(labels)), stream(0, "t"))
    assert len(np.unique(picked)) == len(picked) == min(size, len(labels))
    counts = np.bincount(labels[picked], minlength=5)
    available = np.bincount(labels, minlength=5)
    assert all(counts[c] == available[c] or counts[c] >= counts.max() - 1 for c in range(5))


def test_nothing_shared_is_fedavg():
    a, b = (pomona.run(tiny("fedavg-data", {"shared_share": 0.0})), pomona.run(tiny("fedavg")))
    assert a.evaluations == b.evaluations
    assert a.about["shared_samples"] == 0


@pytest.mark.parametrize("source", ["held-out", "clients"])
def test_the_record_says_how_much_is_shared(source):
    config = tiny("fedavg-data", {"shared_share": 0.1, "shared_from": source})
    plain = Scenario.prepare(tiny("fedavg"))
    shared = about(Scenario.prepare(config))["shared_samples"]
    total = sum(len(c.train) for c in plain.partition.clients)
    assert shared == pytest.approx(0.1 * total, abs=2)
    assert pomona.run(config).about["shared_samples"] == shared


@pytest.mark.parametrize("targets", ["regression", "multilabel"])
@pytest.mark.parametrize("source", ["held-out", "clients"])
def test_targets_that_are_no_classes(tmp_path, targets, source):
    """Without classes there is nothing to balance: a random twentieth of all samples is shared."""
    draw = stream(2, "targets")
    x, y = draw.normal(size=(120, 4)), draw.normal(size=(120, 3))
    np.savez(
        tmp_path / "own.npz",
        x=x.astype(np.float32),
        y=(y if targets == "regression" else y > 0).astype(np.float32),
    )
    config = resolve(
        {
            "method": {"name": "fedavg-data", "shared_from": source},
            "data": {"name": "arrays", "path": str(tmp_path / "own.npz"), "targets": targets},
            "partition": {"name": "iid"},
            "clients": 3,
            "rounds": 1,
            "workers": 1,
        }
    )
    scenario = Scenario.prepare(config)
    shared = reduce(np.intersect1d, [c.train for c in scenario.partition.clients])
    assert len(shared) == pytest.approx(0.05 * sum(about(scenario)["sizes"]["train"]), abs=3)
    assert np.isfinite(pomona.run(config).rounds[0].loss).all()
