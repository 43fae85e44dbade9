"""Four hospitals, from empty folders to a survey, two studies and a cross-site evaluation, using
only user commands.

    pytest -m slow -s federation/tests/test_four_hospitals.py     prints each step with its seconds

Real processes, TLS and keys on one machine; the hospitals' raw files, without any handwritten
figures about them.
"""

import json
import os
import subprocess
import sys
import time
import tomllib

import pytest
import tomli_w

from pomona.storage.run_status import read_status
from pomona_federation.audit_log import verify
from pomona_federation.rehearsal.run import free_ports
from pomona_federation.supervision.supervisor import process_tree
from surveying import HOSPITALS, heart_disease

pytestmark = pytest.mark.slow
LIMIT = 600.0  # seconds for one study, on a busy machine
RUN = {"rounds": 15, "lr": 0.05, "batch_size": 16, "model": {"name": "mlp", "hidden": [16]}}


class Walk:
    """User commands, and the time of each step."""

    def __init__(self, folder):
        self.folder, self.kits, self.started, self.steps = folder, folder / "kits", [], []

    def kit(self, owner):
        return self.kits / owner

    def pomona(self, *arguments):
        """Run a command to its end; return its output."""
        command = [sys.executable, "-m", "pomona", *map(str, arguments)]
        run = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, check=False)
        assert run.returncode == 0, f"{arguments}: {run.stdout}{run.stderr}"
        return run.stdout

    def start(self, role, owner):
        """Start a command in the background."""
        with (self.folder / f"{owner}.log").open("wb") as log:
            command = [
                sys.executable,
                "-m",
                "pomona",
                role,
                "start",
                "--folder",
                str(self.kit(owner)),
            ]
            self.started.append(
                subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder)
            )

    def wait(self, condition, description):
        """Wait for a condition; fail in one line after ``LIMIT``."""
        limit = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < limit, (
                f"{description}: {(self.folder / 'server.log').read_text()[-2000:]}"
            )
            time.sleep(0.5)

    def step(self, title, start_time):
        """Record a step that ends now."""
        self.steps.append((title, time.monotonic() - start_time))
        print(f"{self.steps[-1][1]:6.1f} s  {title}", flush=True)  # noqa: T201 - what the guide says

    def study(self, name, **terms):
        """Submit a study, have every hospital read and accept it, and wait for its end.

        Returns its folder.
        """
        start_time, path = time.monotonic(), self.folder / f"{name}.toml"
        path.write_text(tomli_w.dumps({"name": name, **terms}))
        self.pomona("server", "study", "submit", path, "--folder", self.kit("server"))
        for hospital in HOSPITALS:
            kit = self.kit(hospital)
            assert name in self.pomona("silo", "studies", "--ask", "--folder", kit)
            self.pomona("silo", "check", "--study", name, "--folder", kit)
            self.pomona("silo", "accept", name, "--by", f"Dr. {hospital.title()}", "--folder", kit)
        self.step(f"{name}: submitted, checked and accepted by four", start_time)
        start_time, folder = time.monotonic(), self.kit("server") / "run/studies" / name

        def has_result():
            run_status = read_status(folder)
            return run_status and run_status.state in {"finished", "failed"}

        self.wait(has_result, name)
        assert read_status(folder).state == "finished", read_status(folder).reason
        self.step(f"{name}: run to its end", start_time)
        return folder


@pytest.fixture
def walk(tmp_path):
    """The walk; all its processes end afterwards."""
    pytest.importorskip("flwr")
    processes_before = set(process_tree(os.getpid()))
    hospital_walk = Walk(tmp_path)
    yield hospital_walk
    for process in hospital_walk.started:
        process.terminate()
    for process in hospital_walk.started:
        process.wait(30)
    assert not set(process_tree(os.getpid())) - processes_before


def test_from_empty_folders_to_a_survey_two_studies_and_a_cross_site_evaluation(walk):
    (port,), start_time = free_ports(1), time.monotonic()
    terms = {
        "name": "hearts",
        "server": f"127.0.0.1:{port}",
        "silo": [{"name": h} for h in HOSPITALS],
    }
    (walk.folder / "federation.toml").write_text(tomli_w.dumps(terms))
    walk.pomona("deploy", "provision", "federation.toml", "--out", walk.kits)
    for hospital in HOSPITALS:
        path = walk.kit(hospital) / "silo.toml"
        data = heart_disease(hospital).model_dump(mode="json", exclude_unset=True)
        path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"data": data}))
    walk.step("kits made, data described", start_time)
    start_time = time.monotonic()
    walk.start("server", "server")
    for hospital in HOSPITALS:
        walk.start("silo", hospital)

    def connected():
        standings = [
            json.loads(walk.pomona("silo", "status", "--folder", walk.kit(h), "--json"))
            for h in HOSPITALS
        ]
        return all(s["state"] == "connected" for s in standings)

    walk.wait(connected, "the hospitals' nodes")
    walk.step("server and four hospitals started, all connected", start_time)

    survey = walk.study("survey", kind="survey")
    task = tomllib.loads((survey / "task.toml").read_text())["task"]
    assert len(task["classes"]) == 2

    shared = walk.study("shared", run={**RUN, "method": "fedavg"}, task=task)
    personal = walk.study("personal", run={**RUN, "method": "apple"}, task=task)
    for folder in (shared, personal):
        assert (folder / "events.jsonl").stat().st_size > 0
    for hospital in HOSPITALS:
        text = walk.pomona("silo", "report", "--study", "personal", "--folder", walk.kit(hospital))
        assert "training alone" in text

    walk.study("across", kind="evaluate", evaluate={"of": "personal"}, task=task)
    matrix = json.loads(
        walk.pomona("server", "study", "result", "across", "--folder", walk.kit("server"), "--json")
    )
    assert all(hospital in json.dumps(matrix) for hospital in HOSPITALS)

    start_time = time.monotonic()
    for hospital in HOSPITALS:
        walk.pomona("silo", "stop", "--folder", walk.kit(hospital))
        assert verify(walk.kit(hospital) / "state/audit.jsonl") is None
    walk.pomona("server", "stop", "--folder", walk.kit("server"))
    assert verify(walk.kit("server") / "run/audit.jsonl") is None
    walk.step("all stopped, audit logs verified", start_time)
