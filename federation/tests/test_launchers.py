"""The gate before SuperLink, the pinned app of SuperNode, and the environment of both."""

import asyncio
import hashlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w

from agreement_file import TASK
from pomona.config import resolve  # noqa: F401  settings must be importable without Flower
from pomona.core.errors import ConfigError, ProtocolError
from pomona_federation import flower_bundle
from pomona_federation.agreement import PROTOCOL, Federation
from pomona_federation.provision.provision import provision
from pomona_federation.server.gate import auth_proxy
from pomona_federation.server.members import superlink_client
from pomona_federation.server.processes import launcher, superlink
from pomona_federation.server.processes.superlink import anonymous
from pomona_federation.silo.processes import pinned_app, runtime_secret, supernode
from pomona_federation.silo.settings import SiloFile
from pomona_federation.supervision import connection_owner
from pomona_federation.supervision.processes import QUIET, environment

VERSION = f"{PROTOCOL}.0.0"


TREE = {
    "name": "try",
    "server": "127.0.0.1:8443",
    "silo": [{"name": "north"}],
    "task": TASK,
    "run": {"lr": 0.1},
}


def federation(**keys):
    return Federation.of(TREE | keys)


def scope(path, client="203.0.113.9", server="198.51.100.1", kind="http", headers=()):
    return {"type": kind, "path": path, "client": (client, 1234), "server": (server, 8443), "headers": list(headers)}


@pytest.mark.parametrize(
    ("asked", "passes"),
    [
        (scope("/v1/fleet/pull-messages"), True),
        (scope("/health"), True),
        (scope("/v1/control/start-run"), False),
        (scope("/v1/runtime/acquire-task"), False),
        (scope("/docs"), False),
        (scope("/v1/fleet"), False),
        (scope("/v1/fleetx/a"), False),
        (scope("/V1/fleet/a"), False),
        (scope("/health/x"), False),
        (scope("/v1/fleet/a", kind="websocket"), False),
        (scope("/v1/control/start-run", "127.0.0.1"), True),
        (scope("/v1/control/start-run", "127.4.5.6"), True),
        (scope("/v1/control/start-run", "::1"), True),
        (scope("/v1/control/start-run", "::ffff:127.0.0.1"), True),
        (scope("/v1/control/start-run", "::ffff:203.0.113.9"), False),
        (scope("/v1/control/start-run", "198.51.100.1"), True),  # its own address: this machine
        (scope("/v1/control/start-run", "198.51.100.2"), False),
        (scope("/v1/control/start-run", "127.0.0.1", headers=[(b"X-Forwarded-For", b"127.0.0.1")]), False),
        (scope("/v1/control/start-run", "127.0.0.1", headers=[(b"forwarded", b"for=127.0.0.1")]), False),
        (scope("/v1/fleet/pull-messages", "127.0.0.1", headers=[(b"x-forwarded-for", b"203.0.113.9")]), True),
        ({"type": "http", "path": "/v1/control/a", "client": None, "server": None, "headers": []}, False),
        ({"type": "http", "path": "/v1/control/a", "client": ("testclient", 1), "server": ("testclient", 1)}, False),
        ({"type": "lifespan"}, True),
    ],
)
def test_the_gate_lets_strangers_to_the_fleet_only(asked, passes):
    assert auth_proxy.passes({**asked, "state": {auth_proxy.OURS: True}}) is passes
    assert auth_proxy.passes(asked) is (passes and asked.get("path") != "/v1/control/start-run")


def test_of_this_machine_the_servers_own_account_alone_reaches_more(monkeypatch):
    """By the kernel's word on who owns the other end; a socket that was let go of counts as nobody's."""
    own = os.getuid()
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.create_server((host, 0), family=family) as server:
            client = socket.create_connection(server.getsockname()[:2])
            with server.accept()[0] as accepted:
                ends = accepted.getpeername()[:2], accepted.getsockname()[:2]
                assert connection_owner.ours(*ends)
                assert not connection_owner.ours(("203.0.113.9", ends[0][1]), ends[1])
                with monkeypatch.context() as other:
                    other.setattr(connection_owner, "ROOT", -1)
                    other.setattr(connection_owner.os, "getuid", lambda: own + 1)
                    assert not connection_owner.ours(*ends)
                client.close()
                assert not connection_owner.ours(*ends)


def test_a_client_of_ipv4_is_found_where_the_server_listens_on_ipv6():
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server,
        socket.create_connection(("127.0.0.1", server.getsockname()[1])),
        server.accept()[0] as accepted,
    ):
        ends = accepted.getpeername()[:2], accepted.getsockname()[:2]
        assert ends[0][0] == "::ffff:127.0.0.1"
        assert connection_owner.ours(*ends)


def test_what_may_not_pass_is_answered_plainly():
    async def never(*_):
        raise AssertionError("reached the application")

    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(auth_proxy.Gate(never, anonymous, lambda: 0)(scope("/v1/control/start-run"), None, send))
    assert [m.get("status") for m in sent] == [403, None]
    assert sent[1]["body"] == b"forbidden\n"
    sent.clear()
    asyncio.run(auth_proxy.Gate(never, anonymous, lambda: 0)(scope("/v1/control/x", kind="websocket"), None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]

    async def reached(*_):
        sent.append("reached")

    async def receive():
        return {"type": "http.request", "body": b""}

    asyncio.run(auth_proxy.Gate(reached, anonymous, lambda: 0)(scope("/v1/fleet/x"), receive, send))
    assert sent[-1] == "reached"


def test_only_the_pinned_bytes_are_an_app(kits):
    content = flower_bundle.agreed(kits / "server")
    expected = flower_bundle.pinned(kits / "server")
    named = SimpleNamespace(fab_id="local/pomona-app", fab_version=VERSION, fab_hash=expected)
    asked = []

    def get_fab(fab_hash, run_id):
        asked.append(fab_hash)
        return SimpleNamespace(content=content if fab_hash == expected else b"other", hash_str=fab_hash)

    get = supernode.pinned(get_fab, expected, lambda: named)
    assert get(expected, 1).content == content
    with pytest.raises(ProtocolError, match="not the one that this silo agreed to run"):
        get("0" * 64, 1)
    assert asked == [expected], "another app is not even asked for"
    lying = supernode.pinned(lambda *_: SimpleNamespace(content=b"other", hash_str=expected), expected, lambda: named)
    with pytest.raises(ProtocolError, match="agreed"):
        lying(expected, 1)


@pytest.mark.parametrize(
    ("of", "change"),
    [
        ("run", {"fab_version": "1.0.0/../../../../../dev/shm/evil"}),
        ("run", {"fab_id": "local/another"}),
        ("run", {"fab_hash": "0" * 64}),
        ("fab", {"hash_str": "0" * 64}),
        ("fab", {"content": b"other"}),
    ],
)
def test_the_pinned_app_is_not_looked_up_under_another_name(kits, of, change):
    """Flower joins them to the path of a folder, whose app it runs."""
    content, expected = flower_bundle.agreed(kits / "server"), flower_bundle.pinned(kits / "server")
    run = {"fab_id": "local/pomona-app", "fab_version": VERSION, "fab_hash": expected}
    fab = {"content": content, "hash_str": expected}
    pinned_app.require_pinned(expected, SimpleNamespace(**run), SimpleNamespace(**fab))
    (run if of == "run" else fab).update(change)
    with pytest.raises(ProtocolError, match="not the one that this silo agreed to run"):
        pinned_app.require_pinned(expected, SimpleNamespace(**run), SimpleNamespace(**fab))


GUARDED = """
import sys
from pomona_federation.silo.processes import supernode
supernode.guard("0" * 64)
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as node
from flwr.supernode.nodestate import NodeStateFactory

stores = ObjectStoreFactory()
state, store = NodeStateFactory(objectstore_factory=stores).state(), stores.store()
state.set_node_id(5)
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1
message = Message(content=RecordDict({"a": ConfigRecord({"b": 1})}), dst_node_id=5, message_type="train")
message.metadata.__dict__.update(_run_id=7, _message_id=message.object_id, _src_node_id=1)

def run(run_id):
    made = Run.create_empty(run_id)
    made.fab_hash, made.primary_task_type = "1" * 64, sys.argv[1]
    return made

def fab(*_):
    raise AssertionError("downloaded")

TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = None  # as in a SuperNode
got = node._pull_and_store_message(
    state=state, object_store=store, node_config={}, receive=lambda: (message, get_object_tree(message)), get_run=run,
    get_fab=fab, pull_object=None, confirm_message_received=None, trusted_entities=None)
(reply,) = state.get_messages_legacy(is_reply=True)
assert got == 7 and state.get_run(7) is None, got
print(reply.error.code, reply.error.reason)
"""


@pytest.mark.parametrize(
    ("kind", "said"), [("flwr-serverapp", "not the one that this silo agreed"), ("flwr-agentapp", "not the one")]
)
def test_a_supernode_refuses_a_foreign_app_with_an_error_that_names_no_path(kind, said):
    pytest.importorskip("flwr")
    done = subprocess.run(
        [sys.executable, "-c", GUARDED, kind],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(Path("/nowhere")),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert said in done.stdout
    assert "/" not in done.stdout
    log = (
        "not of a federation"
        if kind == "flwr-agentapp"
        else "agreed to run (SHA-256 111111111111, expected 000000000000)"
    )
    assert log in done.stderr + done.stdout


ANSWERED = """
import threading
from pomona_federation.silo.processes import supernode
supernode.guard("0" * 64)
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as node
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.start_client_internal import RunNotRunningException

stores = ObjectStoreFactory()
state, store = NodeStateFactory(objectstore_factory=stores).state(), stores.store()
state.set_node_id(5)

def message(run_id):
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, 1, 1
    made = Message(content=RecordDict({"a": ConfigRecord({"b": run_id})}), dst_node_id=5, message_type="train")
    made.metadata.__dict__.update(_run_id=run_id, _message_id=made.object_id, _src_node_id=1)
    TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = None  # as in a SuperNode
    state.store_run(Run.create_empty(run_id))
    return made

def fetched(one, confirm):
    tree = get_object_tree(one)
    objects = {k: made.deflate() for k, made in get_all_nested_objects(one).items()}
    return node._pull_and_store_message(
        state=state, object_store=store, node_config={}, receive=lambda: (one, tree), get_run=None, get_fab=None,
        pull_object=lambda run_id, k: objects[k], confirm_message_received=confirm, trusted_entities=None)

def answer(one):
    reply = Message(RecordDict(), reply_to=one)
    node._insert_message(reply, state, store)
    return reply.metadata.message_id

def ended(*_):
    raise RunNotRunningException

sent = []
def send(reply, *_):
    sent.append(reply.metadata.reply_to_message_id)
    return set(), ""

first, second = message(7), message(8)
assert fetched(first, ended) is None
late = answer(first)
assert fetched(second, lambda *_: None) == 8
threading.Timer(0.3, answer, [second]).start()
node._push_messages(state=state, object_store=store, send=send, push_object=None)
assert sent == [second.metadata.message_id], "the answer to a message whose run had ended"
assert store.get(late) is None
assert not state.get_messages_legacy(is_reply=True)
"""


def test_an_answer_to_a_message_whose_run_ended_while_it_was_fetched_is_not_sent_for_the_next():
    """Else the node would stay one answer late: each next one would be sent when the message after it has come."""
    pytest.importorskip("flwr")
    words = [sys.executable, "-c", ANSWERED]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=100, env=environment(Path("/nowhere")), check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """Kits of a federation on a free port."""
    pytest.importorskip("flwr")
    home = tmp_path_factory.mktemp("kits")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (home / "federation.toml").write_text(tomli_w.dumps(TREE | {"server": f"127.0.0.1:{port}"}))
    provision(home / "federation.toml", home / "kits")
    return home / "kits"


def test_a_server_starts_only_with_the_app_that_its_kit_pins(kits, tmp_path, monkeypatch):
    kit = shutil.copytree(kits / "server", tmp_path / "server")
    planned = Federation.read(kit / "federation.toml")
    launcher.require_ready(kit, planned)
    assert hashlib.sha256(flower_bundle.agreed(kit)).hexdigest() == (kits / "north" / "app.sha256").read_text().strip()
    code = kit / "app" / "pomona_app" / "client_app.py"
    code.write_text(code.read_text() + "# changed\n")
    found = flower_bundle.digest(kit / "app")
    with pytest.raises(ConfigError) as refused:
        launcher.require_ready(kit, planned)
    for word in (
        f"{kit / 'app'} ",
        found[:12],
        f"{kit / 'app.sha256'} ",
        flower_bundle.pinned(kit)[:12],
        "provision again",
    ):
        assert word in str(refused.value)
    monkeypatch.setattr(launcher, "_served", None)
    monkeypatch.setenv("FLWR_HOME", "before")
    for name in QUIET:
        monkeypatch.setenv(name, "before")
    with pytest.raises(ConfigError, match="every silo pin"):
        launcher.serve(kit, print)
    (kit / "app.sha256").write_text("none\n")
    with pytest.raises(ConfigError, match="holds no SHA-256"):
        launcher.require_ready(kit, planned)
    shutil.rmtree(kit / "app")
    with pytest.raises(ConfigError, match="copy it from the kit again"):
        launcher.require_ready(kit, planned)


@pytest.mark.parametrize("words", [[], ["--app-sha256"], ["--app-sha256", "zz"], ["--insecure"]])
def test_without_a_pin_there_is_no_node(words):
    with pytest.raises(SystemExit, match="SHA-256"):
        supernode.main(words)


def test_commands_carry_tls_and_keys_unless_insecure(tmp_path):
    silo = SiloFile.model_validate({"name": "north", "port": 9099, "data": {}})
    server = superlink.command(tmp_path, federation(bind="0.0.0.0:8443", server="fl.example.org:8443"))
    assert server[1:4] == ["-m", "pomona_federation.server.processes.superlink", str(tmp_path)]
    assert server[4:8] == ["--host", "0.0.0.0", "--port", "8443"]
    assert "--enable-supernode-auth" in server
    assert "--insecure" not in server
    assert "--disable-runtime-dependency-installation" in server
    node = supernode.command(tmp_path, silo, federation(), "a" * 64)
    assert node[1:5] == ["-m", "pomona_federation.silo.processes.supernode", "--app-sha256", "a" * 64]
    assert "--auth-supernode-private-key" in node
    assert node[node.index("--host") + 1] == "127.0.0.1"
    assert "--node-config" not in node, "it is in a run's context, which more than the silo can write"
    open_ = federation(insecure=True)
    assert "--insecure" in superlink.command(tmp_path, open_)
    assert "--insecure" in (plain := supernode.command(tmp_path, silo, open_, "a" * 64))
    assert "--auth-supernode-private-key" not in plain


def test_a_supernode_gives_messages_to_who_knows_the_silos_secret(tmp_path, monkeypatch):
    """A file of 32 bytes for its owner alone, another one at each start; Flower takes it as we pass it on."""
    pytest.importorskip("flwr")
    from flwr.supernode.cli import flower_supernode as flower

    path = runtime_secret.secret_file(tmp_path)
    found = set()
    for _ in range(2):
        runtime_secret.renew(tmp_path)
        found.add(path.read_bytes())
        assert path.stat().st_mode & 0o777 == 0o600
    assert [*map(len, found)] == [32, 32]
    silo = SiloFile.model_validate({"name": "north", "port": 9099, "data": {}})
    words = supernode.command(tmp_path, silo, federation(insecure=True), "a" * 64)
    monkeypatch.setattr(sys, "argv", ["flower-supernode", *words[words.index("--superlink") :]])
    assert sys.modules[flower.__module__]._parse_supernode_lifespan_config().superexec_auth_secret == path.read_bytes()


def test_flower_sees_what_we_say_and_no_more(monkeypatch, tmp_path):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_CONTROL_API", "1")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    monkeypatch.setenv("https_proxy", "http://elsewhere:1")
    monkeypatch.setenv("NO_PROXY", "everything")
    env = environment(tmp_path)
    assert {k: v for k, v in env.items() if k.startswith("FLWR_")} == {
        "FLWR_HOME": str(tmp_path),
        **{k: v for k, v in QUIET.items() if k.startswith("FLWR_")},
    }
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FORWARDED_ALLOW_IPS"] == ""
    assert not {k for k in env if k.lower().endswith("s_proxy")}
    assert env["NO_PROXY"] == "localhost,127.0.0.1,::1"


def test_the_server_reaches_itself(tmp_path):
    assert superlink_client.reachable(federation(server="fl.example.org:8443")) == "127.0.0.1:8443"
    assert superlink_client.reachable(federation(bind="[::]:8443", server="fl.example.org:8443")) == "[::1]:8443"
    assert superlink_client.reachable(federation(bind="192.0.2.4:1", server="fl.example.org:8443")) == "192.0.2.4:1"
    assert superlink_client.connection(federation(), tmp_path)["superlink"]["pomona"] == {
        "address": "127.0.0.1:8443",
        "root-certificates": str(tmp_path),
    }
    assert superlink_client.connection(federation(insecure=True), tmp_path)["superlink"]["pomona"]["insecure"] is True


def test_keys_are_brought_to_what_the_book_says():
    known = [superlink_client.Node(1, "north", "online", b"N"), superlink_client.Node(2, "gone", "offline", b"G")]
    assert superlink_client.changes({"north": b"N", "south": b"S"}, known) == ({"south": b"S"}, [known[1]])
    assert superlink_client.changes({}, []) == ({}, [])
    with pytest.raises(ConfigError, match=r"silo\.pub"):
        superlink_client.pem("no key")


@pytest.mark.parametrize(
    "module",
    [
        "server.processes.launcher",
        "server.members.registry_admin",
        "provision.provision",
        "silo.processes.supernode_supervisor",
        "status",
    ],
)
def test_supervisors_status_add_and_renew_load_no_pytorch(module):
    """They live for weeks, or are called often; only what trains, or reads data, needs it."""
    code = f"import sys, pomona_federation.{module}; sys.exit(bool({{'torch', 'flwr'}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], timeout=100, check=False).returncode == 0
