"""Clients as rows of one call: close to separate calls, and independent of the number of
workers.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import pomona
from pomona.core.errors import DivergedError
from pomona.federation.client import ClientRuntime
from pomona.federation.transport import (
    LARGEST_CALL,
    LARGEST_ROWS,
    ROWS_A_CLIENT,
    by_worker,
    call_groups,
    grouped,
    spread,
)
from pomona.methods import METHODS
from pomona.objective.pytorch import TorchObjective
from pomona.objective.stacked import StackedObjective
from pomona.scenario import Scenario
from problems import tiny
from representatives import representatives

pytestmark = pytest.mark.long


def test_groups_follow_from_the_sizes_alone():
    assert grouped((1, 9, 3, 9, 2), 2) == ((1, 3), (2, 4), (0,))
    assert grouped((1, 9, 3), 1) == ((1,), (2,), (0,))
    assert grouped((), 3) == ()
    assert grouped((4, 4), 9) == ((0, 1),)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 5), st.integers(1, 6))
def test_groups_of_workers_share_the_samples_as_single_clients_do(sizes, workers, limit):
    groups = by_worker(sizes, workers, limit)
    assert sorted(i for group in groups for i in group) == list(range(len(sizes)))
    assert all(1 <= len(group) <= limit for group in groups)
    assert all([sizes[i] for i in g] == sorted((sizes[i] for i in g), reverse=True) for g in groups)
    homes = [sum(sizes[i] for i in group) for group in spread(sizes, workers)]
    if limit >= len(sizes):
        assert [sum(sizes[i] for i in group) for group in groups] == homes


class Sizes(list):
    """Numbers of samples that count how often one is read."""

    read = 0

    def __getitem__(self, k):
        self.read += 1
        return super().__getitem__(k)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 5))
def test_each_goes_to_the_least_loaded_and_is_read_twice(sizes, workers):
    """Once for the order and once for its worker's load, however many there are."""
    homes = [[] for _ in range(min(workers, len(sizes)))]
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        min(homes, key=lambda group: (sum(sizes[j] for j in group), len(group))).append(i)
    counted = Sizes(sizes)
    assert spread(counted, workers) == [tuple(sorted(group)) for group in homes]
    assert counted.read == 2 * len(sizes)


def test_clients_share_calls_where_they_read_alike_and_numbers_cannot_differ(monkeypatch):
    sizes, row = (5, 4, 3, 2, 1), LARGEST_ROWS

    def chosen(engine="native", method=None, room=1.0, **settings):
        memory = ROWS_A_CLIENT * row * len(sizes)
        monkeypatch.setattr(
            "pomona.federation.transport.machine_memory", lambda: memory * room / (1 - 0.5)
        )
        config = tiny("apple", method, engine=engine, clients=5, **settings)
        return call_groups(config, sizes, 2, row)

    shared, single = by_worker(sizes, 2, LARGEST_CALL), by_worker(sizes, 2, 1)
    assert shared == ((0, 3, 4), (1, 2))
    assert chosen() == shared
    assert chosen(method={"name": "apple", "core_step": "local"}) == shared
    assert chosen(engine="torch") == grouped(sizes, 1)
    assert chosen(room=0.99) == single
    assert chosen(method={"name": "apple", "budget": 2}) == shared
    for own_copies in ({"core_radius": 2.0}, {"budget": 2, "core_step": "local"}):
        assert chosen(method={"name": "apple", **own_copies}) == single
    assert chosen(rows_per_call=2) == grouped(sizes, 2)

    def fedavg(row, **settings):
        config = tiny("fedavg", clients=5, **{"engine": "native"} | settings)
        return call_groups(config, sizes, 2, row)

    assert fedavg(1) == fedavg(row // 3) == shared
    assert fedavg(row // 2) == ((0, 3), (4,), (1, 2))
    assert fedavg(row) == single
    assert fedavg(1, rows_per_call=1) == fedavg(1, engine="torch") == grouped(sizes, 1)
    fomo = {"name": "fedfomo", "budget": 2}
    config = tiny("fedfomo", fomo, engine="native", clients=5)
    assert call_groups(config, sizes, 2, row // 4) == fedavg(row // 2)
    private = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-3}
    assert fedavg(1, privacy=private) == grouped(sizes, 1)


@pytest.mark.parametrize("name", representatives(METHODS, ["apple", "fedavg"]))
def test_every_method_comes_close_to_one_row_a_call(name):
    single, shared = (pomona.run(tiny(name, rows_per_call=rows, rounds=2)) for rows in (1, 4))
    for a, b in zip(single.rounds, shared.rounds, strict=True):
        assert a.cohort == b.cohort
        assert a.bytes_up == b.bytes_up
        assert_close(list(a.loss), list(b.loss), rtol=2e-2, atol=2e-2)
    assert len(single.evaluations) == len(shared.evaluations)


def test_rows_share_calls_whatever_the_workers(tmp_path):
    runs = [
        pomona.run(
            tiny("apple", rows_per_call=2, workers=w, participation=0.75, rounds=4),
            tmp_path / str(w),
        )
        for w in (1, 2)
    ]
    assert runs[0].evaluations == runs[1].evaluations
    assert [r.loss for r in runs[0].rounds] == [r.loss for r in runs[1].rounds]


def test_the_engine_follows_from_network_and_setting():
    assert isinstance(Scenario.prepare(tiny("fedavg")).objective(), TorchObjective)
    assert isinstance(
        Scenario.prepare(tiny("fedavg", rows_per_call=4)).objective(), StackedObjective
    )


def test_one_diverging_client_of_a_call_leaves_the_others(monkeypatch):
    gradient = StackedObjective.gradient

    def breaks(self, W, indices, criterion=None, above=0, views=None, cache=None):
        if any((view.client, view.round) == (2, 2) for view in views):
            raise DivergedError("client 2, round 2, step 0: the loss is nan; lower lr")
        return gradient(self, W, indices, criterion, above, views, cache)

    monkeypatch.setattr(StackedObjective, "gradient", breaks)
    result = pomona.run(tiny("apple", rows_per_call=4))
    assert [r.cohort for r in result.rounds] == [(0, 1, 2, 3), (0, 1, 3), (0, 1, 2, 3)]


def test_who_is_called_again_alone_gets_what_came_not_what_the_first_call_made_of_it(monkeypatch):
    calls = []

    def serve(self, visit, ids, received):
        calls.append((ids, received["model"].clone()))
        received["model"].zero_()
        raise DivergedError("the loss is nan")

    monkeypatch.setattr(ClientRuntime, "_serve", serve)
    with pytest.raises(DivergedError):
        pomona.run(tiny("fedavg", rows_per_call=4, rounds=1))
    (ids, rows), *repeated = calls
    assert len(ids) == len(repeated) > 1
    assert rows.abs().sum() > 0
    for k, (single, row) in enumerate(repeated):
        assert single == ids[k : k + 1]
        assert torch.equal(row, rows[k : k + 1])
