"""All simulators get the task of ``fedavg_round.py``, and Pomona's program on it computes what
``pomona run`` does.
"""

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from pomona.config import resolve
from pomona.simulation import simulate
from representatives import representatives

pytestmark = pytest.mark.long

FOLDER = Path(__file__).parents[2] / "benchmarks"
IMAGES = 400


@pytest.fixture
def load(monkeypatch):
    """Import a benchmark by name, with its folder on the path as when it is run."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delenv("POMONA_DATA", raising=False)
    loaded = set(sys.modules)
    yield lambda name: __import__(name, fromlist=["x"])
    for name in set(sys.modules) - loaded:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
            del sys.modules[name]


def test_the_task_is_what_the_round_of_fedavg_trains_on(load, tmp_path):
    task = load("named_peers").prepare(tmp_path, IMAGES, 0)
    fedavg, rounds, reference = (load(name) for name in ("fedavg_round", "rounds", "reference"))
    config = resolve(fedavg.SETTINGS, {"data": {"name": "rounds:noise"}})
    scenario = rounds.scenario_of(config, rounds.noise(IMAGES))
    clients = fedavg.clients(scenario, lambda: reference.Cnn(32, 64, 512))
    assert len(clients) == task.settings["clients"]
    for i, client in enumerate(clients):
        for split, data in (("train", client.train_data), ("test", client.test_data)):
            x, y = task.client_samples(split, i)
            assert torch.equal(x, data.tensors[0])
            assert torch.equal(y, data.tensors[1])
    rows = [task.rows[f"{s}_{i}"] for s in ("train", "test") for i in range(len(clients))]
    assert sorted(np.concatenate(rows)) == [*range(IMAGES)], "each image has one client"
    for name in ("batch_size", "lr"):
        assert task.settings[name] == getattr(config, name)


def test_the_networks_of_all_begin_as_pomonas_does(load, tmp_path):
    """The plain network with the task's weights computes what Pomona's does with the run's initial
    row.
    """
    task = load("named_peers").prepare(tmp_path, IMAGES, 0)
    rounds, fedavg = load("rounds"), load("fedavg_round")
    config = resolve(fedavg.SETTINGS, {"data": {"name": "rounds:noise"}})
    scenario = rounds.scenario_of(config, rounds.noise(IMAGES))
    network = task.network()
    assert sum(p.numel() for p in network.parameters()) == 582_026
    x, _ = task.client_samples("test", 3)
    assert torch.allclose(network(x), scenario.module()(x), atol=1e-6)


def rounds_of_the_program(load, folder, method):
    """Accuracy by rounds of training from Pomona's program, run alone for two rounds."""
    load("named_peers").prepare(folder, IMAGES, 0)
    command = [sys.executable, str(FOLDER / "peers" / "pomona_rounds.py"), str(folder), method, "2"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stderr
    scores = [json.loads(line) for line in process.stdout.splitlines()]
    return {score["trained"]: score["right"] / score["samples"] for score in scores}


@pytest.mark.parametrize("method", representatives(["fedavg", "ditto"], ["fedavg"]))
def test_pomonas_program_is_pomona_run(load, tmp_path, monkeypatch, method):
    accuracies = rounds_of_the_program(load, tmp_path, method)
    monkeypatch.syspath_prepend(str(FOLDER / "peers"))
    settings, rounds = load("pomona_rounds").method(method), load("rounds")
    changes = {"data": {"name": "rounds:noise"}, "method": settings, "rounds": 2}
    config = resolve(load("fedavg_round").SETTINGS, changes)
    result = simulate(rounds.scenario_of(config, rounds.noise(IMAGES)))
    judged = (*config.method.method().card.headline, "test")
    expected = {e.round: e.pooled for e in result.evaluations if e.key == judged}
    assert len(accuracies) == 2
    assert accuracies == {n: pytest.approx(expected[n], abs=1e-12) for n in accuracies}


def test_a_round_begins_when_it_may_and_tells_that_the_last_is_over(load, tmp_path, monkeypatch):
    turns = load("peers.turns")
    monkeypatch.setenv(turns.FOLDER, str(tmp_path))
    waiting = threading.Thread(target=turns.wait_for, args=(3,))
    waiting.start()
    while not (tmp_path / "asked-3").exists():
        assert waiting.is_alive()
    assert waiting.is_alive()
    (tmp_path / "go-3").touch()
    waiting.join(5)
    assert not waiting.is_alive()


def test_accuracy_is_pooled_over_the_samples_of_those_who_tell(load, tmp_path, monkeypatch):
    peers, turns = load("named_peers"), load("peers.turns")
    monkeypatch.setenv(turns.FOLDER, str(tmp_path))
    for trained, accuracy, samples in ((1, 0.5, 10), (1, 1.0, 30), (2, 0.25, 4)):
        turns.report(trained, accuracy, samples)
    running = peers.Running.__new__(peers.Running)
    running.folder = tmp_path
    assert running.accuracies() == {1: (5 + 30) / 40, 2: 0.25}


def test_who_has_no_environment_is_named_and_left_out(load, tmp_path, monkeypatch, capsys):
    peers = load("named_peers")
    monkeypatch.setattr(load("peers.set_up"), "FOLDER", tmp_path)
    (table,) = peers.main(peers.QUICK, ["peers=pomona,fluke"])
    assert list(table["rows"]) == ["pomona"]
    assert "python benchmarks/peers/set_up.py fluke" in capsys.readouterr().err


def test_who_hangs_is_ended_and_named(load, tmp_path, monkeypatch, capsys):
    peers, script = load("named_peers"), tmp_path / "asleep.py"
    script.write_text("import time; time.sleep(60)")
    monkeypatch.setitem(peers.PEERS, "asleep", peers.Peer(str(script)))
    with peers.running(tmp_path, "fedavg", ["asleep"], 1, 0.2) as ready:
        assert not ready
    assert "asleep did not get to round 1" in capsys.readouterr().err
