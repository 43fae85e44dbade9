"""A silo's resident process: when it forks, when it must not, and that nothing is left behind."""

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from pomona_federation.silo.processes import fork_executor, resident

pytest.importorskip("flwr")

READY = """
import sys, threading
from pomona_federation import flower_internals
from pomona_federation.silo.processes import fork_executor
from pomona_federation.silo.processes.fork_executor import ForkExecutor, obstacle, preload
"""


def script(text, **options):
    """A process with the resident's environment and no other imports."""
    env = {**os.environ, **fork_executor.ONE_THREAD}
    return subprocess.Popen(
        [sys.executable, "-c", READY + text],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        **options,
    )


def said(text, **options):
    process = script(text, **options)
    out, _ = process.communicate(timeout=120)
    return process.returncode, out


def gone(pid):
    """Whether a process ends within a few seconds."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_what_is_loaded_beforehand_starts_neither_threads_nor_cuda():
    """With a thread of anyone's it must not be forked, and ends before it takes a task."""
    code, out = said(
        """
preload()
import torch
print([obstacle(), threading.active_count(), torch.get_num_threads(), torch.cuda.is_initialized()])
for name in fork_executor.MODULES:
    assert name in sys.modules
threading.Thread(target=threading.Event().wait, daemon=True).start()
ForkExecutor(0, None).reconcile()
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
ForkExecutor(0, None).reconcile()
"""
    )
    assert (code, "has started CUDA" in out) == (1, True)


FORKS = """
import os, time
def app(spec, require):
    assert require is None
    print(spec, os.getpid() != parent, os.getppid() == parent, sys.stdin.closed, flush=True)
    exec(spec)
parent = os.getpid()
flower_internals.run_client_app = app
executor = ForkExecutor(sys.stdin.fileno(), None)
"""


def test_each_message_has_a_process_of_its_own_that_ends_with_what_its_app_says():
    specs = ["pass", "sys.exit(3)", "1 / 0", "os.kill(os.getpid(), 9)"]
    code, out = said(
        f"""{FORKS}
for spec in {specs}:
    executor.launch(spec)
    (pid,) = executor.children
    print("ended", os.waitstatus_to_exitcode(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT).si_status), flush=True)
    executor._reap()
    assert not executor.children
executor.reconcile()
""",
        stdin=subprocess.DEVNULL,  # the SuperNode has ended
    )
    assert code == 0, out
    for spec in specs:
        assert f"{spec} True True False" in out
    assert "ZeroDivisionError" in out
    assert out.count("was ended by signal 9") == 1


def test_a_child_ends_with_the_resident_process():
    process = script(
        f"""{FORKS}
executor.launch("time.sleep(1000)")
print(*executor.children, flush=True)
time.sleep(1000)
""",
        stdin=subprocess.PIPE,
    )
    (child,) = (int(line) for line in (process.stdout.readline(), process.stdout.readline()) if line.strip().isdigit())
    process.kill()
    process.wait()
    assert gone(child)
    process.stdout.close()
    process.stdin.close()


def test_the_resident_process_is_started_again_and_told_of_messages(tmp_path, monkeypatch):
    monkeypatch.setattr(resident, "FIRST", 0.01)
    text = f"import sys\nopen({str(tmp_path / 'log')!r}, 'a').write(sys.stdin.readline() and 'rung ')\nsys.stdin.read()"
    kept = resident.Resident([sys.executable, "-c", text], dict(os.environ))
    kept.ring()  # before it lives
    kept.keep()
    first = started(kept, None)
    kept.ring()
    first.send_signal(signal.SIGKILL)
    second = started(kept, first)
    kept.ring()
    until = time.monotonic() + 60
    while "rung" not in ((tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""):
        assert time.monotonic() < until
        time.sleep(0.02)
    monkeypatch.setattr(resident, "FIRST", 10.0**6)  # the thread sleeps from now on
    monkeypatch.setattr(resident, "LONGEST", 10.0**6)
    second.kill()


def started(kept, before):
    until = time.monotonic() + 60
    while kept.process is None or kept.process is before:
        assert time.monotonic() < until
        time.sleep(0.01)
    return kept.process


LOST = """
import sys
from flwr.common.constant import ErrorCode
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.constant import TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeStateFactory
from pomona_federation.silo.processes import supernode

stores = ObjectStoreFactory()
state, store = NodeStateFactory(objectstore_factory=stores).state(), stores.store()
state.set_node_id(5)
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1
message = Message(content=RecordDict({"a": ConfigRecord({"b": 1})}), dst_node_id=5, message_type="train")
message.metadata.__dict__.update(_run_id=7, _message_id=message.object_id, _src_node_id=1)
TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = None
supernode.LOOK, supernode.CHECK = 0.0, 3
worker = supernode.Worker()
worker.begin(state, store)
worker.message = message
task = state.create_task(task_type=TaskType.CLIENT_APP, run_id=7, fab_hash="0" * 64)
for looks in range(1, 20):
    if looks == 10:  # its process is gone, and Flower has ended the task
        assert state.finish_task(task, "failed", "No heartbeat")
    worker.look()
    if replies := state.get_messages_legacy(is_reply=True):
        print(looks, *(reply.error.code for reply in replies))
assert (supernode.INVALID, supernode.CRASHED) == (ErrorCode.INVALID_FAB, ErrorCode.CLIENT_APP_CRASHED)
"""


def test_a_message_whose_process_is_gone_is_answered_for():
    """Of every three looks one is at the task; the second that finds none, at look 15, answers: once, with code 8."""
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1:] == ["15 8"], done.stdout


def test_a_supernode_that_gives_up_its_work_ends_its_process():
    """Flower's function returns then, and a thread of its that serves requests lives on."""
    code, out = said(
        """
from pomona_federation.silo.processes import supernode
flower_internals.run_supernode = lambda: threading.Thread(target=threading.Event().wait).start()
supernode.work()
"""
    )
    assert (code, "has given up its work" in out) == (1, True)


RUNTIME = """
import os, socket
import uvicorn
from flwr.supercore.constant import TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory

states = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
states.state().set_node_id(5)
states.state().create_task(task_type=TaskType.CLIENT_APP, run_id=7, fab_hash="0" * 64)
taken = socket.create_server(("127.0.0.1", 0))
server = uvicorn.Server(uvicorn.Config(create_app(states, b"s" * 32), log_level="error"))
threading.Thread(target=server.run, args=([taken],), daemon=True).start()

class Asks:
    looks = 0
    def get_eligible_capacity(self, *_, **__):
        return flower_internals.client_app_tasks(), set()
    def reconcile(self):
        self.looks += 1
        if self.looks > 1:
            sys.exit("got nothing")
    def launch(self, spec):
        sys.exit("got a message")
    def close(self):
        pass

for secret in (b"x" * 32, b"", b"s" * 32):
    try:
        flower_internals.run_superexec("127.0.0.1:%d" % taken.getsockname()[1], Asks(), secret)
    except (SystemExit, Exception) as end:
        print(str(end).splitlines()[0], flush=True)
os._exit(0)
"""


def test_a_runtime_gives_its_messages_to_nobody_without_the_secret():
    code, out = said(RUNTIME)
    assert code == 0, out
    answers = [line for line in out.splitlines() if "got" in line or "authentication failed" in line]
    assert ["got a message" in line for line in answers] == [False, False, True], out
    assert "got nothing" not in out


def test_a_port_that_another_process_has_taken_is_not_the_runtimes():
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        assert fork_executor.listens(port, os.getpid())
        assert not fork_executor.listens(port, os.getppid())
        assert not fork_executor.listens(port + 1, os.getpid())


NOT_PINNED = """
from types import SimpleNamespace
from importlib import import_module
module = import_module("flwr.supernode.runtime.run_clientapp")
module.pull_task_input = lambda client: ("message", "context", "run", "fab")
module.push_task_output = lambda **said: print(said["context"], said["details"], flush=True)
module.install_from_fab = lambda *_, **__: print("unpacked", flush=True)

def require(run, fab):
    assert (run, fab) == ("run", "fab")
    raise ValueError("not the pinned one")

flower_internals.run_client_app(SimpleNamespace(runtime_api_address="127.0.0.1:9", token="t", insecure=True), require)
"""


def test_a_child_unpacks_no_app_but_the_pinned_one():
    code, out = said(NOT_PINNED)
    assert code != 0
    assert "not the pinned one" in out
    assert "unpacked" not in out
