"""A silo's node and its worker: what is answered and how, when the worker forks, and that nothing
is left behind.
"""

import os
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
    words = [sys.executable, "-c", READY + text]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, **options
    )


def said(text):
    process = script(text)
    out, _ = process.communicate(timeout=120)
    return process.returncode, out


# The worker.


def test_what_is_loaded_beforehand_starts_neither_threads_nor_cuda():
    """With a thread of anyone's it must not be forked, and ends before it takes a message."""
    code, out = said(
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
    lines = out.splitlines()
    assert lines[0] == "['', 1, 1, False]"
    assert "has 2 threads" in lines[-1]
    assert code == 1


def test_a_process_that_has_started_cuda_is_not_forked():
    code, out = said(
        """
import torch
torch.cuda.is_initialized = lambda: True
Forker(socket.socketpair()[0], list).serve()
"""
    )
    assert (code, "has started CUDA" in out) == (1, True)


ANSWERS = """
parent = os.getpid()
def answer(asked):
    assert os.getpid() != parent and os.getppid() == parent
    exec(asked[0])
    return [*asked[1:], str(os.getpid()).encode()]
Forker(socket.socket(fileno=int(sys.argv[1])), answer).serve()
"""


@pytest.fixture
def made(monkeypatch):
    """A worker whose messages are Python code, as its node has it."""
    monkeypatch.setattr(worker, "FIRST_DELAY", 0.01)
    words = [sys.executable, "-c", READY + ANSWERS]
    one = Worker(lambda descriptor: [*words, str(descriptor)], {**os.environ, **worker.ONE_THREAD})
    yield one
    if one.process:
        one.process.kill()
        one.process.wait()
        one._link.close()


def test_each_message_has_a_process_of_its_own(made, capfd):
    large = os.urandom(3 * 2**20)
    first, second = made.request([b"pass", large, b""], 5), made.request([b"pass"], 2**64 - 1)
    assert first[:3] == [large, b"", b"5"]
    assert second[0] == str(2**64 - 1).encode()
    assert first[-1] != second[-1]
    process = made.process
    for ends in ("sys.exit(3)", "1 / 0", "os.kill(os.getpid(), 9)", "os._exit(0)"):
        assert not made.request([ends.encode()], 5)
    assert made.request([b"pass"], 5)
    assert made.process is process
    out = "".join(capfd.readouterr())
    assert "ZeroDivisionError" in out
    assert out.count("was ended by signal 9") == 1


def test_a_worker_that_has_ended_is_started_again(made):
    assert made.request([b"pass"], 5) is not None
    first = made.process
    assert made.request([b"os.kill(os.getppid(), 9); time.sleep(100)"], 5) is None
    assert made.request([b"pass"], 5) is not None
    assert first.returncode == -signal.SIGKILL
    made.process.kill()
    made.process.wait()
    made.rest()
    assert made.process is None, "not before there is a message"
    assert made.request([b"pass"], 5) is not None


def test_a_worker_begins_with_a_message_and_ends_after_a_while_without_one(
    made, monkeypatch, capfd
):
    made.rest()
    assert made.process is None
    assert made.request([b"pass"], 5) is not None
    first = made.process
    made.rest()
    assert made.process is first
    monkeypatch.setattr(worker, "REST", 0.0)
    made.rest()
    assert (made.process, gone(first.pid)) == (None, True)
    monkeypatch.undo()
    assert made.request([b"pass"], 5) is not None
    assert "starts again" not in capfd.readouterr().err, "its end is not a failure"


def test_an_answer_forgets_the_failures_before_it(made, capfd):
    for _ in range(4):
        assert made.request([b"pass"], 5)
        made.process.kill()
        made.process.wait()
        made.rest()
    assert capfd.readouterr().err.count("starts again in 0.01 s") == 4


def gone(pid):
    """Whether a process ends within a few seconds."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_a_worker_ends_with_its_node_and_a_child_with_its_worker():
    env = {**os.environ, **worker.ONE_THREAD}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = [sys.executable, "-c", READY + ANSWERS, str(theirs.fileno())]
        process = subprocess.Popen(
            words, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True, env=env
        )
        theirs.close()
        worker.send(ours, worker.REQUEST, [b"print(os.getpid(), flush=True); time.sleep(1000)"])
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
        assert gone(child)
        process.stdout.close()
    ours, theirs = socket.socketpair()
    with theirs:
        words[-1] = str(theirs.fileno())
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=env)
    ours.close()
    assert process.wait(60) == 0


# The node.


class Server:
    """SuperLink, as a connection shows it: messages to hand out, and the replies that came."""

    def __init__(self, app=PINNED, kind=TaskType.SERVER_APP):
        self.run = SimpleNamespace(fab_hash=app, primary_task_type=kind)
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
        made = Message(content=content, dst_node_id=5, message_type="train")
        made.metadata.__dict__.update(_run_id=run, _message_id=made.object_id, _src_node_id=1)
        self.parts |= {name: part.deflate() for name, part in get_all_nested_objects(made).items()}
        self.waiting.append((made, get_object_tree(made)))
        return made

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


def served(server, app=echo, most=10 * 2**20):
    lines = []
    one = Node(server.link, Answers(app), PINNED, most, lines.append)
    while one.once():
        pass
    return lines


def test_a_message_is_fetched_confirmed_and_answered():
    server = Server()
    asked = server.message()
    served(server)
    (reply,) = server.replies
    assert reply.metadata.reply_to_message_id == asked.metadata.message_id
    assert server.confirmed == [asked.metadata.message_id]
    assert list(server.pushed) == [reply.metadata.message_id]


@pytest.mark.parametrize(
    ("app", "kind"), [("0" * 64, TaskType.SERVER_APP), (PINNED, TaskType.AGENT_APP)]
)
def test_a_run_of_another_app_is_refused_before_anything_of_it_is_fetched(app, kind):
    server = Server(app, kind)
    server.message()
    lines = served(server, lambda **_: pytest.fail("it was run"))
    (reply,) = server.replies
    assert (reply.error.code, reply.error.reason) == (ErrorCode.INVALID_FAB, node.REFUSAL)
    assert server.confirmed == []
    assert "expected aaaaaaaaaaaa" in lines[0]


def cut(size):
    """A message with models of so many bytes, as the server cuts it."""
    return packed(BusMessage("task", "{}", enclosed={"a" * 64: bytes(size)}))


@pytest.mark.parametrize(
    ("size", "most", "taken"),
    [(14, 15.001, True), (14, 14, False), (0, 0.001, True), (0, 0, False)],
)
def test_a_message_is_fetched_only_up_to_its_most_bytes(size, most, taken):
    """In MiB: pieces of 5, 5 and 4, with a head of less than a thousandth beside them."""
    server = Server()
    server.message(content=cut(size * 2**20))
    lines = served(server, most=int(most * 2**20))
    (reply,) = server.replies
    assert reply.has_error() != taken
    assert bool(server.confirmed) == taken
    if not taken:
        assert (reply.error.code, reply.error.reason) == (
            ErrorCode.INVALID_FAB,
            flower_internals.TOO_LONG,
        )
        assert f"over {most * 2**20} bytes" in lines[0]


def test_a_message_of_more_parts_than_its_bytes_are_cut_into_is_refused_unfetched():
    """10 MiB are two pieces, and eight more parts are taken; the message and its dictionary are two
    of the ten.
    """
    for records, taken in ((8, True), (9, False)):
        server = Server()
        server.message(content=RecordDict({str(k): ConfigRecord({"b": k}) for k in range(records)}))
        lines = served(server)
        assert server.replies[0].has_error() != taken
        assert bool(server.fetched) == taken
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

    def ended(run, message):
        if run == 7:
            raise RunNotRunningException
        confirm(run, message)

    server.link = Connection(*vars(server.link).values())
    server.link.__dict__["confirm"] = ended
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
    code, out = said(
        "import signal\nfrom pomona_federation.silo.node import end_with_threads\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\nend_with_threads()\n"
        "threading.Thread(target=lambda: 1 / 0).start()\ntime.sleep(100)\n"
    )
    assert code == 143
    assert "ZeroDivisionError" in out


@pytest.mark.parametrize("words", [[], ["kit"], ["kit", "zz"], ["kit", PINNED, "more"]])
def test_without_a_pin_there_is_no_node(words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["node", *words])
    with pytest.raises(SystemExit, match="SHA-256"):
        node.main()


@pytest.mark.parametrize("cut", [9, 12, 20])
def test_a_file_that_ends_within_a_part_is_refused(cut):
    """Parts of 4 and 3 bytes, each after the 8 bytes of its length."""
    file = os.memfd_create("parts")
    worker.write(file, [b"four", b"three"[:3]])
    assert worker.read(file) == [b"four", b"thr"]
    os.ftruncate(file, cut)
    if cut == 12:
        assert worker.read(file) == [b"four"]
    else:
        with pytest.raises(EOFError):
            worker.read(file)
    os.close(file)


def test_a_life_that_was_killed_is_ended_first_and_an_end_is_told(tmp_path):
    """Flower's client over a line that records its requests."""
    asked = []

    def answers(request):
        asked.append(request.url.path.rpartition("/")[2])
        if asked[-1] == "deactivate-node" and len(asked) == 1:
            return httpx.Response(412, text="it is not connected")
        node = ActivateNodeResponse(node_id=5).SerializeToString()
        beat = SendNodeHeartbeatResponse(success=True).SerializeToString()
        return httpx.Response(
            200,
            content={"activate-node": node, "send-node-heartbeat": beat}.get(asked[-1], b""),
            headers={"content-type": "application/x-protobuf"},
        )

    assert node.last_node(tmp_path) is None
    for damaged in ("", "x", "-5", str(2**64), "9" * 99):
        node.note_node(tmp_path, damaged)
        assert node.last_node(tmp_path) is None  # Flower's messages have no such number
    node.note_node(tmp_path, 2**64 - 1)
    before = node.last_node(tmp_path)
    assert before == 2**64 - 1
    line = httpx.Client(transport=httpx.MockTransport(answers))

    def lives():
        with flower_internals.connection("127.0.0.1:9", None, None, lambda: line, before) as link:
            assert link.node == 5
            raise SystemExit(143)

    with pytest.raises(SystemExit):
        lives()
    told = [path for path in asked if path.endswith("activate-node")]
    assert told == ["deactivate-node", "activate-node", "deactivate-node"]
