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
        start_time = time.monotonic()
        with (
            pytest.raises(ConfigError, match=f"no Ray cluster answers at {address}"),
            connected(address, 1),
        ):
            pass
        assert time.monotonic() - start_time < 10


def outcome(result):
    info = [{k: v.tolist() for k, v in r.info.items()} for r in result.rounds]
    return [(r.cohort, r.loss, r.bytes_up) for r in result.rounds], info, result.evaluations


def on_ray(name, settings=None, cluster="ray", **overrides):
    return tiny(name, settings, cluster=cluster, workers=2, **CLIENTS, **overrides)


def in_round(number, act):
    """Make the transport act before the clients train in this round, once."""
    visit, acted = Workers.visit, []

    def acts(self, request, downlink):
        if request.round.number == number and request.trains and not acted:
            acted.append(True)
            act(self)
        return visit(self, request, downlink)

    return acts


def kill_actor(transport):
    (pid,) = transport.collect(lambda clients, i: os.getpid(), [0])
    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_actor_is_replaced(tmp_path, monkeypatch):
    needs_ray()
    unbroken, notes = (pomona.run(tiny(*BUDGET, workers=1, **CLIENTS), tmp_path / "whole"), Notes())
    monkeypatch.setattr(Workers, "visit", in_round(2, kill_actor))
    recovered = pomona.run(on_ray(*BUDGET), tmp_path / "parts", notes)
    assert sum("was lost" in note for note in notes.said) == 1
    assert outcome(recovered) == outcome(unbroken)
    assert digest_of_models(tmp_path / "parts") == digest_of_models(tmp_path / "whole")


def in_own_process(function, folder):
    """Call a function of this module with a folder, in a process of its own; returns its output."""
    code = f"import test_ray_faults as t; t.{function.__name__}({str(folder)!r})"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        timeout=300,
        check=False,
        capture_output=True,
        text=True,
    )


def loses_a_node(folder):
    os.environ["RAY_AUTH_MODE"] = "disabled"
    from ray.cluster_utils import Cluster

    nodes, notes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1}), Notes()
    second = nodes.add_node(num_cpus=1)
    Workers.visit = in_round(2, lambda _: nodes.remove_node(second, allow_graceful=False))
    pomona.run(on_ray("scaffold", cluster=nodes.address), folder, notes)
    nodes.shutdown()
    sys.stdout.write("\n".join(notes.said))


def loses_its_head(folder):
    Workers.visit = in_round(2, kill_head)
    resume_run(folder)


def kill_head(transport):
    for process in psutil.Process().children(recursive=True):
        if process.name() in ("gcs_server", "raylet"):
            process.kill()


def resume_run(folder):
    pomona.run(on_ray("scaffold"), folder, resume=True)


@pytest.mark.slow
def test_a_killed_node_is_done_without(tmp_path):
    needs_ray()
    unbroken = pomona.run(tiny("scaffold", workers=1, **CLIENTS), tmp_path / "whole")
    process = in_own_process(loses_a_node, tmp_path / "parts")
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("was lost") == 1
    assert outcome(pomona.load(tmp_path / "parts")) == outcome(unbroken)
    assert digest_of_models(tmp_path / "parts") == digest_of_models(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_whose_head_is_gone_resumes(tmp_path):
    needs_ray()
    unbroken = pomona.run(tiny("scaffold", workers=1, **CLIENTS), tmp_path / "whole")
    folder = tmp_path / "parts"
    assert in_own_process(loses_its_head, folder).returncode != 0
    assert read_status(folder).round == 1
    process = in_own_process(resume_run, folder)
    assert process.returncode == 0, process.stderr
    assert outcome(pomona.load(folder)) == outcome(unbroken)
    assert digest_of_models(folder) == digest_of_models(tmp_path / "whole")
