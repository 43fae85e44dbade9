"""Faults against real Flower processes; see ``reliability.md`` 3.3. Minutes each: ``pytest -m slow tests/deploy``.

Whatever happens, the federation ends with the models of a simulation in which the silos that a round went without were
declared absent in it; in most rows that is nobody.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from federation_in_process import settings
from safetensors.torch import load_file

import pomona
from pomona.deploy.processes import environment, process_tree
from pomona.deploy.rehearsal.run import staged
from pomona.federation.transport import Inline
from pomona.record.reading import load

pytestmark = pytest.mark.slow
ROUNDS = 5


@pytest.fixture
def stage(tmp_path, request):
    """Three silos and a server on loopback, started; whatever is left of them ends with the test."""
    options = {"deadline": 240.0, "wait": 240.0, "patience": 200.0, "quorum": 2, **getattr(request, "param", {})}
    config = settings(method={"name": "apple", "budget": 1}, rounds=ROUNDS)
    with staged(config, tmp_path / "stage", **options) as made:
        for who in ("server", *made.names):
            made.start(who)
        yield made
        left = set(below(os.getpid()))
    assert not left & {process for process, command in process_tree(os.getpid()).items() if "pomona" in command}


def after(number):
    """Whether a round is committed, and the federation still runs."""
    return lambda status: status.round >= number or status.state != "running"


def ended(status):
    """Whether the federation has come to an end."""
    return status.state != "running"


def expected(stage, monkeypatch):
    """The simulation's models, with every silo absent in the rounds that the server went without it."""
    cohorts = {r.round: r.cohort for r in load(stage.server / "run").rounds}
    visit = Inline.visit

    def visits(transport, asked, down):
        replies = visit(transport, asked, down)
        return [r for r in replies if not asked.trains or r.reply.client in cohorts[asked.round.number]]

    monkeypatch.setattr(Inline, "visit", visits)
    out = stage.folder / "simulation"
    pomona.run(stage.simulation, out)
    return [load_file(out / "models" / f"client-{i:02d}.safetensors") for i in range(len(stage.names))], cohorts


def check(stage, monkeypatch, whole=True):
    """The models are as expected; ``whole``: nobody was absent in any round."""
    models, cohorts = expected(stage, monkeypatch)
    if whole:
        assert set(cohorts.values()) == {(0, 1, 2)}
    for name, theirs in zip(stage.names, models, strict=True):
        ours = load_file(stage.silo(name) / "state" / "models" / "personal.safetensors")
        assert all(ours[k].equal(theirs[k]) for k in theirs), name
    return cohorts


def kill(processes, number=signal.SIGKILL):
    """Signal processes that were found. Fails if there are none."""
    assert processes
    for process in processes:
        process.send_signal(number)


def below(pid):
    """The descendants of a process."""
    return [process for process in process_tree(pid) if process.pid != pid]


def test_a_silos_node_is_killed_and_returns(stage, monkeypatch):
    """F1, F2: the supervisor starts it again with its key; the round's task is sent once more."""
    stage.wait(after(1))
    kill(below(stage.process("silo-1").pid))
    assert stage.wait(ended).state == "finished"
    check(stage, monkeypatch)


def test_the_serverapp_is_killed(stage, monkeypatch):
    """F4: the supervisor submits the run again; it goes on after the last committed round."""
    stage.wait(after(1))
    kill(stage.find("ServerApp", "server"))
    assert stage.wait(ended).state == "finished"
    check(stage, monkeypatch)


def test_the_superlink_is_killed(stage, monkeypatch):
    """F6: its database is kept, nodes connect again, the run is submitted again."""
    stage.wait(after(1))
    kill(stage.find("SuperLink", "server"))
    assert stage.wait(ended).state == "finished"
    check(stage, monkeypatch)


def test_the_servers_machine_loses_power(stage, monkeypatch):
    """Everything of the server is killed at once; `pomona server resume` goes on."""
    stage.wait(after(1))
    process = stage.process("server")
    kill(process_tree(process.pid))
    process.wait()
    stage.start("server")
    assert stage.wait(lambda s: s.state == "finished" or (s.code or 0) > 0).state == "finished"
    check(stage, monkeypatch)


def test_ctrl_c_and_resume(stage, monkeypatch):
    """F41: within seconds, exit code 130, nothing left behind; then resumed."""
    stage.wait(after(1))
    process, began = stage.process("server"), time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert time.monotonic() - began < 15  # 5 on a machine that has nothing else to do
    assert stage.status.state == "interrupted"
    again = [sys.executable, "-m", "pomona", "server", "resume", "--folder", str(stage.server)]
    ran = subprocess.run(again, env=environment(stage.folder), timeout=600, check=False)
    assert ran.returncode == 0
    check(stage, monkeypatch)


@pytest.mark.parametrize("stage", [{"deadline": 60.0, "patience": 10.0}], indirect=True)
def test_a_silo_that_is_slower_than_the_deadline_is_absent(stage, monkeypatch):
    """F18, F19: stopped for two deadlines and let go on; what it sends late counts for nothing."""
    stage.wait(after(1))
    stopped = below(stage.process("silo-1").pid)
    kill(stopped, signal.SIGSTOP)
    stage.wait(after(2))
    kill([p for p in stopped if p.is_running()], signal.SIGCONT)
    assert stage.wait(ended).state == "finished"
    cohorts = check(stage, monkeypatch, whole=False)
    assert (0, 2) in cohorts.values()


@pytest.mark.parametrize("stage", [{"quorum": 3, "deadline": 45.0, "patience": 5.0}], indirect=True)
def test_quorum_is_lost_and_regained(stage, monkeypatch):
    """F19: without silo-2 the server stops with code 7; with it back, it resumes."""
    stage.wait(after(1))
    process = stage.process("silo-2")
    process.terminate()
    process.wait(timeout=20)
    status = stage.wait(ended)
    assert status.code == 7
    assert stage.process("server").wait(timeout=30) == 7
    stage.start("silo-2")
    stage.start("server")
    assert stage.wait(lambda s: s.state == "finished").state == "finished"
    check(stage, monkeypatch)


@pytest.mark.parametrize("stage", [{"deadline": 600.0, "patience": 580.0}], indirect=True)
def test_a_node_that_is_stuck_is_found_and_started_again(stage, monkeypatch):
    """A SuperNode that lives and does nothing any more: the watchdog ends it, and the silo takes part again."""
    stage.wait(after(1))
    stuck = stage.find("SuperNode", "silo-1")
    kill(stuck, signal.SIGSTOP)
    assert stage.wait(ended).state == "finished"
    check(stage, monkeypatch)
    assert not set(stuck) & set(stage.find("SuperNode", "silo-1"))
    said = json.loads((stage.silo("silo-1") / "state" / "node" / "node.json").read_text())
    assert said["restarts"] >= 1  # SuperLink may refuse the key for a minute, as long as the old connection counts
    assert "although the server can be reached" in (stage.folder / "silo-1.log").read_text()


HANGING = """
import time
from pathlib import Path
from pomona.data import read

def data(settings):
    flag = Path(__file__).with_name("hang")
    if flag.exists():
        flag.unlink()
        time.sleep(100_000)
    return read(settings.model_copy(update={"name": "clients"}))
"""


@pytest.mark.parametrize("stage", [{"deadline": 60.0, "patience": 50.0}], indirect=True)
def test_a_silo_whose_code_hangs_is_absent_and_takes_part_again(stage, monkeypatch):
    """Its process ends itself some time after the deadline; Flower's node then goes on to the next message."""
    kit = stage.silo("silo-1")
    (kit / "hanging.py").write_text(HANGING)
    own = (kit / "silo.toml").read_text()
    assert own.count('name = "clients"') == 1
    (kit / "silo.toml").write_text(own.replace('name = "clients"', 'name = "hanging:data"'))
    stage.wait(after(1))
    (kit / "hang").touch()
    assert stage.wait(ended).state == "finished"
    assert not (kit / "hang").exists()
    cohorts = check(stage, monkeypatch, whole=False)
    assert (0, 2) in cohorts.values()
    assert cohorts[ROUNDS] == (0, 1, 2)


@pytest.mark.parametrize("stage", [{"patience": 20.0}], indirect=True)
def test_a_silo_with_a_strangers_key_never_takes_part(stage, monkeypatch):
    """F3: SuperLink lets no unknown key in; the federation goes on with the others."""
    stage.wait(after(1))
    process = stage.process("silo-1")
    process.terminate()
    process.wait(timeout=20)
    kit = stage.silo("silo-1")
    own = (kit / "keys" / "silo.key").read_bytes()
    made = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(stage.folder / "stranger")]
    subprocess.run(made, check=True)
    (kit / "keys" / "silo.key").write_bytes((stage.folder / "stranger").read_bytes())
    stage.start("silo-1")
    status = stage.wait(after(2))
    (kit / "keys" / "silo.key").write_bytes(own)
    assert status.state in {"running", "finished"}
    assert "2004" in (kit / "state" / "logs" / "supernode.log").read_text()
    stage.wait(ended)
    check(stage, monkeypatch, whole=False)
