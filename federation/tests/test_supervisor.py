"""Supervision of both sides: the next action, restarts after every death, and no process left
behind.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agreement_file import agreement
from federation_in_process import audited
from pomona.core.errors import ConfigError, ProtocolError, StorageError
from pomona.core.files import UNFINISHED
from pomona.storage.lock import locked
from pomona.storage.run_status import Status, read_status, write_status
from pomona_federation import versions
from pomona_federation.audit_log import Audit, complete_lines, verify
from pomona_federation.server import superlink_supervisor as server_supervisor
from pomona_federation.server.superlink_client import Node
from pomona_federation.server.superlink_supervisor import (
    APP,
    Observation,
    ServerPolicy,
    next_action,
)
from pomona_federation.silo import node, study_proposals
from pomona_federation.silo import node_supervisor as silo_supervisor
from pomona_federation.silo.node_supervisor import (
    PATIENCE,
    ConnectionState,
    SiloPolicy,
    connected,
    stuck,
)
from pomona_federation.silo.server_requests import clock
from pomona_federation.supervision import supervisor
from pomona_federation.supervision.fork import Program
from pomona_federation.supervision.status_files import NODE
from pomona_federation.supervision.supervisor import (
    Supervisor,
    ask_to_stop,
    backoff,
    end,
    holder,
    process_tree,
    start,
)

pytestmark = pytest.mark.long

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def status(state, code=None):
    return Status(state=state, round=2, code=code)


@pytest.mark.parametrize(
    ("sight", "verdict"),
    [
        (Observation(None, 0, True, True), "wait"),
        (Observation(status("running"), 5, True, True), "wait"),
        (Observation(status("running"), 5, True, False), "resubmit"),
        (Observation(status("running"), 5, False, True), "restart"),
        (Observation(status("finished", 0), 1, True, True), "wait"),  # it is still leaving
        (Observation(status("finished", 0), 31, True, True), "finished"),
        (Observation(status("finished", 0), 1, True, False), "finished"),
        (Observation(status("finished", 0), 1, False, False), "finished"),
        (Observation(status("interrupted", 143), 1, True, False), "resubmit"),
        (Observation(status("interrupted", 130), 1, False, False), "restart"),
        (Observation(status("failed", 1), 1, True, False), "resubmit"),
        *((Observation(status("failed", code), 1, True, False), "failed") for code in range(2, 11)),
    ],
)
def test_what_a_look_calls_for(sight, verdict):
    assert next_action(sight) == verdict


class Fake:
    """A SuperLink whose ServerApps are the given programs, one per submission; each gets the folder
    run/.
    """

    def __init__(self, programs):
        self.programs, self.keys, self.stopped, self.submitted = list(programs), {}, [], []
        self.waiting = []  # runs of a life before

    def nodes(self):
        return [Node(k, name, "online", key) for k, (name, key) in enumerate(self.keys.items())]

    def register(self, name, key):
        self.keys[name] = key

    def unregister(self, node):
        del self.keys[list(self.keys)[node]]

    def submit(self, fab, settings):
        program = self.programs.pop(0)
        text = (
            "from pathlib import Path\nimport os, sys, time, signal\nrun = Path(sys.argv[2]) "
            f"/ 'run'\n{program}"
        )
        self.submitted.append(
            (subprocess.Popen([sys.executable, "-c", text, "flwr-serverapp", str(self.kit)]), fab)
        )
        return len(self.submitted)

    def unfinished(self):
        return [run for run in self.waiting if run not in self.stopped]

    def stop(self, run):
        self.stopped.append(run)
        if run == 8:
            raise ProtocolError("finished already")

    def close(self):
        for process, _ in self.submitted:
            process.poll()


WRITES = (
    '(run / \'new\').write_text(\'{{"state": "{}", "round": {}, "code": {}, "time": 1}}\')\n'
    "(run / 'new').rename(run / 'status.json')\n"
)
FINISHES = WRITES.format("finished", 3, 0)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(server_supervisor, "TICK", 0.05)
    monkeypatch.setattr(server_supervisor, "LONGEST_DELAY", 0.05)
    monkeypatch.setattr(silo_supervisor, "TICK", 0.05)
    processes = set(process_tree(os.getpid()))
    yield
    assert not set(process_tree(os.getpid())) - processes, "processes left behind"


def server(folder, link, command=SLEEP, members=None):
    """The two parts of a server's supervision, and its output lines."""
    lines, link.kit = [], folder
    (folder / "run").mkdir(exist_ok=True)
    (folder / "federation.toml").write_text(agreement(28443))
    policy = ServerPolicy(
        folder,
        lambda: link,
        lambda: b"app",
        members or (lambda: {"north": b"N"}),
        lines.append,
        Audit(folder / "run" / "audit.jsonl"),
    )
    env = supervisor.environment(folder / "run" / "flwr")
    log = folder / "run" / "logs" / "superlink.log"
    return Supervisor(command, env, log, first=APP), policy, lines


def finish(superlink, policy, link):
    try:
        return superlink.run(policy)
    finally:
        policy.audit.close()
        for process, _ in link.submitted:
            process.wait(5)


def test_a_run_that_finishes(tmp_path, quick):
    link = Fake([f"time.sleep(0.3)\n{FINISHES}"])
    superlink, policy, _ = server(tmp_path, link)
    assert finish(superlink, policy, link) == Status(state="finished", round=3, code=0, time=1)
    assert link.keys == {"north": b"N"}
    assert link.submitted[0][1] == b"app"
    assert [r["event"] for r in complete_lines(tmp_path / "run" / "audit.jsonl")] == [
        "superlink",
        "registered",
        "submitted",
        "ended",
    ]
    assert verify(tmp_path / "run" / "audit.jsonl") is None


def test_runs_of_a_life_before_are_stopped_before_another_is_submitted(tmp_path, quick):
    """A server that is stopped between submit and start leaves a run that SuperLink would launch
    beside the next.
    """
    link = Fake([f"time.sleep(0.2)\n{FINISHES}"])
    link.waiting = [7, 8]
    order, submit = [], link.submit
    link.submit = lambda *args: order.append(list(link.stopped)) or submit(*args)
    superlink, policy, _ = server(tmp_path, link)
    assert finish(superlink, policy, link).state == "finished"
    assert order == [[7, 8]]
    assert [r["run"] for r in audited(tmp_path / "run", "withdrawn")] == ["7", "8"]


def test_a_killed_server_app_is_submitted_again_and_its_run_stopped(tmp_path, quick):
    link = Fake(
        [
            "time.sleep(0.3)\nos.kill(os.getpid(), 9)",
            "time.sleep(0.3)\nos._exit(1)",
            f"time.sleep(0.2)\n{FINISHES}",
        ]
    )
    superlink, policy, lines = server(tmp_path, link)
    assert finish(superlink, policy, link).state == "finished"
    assert link.stopped == [1, 2]
    assert sum("it restarts" in line for line in lines) == 2
    assert [r["process"] for r in audited(tmp_path / "run", "lost")] == ["ServerApp"] * 2


def test_a_killed_superlink_is_started_again_with_everything_that_hung_on_it(tmp_path, quick):
    link = Fake(["time.sleep(60)", f"time.sleep(0.2)\n{FINISHES}"])
    superlink, policy, lines = server(tmp_path, link)
    killer = threading.Timer(0.8, lambda: superlink.process.kill())  # noqa: PLW0108 - started later
    killer.start()
    assert finish(superlink, policy, link).state == "finished"
    killer.join()
    assert len(link.submitted) == 2
    assert any("the SuperLink is gone" in line for line in lines)


@pytest.mark.parametrize("code", [2, 7, 10])
def test_what_a_restart_cannot_mend_ends_the_server_with_its_code(tmp_path, quick, code):
    link = Fake([f"time.sleep(0.2)\n{WRITES.format('failed', 1, code)}"])
    superlink, policy, _ = server(tmp_path, link)
    assert finish(superlink, policy, link).code == code


def test_a_fault_that_comes_again_and_again_ends_the_server_in_one_line(tmp_path, quick):
    """Code 1, five times without a round between; what committed a round in the meantime is given
    five times again.
    """
    folder = tmp_path / "run" / "checkpoints"
    round_ = (
        "(run / 'checkpoints').mkdir(exist_ok=True)\n(run / 'checkpoints' / "
        f"'round-000001-{'0' * 64}.safetensors').touch()\n"
    )
    fails = "time.sleep(0.2)\n" + WRITES.format("failed", 0, 1)
    link = Fake([fails, fails, fails, round_ + fails, *[fails] * 9])
    superlink, policy, lines = server(tmp_path, link)
    status = finish(superlink, policy, link)
    assert folder.is_dir()
    assert (status.state, status.code, len(link.submitted)) == (
        "failed",
        1,
        3 + server_supervisor.STUBBORN,
    )
    assert "so a restart does not help" in status.reason
    assert "\n" not in status.reason
    assert read_status(tmp_path / "run") == status
    assert sum("it restarts" in line for line in lines) == 2 + server_supervisor.STUBBORN


def test_an_app_that_is_killed_often_is_not_given_up(tmp_path, quick):
    killed = "time.sleep(0.2)\nos.kill(os.getpid(), 9)"
    link = Fake([*[killed] * (server_supervisor.STUBBORN + 1), f"time.sleep(0.2)\n{FINISHES}"])
    superlink, policy, _ = server(tmp_path, link)
    assert finish(superlink, policy, link).state == "finished"


# The signal's exception may leave a file of psutil between its opening and its "with", which is
# then closed unasked.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning"
)
def test_a_signal_stops_everything_within_five_seconds_and_says_so(tmp_path, quick):
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)"
    tree = (
        "import os, signal, subprocess, sys, time\ncode = 'import signal, time; "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)'\n"
        "subprocess.Popen([sys.executable, '-c', code], start_new_session=True)\ntime.sleep(60)"
    )
    link = Fake([stubborn])
    superlink, policy, _ = server(tmp_path, link, [sys.executable, "-c", tree])
    times = []

    def terminate():
        time.sleep(1)
        times.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    def raising(*_):
        raise SystemExit(143)

    handler = signal.signal(signal.SIGTERM, raising)
    thread = threading.Thread(target=terminate)
    thread.start()
    try:
        with pytest.raises(SystemExit, match="143"):
            finish(superlink, policy, link)
    finally:
        thread.join()
        signal.signal(signal.SIGTERM, handler)
    assert time.monotonic() - times[0] < 5.5
    recorded = read_status(tmp_path / "run")
    assert (recorded.state, recorded.code) == ("interrupted", 143)


def test_the_book_is_followed_while_the_run_goes(tmp_path, quick):
    members = {"north": b"N", "south": b"S"}
    wait = "while not (run / 'go').exists():\n    time.sleep(0.05)\n"
    link = Fake([wait + FINISHES])
    superlink, policy, lines = server(tmp_path, link, members=lambda: dict(members))

    def revoke():
        time.sleep(0.6)
        members.pop("south")
        (tmp_path / "run" / "roster.json").write_text("{}")
        time.sleep(0.6)
        (tmp_path / "run" / "go").touch()

    thread = threading.Thread(target=revoke)
    thread.start()
    finish(superlink, policy, link)
    thread.join()
    assert link.keys == {"north": b"N"}
    assert "south: unregistered" in lines


def test_a_superlink_that_answers_with_an_error_is_started_again(tmp_path, quick):
    """As with a full disk, or while its database is locked."""
    link, refused = Fake([f"time.sleep(0.2)\n{FINISHES}"]), ["503", "503"]
    nodes = link.nodes

    def erring():
        if refused:
            raise ProtocolError(refused.pop())
        return nodes()

    link.nodes = erring
    superlink, policy, lines = server(tmp_path, link)
    assert finish(superlink, policy, link).state == "finished"
    assert lines.count("503") == 2
    assert sum("the SuperLink refuses" in line for line in lines) == 2
    assert not any("is gone" in line for line in lines)


def test_a_superlink_that_refuses_for_good_ends_the_server(tmp_path, quick):
    link = Fake([])

    def refuse(*_):
        raise ProtocolError("no such app")

    link.submit = refuse
    superlink, policy, lines = server(tmp_path, link)
    with pytest.raises(ProtocolError, match="no such app"):
        finish(superlink, policy, link)
    assert lines.count("no such app") == server_supervisor.STUBBORN - 1
    assert read_status(tmp_path / "run").code == ProtocolError.code


def test_a_superlink_that_never_answers_is_tried_again_until_a_signal(tmp_path, quick, monkeypatch):
    link, policy, lines = server(tmp_path, Fake([]), [sys.executable, "-c", "print('no database')"])

    def refuse():
        raise ConnectionError("nobody there")

    def record(text):
        lines.append(text)
        if len(lines) > 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(policy, "connect", refuse)
    monkeypatch.setattr(policy, "log", record)
    with pytest.raises(KeyboardInterrupt):
        link.run(policy)
    policy.audit.close()
    assert (lines[0], "did not start" in lines[1]) == ("starting SuperLink", True)
    assert any("(none)" in line or "no database" in line for line in lines)
    assert read_status(tmp_path / "run").code == 130
    assert b"no database" in (tmp_path / "run" / "logs" / "superlink.log").read_bytes()


def test_a_superlink_that_is_slow_to_start_is_given_longer_each_time(tmp_path, quick, monkeypatch):
    superlink, policy, lines = server(tmp_path, Fake([]))
    monkeypatch.setattr(server_supervisor, "ANSWER", 0.2)
    request_times = {}

    def connect():
        request_time = request_times.setdefault(superlink.process.pid, time.monotonic())
        if time.monotonic() < request_time + 0.6:
            raise ConnectionError("not yet")
        raise KeyboardInterrupt  # it answers

    monkeypatch.setattr(policy, "connect", connect)
    with pytest.raises(KeyboardInterrupt):
        superlink.run(policy)
    policy.audit.close()
    assert 2 <= len(request_times) <= 4
    assert sum("did not start" in line for line in lines) == len(request_times) - 1


def test_no_key_is_in_any_file_that_a_run_leaves(tmp_path, quick):
    from pomona_federation import keys

    (tmp_path / "certs").mkdir()
    secret = keys.silo()
    (tmp_path / "certs" / "server.key").write_bytes(secret.private)
    link = Fake([f"time.sleep(0.2)\n{FINISHES}"])
    command = [
        sys.executable,
        "-c",
        "import sys, time; print(sys.argv); time.sleep(60)",
        str(tmp_path / "certs"),
    ]
    superlink, policy, _ = server(tmp_path, link, command, members=lambda: {"north": secret.public})
    finish(superlink, policy, link)
    body = b"".join(secret.private.splitlines()[1:-1])
    lines = [line for line in secret.private.splitlines() if len(line) > 20]
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"PRIVATE" not in content
            assert body not in content
            assert not any(line in content for line in lines)


def states(*phases):
    """States one second apart: (seconds, connected, reachable) for each part."""
    clock, rows = 0.0, []
    for seconds, online, reachable in phases:
        for _ in range(int(seconds)):
            rows.append(ConnectionState(clock, online, reachable))
            clock += 1
    return rows


def test_a_node_that_has_given_up_is_told_from_one_that_works_or_waits():
    seconds = PATIENCE + 2
    assert stuck(states((60, True, True), (seconds, False, True)))
    assert stuck(states((seconds, False, True))), "it never got to connect"
    assert not stuck([])
    assert not stuck(states((PATIENCE - 5, False, True))), "too early to tell"
    assert not stuck(states((seconds, False, False))), "the server is away: it is right to wait"
    assert not stuck(states((seconds, False, True), (1, False, False)))
    assert not stuck(states((seconds, False, False), (100, False, True))), (
        "the server is back for too short"
    )
    heartbeats = [phase for _ in range(10) for phase in ((25, False, True), (5, True, True))]
    assert not stuck(states(*heartbeats)), "a model trains: nothing but heartbeats"
    assert not stuck(states(*heartbeats, (PATIENCE - 10, False, True)))
    assert stuck(states(*heartbeats, (seconds, False, True)))


def observations(blocked, connected, tick=1, timed_from="end"):
    """What a supervisor remembers of a node, at each look in half an hour.

    It looks each ``tick`` seconds, but not in the ``blocked`` seconds in which it asks the server,
    30 s since the "begin" or the "end" of the last time.
    """
    recent, clock, request_time = [], 0, 0
    while clock < 1800:
        if clock - request_time >= 30:
            request_time, clock = clock + blocked * (timed_from == "end"), clock + blocked
        recent = [s for s in recent if s.time >= clock - 2 * PATIENCE]
        recent.append(ConnectionState(clock, connected(clock), True))
        yield recent
        clock += tick


@pytest.mark.parametrize("timed_from", ["begin", "end"])
@pytest.mark.parametrize(("blocked", "tick"), [(0, 1), (0, 3), (4, 1), (10, 2), (61, 1)])
def test_a_slow_answer_of_the_server_makes_no_node_stuck(blocked, tick, timed_from):
    """A heartbeat of 5 s each 30 s."""
    for phase in range(0, 30, 3):

        def connected(clock, phase=phase):
            return (clock + phase) % 30 < 5

        assert not any(map(stuck, observations(blocked, connected, tick, timed_from)))


@pytest.mark.parametrize(
    ("blocked", "tick"), [(0, 1), (0, 1.3), (0, 3), (4, 1), (10, 2), (30, 1), (61, 1)]
)
def test_a_node_that_has_given_up_is_found_at_a_slow_server_and_on_a_busy_machine(blocked, tick):
    caught = next(rows for rows in observations(blocked, lambda _: False, tick) if stuck(rows))
    assert caught[-1].time <= 600


@given(st.integers(0, 10**9))
def test_delays_double_up_to_their_bound(failures):
    """A node whose key is refused fails each ten minutes for weeks, more often than a float has
    doublings.
    """
    assert 5 <= backoff(failures, 5.0, 600.0) <= backoff(failures + 1, 5.0, 600.0) <= 600
    assert [backoff(n, 5.0, 600.0) for n in (1, 2, 8)] == [5, 10, 600]


def test_connections_are_seen_while_they_are_there():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not connected(os.getpid(), port)
        client = socket.create_connection(("127.0.0.1", port))
        with client, server.accept()[0]:
            assert connected(os.getpid(), port)
        assert not connected(os.getpid(), port)
    assert not connected(2**22 + 1, port)


def silo(folder, program, reach=lambda: None, online=lambda _: True):
    """The two parts of a silo's supervision, and its output lines."""
    lines = []
    node = Supervisor(
        [sys.executable, "-c", program],
        supervisor.environment(folder),
        folder / "logs" / "node.log",
    )
    return node, SiloPolicy(folder, online, reach, lines.append), lines


def program():
    """Write what it sees of how it was started."""
    files = {str(path.resolve()) for path in Path("/proc/self/fd").iterdir()}
    process_facts = [sys.argv[1:], dict(os.environ), os.getsid(0) == os.getpid()]
    process_facts += [[name for name in files if name.endswith(".lock")], psutil.Process().name()]
    os.write(1, f"{process_facts}\n".encode())
    sys.exit(7)


@pytest.mark.parametrize("threads", [0, 1])
def test_a_program_is_a_fork_unless_another_thread_may_hold_a_lock(tmp_path, threads):
    """A fork sees its own arguments, variables and session, and holds no lock of its parent."""
    released = threading.Event()
    for _ in range(threads):
        threading.Thread(target=released.wait).start()
    command = [sys.executable, "-c", "import os; print('started', os.environ['SAYS'])", "word"]
    log = tmp_path / "logs" / "program.log"
    with locked(tmp_path):
        child = Supervisor(command, {"SAYS": "yes"}, log, program=Program(program, ["colorsys"]))
        code = child.start().wait()
        child.settle()
    released.set()
    text = log.read_text()
    if threads:
        assert (code, "started yes" in text) == (0, True)
        return
    assert (code, child.process.poll(), child.alive) == (7, 7, False)
    assert str([["word"], {"SAYS": "yes"}, True, [], command[2][:15]]) in text
    assert "colorsys" in sys.modules


def news(folder):
    return json.loads((folder / "node" / NODE).read_bytes())


def stopping_after(n, lines, policy):
    def record(text):
        lines.append(text)
        if len(lines) == n:
            raise SystemExit(143)

    policy.log = record


def test_a_node_that_ends_is_started_again_and_the_reason_is_named(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(silo_supervisor, "LONGEST_DELAY", 0.01)
    node, policy, lines = silo(tmp_path, KEY_REFUSED)
    stopping_after(3, lines, policy)
    with pytest.raises(SystemExit):
        node.run(policy)
    assert len(lines) == 3
    assert all("refuses this silo's key" in line for line in lines)
    assert news(tmp_path)["state"] == "stopped"
    assert news(tmp_path)["restarts"] == 3


KEY_REFUSED = f"print({node.START_LINE!r}); print('[code: 2004] no'); raise SystemExit(1)"


def test_a_silo_that_was_revoked_stops_after_several_words_alike_and_says_so(
    tmp_path, quick, monkeypatch
):
    """A word between them that it is a member, or none, begins anew: no server switches a silo off
    by one.
    """
    monkeypatch.setattr(silo_supervisor, "LONGEST_DELAY", 0.01)
    answers = iter(
        ["revoked"] * 4
        + ["member"]
        + ["revoked"] * 4
        + ["unsaid", "unknown"]
        + ["revoked"] * 5
        + ["member"]
    )
    node, policy, lines = silo(tmp_path, KEY_REFUSED)
    policy.membership = lambda: next(answers)
    reason = node.run(policy)
    assert list(answers) == ["member"]
    assert [line.count("this silo was revoked") for line in lines] == [1] * 4 + [0] + [1] * 4 + [
        0,
        0,
    ] + [1] * 4
    assert "this silo is a member" in lines[4]
    assert "does not know this silo's key" in lines[10]
    assert "revoked (5 of 5 times)" in reason
    assert "`pomona silo start` tries again" in reason
    assert (news(tmp_path)["state"], news(tmp_path)["reason"]) == ("revoked", reason)


def test_a_node_that_ends_for_another_reason_is_not_explained_by_the_server(
    tmp_path, quick, monkeypatch
):
    monkeypatch.setattr(silo_supervisor, "LONGEST_DELAY", 0.01)
    node, policy, lines = silo(tmp_path, "raise SystemExit(3)")
    policy.membership = lambda: pytest.fail("asked")
    stopping_after(2, lines, policy)
    with pytest.raises(SystemExit):
        node.run(policy)
    assert "exit code 3" in lines[0]


REVOKED = f"""\
{node.START_LINE}
a message
{node.REFUSED}
"""  # once the server has unregistered the key of a node that is connected
UNKNOWN = f"""\
{node.START_LINE}
ERROR :     Exit Code: 305
Failed to initialize the connection to the SuperLink.
[code: 2004] Failed to activate SuperNode.
"""  # and once it tries again


@pytest.mark.parametrize(
    ("text", "code", "phrases"),
    [
        (REVOKED, 0, ("refuses this silo's key", "revoked", "ask the server's administrator")),
        (
            REVOKED.replace("a message", "a message" + "\nINFO : a round" * 5000),
            0,
            ("it was revoked",),
        ),
        (
            REVOKED + UNKNOWN,
            1,
            ("refuses this silo's key", "revoked", "ask the server's administrator"),
        ),
        (UNKNOWN + REVOKED.replace(node.REFUSED, ""), -9, ("exit code -9",)),
        (REVOKED + UNKNOWN.splitlines()[0], -9, ("exit code -9",)),
        ("", 1, ("exit code 1",)),
    ],
)
def test_a_refused_key_is_named_with_whom_to_ask(tmp_path, text, code, phrases):
    log = tmp_path / "node.log"
    log.write_text(text)
    reason = silo_supervisor.exit_reason(code, log)
    assert all(phrase in reason for phrase in phrases)
    assert "\n" not in reason
    assert str(tmp_path) not in reason


def test_a_stuck_node_is_killed_and_started_again(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(silo_supervisor, "PATIENCE", 0.5)
    monkeypatch.setattr(silo_supervisor, "stuck", lambda recent: stuck(recent, 0.5))
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    node, policy, lines = silo(tmp_path, program, online=lambda _: False)
    stopping_after(1, lines, policy)
    with pytest.raises(SystemExit):
        node.run(policy)
    assert "although the server can be reached" in lines[0]


def test_a_node_whose_server_is_away_is_left_alone(tmp_path, quick, monkeypatch):
    def unreachable():
        raise ProtocolError("does not answer")

    monkeypatch.setattr(silo_supervisor, "stuck", lambda recent: stuck(recent, 0.3))
    node, policy, lines = silo(
        tmp_path, "import time; time.sleep(1.2)", reach=unreachable, online=lambda _: False
    )
    stopping_after(2, lines, policy)
    with pytest.raises(SystemExit):
        node.run(policy)
    assert lines[0] == "does not answer"
    assert "exit code 0" in lines[1]


def test_the_status_file_is_written_beside_whatever_others_write_in_its_folder(tmp_path):
    (tmp_path / "node").mkdir()
    foreign = tmp_path / "node" / UNFINISHED
    foreign.write_text("a half of another's file")
    silo(tmp_path, "")[1].stopped(None)
    assert news(tmp_path)["state"] == "stopped"
    assert foreign.read_text() == "a half of another's file"


@pytest.mark.parametrize(
    "fault", [ProtocolError("away"), ConfigError("no key"), ValueError("year 0"), KeyError("Date")]
)
def test_whatever_a_probe_of_the_server_meets_the_supervisor_goes_on(tmp_path, fault):
    def fails():
        raise fault

    lines = []
    policy = SiloPolicy(tmp_path, lambda _: True, fails, lines.append)
    assert [policy._reachable() for _ in range(3)] == [False] * 3
    assert len(lines) == 1


@pytest.mark.parametrize("fault", [ProtocolError("away"), RecursionError("deep"), KeyError("Date")])
def test_whatever_a_visit_to_the_server_meets_the_supervisor_goes_on(tmp_path, fault, monkeypatch):
    def fails(_):
        raise fault

    monkeypatch.setattr(study_proposals, "over_the_network", fails)
    lines = []
    watch = study_proposals.StudyWatch(tmp_path, lines.append)
    for _ in range(3):
        watch.poll()
    assert len(lines) == 1


def test_a_study_that_hangs_does_not_end_the_visits(tmp_path, monkeypatch):
    """Its process, which heeds no SIGTERM, is killed an hour after it began a study, and once."""
    lines, visits, clock = [], [], [5.0]
    hangs = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    monkeypatch.setattr(study_proposals, "over_the_network", lambda _: None)
    monkeypatch.setattr(study_proposals, "compare", lambda *_: versions.installed())
    monkeypatch.setattr(study_proposals, "visit", lambda *_: visits.append(clock[0]) or ["ab" * 32])
    monkeypatch.setattr(study_proposals, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(
        study_proposals, "start", lambda _, env: start([sys.executable, "-c", hangs], env)
    )
    (tmp_path / "state" / "logs").mkdir(parents=True)
    watch = study_proposals.StudyWatch(tmp_path, lines.append)
    lock = tmp_path / study_proposals.LOCK
    for clock[0] in (5.0, 35.0, 1805.0, 3606.0, 5405.0, 5406.0, 5406.5):
        if clock[0] == 1805.0:
            lock.touch()  # as it begins the next study
        watch.poll()
        assert bool([line for line in lines if "killed" in line]) == (clock[0] > 5405.0)
    assert visits == [5.0]
    assert [line for line in lines if "killed" in line] == [
        "the process that adds studies took more than 3600 s; it is killed"
    ]
    assert watch._process.wait(10) == -signal.SIGKILL
    clock[0] = 5436.0
    monkeypatch.setattr(study_proposals, "visit", lambda *_: visits.append(clock[0]) or [])
    watch.poll()
    assert visits == [5.0, 5436.0]


@pytest.mark.parametrize(
    ("date", "hour"),
    [
        ("Tue, 15 Nov 1994 08:12:31 GMT", 8),
        ("Tue, 15 Nov 1994 08:12:31 +0200", 6),
        *(
            (text, None)
            for text in (
                "",
                "now",
                "Tue, 99 Nov 1994 08:12:31 GMT",
                "Sat, 32 Jan 2000 00:00:00 GMT",
                "1" * 9999,
            )
        ),
        *(
            (text, None)
            for text in (
                "Fri, 31 Dec 9999 23:59:59 -2359",
                "Tue, 15 Nov 1994 08:12:31 +99999999999",
            )
        ),
    ],
)
def test_a_date_that_cannot_be_read_is_no_clock(date, hour):
    date_time = clock(date)
    assert (date_time and date_time.hour) == hour


def test_who_holds_a_folder_is_known_and_can_be_asked_to_stop(tmp_path):
    assert holder(tmp_path) is None
    assert not ask_to_stop(tmp_path)
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom pomona.storage.lock import locked\n"
        "with locked(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"held\n"
        assert holder(tmp_path).pid == child.pid
        reaper = threading.Thread(target=child.wait)
        reaper.start()
        assert ask_to_stop(tmp_path)
        reaper.join()
    finally:
        child.kill()
        child.stdout.close()
        child.wait()
    assert holder(tmp_path) is None
    with locked(tmp_path):
        assert holder(tmp_path).pid == os.getpid()


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b"7", b"\xff", b"[" * 100_000, b" " * 2**20 + b"{}"]
    + [
        b'{"pid": %s, "host": "HOST", "since": ""}' % pid
        for pid in (b"0", b"-1", b"1e9", b"true", b'"7"', b"4294967297")
    ],
)
def test_a_lock_that_names_no_process_is_one_error_and_no_signal(tmp_path, monkeypatch, text):
    """The file is held, by this process; group 0, "everybody" (-1) and overflowing ids are
    nobody's.
    """
    signals = []
    monkeypatch.setattr(supervisor.os, "kill", lambda *args: signals.append(args))
    monkeypatch.setattr(supervisor, "_has_open", lambda *_: True)  # as where /proc cannot tell
    with locked(tmp_path):
        (tmp_path / ".lock").write_bytes(text.replace(b"HOST", os.uname().nodename.encode()))
        for request in (partial(holder, patience=0.0), partial(ask_to_stop, patience=0.1)):
            with pytest.raises(StorageError, match=r"\.lock is locked, but .* names no process"):
                request(tmp_path)
    assert holder(tmp_path) is None
    assert not signals


def test_the_first_process_is_not_signalled(tmp_path, monkeypatch):
    signals = []
    monkeypatch.setattr(supervisor.os, "kill", lambda *args: signals.append(args))
    monkeypatch.setattr(supervisor, "_has_open", lambda *_: True)
    with locked(tmp_path):
        (tmp_path / ".lock").write_text(
            json.dumps({"pid": 1, "host": os.uname().nodename, "since": ""})
        )
        with pytest.raises(StorageError, match="process 1"):
            ask_to_stop(tmp_path)
    assert not signals


def test_who_has_just_taken_a_lock_is_waited_for(tmp_path):
    """Between taking the lock and writing its name a process has said nothing yet."""
    with locked(tmp_path):
        path = tmp_path / ".lock"
        text = path.read_text()
        path.write_text("")
        late = threading.Timer(0.2, path.write_text, [text])
        late.start()
        assert holder(tmp_path, 30.0).pid == os.getpid()
        late.join()


def test_a_process_tree_is_what_lives_below_also_in_groups_of_its_own():
    """A shell's child in a session of its own counts; one that has ended, and waits for its parent,
    does not.
    """
    program = (
        "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True).wait()"
    )
    with (
        subprocess.Popen([sys.executable, "-c", program, *SLEEP]) as top,
        subprocess.Popen(["true"]) as dead,
    ):
        limit = time.monotonic() + 60
        below = {" ".join(SLEEP), " ".join([sys.executable, "-c", program, *SLEEP])}
        while {*(tree := process_tree(top.pid)).values()} != below and time.monotonic() < limit:
            time.sleep(0.05)  # a child has its parent's command line until it runs its own
        assert len(tree) == 2
        assert {*tree.values()} == below
        while dead.pid in {p.pid for p in process_tree(os.getpid())} and time.monotonic() < limit:
            time.sleep(0.05)
        assert dead.returncode is None
        assert dead.pid not in {p.pid for p in process_tree(os.getpid())}
        end(lambda: process_tree(top.pid))
    assert not process_tree(top.pid)


def test_ended_processes_are_those_that_were_meant():
    with subprocess.Popen(SLEEP) as bystander, subprocess.Popen(SLEEP) as target:
        end(lambda: [k for k in process_tree(os.getpid()) if k.pid == target.pid])
        assert target.wait(1) == -signal.SIGTERM
        assert bystander.poll() is None
        bystander.kill()


def test_a_status_written_by_the_run_is_what_is_judged(tmp_path, quick):
    (tmp_path / "run").mkdir()
    write_status(tmp_path / "run", Status(state="failed", round=1, code=7))  # of yesterday
    link = Fake([f"time.sleep(0.2)\n{FINISHES}"])
    superlink, policy, _ = server(tmp_path, link)
    policy.queue.resume("kit")  # as a start does
    assert finish(superlink, policy, link).state == "finished"
    assert Path(tmp_path / "run" / "status.json").exists()


@pytest.mark.long
def test_what_only_waits_and_carries_loads_no_pytorch():
    """250 MB less in each process, and seconds less until it answers on a busy machine."""
    modules = ("superlink", "server.launcher", "silo.node", "silo.node_supervisor")
    code = "; ".join(f"import pomona_federation.{name}" for name in modules)
    code += "; import sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
