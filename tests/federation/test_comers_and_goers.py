"""Clients that join and leave during whole runs: evaluation, saved models and summary."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.numpy import load_file

import pomona
from pomona.core.errors import ConfigError, DivergedError
from pomona.core.membership import Membership, PlannedMembership
from pomona.core.round import Roster
from pomona.objective.pytorch import TorchObjective
from problems import Notes, tiny

pytestmark = pytest.mark.long

COMING = {"joins": {"3": 2}, "leaves": {"0": 2}, "unseen": [1], "adapt_rounds": 2}


def coming(name, **settings):
    return tiny(name, clients=5, rounds=4, membership=COMING, partition={"name": "iid"}, **settings)


@pytest.mark.parametrize(
    "name", ["fedavg-ft", "apple", "fedamp", "fedfomo", "ditto", "fedrep", "cfl", "separate"]
)
def test_a_run_with_comers_and_goers(name, tmp_path):
    result = pomona.run(coming(name), tmp_path / "run")
    assert [r.cohort for r in result.rounds] == [(0, 2, 4), (0, 2, 3, 4), (2, 3, 4), (2, 3, 4)]
    for e in result.evaluations:
        assert e.clients == [(0, 2, 4), (0, 2, 4), (0, 2, 3, 4), (2, 3, 4), (2, 3, 4)][e.round]
    headline = result.summary["headline"]
    unseen = result.summary["unseen"][headline]
    assert list(unseen["clients"]) == ["1"]
    assert unseen["mean"] == unseen["clients"]["1"]
    saved = sorted(p.name for p in (tmp_path / "run/models").iterdir())
    assert saved == [
        f"client-0{i}.{suffix}" for i in range(5) for suffix in ("card.md", "safetensors")
    ]
    assert pomona.load(tmp_path / "run").unseen == result.unseen


def test_workers_agree_when_members_change(tmp_path):
    runs = [pomona.run(coming("apple", workers=w), tmp_path / str(w)) for w in (1, 2)]
    assert runs[0].evaluations == runs[1].evaluations
    assert runs[0].unseen == runs[1].unseen
    for i in range(5):
        single, parallel = (load_file(r.folder / f"models/client-0{i}.safetensors") for r in runs)
        assert all(np.array_equal(single[k], parallel[k]) for k in single)


def test_what_unseen_clients_do_changes_nobody_else(tmp_path):
    default_run = pomona.run(coming("fedamp"), tmp_path / "short")
    longer = tiny(
        "fedamp",
        clients=5,
        rounds=4,
        partition={"name": "iid"},
        membership={**COMING, "adapt_rounds": 5},
    )
    longer_run = pomona.run(longer, tmp_path / "long")
    assert default_run.evaluations == longer_run.evaluations
    assert default_run.unseen != longer_run.unseen


def test_an_unseen_client_that_diverges_is_left_without_a_model(tmp_path, monkeypatch):
    gradient = TorchObjective.gradient

    def breaks(self, W, indices, criterion=None, above=0, views=None, cache=None):
        if views[0].client == 1:
            raise DivergedError("client 1: the loss is nan; lower lr")
        return gradient(self, W, indices, criterion, above, views, cache)

    undisturbed = pomona.run(coming("fedamp"))
    monkeypatch.setattr(TorchObjective, "gradient", breaks)
    result = pomona.run(coming("fedamp"), tmp_path / "run", callback=(notes := Notes()))
    assert (result.evaluations, result.unseen) == (undisturbed.evaluations, [])
    assert any("lower lr; client 1, which never trained" in note for note in notes.said)
    assert {p.name[:9] for p in (tmp_path / "run/models").iterdir()} == {
        f"client-0{i}" for i in (0, 2, 3, 4)
    }


@pytest.mark.parametrize(
    ("name", "lasting"), [("fedavg", False), ("per-fedavg", False), ("ditto", True)]
)
def test_an_unseen_client_trains_one_round_where_every_round_would_begin_as_the_first(
    name, lasting
):
    single, five = (
        pomona.run(
            tiny(name, clients=5, rounds=1, membership={"unseen": [1], "adapt_rounds": rounds})
        )
        for rounds in (1, 5)
    )
    assert (single.unseen == five.unseen) is not lasting


@pytest.mark.parametrize(
    ("membership", "message"),
    [
        ({"unseen": [7]}, "client 7"),
        ({"joins": {"1": 9}}, "round 9"),
        ({"unseen": [0, 1, 2, 3]}, "no clients left in round 1"),
        ({"unseen": [1], "joins": {"1": 2}}, "client 1 is unseen"),
        ({"joins": {"1": 3}, "leaves": {"1": 2}}, "after its last"),
        ({"adapt_round": 2}, "adapt_rounds"),
    ],
)
def test_impossible_memberships_are_refused(membership, message):
    with pytest.raises(ConfigError, match=message):
        pomona.run(tiny("fedavg", membership=membership))


ROUNDS = (1, 2, 3)
ROUND_BY_CLIENT = st.dictionaries(st.sampled_from((0, 1)), st.sampled_from(ROUNDS))


@given(ROUND_BY_CLIENT, ROUND_BY_CLIENT, st.sampled_from([(), (0,), (2,)]))
def test_the_first_round_without_members_is_named_as_if_all_were_looked_at(joins, leaves, unseen):
    try:
        membership = Membership(joins=joins, leaves=leaves, unseen=unseen)
    except ValidationError:
        return
    for clients in (2, 3):
        if any(c >= clients for c in unseen):
            continue
        empty = [n for n in ROUNDS if not membership.members(clients, n)]
        if empty:
            with pytest.raises(ConfigError, match=f"no clients left in round {empty[0]};"):
                membership.check(clients, ROUNDS[-1])
        else:
            membership.check(clients, ROUNDS[-1])


def test_only_rounds_after_a_leave_are_looked_at(monkeypatch):
    numbers, members = [], Membership.members

    def noted(self, clients, number):
        numbers.append(number)
        return members(self, clients, number)

    monkeypatch.setattr(Membership, "members", noted)
    Membership().check(4, 10**6)
    Membership(leaves={0: 5, 1: 10**6}, joins={2: 9}).check(4, 10**6)
    assert numbers == [1, 1, 6]  # a round after the last is none


def test_without_changes_every_round_has_the_roster_itself():
    roster = Roster((3, 1, 2))
    planned = PlannedMembership(Membership(), roster)
    assert planned.roster(7) is roster
    assert planned.roster(7, guest=1) == roster
    left = PlannedMembership(Membership(leaves={0: 1}), roster)
    assert left.roster(2).sizes == (0, 1, 2)
    assert left.roster(2, guest=0) == roster


def test_members_are_a_function_of_the_round():
    membership = Membership(joins={2: 3}, leaves={0: 1}, unseen=(3,))
    assert [membership.members(4, n) for n in (1, 2, 3)] == [(0, 1), (1,), (1, 2)]


def test_the_config_file_says_it_again(tmp_path):
    from pomona.config import read_overrides, resolve
    from pomona.core.toml import read_file

    config = coming("fedavg")
    path = tmp_path / "c.toml"
    path.write_text(config.toml())
    assert resolve(read_file(path)) == config
    assert resolve(read_overrides(["membership.joins.3=2"])).membership.joins == {3: 2}
