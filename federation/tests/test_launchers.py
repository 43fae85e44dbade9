"""The gate before SuperLink, the pinned app of a node, and the environment of both."""

import asyncio
import hashlib
import os
import shutil
import socket
import subprocess
import sys
from unittest import mock

import pytest
import tomli_w

from agreement_file import TASK
from pomona.config import resolve  # noqa: F401  settings must be importable without Flower
from pomona.core.errors import ConfigError
from pomona_federation import flower_internals
from pomona_federation.agreement import Federation
from pomona_federation.provision.provision import provision
from pomona_federation.server import gate, launcher, superlink, superlink_client
from pomona_federation.server.superlink import anonymous
from pomona_federation.supervision.supervisor import QUIET, SERVER_KIT, environment

pytestmark = pytest.mark.long

TREE = {
    "name": "try",
    "server": "127.0.0.1:8443",
    "silo": [{"name": "north"}],
    "task": TASK,
    "run": {"lr": 0.1},
}


def federation(**keys):
    return Federation.from_tree(TREE | keys)


def scope(path, client="203.0.113.9", server="198.51.100.1", kind="http", headers=()):
    return {
        "type": kind,
        "path": path,
        "client": (client, 1234),
        "server": (server, 8443),
        "headers": list(headers),
    }


@pytest.mark.parametrize(
    ("asgi", "passes"),
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
        (
            scope(
                "/v1/control/start-run", "127.0.0.1", headers=[(b"X-Forwarded-For", b"127.0.0.1")]
            ),
            False,
        ),
        (
            scope("/v1/control/start-run", "127.0.0.1", headers=[(b"forwarded", b"for=127.0.0.1")]),
            False,
        ),
        (
            scope(
                "/v1/fleet/pull-messages",
                "127.0.0.1",
                headers=[(b"x-forwarded-for", b"203.0.113.9")],
            ),
            True,
        ),
        (
            {
                "type": "http",
                "path": "/v1/control/a",
                "client": None,
                "server": None,
                "headers": [],
            },
            False,
        ),
        (
            {
                "type": "http",
                "path": "/v1/control/a",
                "client": ("testclient", 1),
                "server": ("testclient", 1),
            },
            False,
        ),
        ({"type": "lifespan"}, True),
    ],
)
def test_the_gate_lets_strangers_to_the_fleet_only(asgi, passes):
    assert gate.is_allowed({**asgi, "state": {gate.OWN_ACCOUNT: True}}) is passes
    assert gate.is_allowed(asgi) is (passes and asgi.get("path") != "/v1/control/start-run")


def test_of_this_machine_the_servers_own_account_alone_reaches_more(monkeypatch):
    """By the kernel's word on who owns the other end; a socket that was let go of counts as
    nobody's.
    """
    uid = os.getuid()
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.create_server((host, 0), family=family) as server:
            client = socket.create_connection(server.getsockname()[:2])
            with server.accept()[0] as accepted:
                addresses = accepted.getpeername()[:2], accepted.getsockname()[:2]
                assert gate.from_own_account(*addresses)
                assert not gate.from_own_account(("203.0.113.9", addresses[0][1]), addresses[1])
                with monkeypatch.context() as patch:
                    patch.setattr(gate, "ROOT", -1)
                    patch.setattr(gate.os, "getuid", lambda: uid + 1)
                    assert not gate.from_own_account(*addresses)
                client.close()
                assert not gate.from_own_account(*addresses)


def test_a_client_of_ipv4_is_found_where_the_server_listens_on_ipv6():
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server,
        socket.create_connection(("127.0.0.1", server.getsockname()[1])),
        server.accept()[0] as accepted,
    ):
        addresses = accepted.getpeername()[:2], accepted.getsockname()[:2]
        assert addresses[0][0] == "::ffff:127.0.0.1"
        assert gate.from_own_account(*addresses)


def test_what_may_not_pass_is_answered_plainly():
    async def never(*_):
        raise AssertionError("reached the application")

    messages = []

    async def send(message):
        messages.append(message)

    asyncio.run(gate.Gate(never, anonymous, lambda: 0)(scope("/v1/control/start-run"), None, send))
    assert [m.get("status") for m in messages] == [403, None]
    assert messages[1]["body"] == b"forbidden\n"
    messages.clear()
    asyncio.run(
        gate.Gate(never, anonymous, lambda: 0)(scope("/v1/control/x", kind="websocket"), None, send)
    )
    assert messages == [{"type": "websocket.close", "code": 1008}]

    async def reached(*_):
        messages.append("reached")

    async def receive():
        return {"type": "http.request", "body": b""}

    asyncio.run(gate.Gate(reached, anonymous, lambda: 0)(scope("/v1/fleet/x"), receive, send))
    assert messages[-1] == "reached"


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """Kits of a federation on a free port."""
    pytest.importorskip("flwr")
    folder = tmp_path_factory.mktemp("kits")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "federation.toml").write_text(tomli_w.dumps(TREE | {"server": f"127.0.0.1:{port}"}))
    provision(folder / "federation.toml", folder / "kits")
    return folder / "kits"


def test_a_server_starts_only_with_the_app_that_its_kit_pins(kits, tmp_path, monkeypatch):
    kit = shutil.copytree(kits / "server", tmp_path / "server")
    planned = Federation.read(kit / "federation.toml")
    launcher.require_ready(kit, planned)
    assert (
        hashlib.sha256(flower_internals.agreed_bundle(kit)).hexdigest()
        == (kits / "north" / "app.sha256").read_text().strip()
    )
    code = kit / "app" / "pomona_app" / "client_app.py"
    code.write_text(code.read_text() + "# changed\n")
    sha256 = flower_internals.bundle_sha256(kit / "app")
    with pytest.raises(ConfigError) as refused:
        launcher.require_ready(kit, planned)
    for phrase in (
        f"{kit / 'app'} ",
        sha256[:12],
        f"{kit / 'app.sha256'} ",
        flower_internals.pinned(kit)[:12],
        "provision again",
    ):
        assert phrase in str(refused.value)
    monkeypatch.setattr(launcher, "_served", None)
    monkeypatch.setenv("FLWR_HOME", "before")
    for name in QUIET:
        monkeypatch.setenv(name, "before")
    with pytest.raises(ConfigError, match="every silo pin"):
        launcher.serve(kit, print)
    (kit / "app.sha256").write_text("none\n")
    with pytest.raises(ConfigError, match="is not a SHA-256"):
        launcher.require_ready(kit, planned)
    shutil.rmtree(kit / "app")
    with pytest.raises(ConfigError, match="copy it from the kit again"):
        launcher.require_ready(kit, planned)


def test_commands_carry_tls_and_keys_unless_insecure(tmp_path):
    server = superlink.command(
        tmp_path, federation(bind="0.0.0.0:8443", server="fl.example.org:8443")
    )
    assert server[1:4] == ["-m", "pomona_federation.superlink", str(tmp_path)]
    assert server[4:8] == ["--host", "0.0.0.0", "--port", "8443"]
    assert "--enable-supernode-auth" in server
    assert "--insecure" not in server
    assert "--disable-runtime-dependency-installation" in server
    assert "--insecure" in superlink.command(tmp_path, federation(insecure=True))


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
    assert federation(server="fl.example.org:8443").inside == "127.0.0.1:8443"
    assert federation(bind="[::]:8443", server="fl.example.org:8443").inside == "[::1]:8443"
    assert federation(bind="192.0.2.4:1", server="fl.example.org:8443").inside == "192.0.2.4:1"
    assert superlink_client.connection(federation(), tmp_path)["superlink"]["pomona"] == {
        "address": "127.0.0.1:8443",
        "root-certificates": str(tmp_path),
    }
    assert (
        superlink_client.connection(federation(insecure=True), tmp_path)["superlink"]["pomona"][
            "insecure"
        ]
        is True
    )


def test_keys_are_brought_to_what_the_book_says():
    nodes = [
        superlink_client.Node(1, "north", "online", b"N"),
        superlink_client.Node(2, "gone", "offline", b"G"),
    ]
    assert superlink_client.changes({"north": b"N", "south": b"S"}, nodes) == (
        {"south": b"S"},
        [nodes[1]],
    )
    assert superlink_client.changes({}, []) == ({}, [])
    with pytest.raises(ConfigError, match=r"silo\.pub"):
        superlink_client.pem("no key")


@pytest.mark.parametrize(
    "module",
    [
        "server.launcher",
        "server.registry_admin",
        "provision.provision",
        "silo.node_supervisor",
        "status",
    ],
)
def test_supervisors_status_add_and_renew_load_no_pytorch(module):
    """They live for weeks, or are called often; only what trains, or reads data, needs it."""
    code = (
        f"import sys, pomona_federation.{module}; sys.exit(bool({{'torch', 'flwr'}} & "
        "sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=100, check=False).returncode == 0


IMPORTS_OF = """
import sys
from pomona.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    print(end.code, sorted({"torch", "flwr", "pyarrow"} & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["deploy", "provision", "absent.toml"],
        ["deploy", "rehearse", "absent.toml"],
        ["deploy", "simulate", "absent.toml"],
        ["deploy", "task", "absent.toml"],
        ["server", "start", "--folder", "absent"],
        ["server", "study", "submit", "absent.toml", "--folder", "."],
        ["silo", "start", "--folder", "absent"],
    ],
    ids=" ".join,
)
def test_a_wrong_file_is_answered_before_pytorch_is_imported(arguments, tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", IMPORTS_OF, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout == "2 []\n"
    assert "absent" in process.stderr


def test_the_kit_is_in_the_environment_of_its_app_and_in_no_setting_of_a_run(tmp_path):
    """A run's settings are open to all members."""
    with mock.patch.dict(os.environ):
        env = launcher._flower(tmp_path, tmp_path, federation())
    assert env[SERVER_KIT] == str(tmp_path)
