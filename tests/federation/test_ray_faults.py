"""Parts of a Ray cluster that are lost in a round, and a cluster that is not there."""

import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec

import pytest
from test_resume import models

import pomona
from pomona.core.errors import ConfigError
from pomona.federation.callbacks import NullCallback
from pomona.federation.ray_cluster import connected
from pomona.federation.workers import Workers
from pomona.storage.run_status import read_status
from problems import tiny

BUDGET = ("apple", {"budget": 2})
CLIENTS = {"clients": 5, "participation": 0.8}


def needs_ray():
    if not find_spec("ray"):
        pytest.skip("needs the ray extra")


def test_nobody_at_the_address():
    needs_ray()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        before = time.monotonic()
        with (
            pytest.raises(ConfigError, match=f"no Ray cluster answers at {address}"),
            connected(address, 1),
        ):
            pass
        assert time.monotonic() - before < 10


def outcome(result):
    info = [{k: v.tolist() for k, v in r.info.items()} for r in result.rounds]
    return [(r.cohort, r.loss, r.bytes_up) for r in result.rounds], info, result.evaluations


def on_ray(name, settings=None, cluster="ray", **over):
    return tiny(name, settings, cluster=cluster, workers=2, **CLIENTS, **over)


def in_round(number, act):
    """Make the transport act before the clients train in this round, once."""
    visit, done = Workers.visit, []

    def acts(self, asked, down):
        if asked.round.number == number and asked.trains and not done:
            done.append(True)
            act(self)
        return visit(self, asked, down)

    return acts


def kill_actor(transport):
    (pid,) = transport.collect(lambda clients, i: os.getpid(), [0])
    os.kill(pid, signal.SIGKILL)


class Heard(NullCallback):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.mark.slow
def test_a_killed_actor_is_replaced(tmp_path, monkeypatch):
    needs_ray()
    whole, heard = pomona.run(tiny(*BUDGET, workers=1, **CLIENTS), tmp_path / "whole"), Heard()
    monkeypatch.setattr(Workers, "visit", in_round(2, kill_actor))
    parts = pomona.run(on_ray(*BUDGET), tmp_path / "parts", heard)
    assert sum("was lost" in note for note in heard.notes) == 1
    assert outcome(parts) == outcome(whole)
    assert models(tmp_path / "parts") == models(tmp_path / "whole")


@pytest.mark.slow
def test_a_killed_node_is_done_without(tmp_path, monkeypatch):
    needs_ray()
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    whole, heard = pomona.run(tiny("scaffold", workers=1, **CLIENTS), tmp_path / "whole"), Heard()
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = nodes.add_node(num_cpus=1)
    try:
        kill = partial(nodes.remove_node, second, allow_graceful=False)
        monkeypatch.setattr(Workers, "visit", in_round(2, lambda _: kill()))
        parts = pomona.run(on_ray("scaffold", cluster=nodes.address), tmp_path / "parts", heard)
    finally:
        nodes.shutdown()
    assert sum("was lost" in note for note in heard.notes) == 1
    assert outcome(parts) == outcome(whole)
    assert models(tmp_path / "parts") == models(tmp_path / "whole")


RUNS = """
import os, signal, psutil, pomona
from problems import tiny
from pomona.federation.workers import Workers
from test_ray_faults import in_round, on_ray

def kill(_):
    for p in psutil.Process().children(recursive=True):
        if p.name() in ("gcs_server", "raylet"):
            p.kill()

if {kills}:
    Workers.visit = in_round(2, kill)
pomona.run(on_ray("scaffold"), {out!r}, resume=True)
"""


@pytest.mark.slow
def test_a_run_whose_head_is_gone_resumes(tmp_path):
    needs_ray()
    whole = pomona.run(tiny("scaffold", workers=1, **CLIENTS), tmp_path / "whole")
    out = tmp_path / "parts"
    for kills in (True, False):
        code = RUNS.format(kills=kills, out=str(out))
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        ended = subprocess.run([sys.executable, "-c", code], env=env, timeout=300, check=False)
        assert (ended.returncode != 0) == kills
        assert read_status(out).round == (1 if kills else 3)
    assert outcome(pomona.load(out)) == outcome(whole)
    assert models(out) == models(tmp_path / "whole")
