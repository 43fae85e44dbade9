"""Runs over a Ray cluster have the bits of one process. Actors take seconds to start, so that the
gate has one case.
"""

import os
import sys
from contextlib import ExitStack

import psutil
import pytest
from test_ray_faults import BUDGET, CLIENTS, needs_ray, on_ray, outcome

import pomona
from pomona.core.errors import ConfigError
from pomona.experiments.executors import on_cluster
from pomona.federation.ray_cluster import connected, reserved
from pomona.methods import METHODS
from problems import Notes, digest_of_models, tiny
from representatives import drawn

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def machine():
    """A cluster of this machine, which the runs of a module share."""
    needs_ray()
    environment = dict(os.environ)
    with ExitStack() as stack:
        try:
            stack.enter_context(connected("ray", 2))
        except ConfigError:  # Ray waits 30 s for itself, which a busy machine may exceed
            stack.enter_context(connected("ray", 2))
        yield
    current = {name: os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE")}
    assert current == {name: environment.get(name) for name in current}


def check_bits(name, settings, tmp_path, **overrides):
    """Run over Ray and in one process; both must give the same bits."""
    local = pomona.run(tiny(name, settings, workers=1, **CLIENTS, **overrides), tmp_path / "one")
    ray = pomona.run(on_ray(name, settings, **overrides), tmp_path / "ray")
    assert outcome(ray) == outcome(local)
    assert digest_of_models(tmp_path / "ray") == digest_of_models(tmp_path / "one")


@pytest.mark.parametrize(
    ("name", "settings"), drawn([("fedavg", None), BUDGET, ("scaffold", None), ("fedamp", None)])
)
def test_it_has_the_bits_of_one_process(name, settings, tmp_path, machine):
    check_bits(name, settings, tmp_path)
    process_ids = [os.getpid(), *(p.pid for p in psutil.Process().children(recursive=True))]
    addresses = {
        c.laddr.ip.removeprefix("::ffff:")
        for c in psutil.net_connections("tcp")
        if c.pid in process_ids and c.status == "LISTEN"
    }
    assert addresses == {"127.0.0.1"}


@pytest.mark.slow
def test_it_has_the_same_liars(tmp_path, machine):
    check_bits("fedavg", None, tmp_path, attack={"clients": [1], "kind": "noise", "from_round": 2})


def test_a_node_with_other_versions_is_refused(monkeypatch, tmp_path, machine):
    monkeypatch.setattr("pomona.lifecycle.version", lambda name: f"{name}-0")  # on this machine
    refused = r"node .* has .*torch 2.*, this machine torch-0: .*same"
    with pytest.raises(ConfigError, match=refused):
        pomona.run(on_ray("fedavg"))
    with pytest.raises(ConfigError, match=refused), on_cluster("ray", tmp_path):
        pass


def test_cores_that_others_have_are_waited_for_but_not_for_ever(monkeypatch, machine):
    notes = Notes()
    with reserved(1, notes.on_note):
        monkeypatch.setattr("pomona.federation.ray_cluster.NOTICE_AFTER", 0.5)
        monkeypatch.setattr("pomona.federation.ray_cluster.PATIENCE", 0.6)
        with pytest.raises(ConfigError, match=r"not given 2 cores in 1 s \(. of its 2 are free\)"):
            pomona.run(on_ray("fedavg"), callback=notes)
    assert "waiting for 2 cores of the Ray cluster" in notes.said[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_has_the_bits_of_one_process(name, tmp_path, machine):
    check_bits(name, None, tmp_path)


@pytest.mark.slow
def test_members_that_come_and_go_and_states_in_files(tmp_path, machine):
    change = {"joins": {"3": 2}, "leaves": {"0": 2}, "unseen": [1]}
    settings = {"clients": 5, "rounds": 4, "partition": {"name": "iid"}, "membership": change}
    local = pomona.run(tiny("apple", workers=1, **settings), tmp_path / "one")
    ray = pomona.run(
        tiny("apple", workers=2, cluster="ray", state_memory=1e-9, **settings), tmp_path / "ray"
    )
    assert (outcome(ray), ray.unseen) == (outcome(local), local.unseen)
    assert digest_of_models(tmp_path / "ray") == digest_of_models(tmp_path / "one")


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="cluster needs Ray; install Pomona with its extra ray"):
        pomona.run(on_ray("fedavg"))


def test_runs_that_it_is_not_for(monkeypatch):
    private = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-3, "seed": 1}
    acknowledged = ["metrics", "sample-counts", "training-loss", "feature-moments"]
    private |= {"acknowledge": [*acknowledged, "unlimited-epsilon"]}
    with pytest.raises(ConfigError, match="with privacy, whose keys stay on one machine"):
        pomona.run(on_ray("fedavg", privacy=private))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(ConfigError, match="cluster cannot run with a GPU"):
        pomona.run(on_ray("fedavg", device="cuda"))
    with pytest.raises(ConfigError, match="cluster"):
        on_ray("fedavg", cluster="ray://host:1")
