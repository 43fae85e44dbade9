"""A silo's node and its worker: what is answered and how, when the worker forks, and that nothing
is left behind.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import httpx
import psutil
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.fleet_pb2 import ActivateNodeResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from pomona_federation import flower_internals
from pomona_federation.flower_internals import Connection
from pomona_federation.messages.message_bus import Message as BusMessage
from pomona_federation.messages.message_bus import packed
from pomona_federation.silo import node, worker
from pomona_federation.silo.node import Node
from pomona_federation.silo.worker import Worker

pytestmark = pytest.mark.long

PINNED = "a" * 64
READY = """
import os, socket, sys, threading, time
from pomona_federation.silo import worker
from pomona_federation.silo.worker import Forker, obstacle, preload
"""


def script(text, **options):
    """A process with the worker's environment and no other imports."""
    env = {**os.environ, **worker.ONE_THREAD}
    command = [sys.executable, "-c", READY + text]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, **options
    )


def output_of(text):
    process = script(text)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


# The worker.


def test_what_is_loaded_beforehand_starts_neither_threads_nor_cuda():
    """With a thread of anyone's it must not be forked, and ends before it takes a message."""
    code, output = output_of(
        """
preload()
import torch
print([obstacle(), threading.active_count(), torch.get_num_threads(), torch.cuda.is_initialized()], flush=True)
for name in worker.MODULES:
    assert name in sys.modules
from pomona.personal import model_card
assert model_card.template.cache_info().currsize == 1, "not in each child"
threading.Thread(target=threading.Event().wait, daemon=True).start()
Forker(socket.socketpair()[0], list).serve()
"""
    )
    lines = output.splitlines()
    assert lines[0] == "['', 1, 1, False]"
    assert "has 2 threads" in lines[-1]
    assert code == 1


def test_a_process_that_has_started_cuda_is_not_forked():
    code, output = output_of(
        """
import torch
torch.cuda.is_initialized = lambda: True
Forker(socket.socketpair()[0], list).serve()
"""
    )
    assert (code, "has started CUDA" in output) == (1, True)


ANSWERS = """
parent = os.getpid()
def answer(asked):
    assert os.getpid() != parent and os.getppid() == parent
    exec(asked[0])
    return [*asked[1:], str(os.getpid()).encode()]
Forker(socket.socket(fileno=int(sys.argv[1])), answer).serve()
"""


@pytest.fixture
def runner(monkeypatch):
    """A worker whose messages are Python code, as its node has it."""
    monkeypatch.setattr(worker, "FIRST_DELAY", 0.01)
    argv = [sys.executable, "-c", READY + ANSWERS]
    child = Worker(lambda descriptor: [*argv, str(descriptor)], {**os.environ, **worker.ONE_THREAD})
    yield child
    if child.process:
        child.process.kill()
        child.process.wait()
        child._link.close()


def test_each_message_has_a_process_of_its_own(runner, capfd):
    large = os.urandom(3 * 2**20)
    first, second = runner.request([b"pass", large, b""], 5), runner.request([b"pass"], 2**64 - 1)
    assert first[:3] == [large, b"", b"5"]
    assert second[0] == str(2**64 - 1).encode()
    assert first[-1] != second[-1]
    process = runner.process
    for statement in ("sys.exit(3)", "1 / 0", "os.kill(os.getpid(), 9)", "os._exit(0)"):
        assert not runner.request([statement.encode()], 5)
    assert runner.request([b"pass"], 5)
    assert runner.process is process
    output = "".join(capfd.readouterr())
    assert "ZeroDivisionError" in output
    assert output.count("was ended by signal 9") == 1


def test_a_worker_that_has_ended_is_started_again(runner):
    assert runner.request([b"pass"], 5) is not None
    first = runner.process
    assert runner.request([b"os.kill(os.getppid(), 9); time.sleep(100)"], 5) is None
    assert runner.request([b"pass"], 5) is not None
    assert first.returncode == -signal.SIGKILL
    runner.process.kill()
    runner.process.wait()
    runner.rest()
    assert runner.process is None, "not before there is a message"
    assert runner.request([b"pass"], 5) is not None


def test_a_worker_begins_with_a_message_and_ends_after_a_while_without_one(
    runner, monkeypatch, capfd
):
    runner.rest()
    assert runner.process is None
    assert runner.request([b"pass"], 5) is not None
    first = runner.process
    runner.rest()
    assert runner.process is first
    monkeypatch.setattr(worker, "IDLE_SECONDS", 0.0)
    runner.rest()
    assert (runner.process, process_ends(first.pid)) == (None, True)
    monkeypatch.undo()
    assert runner.request([b"pass"], 5) is not None
    assert "starts again" not in capfd.readouterr().err, "its end is not a failure"


def test_an_answer_forgets_the_failures_before_it(runner, capfd):
    for _ in range(4):
        assert runner.request([b"pass"], 5)
        runner.process.kill()
        runner.process.wait()
        runner.rest()
    assert capfd.readouterr().err.count("starts again in 0.01 s") == 4


def process_ends(pid):
    """Whether a process ends within a few seconds."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_a_worker_ends_with_its_node_and_a_child_with_its_worker():
    env = {**os.environ, **worker.ONE_THREAD}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", READY + ANSWERS, str(theirs.fileno())]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True, env=env
        )
        theirs.close()
        worker.send(ours, worker.REQUEST, [b"print(os.getpid(), flush=True); time.sleep(1000)"])
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
        assert process_ends(child)
        process.stdout.close()
    ours, theirs = socket.socketpair()
    with theirs:
        command[-1] = str(theirs.fileno())
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=env)
    ours.close()
    assert process.wait(60) == 0


# The node.


class Server:
    """SuperLink, as a connection shows it: messages to hand out, and the replies that came."""

    def __init__(self, app=PINNED, task_type=TaskType.SERVER_APP):
        self.run = SimpleNamespace(fab_hash=app, primary_task_type=task_type)
        self.waiting = []
        self.parts = {}
        self.fetched = []
        self.replies = []
        self.confirmed = []
        self.pushed = {}
        self.link = Connection(
            5, self.receive, self.send, lambda _: self.run, None, self.pull, self.push, self.confirm
        )

    def message(self, run=7, content=None):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, 1, 1
        content = content or RecordDict({"a": ConfigRecord({"b": run})})
        task = Message(content=content, dst_node_id=5, message_type="train")
        task.metadata.__dict__.update(_run_id=run, _message_id=task.object_id, _src_node_id=1)
        self.parts |= {name: item.deflate() for name, item in get_all_nested_objects(task).items()}
        self.waiting.append((task, get_object_tree(task)))
        return task

    def receive(self):
        return self.waiting.pop(0) if self.waiting else None

    def pull(self, run, name):
        self.fetched.append(name)
        return self.parts[name]

    def confirm(self, run, message):
        self.confirmed.append(message)

    def send(self, message, tree, seconds):
        self.replies.append(message)
        return {tree.object_id}, "session"

    def push(self, run, session, name, content):
        self.pushed[name] = content


class Answers:
    """A worker in this process; ``app`` may end without an answer."""

    def __init__(self, app):
        self.app = app

    def rest(self):
        pass

    def request(self, frames, number):
        return flower_internals.run_client_app(self.app, frames, number) if self.app else None


def echo(message, context):
    assert (context.node_id, context.run_id) == (5, message.metadata.run_id)
    return Message(message.content, reply_to=message)


def served(server, app=echo, limit=10 * 2**20):
    lines = []
    silo_node = Node(server.link, Answers(app), PINNED, limit, lines.append)
    while silo_node.once():
        pass
    return lines


def test_a_message_is_fetched_confirmed_and_answered():
    server = Server()
    message = server.message()
    served(server)
    (reply,) = server.replies
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert server.confirmed == [message.metadata.message_id]
    assert list(server.pushed) == [reply.metadata.message_id]


@pytest.mark.parametrize(
    ("app", "task_type"), [("0" * 64, TaskType.SERVER_APP), (PINNED, TaskType.AGENT_APP)]
)
def test_a_run_of_another_app_is_refused_before_anything_of_it_is_fetched(app, task_type):
    server = Server(app, task_type)
    server.message()
    lines = served(server, lambda **_: pytest.fail("it was run"))
    (reply,) = server.replies
    assert (reply.error.code, reply.error.reason) == (ErrorCode.INVALID_FAB, node.REFUSAL)
    assert server.confirmed == []
    assert "expected aaaaaaaaaaaa" in lines[0]


def packed_message(size):
    """A message with models of so many bytes, as the server cuts it."""
    return packed(BusMessage("task", "{}", enclosed={"a" * 64: bytes(size)}))


@pytest.mark.parametrize(
    ("size", "limit", "fetched"),
    [(14, 15.001, True), (14, 14, False), (0, 0.001, True), (0, 0, False)],
)
def test_a_message_is_fetched_only_up_to_its_most_bytes(size, limit, fetched):
    """In MiB: pieces of 5, 5 and 4, with a head of less than a thousandth beside them."""
    server = Server()
    server.message(content=packed_message(size * 2**20))
    lines = served(server, limit=int(limit * 2**20))
    (reply,) = server.replies
    assert reply.has_error() != fetched
    assert bool(server.confirmed) == fetched
    if not fetched:
        assert (reply.error.code, reply.error.reason) == (
            ErrorCode.INVALID_FAB,
            flower_internals.TOO_LONG,
        )
        assert f"over {limit * 2**20} bytes" in lines[0]


def test_a_message_of_more_parts_than_its_bytes_are_cut_into_is_refused_unfetched():
    """10 MiB are two pieces, and eight more parts are taken; the message and its dictionary are two
    of the ten.
    """
    for records, fetched in ((8, True), (9, False)):
        server = Server()
        server.message(content=RecordDict({str(k): ConfigRecord({"b": k}) for k in range(records)}))
        lines = served(server)
        assert server.replies[0].has_error() != fetched
        assert bool(server.fetched) == fetched
    assert "(11 objects)" in lines[0]


@pytest.mark.parametrize(
    ("models", "expected"), [(None, 2**40), (1.5, 1_500_000 + 2**26), (10**8, 2**40)]
)
def test_the_longest_message_is_bounded_by_settings_and_memory(models, expected, monkeypatch):
    monkeypatch.setattr(node.psutil, "virtual_memory", lambda: SimpleNamespace(total=2**41))
    assert node.longest(SimpleNamespace(max_download_mb=models)) == expected


def test_what_gives_no_answer_is_answered_for():
    server = Server()
    server.message(), server.message(8)
    served(server, app=None)
    assert [reply.error.code for reply in server.replies] == [ErrorCode.CLIENT_APP_CRASHED] * 2


def test_an_app_that_raises_is_an_error_of_the_app():
    server = Server()
    server.message()

    def fails(**_):
        raise RuntimeError("in words")

    served(server, fails)
    assert server.replies[0].error == Error(
        ErrorCode.CLIENT_APP_RAISED_EXCEPTION, server.replies[0].error.reason
    )
    assert "in words" in server.replies[0].error.reason


def test_a_run_that_ends_while_its_message_is_fetched_costs_the_next_message_nothing():
    server = Server()
    server.message(7)
    second, confirm = server.message(8), server.confirm

    def confirm_unless_ended(run, message):
        if run == 7:
            raise RunNotRunningException
        confirm(run, message)

    server.link = Connection(*vars(server.link).values())
    server.link.__dict__["confirm"] = confirm_unless_ended
    lines = served(server)
    assert [reply.metadata.reply_to_message_id for reply in server.replies] == [
        second.metadata.message_id
    ]
    assert "ended in the meantime" in lines[0]


def test_a_message_that_cannot_be_fetched_ends_no_node():
    server = Server()
    server.message(7)
    server.parts.clear()
    second = server.message(8)
    lines = served(server)
    assert "given up" in lines[0]
    assert [reply.metadata.reply_to_message_id for reply in server.replies] == [
        second.metadata.message_id
    ]


def test_a_node_ends_when_its_thread_for_signs_of_life_does():
    """As Flower's does by one answer 500; `test_real_resources.py` has it with a full disk."""
    code, output = output_of(
        "import signal\nfrom pomona_federation.silo.node import end_with_threads\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\nend_with_threads()\n"
        "threading.Thread(target=lambda: 1 / 0).start()\ntime.sleep(100)\n"
    )
    assert code == 143
    assert "ZeroDivisionError" in output


@pytest.mark.parametrize("arguments", [[], ["kit"], ["kit", "zz"], ["kit", PINNED, "more"]])
def test_without_a_pin_there_is_no_node(arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["node", *arguments])
    with pytest.raises(SystemExit, match="SHA-256"):
        node.main()


@pytest.mark.parametrize("size", [9, 12, 20])
def test_a_file_that_ends_within_a_part_is_refused(size):
    """Parts of 4 and 3 bytes, each after the 8 bytes of its length."""
    file = os.memfd_create("parts")
    worker.write(file, [b"four", b"three"[:3]])
    assert worker.read(file) == [b"four", b"thr"]
    os.ftruncate(file, size)
    if size == 12:
        assert worker.read(file) == [b"four"]
    else:
        with pytest.raises(EOFError):
            worker.read(file)
    os.close(file)


def test_a_life_that_was_killed_is_ended_first_and_an_end_is_told(tmp_path, monkeypatch):
    """Flower's client over a line that records its requests."""
    requests, beats = [], []

    def answers(request):
        requests.append(request.url.path.rpartition("/")[2])
        if requests[-1] == "deactivate-node" and len(requests) == 1:
            return httpx.Response(412, text="it is not connected")
        node = ActivateNodeResponse(node_id=5).SerializeToString()
        beat = SendNodeHeartbeatResponse(success=True).SerializeToString()
        return httpx.Response(
            200,
            content={"activate-node": node, "send-node-heartbeat": beat}.get(requests[-1], b""),
            headers={"content-type": "application/x-protobuf"},
        )

    assert node.last_node(tmp_path) is None
    for damaged in ("", "x", "-5", str(2**64), "9" * 99):
        with node.noted_node(tmp_path, damaged):
            pass
        assert node.last_node(tmp_path) is None  # Flower's messages have no such number
    with node.noted_node(tmp_path, 2**64 - 1):
        number = node.last_node(tmp_path)
    assert number == 2**64 - 1
    shutil.copytree(tmp_path / "state", tmp_path / "copy/state")
    assert node.last_node(tmp_path / "copy") is None  # it would take the connection over
    with monkeypatch.context() as rebooted:
        (tmp_path / "boot").write_text("another")
        rebooted.setattr(node, "BOOT", tmp_path / "boot")
        assert node.last_node(tmp_path) is None
    os.utime(tmp_path / node.NUMBER_FILE, (0, time.time() - node.COUNTED))
    assert node.last_node(tmp_path) is None  # another copy may be connected since
    node.note_heartbeat(tmp_path)
    assert node.last_node(tmp_path) == number
    line = httpx.Client(transport=httpx.MockTransport(answers))

    def lives():
        address, beat = "127.0.0.1:9", lambda: beats.append(1)
        with flower_internals.connection(address, None, None, lambda: line, number, beat) as link:
            assert link.node == 5
            with node.noted_node(tmp_path, link.node):
                raise SystemExit(143)

    with pytest.raises(SystemExit):
        lives()
    assert not (tmp_path / node.NUMBER_FILE).exists()  # the next one may be another copy's
    activations = [path for path in requests if path.endswith("activate-node")]
    assert activations == ["deactivate-node", "activate-node", "deactivate-node"]
    assert len(beats) == requests.count("send-node-heartbeat")
