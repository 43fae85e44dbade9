"""Secure aggregation between real processes, killed while they sum; ``pytest -m slow
federation/tests/test_real_sums.py``.
"""

import time

import pytest

from federation_in_process import settings
from pomona.scenario import Scenario
from pomona_federation.audit_log import complete_lines
from pomona_federation.json_store import read_json
from pomona_federation.rehearsal.run import local_federation, rehearse
from pomona_federation.server.masked_sums import SUM, SettledSum
from pomona_federation.supervision.supervisor import process_tree
from real_federation import PATIENT, check, finished, kill, launched, reached

TERMS = {"max_norm": 20.0, "minimum": 3}


def scenario(clients, **changes):
    return Scenario.prepare(
        settings(method={"name": "fedavg"}, clients=clients, secure_aggregation=TERMS, **changes)
    )


def sums(local):
    path = local.server / "run" / "audit.jsonl"
    return (
        [line for line in complete_lines(path) if line["event"] == "sum"] if path.exists() else []
    )


@pytest.mark.slow
def test_two_real_silos_have_the_simulations_models(tmp_path):
    """In the gate; the others take minutes."""
    terms = {**TERMS, "minimum": 2}
    config = settings(method="fedavg", clients=2, rounds=1, secure_aggregation=terms)
    report = rehearse(Scenario.prepare(config), tmp_path / "out", quorum=2)
    assert report.difference == {"silo-0": 0.0, "silo-1": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize("clients", [4, 12])
def test_models_are_the_simulations_bit_by_bit(clients, tmp_path):
    report = rehearse(scenario(clients), tmp_path / "out", deadline=240.0, wait=240.0)
    assert report.largest == 0


@pytest.mark.slow
def test_one_of_four_real_silos_drops_out_and_comes_back(tmp_path, monkeypatch):
    """The sums of the rounds without it are over the other three."""
    options = {**PATIENT, "patience": 10.0, "quorum": 3}
    with local_federation(scenario(4, rounds=6), tmp_path / "local", **options) as local:
        launched(local).wait(reached(1))
        process = local.process("silo-3")
        kill(process_tree(process.pid))
        process.wait()
        local.wait(reached(3))
        local.start("silo-3")
        assert local.wait(finished).state == "finished"
        cohorts = check(local, monkeypatch, complete=False)
        assert cohorts[1] == cohorts[6] == (0, 1, 2, 3)
        assert cohorts[3] == (0, 1, 2)
        silos = [tuple(sorted(line["silos"])) for line in sums(local)]
        assert silos == [tuple(local.names[i] for i in cohorts[k]) for k in sorted(cohorts)]


def settled(local, number):
    """Wait until the sum of a round is settled, in the moment before or while silos mask."""
    path, limit = local.server / "run" / SUM, time.monotonic() + 240
    while (settled_sum := read_json(SettledSum, path)) is None or settled_sum.number < number:
        assert time.monotonic() < limit
        time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["ServerApp", "SuperLink", "worker", "node", "machine"])
def test_a_process_that_is_killed_while_a_round_is_summed_changes_no_bit(
    victim, tmp_path, monkeypatch
):
    """Whatever was lost, the same silos mask for the same sum again."""
    with local_federation(scenario(3, rounds=4), tmp_path / "local", **PATIENT) as local:
        launched(local)
        settled(local, 2)
        owner = "server" if victim in {"ServerApp", "SuperLink", "machine"} else "silo-1"
        if victim == "machine":  # of the server
            process = local.process("server")
            kill(process_tree(process.pid))
            process.wait()
            local.start("server")
        else:
            kill(local.find(victim, owner))
        assert local.wait(finished).state == "finished"
        check(local, monkeypatch)
        assert {tuple(line["silos"]) for line in sums(local)} == {local.names}
