"""Results do not depend on the order of uplinks, on who computes them, or on the environment."""

import os
import subprocess
import sys

import injections as inject
import pytest
from runs import BASE, outcome

import pomona
from pomona.core.rng import stream
from problems import tiny
from representatives import drawn

pytestmark = pytest.mark.long


def trained(folder, **overrides):
    """The outcome of a small run."""
    pomona.run(tiny("apple", **overrides), folder)
    return outcome(folder)


def shuffled(k):
    """The k-th order of arrival of the uplinks."""

    def change(number, arrivals):
        return [arrivals[i] for i in stream(k, "arrival", number).permutation(len(arrivals))]

    return inject.arrivals(change)


@pytest.fixture(scope="module")
def in_order(tmp_path_factory):
    """The outcome of a run whose uplinks arrive in the order of the clients."""
    return trained(tmp_path_factory.mktemp("in-order") / "run")


@pytest.mark.parametrize("k", drawn(range(50), 2))
def test_any_order_of_arrival_has_one_outcome(k, in_order, tmp_path, monkeypatch):
    shuffled(k)(monkeypatch)
    assert trained(tmp_path / "run") == in_order


def test_the_orders_of_arrival_differ():
    orders = {tuple(stream(k, "arrival", 1).permutation(tiny("apple").clients)) for k in range(50)}
    assert len(orders) > 5


def test_one_two_and_four_workers_have_one_outcome(tmp_path):
    outcomes = [
        trained(tmp_path / str(workers), workers=workers, clients=4) for workers in (1, 2, 4)
    ]
    tensors, events = zip(*outcomes, strict=True)
    assert len({*tensors}) == 1
    evaluations = [
        [e for e in run if e["event"] in ("round", "evaluation", "final")] for run in events
    ]
    assert evaluations[0] == evaluations[1] == evaluations[2] != []


@pytest.mark.slow
def test_the_environment_decides_nothing(tmp_path):
    outcomes = []
    for k, (seed, zone, threads) in enumerate([("1", "UTC", "1"), ("4242", "Asia/Kathmandu", "7")]):
        folder = tmp_path / str(k)
        command = [
            sys.executable,
            "-m",
            "pomona",
            "run",
            "apple",
            *BASE,
            "--no-report",
            "--out",
            str(folder),
        ]
        changed = {"PYTHONHASHSEED": seed, "TZ": zone, "OMP_NUM_THREADS": threads}
        subprocess.run(command, env={**os.environ, **changed}, check=True, capture_output=True)
        outcomes.append(outcome(folder))
    assert outcomes[0] == outcomes[1]
