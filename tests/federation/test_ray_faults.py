"""Parts of a Ray cluster that are lost in a round, and a cluster that is not there."""

import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec

import psutil
import pytest

import pomona
from pomona.core.errors import ConfigError
from pomona.federation.ray_cluster import connected
from pomona.federation.workers import Workers
from pomona.storage.run_status import read_status
from problems import Notes, digest_of_models, tiny

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


@pytest.mark.slow
def test_a_killed_actor_is_replaced(tmp_path, monkeypatch):
    needs_ray()
    whole, heard = pomona.run(tiny(*BUDGET, workers=1, **CLIENTS), tmp_path / "whole"), Notes()
    monkeypatch.setattr(Workers, "visit", in_round(2, kill_actor))
    parts = pomona.run(on_ray(*BUDGET), tmp_path / "parts", heard)
    assert sum("was lost" in note for note in heard.said) == 1
    assert outcome(parts) == outcome(whole)
    assert digest_of_models(tmp_path / "parts") == digest_of_models(tmp_path / "whole")


def alone(function, out):
    """Call a function of this module with a folder, in a process of its own; returns its output."""
    code = f"import test_ray_faults as t; t.{function.__name__}({str(out)!r})"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        timeout=300,
        check=False,
        capture_output=True,
        text=True,
    )


def loses_a_node(out):
    os.environ["RAY_AUTH_MODE"] = "disabled"
    from ray.cluster_utils import Cluster

    nodes, heard = Cluster(initialize_head=True, head_node_args={"num_cpus": 1}), Notes()
    second = nodes.add_node(num_cpus=1)
    Workers.visit = in_round(2, lambda _: nodes.remove_node(second, allow_graceful=False))
    pomona.run(on_ray("scaffold", cluster=nodes.address), out, heard)
    nodes.shutdown()
    sys.stdout.write("\n".join(heard.said))


def loses_its_head(out):
    Workers.visit = in_round(2, kill_head)
    goes_on(out)


def kill_head(transport):
    for process in psutil.Process().children(recursive=True):
        if process.name() in ("gcs_server", "raylet"):
            process.kill()


def goes_on(out):
    pomona.run(on_ray("scaffold"), out, resume=True)


@pytest.mark.slow
def test_a_killed_node_is_done_without(tmp_path):
    needs_ray()
    whole = pomona.run(tiny("scaffold", workers=1, **CLIENTS), tmp_path / "whole")
    ended = alone(loses_a_node, tmp_path / "parts")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("was lost") == 1
    assert outcome(pomona.load(tmp_path / "parts")) == outcome(whole)
    assert digest_of_models(tmp_path / "parts") == digest_of_models(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_whose_head_is_gone_resumes(tmp_path):
    needs_ray()
    whole = pomona.run(tiny("scaffold", workers=1, **CLIENTS), tmp_path / "whole")
    out = tmp_path / "parts"
    assert alone(loses_its_head, out).returncode != 0
    assert read_status(out).round == 1
    ended = alone(goes_on, out)
    assert ended.returncode == 0, ended.stderr
    assert outcome(pomona.load(out)) == outcome(whole)
    assert digest_of_models(out) == digest_of_models(tmp_path / "whole")
