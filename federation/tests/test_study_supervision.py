"""The server's supervision of several studies: one SuperLink, studies in sequence, in stand-in
processes.
"""

import os
import subprocess
import sys
import threading
import time
import tomllib
from unittest import mock

import pytest
import tomli_w

from agreement_file import TASK, agreement
from pomona.storage.lock import locked
from pomona.storage.run_status import Status, read_status, write_status
from pomona_federation.audit_log import Audit
from pomona_federation.messages.study_bodies import Decision
from pomona_federation.server import superlink_supervisor
from pomona_federation.server.consents import Consents
from pomona_federation.server.member_registry import MemberRegistry
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.server.superlink_supervisor import APP, ServerPolicy
from pomona_federation.status import server as status_of
from pomona_federation.supervision import supervisor
from pomona_federation.supervision.supervisor import Supervisor, process_tree

pytestmark = pytest.mark.long

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
WRITES = (
    "out.mkdir(parents=True, exist_ok=True)\n"
    '(out / \'new\').write_text(\'{{"state": "{}", "round": {}, "code": {}, "time": 1}}\')\n'
    "(out / 'new').rename(out / 'status.json')\n"
)
FINISHES = "time.sleep(0.2)\n" + WRITES.format("finished", 3, 0)


class Link:
    """A SuperLink whose ServerApps are the given programs by study; each gets that study's folder
    as ``out``.
    """

    def __init__(self, programs):
        self.programs, self.submitted, self.stopped, self.processes = dict(programs), [], [], []

    def nodes(self):
        return []

    def register(self, name, key):
        """Accept every key."""

    def submit(self, _, settings):
        (study,) = settings.values()  # no path: every member can read them
        folder = "run" if not study else f"run/studies/{study}"
        text = (
            "from pathlib import Path\nimport os, sys, time\nout = Path(sys.argv[2]) / "
            f"'{folder}'\n{self.programs[study]}"
        )
        self.submitted.append(study)
        self.processes.append(subprocess.Popen([sys.executable, "-c", text, APP, str(self.kit)]))
        return len(self.submitted)

    def unfinished(self):
        return []

    def stop(self, run):
        self.stopped.append(run)

    def close(self):
        for process in self.processes:
            process.poll()


@pytest.fixture
def kit(tmp_path, monkeypatch):
    monkeypatch.setattr(superlink_supervisor, "TICK", 0.05)
    monkeypatch.setattr(superlink_supervisor, "LONGEST_DELAY", 0.05)
    tree = {k: v for k, v in tomllib.loads(agreement(28443)).items() if k not in {"run", "task"}}
    folder = tmp_path / "kit"
    (folder / "run").mkdir(parents=True)
    (folder / "keys").mkdir()
    for name in ("north", "south"):
        (folder / "keys" / f"{name}.pub").write_text("ecdsa-sha2-nistp384 AAAA")
    (folder / "federation.toml").write_text(tomli_w.dumps(tree))
    MemberRegistry(folder / "run", StudyQueue(folder).federation)
    processes = set(process_tree(os.getpid()))
    yield folder
    assert not set(process_tree(os.getpid())) - processes, "processes left behind"


def submitted(kit, *names, accepted=True):
    """Studies in the queue, decided on by all members."""
    for name in names:
        path = kit.parent / f"{name}.toml"
        run = {"method": "fedavg", "rounds": 3, "lr": 0.1, "model": {"name": "mlp", "hidden": [8]}}
        path.write_text(tomli_w.dumps({"name": name, "run": run, "task": TASK}))
        study = StudyQueue(kit).submit(path)
        for silo in ("north", "south") if accepted else ():
            decision = Decision(silo=silo, study=study.agreement, accepted=True)
            Consents(kit / "run/studies" / name).record(decision, "")


class Clock:
    """The policy's time: Ctrl+C comes in the first pause after a condition holds.

    A signal would come anywhere, also between the opening of a file of /proc and the ``with`` that
    closes it.
    """

    time, monotonic = staticmethod(time.time), staticmethod(time.monotonic)

    def __init__(self, condition):
        self.until = condition

    def sleep(self, seconds):
        time.sleep(seconds)
        if self.until():
            raise KeyboardInterrupt


def supervised(kit, link, standing=False, condition=bool):
    """Run the policy to its end, or until a condition holds."""
    log, link.kit = [], kit
    with Audit(kit / "run/audit.jsonl") as audit:
        policy = ServerPolicy(kit, lambda: link, lambda: b"app", dict, log.append, audit, standing)
        superlink = Supervisor(
            SLEEP, supervisor.environment(kit / "flwr"), kit / "run/logs/superlink.log", first=APP
        )
        try:
            with mock.patch.object(superlink_supervisor, "time", Clock(condition)):
                return superlink.run(policy), log
        except KeyboardInterrupt:
            return None, log
        finally:
            for process in link.processes:
                process.wait(5)


def test_studies_run_one_after_the_other_under_one_superlink(kit):
    submitted(kit, "one", "two")
    link = Link({"one": FINISHES, "two": FINISHES})
    status, lines = supervised(kit, link)
    assert (status.state, status.round) == ("finished", 3)
    assert link.submitted == ["one", "two"]
    assert sum("SuperLink answers" in line for line in lines) == 1
    assert [row["state"] for row in status_of(kit)["studies"]] == ["finished", "finished"]


def test_a_study_whose_turn_has_not_come_is_queued(kit):
    submitted(kit, "one", "two")
    write_status(kit / "run/studies/one", Status(state="running", round=1))
    with locked(kit / "run"):
        assert [status_of(kit, name)["state"] for name in ("one", "two")] == ["running", "queued"]
        assert [row["state"] for row in status_of(kit)["studies"]] == ["running", "queued"]


def test_a_study_that_fails_for_good_does_not_keep_the_next_from_running(kit):
    submitted(kit, "one", "two")
    link = Link({"one": "time.sleep(0.2)\n" + WRITES.format("failed", 1, 9), "two": FINISHES})
    status, _ = supervised(kit, link)
    assert status.state == "finished"
    assert link.submitted == ["one", "two"]
    assert read_status(kit / "run/studies/one").code == 9
    StudyQueue(kit).resume("one")
    assert StudyQueue(kit).next().name == "one"


def test_a_search_goes_on_after_more_faults_than_one_run_may_have(kit):
    """Each life begins the next trial and fails; the seventh ends well."""
    submitted(kit, "one")
    program = (
        "trials = out / 'trials'\ntrials.mkdir(exist_ok=True)\nnumber = "
        "len(list(trials.iterdir()))\n(trials / f'{number:03d}').mkdir()\ntime.sleep(0.2)\nif "
        "number < 6:\n    "
        f"{WRITES.format('failed', 0, 1).replace(chr(10), chr(10) + '    ').rstrip()}\nelse:\n    "
        f"{WRITES.format('finished', 0, 0).replace(chr(10), chr(10) + '    ').rstrip()}\n"
    )
    link = Link({"one": program})
    status, _ = supervised(kit, link)
    assert status.state == "finished"
    assert link.submitted == ["one"] * 7


def test_an_aborted_study_ends_at_once_and_the_next_begins(kit):
    submitted(kit, "one", "two")
    link = Link({"one": WRITES.format("running", 1, "null") + "time.sleep(60)", "two": FINISHES})
    timer = threading.Timer(1.0, lambda: StudyQueue(kit).abort("one"))
    timer.start()
    status, _ = supervised(kit, link)
    timer.join()
    assert status.state == "finished"
    assert read_status(kit / "run/studies/one").reason == "aborted by the server's operator"


def test_an_interrupted_study_goes_on_before_others(kit):
    submitted(kit, "one", "two")
    link = Link({"one": WRITES.format("running", 1, "null") + "time.sleep(60)", "two": FINISHES})
    result, _ = supervised(
        kit, link, condition=lambda: (read_status(kit / "run/studies/one") or 0) and link.submitted
    )
    assert result is None
    assert read_status(kit / "run/studies/one").state == "interrupted"
    restarted = Link({"one": FINISHES, "two": FINISHES})
    supervised(kit, restarted)
    assert restarted.submitted == ["one", "two"]


def test_a_study_waits_until_the_silos_have_decided(kit):
    submitted(kit, "one", accepted=False)
    link = Link({"one": FINISHES})

    def decide():
        for silo in ("north", "south"):
            study = StudyQueue(kit).study("one").submission
            Consents(kit / "run/studies/one").record(
                Decision(silo=silo, study=study.agreement, accepted=True), ""
            )

    timer = threading.Timer(1.0, decide)
    timer.start()
    status, lines = supervised(kit, link)
    timer.join()
    assert status.state == "finished"
    assert any("waiting for the silos to decide on one" in line for line in lines)


def test_a_standing_server_waits_for_further_studies(kit):
    link = Link({"one": FINISHES})
    timer = threading.Timer(1.0, lambda: submitted(kit, "one"))
    timer.start()
    result, lines = supervised(
        kit,
        link,
        standing=True,
        condition=lambda: [
            s for s in StudyQueue(kit).all if StudyQueue(kit).state(s) == "finished"
        ],
    )
    timer.join()
    assert result is None
    assert "no study to run" in lines
    assert link.submitted == ["one"]
