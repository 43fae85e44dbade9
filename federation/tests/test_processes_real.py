"""Both supervisors with Flower's own processes, TLS, keys and a stand-in app: every kind of death
in turn.
"""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from agreement_file import agreement
from pomona.core.errors import ProtocolError
from pomona.storage.run_status import read_status
from pomona_federation import status
from pomona_federation.audit_log import complete_lines, verify
from pomona_federation.flower_internals import bundle_sha256
from pomona_federation.provision.provision import provision
from pomona_federation.rehearsal.run import free_ports, process_role
from pomona_federation.server.registry_admin import dismiss
from pomona_federation.silo.node import REFUSAL
from pomona_federation.silo.server_requests import REFUSALS
from pomona_federation.supervision.supervisor import process_tree

pytestmark = pytest.mark.slow

SERVER_APP = """
import os
import time
from pathlib import Path
from flwr.app import Message
from flwr.serverapp import ServerApp
from pomona.storage.run_status import Status, read_status, write_status
from pomona_federation.messages.message_bodies import Hello
from pomona_federation.messages.message_bus import Message as Ours
from pomona_federation.messages.message_bus import packed
app = ServerApp()
@app.main()
def main(grid, context):
    run = Path(os.environ["POMONA_SERVER_KIT"]) / "run"
    for number in range(read_status(run).round + 1, {rounds} + 1):
        answered = []
        while not any(not reply.has_error() for reply in answered):
            time.sleep(0.5)
            content = packed(Ours.of(Hello(agreement="0" * 64, run="0" * 16, nonce="0" * 16)))
            sent = [Message(content, node, "query", ttl=30) for node in grid.get_node_ids()]
            answered = list(grid.send_and_receive(sent, timeout=30))
            errors = [reply.error.reason + "\\n" for reply in answered if reply.has_error()]
            with (run / "errors").open("a") as file:
                file.writelines(errors)
        (run / "checkpoints").mkdir(exist_ok=True)
        (run / "checkpoints" / (f"round-{{number:06d}}-" + "0" * 64 + ".safetensors")).touch()
        write_status(run, Status(state="running", round=number))
    write_status(run, Status(state="finished", round={rounds}, code=0))
"""
CLIENT_APP = "open({path!r}, 'w')\n"
"""What no silo loads."""
ROUNDS = 8


@pytest.fixture
def kits(tmp_path):
    pytest.importorskip("flwr")
    (tmp_path / "federation.toml").write_text(agreement(*free_ports(1), ["north"], rounds=ROUNDS))
    folder = tmp_path / "kits"
    provision(tmp_path / "federation.toml", folder)
    app = folder / "server" / "app" / "pomona_app"
    (app / "server_app.py").write_text(SERVER_APP.format(rounds=ROUNDS))
    (app / "client_app.py").write_text(CLIENT_APP.format(path=str(tmp_path / "loaded")))
    for kit in ("server", "north"):
        (folder / kit / "app.sha256").write_text(bundle_sha256(folder / "server" / "app") + "\n")
    (folder / "north" / "silo.toml").write_text('name = "north"\n[data]\nname = "digits"\n')
    processes_before = set(process_tree(os.getpid()))
    yield folder
    assert not (tmp_path / "loaded").exists(), "a silo runs no code that the server sends"
    assert not set(process_tree(os.getpid())) - processes_before


def run(role, folder, log):
    command = [sys.executable, "-m", "pomona", role, "start", "--folder", str(folder)]
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stderr=file, stdout=subprocess.DEVNULL, start_new_session=True
        )


def wait_for(condition, seconds=120):
    start_time = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() - start_time < seconds, "too long"
        time.sleep(0.1)
    return value


def pid_of(top, role):
    processes = process_tree(top.pid).items()
    return next((p.pid for p, command in processes if process_role(p, command) == role), None)


def round_(kits):
    status = read_status(kits / "server" / "run")
    return status.round if status else 0


def test_a_run_that_was_submitted_before_a_death_is_stopped_before_the_next(kits, tmp_path):
    log, audit = tmp_path / "log", kits / "server" / "run" / "audit.jsonl"

    def runs(event):
        if audit.exists():
            return [r["run"] for r in complete_lines(audit) if r["event"] == event]
        return []

    server = run("server", kits / "server", log)
    try:
        (first,) = wait_for(lambda: runs("submitted"))
        server.kill()
        server.wait()
        server = run("server", kits / "server", log)
        wait_for(lambda: len(runs("submitted")) == 2)
        assert runs("withdrawn") == [first]
        server.terminate()
        assert server.wait(10) == 143
    finally:
        server.kill()
        server.wait()


def test_a_run_survives_every_death_and_leaves_nothing(kits, tmp_path):
    log, state = tmp_path / "log", kits / "server" / "run"
    silo = run("silo", kits / "north", log)
    server = run("server", kits / "server", log)
    try:
        wait_for(lambda: round_(kits) >= 1)
        os.kill(wait_for(lambda: pid_of(server, "ServerApp")), signal.SIGKILL)
        wait_for(lambda: "ServerApp is gone" in log.read_text())
        reached = round_(kits)
        wait_for(lambda: round_(kits) > reached)
        strangers_are_refused(kits)
        os.kill(pid_of(server, "SuperLink"), signal.SIGKILL)
        wait_for(lambda: "SuperLink is gone" in log.read_text())
        reached = round_(kits)
        wait_for(lambda: round_(kits) > reached)
        start_time = time.monotonic()
        server.terminate()
        assert server.wait(10) == 143
        stopped = time.monotonic() - start_time
        assert (read_status(state).state, read_status(state).code) == ("interrupted", 143)
        assert silo.poll() is None
        server = run("server", kits / "server", log)
        assert server.wait(200) == 0
        assert read_status(state).state == "finished"
        silo.terminate()
        assert silo.wait(10) == 143
    finally:
        for process in (silo, server):
            process.kill()
            process.wait()
    assert verify(state / "audit.jsonl") is None
    events = [line["event"] for line in complete_lines(state / "audit.jsonl")]
    assert events.count("submitted") == 4
    assert events.count("registered") == 1, "SuperLink's database keeps the keys"
    secret = (kits / "north" / "keys" / "silo.key").read_bytes().splitlines()[1:-1]
    for path in (*state.rglob("*"), *(kits / "north" / "state").rglob("*"), log):
        if path.is_file():
            assert not any(line in path.read_bytes() for line in secret), path
    assert (
        json.loads((kits / "north" / "state" / "node" / "node.json").read_bytes())["state"]
        == "stopped"
    )
    assert stopped < 6


def strangers_are_refused(kits):
    """Requests marked as forwarded count as a stranger's; this machine's own are answered."""
    address = (kits / "server" / "federation.toml").read_text().split('server = "')[1].split('"')[0]
    context = ssl.create_default_context(cafile=str(kits / "server" / "certs" / "ca.crt"))

    def status_code(path, headers):
        request = urllib.request.Request(f"https://{address}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, context=context, timeout=20) as answer:
                return answer.status
        except urllib.error.HTTPError as fault:
            return fault.code

    assert status_code("/health", {"X-Forwarded-For": "203.0.113.9"}) == 200
    assert status_code("/docs", {}) == 200
    assert status_code("/docs", {"X-Forwarded-For": "127.0.0.1"}) == 403
    assert status_code("/v1/control/list-runs", {"X-Forwarded-For": "127.0.0.1"}) == 403


def test_a_revoked_silo_says_so_and_knocks_no_more(kits, tmp_path):
    log, silo_log = tmp_path / "log", tmp_path / "silo"
    silo, server = run("silo", kits / "north", silo_log), run("server", kits / "server", log)
    try:
        wait_for(lambda: round_(kits) >= 1)
        dismiss(kits / "server", "north")
        assert silo.wait(400) == ProtocolError.code
        end_lines = [line for line in silo_log.read_text().splitlines() if "the node ended" in line]
        assert [
            f"was revoked ({k} of {REFUSALS} times)" in line for k, line in enumerate(end_lines, 1)
        ] == [True] * 4
        assert "ask its administrator" in silo_log.read_text().splitlines()[-1]
        silo_status = status.silo(kits / "north")
        assert (
            silo_status["state"],
            f"{REFUSALS} of {REFUSALS} times" in silo_status["reason"],
        ) == ("revoked", True)
    finally:
        for process in (silo, server):
            process.terminate()
            process.wait(15)


def test_a_node_refuses_an_app_that_was_changed(kits, tmp_path):
    log = tmp_path / "log"
    (kits / "north" / "app.sha256").write_text("0" * 64 + "\n")
    silo, server = run("silo", kits / "north", log), run("server", kits / "server", log)
    node_log = kits / "north" / "state" / "logs" / "node.log"
    try:
        wait_for(lambda: node_log.exists() and REFUSAL in node_log.read_text())
        errors = kits / "server" / "run" / "errors"
        wait_for(lambda: errors.exists() and REFUSAL in errors.read_text())
        assert round_(kits) == 0
    finally:
        for process in (silo, server):
            process.terminate()
            process.wait(15)
