"""A silo's route through a real proxy with a password, and at a limited speed."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from federation_in_process import settings
from pomona.core.errors import ConfigError, ProtocolError
from pomona.scenario import Scenario
from pomona.simulation import simulate
from pomona_federation.agreement import Federation
from pomona_federation.rehearsal.run import differences, local_federation, process_role
from pomona_federation.silo import preflight
from pomona_federation.silo.http_client import (
    PIECE,
    Bandwidth,
    LimitedTransport,
    ServerRoute,
    client,
)
from pomona_federation.silo.server_requests import ask_health, ask_membership
from pomona_federation.silo.settings import SiloFile, proxy_address
from pomona_federation.supervision.supervisor import process_tree
from proxies import PASSWORD, USER, Proxy
from test_client_certificates import kits, route  # noqa: F401 - a fixture
from test_gate import SuperLink


@pytest.fixture(params=["squid", "tinyproxy"])
def proxy(request):
    """Starts a proxy that forwards to one port."""
    proxies = []

    def launch(allowed):
        proxies.append(Proxy(request.param, allowed))
        return proxies[-1]

    yield launch
    for running in proxies:
        running.remove()


@pytest.mark.long
def test_a_silo_asks_through_a_proxy_with_a_password_and_hears_why_it_is_refused(kits, proxy):  # noqa: F811
    """With mutual TLS on: the proxy passes the connection on and sees nothing of it."""
    server, north = SuperLink(kits), kits / "north"
    try:
        direct = route(north)
        through = proxy(direct.server.port)
        proxied = replace(direct, proxy=through.url, login=(USER, PASSWORD))
        assert proxied.port == through.port
        assert ask_health(proxied).certificate_until == ask_health(direct).certificate_until
        assert ask_membership(proxied, north / "keys" / "silo.key") == "member"
        with pytest.raises(
            ProtocolError, match=r"407.*asks for a password: set proxy_user and proxy_password_file"
        ):
            ask_health(replace(proxied, login=None))
        with pytest.raises(
            ProtocolError, match=rf"40[17].*does not take the password of {USER}; correct"
        ) as caught:
            ask_health(replace(proxied, login=(USER, "another-secret")))
        assert "another-secret" not in str(caught.value)
        with pytest.raises(
            ProtocolError, match=r"refuses the way to 127\.0\.0\.1:9 \(403.*administrator"
        ):
            ask_health(replace(proxied, server=direct.server._replace(port=9)))
        server.end()
        with pytest.raises(ProtocolError, match=r"the proxy does not reach the server"):
            ask_health(proxied)
        through.stop()
        with pytest.raises(ProtocolError, match=rf"does not answer through {through.url}"):
            ask_health(proxied)
    finally:
        server.end()


def test_a_server_behind_a_proxy_that_is_away_is_tried_again_and_a_refusal_is_not(kits, proxy):  # noqa: F811
    """Flower tries again after what httpx calls an error of the connection, and gives up at a
    proxy's.
    """
    direct = route(kits / "north")
    through = proxy(direct.server.port)
    proxied = replace(direct, proxy=through.url, login=(USER, PASSWORD))
    with (
        client(proxied) as line,
        pytest.raises(httpx.ConnectError, match="the proxy does not reach the server"),
    ):
        line.get(proxied.url)
    with (
        client(replace(proxied, login=None)) as line,
        pytest.raises(httpx.ProxyError, match="the proxy refuses"),
    ):
        line.get(proxied.url)


def text_of(silo):
    return f'name = "north"\n{silo}\n[data]\nname = "digits"\n'


def test_the_password_comes_from_a_file_for_its_owner_alone(kits):  # noqa: F811
    folder = kits / "north"
    path = folder / "proxy.password"
    settings = (
        'proxy = "http://proxy.example:3128"\nproxy_user = "me"\nproxy_password_file = '
        '"proxy.password"'
    )
    (folder / "silo.toml").write_text(text_of(settings))
    silo = SiloFile.load(folder / "silo.toml")
    federation = Federation.read(folder / "federation.toml")
    path.write_text("s3cret\n")
    path.chmod(0o600)
    proxied = ServerRoute.of_kit(folder, silo, federation)
    assert (proxied.login, proxied.port) == (("me", "s3cret"), 3128)
    assert "s3cret" not in repr(proxied)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="open to others"):
        ServerRoute.of_kit(folder, silo, federation)
    path.chmod(0o600)
    for content in (b"", b"\n", b"a\nb\n", b"\xff", b"x" * 2000):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"write the proxy's password there"):
            ServerRoute.of_kit(folder, silo, federation)
    path.unlink()
    line = next(line for line in preflight.run(folder)[0] if line.check == "server")
    assert line.result == "failed"
    assert "proxy.password cannot be read" in line.text


@pytest.mark.parametrize(
    "text",
    [
        'proxy = "http://me:word@proxy:3128"',
        'proxy = "ftp://proxy:3128"',
        'proxy = "http://proxy:port"',
        'proxy = "http://proxy:3128/path"',
        'proxy = "http://proxy:3128"\nproxy_user = "me"',
        'proxy = "http://proxy:3128"\nproxy_password_file = "f"',
        'proxy_user = "me"\nproxy_password_file = "f"',
        'proxy = "http://proxy:3128"\nproxy_user = "m:e"\nproxy_password_file = "f"',
        "max_upload_mbit_s = 1.9",
    ],
)
def test_settings_of_the_way_out_that_make_no_sense(tmp_path, text):
    (tmp_path / "silo.toml").write_text(text_of(text))
    with pytest.raises(ConfigError, match=r"proxy|max_upload_mbit_s"):
        SiloFile.load(tmp_path / "silo.toml")


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://p.example:3128", "p.example", 3128),
        ("http://p/", "p", 80),
        ("https://p", "p", 443),
        ("http://[::1]:8080", "::1", 8080),
        ("http://[::1]", "::1", 80),
    ],
)
def test_a_proxys_address(url, host, port):
    assert proxy_address(url) == (host, port)


# Speed.


class Clock:
    """A clock that advances only during waits; ``held``: locks that must not be held while
    waiting.
    """

    def __init__(self):
        self.now, self.waits = 0.0, []

    def sleep(self, seconds):
        self.waits.append(seconds)
        self.now += seconds


def bandwidth(rate, clock):
    limit = Bandwidth(
        rate, lambda: clock.now, lambda seconds: (unlocked(limit), clock.sleep(seconds))
    )
    return limit


def unlocked(limit):
    assert not limit._lock.locked()


def test_bytes_take_their_time_and_stay_what_they_are():
    clock = Clock()
    limit = bandwidth(1000.0, clock)
    data = bytes(range(256)) * 200
    assert b"".join(limit.paced([data[:100], b"", data[100:]])) == data
    assert clock.now == pytest.approx(len(data) / 1000)
    assert max(clock.waits) == PIECE / 1000, "no piece is longer"


def test_time_without_bytes_is_not_saved_up():
    clock = Clock()
    limit = bandwidth(1000.0, clock)
    list(limit.paced([bytes(500)]))
    clock.now += 100.0
    start_time = clock.now
    list(limit.paced([bytes(3000)]))
    assert clock.now - start_time == pytest.approx(3.0)


def test_callers_share_the_line_in_the_order_in_which_they_ask():
    """On a clock that stands still: the second waits for the first one's bytes too."""
    waits = []
    limit = Bandwidth(100.0, lambda: 0.0, waits.append)
    for size in (50, 200, 10):
        limit.acquire(size)
    assert waits == pytest.approx([0.5, 2.5, 2.6])


def test_many_threads_take_as_long_as_their_bytes_together():
    """Each thread's last wait ends when all that asked before has passed: the latest ends with the
    last byte.
    """
    waits = []
    limit = Bandwidth(1e6, lambda: 0.0, waits.append)
    workers = [threading.Thread(target=lambda: list(limit.paced([bytes(10**5)]))) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert max(waits) == pytest.approx(8 * 10**5 / 1e6)


def test_a_client_sends_and_takes_no_faster_than_it_may():
    upload, download = Clock(), Clock()
    bodies = []

    class Server(httpx.BaseTransport):
        def handle_request(self, request):
            bodies.append(b"".join(request.stream))
            return httpx.Response(200, stream=httpx.ByteStream(bytes(70_000)))

    line = LimitedTransport(Server(), bandwidth(2000.0, upload), bandwidth(7000.0, download))
    with httpx.Client(transport=line) as client_:
        assert client_.post("http://a", content=bytes(30_000)).content == bytes(70_000)
        assert bodies == [bytes(30_000)]
    assert (upload.now, download.now) == (pytest.approx(15.0), pytest.approx(10.0))
    with httpx.Client(transport=LimitedTransport(Server(), None, None)) as client_:
        assert client_.post("http://a", content=bytes(30_000)).content == bytes(70_000)
    assert (upload.now, download.now) == (pytest.approx(15.0), pytest.approx(10.0))


@pytest.mark.parametrize(("size", "seconds"), [(0, 30.0), (5 * 2**20, 72.0), (40, 30.0)])
def test_the_answer_to_a_piece_is_waited_for_as_long_as_a_line_of_2_mbit_a_second_takes(
    size, seconds
):
    """For two pieces at a time; with 30 s each was sent again until its upload had expired."""
    waits = []

    class Server(httpx.BaseTransport):
        def handle_request(self, request):
            waits.append(request.extensions["timeout"]["read"])
            return httpx.Response(200, stream=httpx.ByteStream(b""))

    with httpx.Client(transport=LimitedTransport(Server(), None, None), timeout=30.0) as session:
        session.post("http://server/", content=bytes(size))
    assert waits == [pytest.approx(seconds, abs=0.1)]


def test_megabits_are_a_million_bits():
    assert Bandwidth.of_mbit(8.0).rate == 1e6
    assert Bandwidth.of_mbit(None) is None


# The whole, with real processes.


@pytest.mark.slow
def test_a_federation_through_a_proxy_whose_password_is_in_no_environment(tmp_path, proxy):
    """Two silos behind a proxy that dies in the middle and comes back, the third with a limit of
    speed.
    """
    config = settings(method={"name": "apple", "budget": 1}, rounds=3)
    options = {"deadline": 240.0, "wait": 240.0, "patience": 200.0, "quorum": 3, "mutual_tls": True}
    with local_federation(Scenario.prepare(config), tmp_path / "local", **options) as local:
        federation = Federation.read(local.server / "federation.toml")
        through = proxy(int(federation.server.rpartition(":")[2]))
        for name in local.names[:2]:
            folder = local.silo(name)
            (folder / "proxy.password").touch(0o600)
            (folder / "proxy.password").write_text(PASSWORD + "\n")
            lines = (
                f'proxy = "{through.url}"\nproxy_user = "{USER}"\nproxy_password_file = '
                '"proxy.password"\n'
            )
            (folder / "silo.toml").write_text(lines + (folder / "silo.toml").read_text())
        last = local.silo(local.names[2]) / "silo.toml"
        last.write_text("max_upload_mbit_s = 5.0\nmax_download_mbit_s = 5.0\n" + last.read_text())
        for owner in ("server", *local.names):
            local.start(owner)
        local.wait(lambda status: status.round >= 1)
        through.stop()
        through.start()
        nodes = 0
        for process, command in process_tree(os.getpid()).items():
            assert PASSWORD not in command
            assert PASSWORD.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes(), (
                command
            )
            nodes += process_role(process, command) == "node"
        assert nodes == 3
        status = local.wait(lambda status: status.state in {"finished", "failed"}, 600)
        assert (status.state, status.round) == ("finished", 3)
    for path in (tmp_path / "local").rglob("*"):
        if path.is_file() and path.name != "proxy.password":
            assert PASSWORD.encode() not in path.read_bytes(), path
    simulation = simulate(local.simulation, tmp_path / "simulation")
    assert set(differences(local, simulation).values()) == {0.0}
