"""Two independent federations on one machine at the same time, with real processes."""

import os

import pytest

import pomona
from federation_in_process import APPLE, equal, loaded, settings
from pomona.scenario import Scenario
from pomona_federation.audit_log import complete_lines
from pomona_federation.rehearsal.run import local_federation
from pomona_federation.supervision.supervisor import process_tree

pytestmark = pytest.mark.slow


def test_each_gives_the_models_of_its_own_simulation(tmp_path):
    pytest.importorskip("flwr")
    processes = set(process_tree(os.getpid()))
    runs = {
        "apple": settings(method=APPLE, clients=2),
        "fedavg": settings(method="fedavg", clients=2, seed=7),
    }
    scenarios = {name: Scenario.prepare(config) for name, config in runs.items()}
    with (
        local_federation(scenarios["apple"], tmp_path / "apple") as apple,
        local_federation(scenarios["fedavg"], tmp_path / "fedavg") as fedavg,
    ):
        for local in (apple, fedavg):
            for owner in ("server", *local.names):
                local.start(owner)
        for local in (apple, fedavg):
            assert local.wait(lambda status: status.state != "running").state == "finished"
        for name, local in (("apple", apple), ("fedavg", fedavg)):
            pomona.run(runs[name], tmp_path / f"simulated-{name}")
            models = {n: local.silo(n) / "state/models/personal.safetensors" for n in local.names}
            simulated = {
                n: tmp_path / f"simulated-{name}/models/client-{i:02d}.safetensors"
                for i, n in enumerate(local.names)
            }
            assert equal(loaded(models), loaded(simulated))
            events = list(complete_lines(local.server / "run/audit.jsonl"))
            assert {e["silo"] for e in events if e["event"] == "sent"} == set(local.names)
            assert not [e for e in events if e["event"] == "unused"]
    assert not set(process_tree(os.getpid())) - processes
