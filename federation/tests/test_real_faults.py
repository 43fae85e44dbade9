"""Faults against real Flower processes; see ``docs/internals/fault-tables.md``.

Minutes each: ``pytest -m slow federation/tests``. Whatever happens, the federation ends with the
models of a simulation in which the silos missing from a round were declared absent in it; in most
rows no silo is.
"""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

from pomona_federation.supervision.supervisor import environment, process_tree
from real_federation import ROUNDS, below, check, finished, kill, reached, reads_by

pytestmark = pytest.mark.slow


def test_a_silos_node_is_killed_and_returns(local, monkeypatch):
    """F1, F2: the supervisor starts it again with its key; the round's task is sent once more."""
    local.wait(reached(1))
    kill(below(local.process("silo-1").pid))
    assert local.wait(finished).state == "finished"
    check(local, monkeypatch)


def test_a_silos_worker_is_killed(local, monkeypatch):
    """The node starts it again; a message that it was doing ends with it, and is sent once more."""
    local.wait(reached(1))
    killed = local.find("worker", "silo-1")
    kill(killed)
    local.wait(reached(2))
    while not (doing := local.find("ClientApp", "silo-1")) and not finished(local.status):
        time.sleep(0.01)
    kill(local.find("worker", "silo-1"))
    assert local.wait(finished).state == "finished"
    check(local, monkeypatch)
    assert len(killed) == 1
    assert doing
    assert not [p for p in doing if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_the_process_of_a_message_is_killed(local, monkeypatch):
    """The worker notices at once, and the task is sent once more; the worker lives on."""
    local.wait(reached(1))
    worker = local.find("worker", "silo-1")
    while not (doing := local.find("ClientApp", "silo-1")) and not finished(local.status):
        time.sleep(0.01)
    kill(doing)
    local.wait(reached(3))
    assert local.find("worker", "silo-1") == worker
    assert local.wait(finished).state == "finished"
    check(local, monkeypatch)


def test_the_serverapp_is_killed(local, monkeypatch):
    """F4: the supervisor submits the run again; it goes on after the last committed round."""
    local.wait(reached(1))
    kill(local.find("ServerApp", "server"))
    assert local.wait(finished).state == "finished"
    check(local, monkeypatch)


def test_the_superlink_is_killed(local, monkeypatch):
    """F6: its database is kept, nodes connect again, the run is submitted again."""
    local.wait(reached(1))
    kill(local.find("SuperLink", "server"))
    assert local.wait(finished).state == "finished"
    check(local, monkeypatch)


def test_the_servers_machine_loses_power(local, monkeypatch):
    """Everything of the server is killed at once; `pomona server resume` continues."""
    local.wait(reached(1))
    process = local.process("server")
    kill(process_tree(process.pid))
    process.wait()
    local.start("server")
    assert local.wait(lambda s: s.state == "finished" or (s.code or 0) > 0).state == "finished"
    check(local, monkeypatch)


def test_ctrl_c_and_resume(local, monkeypatch):
    """F41: within seconds, exit code 130, nothing left behind; then resumed."""
    local.wait(reached(1))
    process, start_time = local.process("server"), time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert time.monotonic() - start_time < 15  # 5 on a machine that has nothing else to do
    assert local.status.state == "interrupted"
    command = [sys.executable, "-m", "pomona", "server", "resume", "--folder", str(local.server)]
    ran = subprocess.run(command, env=environment(local.folder), timeout=600, check=False)
    assert ran.returncode == 0
    check(local, monkeypatch)


@pytest.mark.parametrize("local", [{"deadline": 60.0, "patience": 10.0}], indirect=True)
def test_a_silo_that_is_slower_than_the_deadline_is_absent(local, monkeypatch):
    """F18, F19: stopped for two deadlines and let go on; what it sends late counts for nothing."""
    local.wait(reached(1))
    stopped = below(local.process("silo-1").pid)
    kill(stopped, signal.SIGSTOP)
    local.wait(reached(2))
    kill([p for p in stopped if p.is_running()], signal.SIGCONT)
    assert local.wait(finished).state == "finished"
    cohorts = check(local, monkeypatch, complete=False)
    assert (0, 2) in cohorts.values()


@pytest.mark.parametrize("local", [{"quorum": 3, "deadline": 45.0, "patience": 5.0}], indirect=True)
def test_quorum_is_lost_and_regained(local, monkeypatch):
    """F19: without silo-2 the server stops with code 7; with it back, it resumes."""
    local.wait(reached(1))
    process = local.process("silo-2")
    process.terminate()
    process.wait(timeout=20)
    status = local.wait(finished)
    assert status.code == 7
    assert local.process("server").wait(timeout=30) == 7
    local.start("silo-2")
    local.start("server")
    assert local.wait(lambda s: s.state == "finished").state == "finished"
    check(local, monkeypatch)


@pytest.mark.parametrize("local", [{"deadline": 600.0, "patience": 580.0}], indirect=True)
def test_a_node_that_is_stuck_is_found_and_started_again(local, monkeypatch):
    """A node that lives and does nothing any more: the watchdog ends it, and the silo takes part
    again.
    """
    local.wait(reached(1))
    stuck = local.find("node", "silo-1")
    kill(stuck, signal.SIGSTOP)
    assert local.wait(finished).state == "finished"
    check(local, monkeypatch)
    assert not set(stuck) & set(local.find("node", "silo-1"))
    node_status = json.loads((local.silo("silo-1") / "state" / "node" / "node.json").read_text())
    # SuperLink may refuse the key for a minute, as long as the old connection counts
    assert node_status["restarts"] >= 1
    assert "although the server can be reached" in (local.folder / "silo-1.log").read_text()


@pytest.mark.parametrize("local", [{"deadline": 60.0, "patience": 50.0}], indirect=True)
def test_a_silo_whose_code_hangs_is_absent_and_takes_part_again(local, monkeypatch):
    """Its process ends itself some time after the deadline; Flower's node then goes on to the next
    message.
    """
    hang = reads_by(local.silo("silo-1"), "hanging", "flag.unlink(); time.sleep(100_000)")
    local.wait(reached(1))
    hang.touch()
    assert local.wait(finished).state == "finished"
    assert not hang.exists()
    cohorts = check(local, monkeypatch, complete=False)
    assert (0, 2) in cohorts.values()
    assert cohorts[ROUNDS] == (0, 1, 2)


@pytest.mark.parametrize("local", [{"patience": 20.0}], indirect=True)
def test_a_silo_with_a_strangers_key_never_takes_part(local, monkeypatch):
    """F3: the server lets no unknown key in; the federation goes on with the others."""
    local.wait(reached(1))
    process = local.process("silo-1")
    process.terminate()
    process.wait(timeout=20)
    kit = local.silo("silo-1")
    own_key = (kit / "keys" / "silo.key").read_bytes()
    options = ["-q", "-t", "ecdsa", "-b", "384", "-N", ""]
    command = ["ssh-keygen", *options, "-f", str(local.folder / "stranger")]
    subprocess.run(command, check=True)
    (kit / "keys" / "silo.key").write_bytes((local.folder / "stranger").read_bytes())
    local.start("silo-1")
    status = local.wait(reached(2))
    (kit / "keys" / "silo.key").write_bytes(own_key)
    assert status.state in {"running", "finished"}
    assert "the server does not know this silo's key" in (local.folder / "silo-1.log").read_text()
    local.wait(finished)
    check(local, monkeypatch, complete=False)
