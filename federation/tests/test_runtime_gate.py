"""A SuperNode's runtime reads nothing from another account of the machine."""

import inspect
import os
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("flwr")

import uvicorn

from pomona_federation import flower_internals
from pomona_federation.monitoring.metrics_app import listening
from pomona_federation.silo.processes.supernode import OwnAccount

OTHER = 23456
BODY = 8 * 2**20
ASKS = """
import encodings.idna, http.client, os, sys  # before: the other account may not read the library
port, user, size = map(int, sys.argv[1:])
os.setgid(user); os.setuid(user)
line = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
try:
    line.request("POST", "/v1/runtime/push-object", b"x" * size, {"content-type": "application/protobuf"})
except OSError:
    pass  # it answers, and ends the connection, before all has been sent
try:
    print(line.getresponse().status)
except (OSError, http.client.HTTPException):
    print("ended")
"""


@pytest.fixture
def served():
    """A server behind the gate whose application counts the bytes of bodies that it reads: its port and the count."""
    read = []

    async def app(scope, receive, send):
        while True:
            message = await receive()
            read.append(len(message.get("body", b"")))
            if not message.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with listening(0) as taken:
        server = uvicorn.Server(uvicorn.Config(OwnAccount(app), log_level="error", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, args=([taken],), daemon=True)
        thread.start()
        while thread.is_alive() and not server.started:
            time.sleep(0.01)
        yield taken.getsockname()[1], read
        server.should_exit = True
        thread.join(10)


def asked(port, user, size=BODY):
    words = [sys.executable, "-c", ASKS, str(port), str(user), str(size)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another account")
def test_nothing_is_read_of_another_account(served):
    port, read = served
    assert asked(port, OTHER) in {"403", "ended"}
    assert asked(port, OTHER, 0) == "403"
    assert read == []


def test_the_own_account_is_served(served):
    port, read = served
    assert asked(port, os.getuid()) == "401"
    assert sum(read) == BODY


def test_a_supernode_serves_its_runtime_behind_the_gate(monkeypatch):
    """Flower imports ``create_app`` where it starts the server, so that it gets the one that is wrapped."""
    from flwr.supernode import main
    from flwr.supernode.cli import flower_supernode

    module = sys.modules[flower_supernode.__module__]
    assert "from flwr.supernode.main import" in inspect.getsource(module._start_supernode_http_api)
    monkeypatch.setattr(main, "create_app", main.create_app)  # put back afterwards
    flower_internals.wrap_runtime(OwnAccount)
    assert isinstance(main.create_app(state_factory=None, superexec_auth_secret=b"s"), OwnAccount)
