"""Real processes over a bad network; ``pytest -m slow federation/tests/test_real_network.py``,
minutes each.

Between the silos and the server is our TCP relay that delays, stalls, throttles and cuts, or, if
the kernel has netem and permits it, a separate network with delay and loss.
"""

import json
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import datetime
from itertools import product

import pytest

from agreement_file import agreement
from federation_in_process import settings
from pomona.scenario import Scenario
from pomona_federation.audit_log import complete_lines
from pomona_federation.rehearsal.run import free_ports, local_federation
from real_federation import ROUNDS, check, federation, finished, launched, reached
from troubled_line import Line, between

pytestmark = pytest.mark.slow
BAD = "delay 50ms 20ms loss 2%"


@pytest.fixture
def line(tmp_path, request):
    """A federation whose silos reach the server through a relay, at first without disturbance."""
    rounds = getattr(request, "param", ROUNDS)
    with (
        federation(tmp_path / "local", rounds) as local,
        between(Line(), local, local.names) as line,
    ):
        line.local = launched(local)
        yield line


def test_a_line_that_is_slow_and_loses_pieces(line, monkeypatch):
    """A tenth of a second each way, 50 kB a second, and a piece in twenty a second late: nobody is
    absent.
    """
    line.delay, line.rate, line.lost, line.again = 0.1, 50e3, 0.05, 1.0
    assert line.local.wait(finished).state == "finished"
    check(line.local, monkeypatch)


@pytest.mark.parametrize("line", [20], indirect=True)
def test_connections_that_are_cut_again_and_again(line, monkeypatch):
    """Each after some 10 kB, in whatever it is doing: requests are repeated, answers count once."""
    line.local.wait(reached(1))
    line.cut = 10e3
    assert line.local.wait(finished).state == "finished"
    check(line.local, monkeypatch, complete=False)
    assert line.cuts >= 10


def test_a_network_that_is_dark_for_longer_than_flower_counts_a_silo_as_there(line, monkeypatch):
    line.local.wait(reached(1))
    line.dark = True
    time.sleep(75)
    line.dark = False
    assert line.local.wait(finished).state == "finished"
    check(line.local, monkeypatch)


def own_network(*command):
    """A command prefix that runs a command in a separate network, with a bad loopback."""
    bad = f"ip link set lo up && tc qdisc add dev lo root netem {BAD} && exec "
    return ["unshare", "-rn", "sh", "-c", bad + '"$@"', "sh", *command]


def test_delay_and_loss_by_the_kernel(tmp_path):
    """`pomona deploy rehearse` compares the models with the simulator's itself."""
    if not all(map(shutil.which, ("unshare", "ip", "tc"))):
        pytest.skip("needs unshare, ip and tc (util-linux, iproute2)")
    tried = subprocess.run(own_network("true"), capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no network of our own with netem here: {tried.stderr.strip()}")
    (tmp_path / "federation.toml").write_text(
        agreement(free_ports(1)[0], ["north", "south", "east"], rounds=3)
    )
    args = [
        sys.executable,
        "-m",
        "pomona",
        "deploy",
        "rehearse",
        "federation.toml",
        "--out",
        "rehearsed",
        "--json",
    ]
    ran = subprocess.run(
        own_network(*args), cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["largest"] == 0


MBIT = 1e6 / 8  # bytes


def test_a_model_of_44_mb_over_lines_of_4_mbit_a_second(tmp_path, monkeypatch, capsys):
    """Prints the seconds a way; the deadline is the default of two hours."""
    config = settings(
        method="fedavg", model={"name": "mlp", "hidden": [3200, 3300]}, clients=2, rounds=2
    )
    scenario = Scenario.prepare(config)
    with ExitStack() as closing:
        processes = local_federation(scenario, tmp_path / "local", quorum=2, wait=1200.0)
        local = closing.enter_context(processes)
        for name in local.names:
            closing.enter_context(between(Line(capacity=4 * MBIT), local, [name]))
        launched(local).wait(finished, seconds=3600.0)
        assert local.status.state == "finished"
    assert set(check(local, monkeypatch, complete=False).values()) == {(0, 1)}
    lines = list(complete_lines(local.server / "run" / "audit.jsonl"))
    megabytes = max(line["bytes"] for line in lines if line["event"] == "received") / 1e6
    times = {
        (line["event"], line["silo"], line["round"]): datetime.fromisoformat(line["time"])
        for line in lines
        if line["event"] in {"sent", "received"}
    }
    for name in local.names:
        for line in complete_lines(local.silo(name) / "state" / "audit.jsonl"):
            if line["event"] == "answered" and ("received", name, line["round"]) in times:
                times["answered", name, line["round"]] = datetime.fromisoformat(line["time"])
    with capsys.disabled():
        for name, number in product(local.names, (1, 2)):
            sent_time, answered, received = (
                times[event, name, number] for event in ("sent", "answered", "received")
            )
            sys.stdout.write(
                f"\n{megabytes:.1f} MB, {name}, round {number}: down and training "
                f"{(answered - sent_time).seconds} s, up {(received - answered).seconds} s\n"
            )
