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
import tomllib

import pytest

from agreement_file import agreement
from pomona_federation.rehearsal.run import free_ports
from real_federation import ROUNDS, after, check, ended, federation
from troubled_line import Line, troubled

pytestmark = pytest.mark.slow
BAD = "delay 50ms 20ms loss 2%"


@pytest.fixture
def line(tmp_path, request):
    """A federation whose silos reach the server through a relay, at first without disturbance."""
    with federation(tmp_path / "local", getattr(request, "param", ROUNDS)) as local:
        server = tomllib.loads((local.server / "federation.toml").read_text())["server"]
        (port,) = free_ports(1)
        for name in local.names:
            path = local.silo(name) / "federation.toml"
            text = path.read_text()
            assert text.count(f'"{server}"') == 1
            path.write_text(text.replace(f'"{server}"', f'"127.0.0.1:{port}"'))
        with troubled(Line(), port, int(server.rpartition(":")[2])) as between:
            between.local = local
            for who in ("server", *local.names):
                local.start(who)
            yield between


def test_a_line_that_is_slow_and_loses_pieces(line, monkeypatch):
    """A tenth of a second each way, 50 kB a second, and a piece in twenty a second late: nobody is
    absent.
    """
    line.delay, line.rate, line.lost, line.again = 0.1, 50e3, 0.05, 1.0
    assert line.local.wait(ended).state == "finished"
    check(line.local, monkeypatch)


@pytest.mark.parametrize("line", [20], indirect=True)
def test_connections_that_are_cut_again_and_again(line, monkeypatch):
    """Each after some 10 kB, in whatever it is doing: requests are repeated, answers count once."""
    line.local.wait(after(1))
    line.cut = 10e3
    assert line.local.wait(ended).state == "finished"
    check(line.local, monkeypatch, whole=False)
    assert line.cuts >= 10


def test_a_network_that_is_dark_for_longer_than_flower_counts_a_silo_as_there(line, monkeypatch):
    line.local.wait(after(1))
    line.dark = True
    time.sleep(75)
    line.dark = False
    assert line.local.wait(ended).state == "finished"
    check(line.local, monkeypatch)


def own_network(*words):
    """A command prefix that runs a command in a separate network, with a bad loopback."""
    bad = f"ip link set lo up && tc qdisc add dev lo root netem {BAD} && exec "
    return ["unshare", "-rn", "sh", "-c", bad + '"$@"', "sh", *words]


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
    words = [
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
        own_network(*words), cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["largest"] == 0
