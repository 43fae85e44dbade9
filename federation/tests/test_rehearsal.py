"""The whole federation with real Flower processes, TLS and keys on: the models of the simulator,
bit by bit.
"""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from agreement_file import agreement
from federation_in_process import settings
from pomona.cli import main
from pomona.core.errors import ConfigError, QuorumError
from pomona.methods import METHODS
from pomona.scenario import Scenario
from pomona.storage.run_status import Status, write_status
from pomona_federation.agreement import Federation
from pomona_federation.rehearsal import run
from pomona_federation.rehearsal.run import LocalFederation, rehearse
from representatives import representatives

pytestmark = pytest.mark.long

METHODS_DEPLOYED = [name for name, settings in METHODS.items() if settings().method().share is None]


def test_a_federation_offers_every_method_but_the_one_that_hands_samples_to_all(tmp_path):
    for name in METHODS:
        file = tmp_path / "federation.toml"
        file.write_text(agreement(9, method=name, momentum=0.0))
        if name in METHODS_DEPLOYED:
            assert Federation.load(file).kit_terms.config.method.name == name
        else:
            with pytest.raises(
                ConfigError, match="sends samples to every client; silos keep theirs"
            ):
                Federation.load(file)
    assert set(METHODS) - set(METHODS_DEPLOYED) == {"fedavg-data"}


def test_the_command_rehearses_by_the_rules_of_the_file(tmp_path, monkeypatch):
    """The keys of the federation and of its study, each from where it stands; no process is
    started.
    """
    saved = {}

    def noted(scenario, folder, say, **rules):
        saved.update(rules, clients=scenario.config.clients, rounds=scenario.config.rounds)
        raise ConfigError("noted")

    monkeypatch.setattr("pomona_federation.rehearsal.run.rehearse", noted)
    file = tmp_path / "federation.toml"
    file.write_text('wire = "bf16"\npatience = 7.0\nmutual_tls = true\n' + agreement(9))
    with pytest.raises(SystemExit) as exited:
        main(["deploy", "rehearse", str(file), "rounds=3", "--out", str(tmp_path / "out")])
    assert exited.value.code == 2
    rules = {
        "wire": "bf16",
        "share_scores": True,
        "patience": 7.0,
        "insecure": False,
        "mutual_tls": True,
        "quorum": 1,
    }
    assert saved.items() >= {**rules, "clients": 2, "rounds": 3}.items()


def rehearsed(folder, method, rounds, silos, **options):
    """Distance of the personal models from the simulator's."""
    config = settings(method=method, rounds=rounds, clients=silos)
    options |= {"deadline": 240.0, "wait": 240.0, "quorum": silos}
    return rehearse(Scenario.prepare(config), folder / "rehearsal", print, **options)


@pytest.mark.parametrize("silos", representatives([2, 6], [2]))
def test_real_processes(silos, tmp_path):
    report = rehearsed(tmp_path, {"name": "apple", "budget": 1}, rounds=2, silos=silos)
    assert report.difference == {f"silo-{i}": 0.0 for i in range(silos)}
    assert len(report.seconds) == 2
    assert min(report.bytes_down) > 0


def test_a_server_that_has_died_is_not_said_to_be_slow(tmp_path):
    (tmp_path / "server.log").write_text("one\nerror[CONFIG]: two\n")
    local = LocalFederation(tmp_path, (), None)
    local._processes["server"] = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    log = re.escape(str(tmp_path / "server.log"))
    with pytest.raises(
        QuorumError, match=rf"server ended with code 3 \(error\[CONFIG\]: two\); see {log}"
    ):
        local.wait(lambda status: status.state != "running", 60.0)
    with pytest.raises(QuorumError, match=rf"made no progress within 0 s \(error.*see {log}"):
        local.wait(lambda status: status.state != "running", 0.0)


def test_a_rehearsal_with_a_round_in_each_limit_is_not_ended(tmp_path, monkeypatch):
    """Six rounds of 3 s each: more than the limit of 5 s together, and none alone."""
    clock = SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda _: None, now=0.0)
    monkeypatch.setattr(run, "time", clock)
    local = LocalFederation(tmp_path, (), None)
    local._processes["server"] = SimpleNamespace(poll=lambda: None, pid=os.getpid())

    def commits():
        clock.now += 3.0
        write_status(local.server / "run", Status(state="running", round=int(clock.now / 3)))

    (local.server / "run").mkdir(parents=True)
    (tmp_path / "server.log").touch()
    assert local.wait(lambda status: status.round == 6, 5.0, commits).round == 6
    with pytest.raises(QuorumError, match="no progress within 5 s"):
        local.wait(lambda status: status.round == 7, 5.0, lambda: setattr(clock, "now", 30.0))


def test_a_silo_that_cannot_start_ends_the_rehearsal_with_its_reason(tmp_path, monkeypatch):
    """As in a container without the machine's id."""
    failing = "import sys; sys.exit('error[STORAGE]: no id')"

    def start(self, owner):
        server = owner == "server"
        with (self.folder / f"{owner}.log").open("wb") as log:
            command = [sys.executable, "-c", "import time; time.sleep(60)" if server else failing]
            self._processes[owner] = subprocess.Popen(command, stderr=log)

    monkeypatch.setattr(LocalFederation, "start", start)
    scenario = Scenario.prepare(settings(clients=2))
    with pytest.raises(QuorumError, match=r"silo-0 ended with code 1 \(error\[STORAGE\]: no id\)"):
        rehearse(scenario, tmp_path / "rehearsal")


@pytest.mark.slow
def test_three_silos_with_mutual_tls(tmp_path):
    report = rehearsed(tmp_path, {"name": "apple", "budget": 1}, rounds=2, silos=3, mutual_tls=True)
    assert report.difference == {f"silo-{i}": 0.0 for i in range(3)}
    log = (
        tmp_path / "rehearsal" / "kits" / "server" / "run" / "logs" / "superlink.log"
    ).read_text()
    assert "mutual TLS" in log


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS_DEPLOYED)
def test_every_method(method, tmp_path):
    report = rehearsed(tmp_path, {"name": method}, rounds=3, silos=3)
    assert report.largest == 0.0
