"""The whole federation with real Flower processes, TLS and keys on: the models of the simulator, bit by bit."""

import pytest
from federation_in_process import settings

from pomona.deploy.rehearsal.run import rehearse
from pomona.methods import METHODS
from pomona.scenario import Scenario

METHODS_DEPLOYED = [name for name in METHODS if name != "fedavg-data"]


def rehearsed(folder, method, rounds, silos=6, **options):
    """How far the personal models are from the simulator's."""
    config = settings(method=method, rounds=rounds, clients=silos)
    options |= {"deadline": 240.0, "wait": 240.0, "quorum": silos}
    return rehearse(Scenario.prepare(config), folder / "rehearsal", print, **options)


def test_six_silos(tmp_path):
    found = rehearsed(tmp_path, {"name": "apple", "budget": 2}, rounds=3)
    assert found.difference == {f"silo-{i}": 0.0 for i in range(6)}
    assert len(found.seconds) == 3
    assert min(found.bytes_down) > 0


@pytest.mark.slow
def test_three_silos_with_mutual_tls(tmp_path):
    found = rehearsed(tmp_path, {"name": "apple", "budget": 1}, rounds=2, silos=3, mutual_tls=True)
    assert found.difference == {f"silo-{i}": 0.0 for i in range(3)}
    log = (tmp_path / "rehearsal" / "kits" / "server" / "run" / "logs" / "superlink.log").read_text()
    assert "mutual TLS" in log


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS_DEPLOYED)
def test_every_method(method, tmp_path):
    found = rehearsed(tmp_path, {"name": method}, rounds=3, silos=3)
    assert found.largest == 0.0
