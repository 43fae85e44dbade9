"""The gate before SuperLink: authentication, size, rate and time limits; once with a real
SuperLink.
"""

import asyncio
import re
import socket
import ssl
import subprocess
import threading
import time
from base64 import b64encode
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import uvicorn
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from agreement_file import agreement
from pomona_federation import certificates, keys
from pomona_federation.address import Address
from pomona_federation.agreement import Federation
from pomona_federation.messages.study_bodies import MEMBERSHIP, STUDIES
from pomona_federation.provision.provision import provision
from pomona_federation.server import superlink
from pomona_federation.server.gate import (
    ANSWERS,
    BODY,
    PIECE,
    TRIES,
    Gate,
    RequestLimits,
    RequestRefused,
    publish_uplink_limit,
    uplink_limit,
)
from pomona_federation.server.registry_admin import dismiss
from pomona_federation.server.superlink import RequestAuth, http_protocol
from pomona_federation.silo.http_client import ServerRoute
from pomona_federation.silo.server_requests import ask_membership
from pomona_federation.supervision.supervisor import environment

pytestmark = pytest.mark.long

MB = 10**6
OTHER_PATH = "/v1/fleet/pull-messages"
SMALL = RequestLimits(piece=100, default=10)


class Behind:
    """A gate before an application that reads whole bodies."""

    def __init__(self, membership=lambda _: "north", uplink=0, limits=SMALL):
        self.bodies, self.read = [], 0
        self.gate = Gate(self, membership, lambda: uplink, limits)
        self.until = None  # an event that the application waits for
        self.status = 200  # what the application answers

    async def __call__(self, scope, receive, send):
        body = b""
        while (message := await receive())["body"] or message["more_body"]:
            body += message["body"]
            if not message["more_body"]:
                break
        self.bodies.append(body)
        if self.until:
            await self.until.wait()
        await send({"type": "http.response.start", "status": self.status, "headers": []})

    async def ask(self, path, *chunks, headers=(), endless=False):
        """The status of one request."""
        waiting, statuses = list(chunks), []

        async def receive():
            if endless and not waiting:
                await asyncio.Event().wait()
            self.read += 1
            body = waiting.pop(0) if waiting else b""
            return {"type": "http.request", "body": body, "more_body": bool(waiting) or endless}

        async def send(message):
            statuses.extend([message["status"]] if "status" in message else [])

        scope = {
            "type": "http",
            "path": path,
            "headers": list(headers),
            "client": ("203.0.113.9", 1),
            "server": None,
        }
        await self.gate(scope, receive, send)
        return statuses[0]


def test_a_member_has_one_visit_about_studies_at_a_time():
    """Visits have threads, of which there are few: no member takes them all."""
    running_visits, largest, released = Counter(), Counter(), threading.Event()

    def answer_studies(name, _path, _body):
        running_visits[name] += 1
        largest[name] = max(largest[name], running_visits[name])
        assert released.wait(30.0)
        running_visits[name] -= 1
        return 200, b""

    async def visits():
        behind = Behind(lambda scope: dict(scope["headers"])[b"who"].decode())
        behind.gate.studies = answer_studies
        requests = [
            behind.ask(STUDIES, b"", headers=[(b"who", name)])
            for name in (b"north",) * 3 + (b"south",)
        ]
        running = asyncio.gather(*requests)
        while running_visits.total() < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        released.set()
        return await running

    assert asyncio.run(asyncio.wait_for(visits(), 60.0)) == [200] * 4
    assert largest == {"north": 1, "south": 1}


def length(n):
    return [(b"Content-Length", b"%d" % n)]


@pytest.mark.parametrize(
    ("path", "chunks", "headers", "status", "read"),
    [
        (PIECE, [b"x" * 100], length(100), 200, 1),
        (PIECE, [b"x" * 101], length(101), 413, 0),  # before a byte of it is read
        (OTHER_PATH, [b"x" * 11], length(11), 413, 0),
        (OTHER_PATH, [b"x" * 10], [], 200, 1),
        (PIECE, [b"x" * 60, b"x" * 40], [], 200, 2),  # chunked: nobody says how long it is
        (PIECE, [b"x" * 60, b"x" * 41, b"x" * 10**6], [], 413, 2),
        (PIECE, [b"x"], [(b"content-length", b"-1")], 400, 0),
        (PIECE, [b"x"], [(b"content-length", b"9" * 400)], 400, 0),
    ],
)
def test_a_body_is_as_long_as_allowed(path, chunks, headers, status, read):
    behind = Behind()
    assert asyncio.run(behind.ask(path, *chunks, headers=headers)) == status
    assert behind.read == read
    assert behind.bodies == ([b"".join(chunks)] if status == 200 else [])


def test_the_gate_itself_tells_how_a_silo_stands_and_reads_no_body():
    behind = Behind()
    behind.gate.membership = lambda _: "revoked"
    assert asyncio.run(behind.ask(MEMBERSHIP, b"x" * 100)) == 200
    assert behind.read == 0


def test_from_a_stranger_nothing_is_read():
    def stranger(_):
        raise RequestRefused(401, "nobody knows this key")

    behind = Behind(stranger)
    assert asyncio.run(behind.ask(PIECE, b"x" * 100)) == 401
    assert behind.read == 0


def test_all_pieces_of_an_answer_are_as_long_as_the_uplink_agreed_on():
    """Three times 1,000 bytes and a letter, in pieces of a letter and 1,000; the next answer begins
    anew.
    """
    size = BODY + 1000
    behind = Behind(uplink=1000, limits=RequestLimits(piece=size, default=10))

    async def pieces():
        return [await behind.ask(PIECE, b"x" * size) for _ in range(TRIES + 1)]

    async def all_answers():
        return [await pieces(), await behind.ask(ANSWERS, b"x"), await pieces()]

    allowed = [200] * TRIES + [413]
    assert asyncio.run(all_answers()) == [allowed, 200, allowed]


@pytest.mark.parametrize("status", [400, 401, 500, 503])
def test_an_answer_that_superlink_refuses_makes_no_room_for_more_pieces(status):
    size = BODY + 1000
    behind = Behind(uplink=1000, limits=RequestLimits(piece=size, default=10))

    async def statuses():
        pieces = [await behind.ask(PIECE, b"x" * size) for _ in range(TRIES)]
        behind.status = status
        # the gate refuses that one
        answers = [await behind.ask(ANSWERS, b"x"), await behind.ask(ANSWERS, b"x" * 11)]
        behind.status = 200
        return pieces, answers, await behind.ask(PIECE, b"x")

    assert asyncio.run(statuses()) == ([200] * TRIES, [status, 413], 413)


def test_a_member_has_so_many_requests_at_a_time_and_costs_others_none():
    names = iter(["north", "north", "north", "south", "north"])
    behind = Behind(lambda _: next(names), limits=RequestLimits(concurrent=2))

    async def five():
        behind.until = asyncio.Event()
        waiting = [asyncio.ensure_future(behind.ask(OTHER_PATH)) for _ in range(4)]
        while len(behind.bodies) < 3:
            await asyncio.sleep(0)
        behind.until.set()
        return [*await asyncio.gather(*waiting), await behind.ask(OTHER_PATH)]

    assert asyncio.run(five()) == [200, 200, 503, 200, 200]


def test_a_body_that_does_not_come_is_not_waited_for():
    behind = Behind(limits=RequestLimits(seconds=0.05))
    assert asyncio.run(behind.ask(PIECE, b"x", endless=True)) == 408
    assert not behind.bodies


def test_the_length_of_an_uplink_is_told_from_process_to_process(tmp_path):
    assert uplink_limit(tmp_path) == 0
    publish_uplink_limit(tmp_path, 12345)
    assert uplink_limit(tmp_path) == 12345
    for torn in (b"", b"12", b"-3", b"[]", b"9" * 200, b'"a"', b"\xff"):
        (tmp_path / "uplink.json").write_bytes(torn)
        assert uplink_limit(tmp_path) == (12 if torn == b"12" else 0)


def test_a_connection_that_sends_no_whole_head_is_ended():
    """Silent ones and slow ones are let go when their time is over; one that waits for its answer
    is not.
    """
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"

    async def main():
        paths, answering = [], asyncio.Event()

        async def app(scope, receive, send):
            paths.append(scope["path"])
            await answering.wait()
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-length", b"2")],
                }
            )
            await send({"type": "http.response.body", "body": b"ok"})

        protocol = http_protocol(1e6)  # the test says when the time is over
        served = uvicorn.Server(
            uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_level="critical")
        )
        with socket.create_server(("127.0.0.1", 0)) as listening:
            task = asyncio.ensure_future(served.serve([listening]))
            links = []
            for head in (b"", b"GET / HT", request, request + request[:9]):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", listening.getsockname()[1]
                )
                writer.write(head)
                links.append((reader, writer))
            while len(paths) < 2 or len(served.server_state.connections) < 4:
                await asyncio.sleep(0.01)
            connections = list(served.server_state.connections)
            assert all(c.timer for c in connections if c.idle())
            for connection in connections:
                connection.leave()
            received = [await links[k][0].read() for k in (0, 1)]
            answering.set()
            received += [await links[k][0].readuntil(b"ok") for k in (2, 3)]
            for connection in list(served.server_state.connections):
                connection.leave()
            received += [await links[k][0].read() for k in (2, 3)]
            for _, writer in links:
                writer.close()
            served.should_exit = True
            await task
        return received

    silent, slow, answered_a, answered_b, *ends = asyncio.run(main())
    assert (silent, slow, ends) == (b"", b"", [b"", b""])
    assert answered_a.endswith(b"ok")
    assert answered_b.endswith(b"ok")


@pytest.mark.parametrize(
    ("head", "chunk"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n", b"a:\r\n" * 2**14),
        (b"GET / HTTP/1.1\r\nHost: a\r\na: ", b"b" * 2**16),
        (b"GET /", b"b" * 2**16),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            b"a:\r\n" * 2**14,
        ),
    ],
    ids=["headers", "one header", "target", "trailers"],
)
def test_a_head_without_end_takes_no_memory(head, chunk):
    """Headers, or trailers behind a body, come until the server gives up: long before 64 MiB."""

    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
        )
        await send({"type": "http.response.body", "body": b""})

    async def main():
        served = uvicorn.Server(
            uvicorn.Config(
                app, http=http_protocol(1e6), ws="none", lifespan="off", log_level="critical"
            )
        )
        with socket.create_server(("127.0.0.1", 0)) as listening:
            task = asyncio.ensure_future(served.serve([listening]))
            _, writer = await asyncio.open_connection("127.0.0.1", listening.getsockname()[1])
            writer.write(head)
            size = 0
            with suppress(ConnectionError):
                while size < 2**26:
                    writer.write(chunk)
                    await writer.drain()
                    size += len(chunk)
            writer.close()
            served.should_exit = True
            await task
        return size

    assert asyncio.run(main()) < 2**26


# With the keys of a kit, and a real SuperLink.


@pytest.fixture
def kits(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "federation.toml").write_text(agreement(port))
    provision(tmp_path / "federation.toml", tmp_path / "kits")
    return tmp_path / "kits"


def signed(kit, moment=None, by=None):
    """The headers of a silo's node: its key, a time, and a signature of it, by its own or another
    silo's key.
    """
    node, signer = (
        load_ssh_private_key((k / "keys" / "silo.key").read_bytes(), None) for k in (kit, by or kit)
    )
    stamp = (moment or now()).isoformat()
    key, signature = public_key_to_bytes(node.public_key()), sign_message(signer, stamp.encode())
    fields = {
        "flwr-public-key": b64encode(key),
        "flwr-timestamp": stamp.encode(),
        "flwr-signature": b64encode(signature),
    }
    return [(name.encode(), value) for name, value in fields.items()]


def test_a_head_is_signed_by_a_member_now(kits):
    callers, north, south = RequestAuth(kits / "server"), kits / "north", kits / "south"
    assert (callers(signed(north)), callers(signed(south))) == ("north", "south")
    dismiss(kits / "server", "south")
    assert [callers.membership(signed(kit)) for kit in (north, south)] == ["member", "revoked"]
    # it alone can ask
    assert callers.membership(signed(south, by=north)) == callers.membership([]) == "unknown"
    refused = [
        [],
        signed(south),  # revoked
        signed(north, by=south),
        signed(north, now() - timedelta(hours=1)),
        signed(north, now() + timedelta(minutes=1)),
        *([header for header in signed(north) if header[0] != name] for name, _ in signed(north)),
        *(
            [*signed(north)[:k], (signed(north)[k][0], b"\xff"), *signed(north)[k + 1 :]]
            for k in range(3)
        ),
    ]
    for headers in refused:
        with pytest.raises(RequestRefused) as caught:
            callers(headers)
        assert caught.value.status == 401
    assert callers(signed(north)) == "north"


class SuperLink:
    """A real SuperLink with TLS and keys, from a server's kit."""

    def __init__(self, kits):
        self.kits, self.federation = kits, Federation.read(kits / "server" / "federation.toml")
        self.log = (kits / "server" / "superlink.log").open("wb")
        folder = kits / "server" / "run" / "flwr"
        folder.mkdir(parents=True)
        command = superlink.command(kits / "server", self.federation)
        self.process = subprocess.Popen(
            command, env=environment(folder), stdout=self.log, stderr=self.log
        )
        self.port = int(self.federation.server.rpartition(":")[2])
        while not self.answers():
            assert self.process.poll() is None, (kits / "server" / "superlink.log").read_text()
            time.sleep(0.1)

    def answers(self):
        try:
            return b" 200 " in self.post("GET", "/health", [])
        except OSError:
            return False

    def post(self, method, path, headers, size=0):
        """Send a request with a body of zeros, as far as it is accepted.

        Returns the first line of the response.
        """
        context = ssl.create_default_context(cafile=str(self.kits / "server" / "certs" / "ca.crt"))
        with (
            socket.create_connection(("127.0.0.1", self.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as link,
        ):
            fields = [
                (b"Host", b"a"),
                (b"Content-Length", b"%d" % size),
                (b"Content-Type", b"application/protobuf"),
            ]
            head = b"".join(b"%s: %s\r\n" % header for header in [*fields, *headers])
            link.sendall(f"{method} {path} HTTP/1.1\r\n".encode() + head + b"\r\n")
            with suppress(OSError):  # it has answered and gone
                for _ in range(size // MB):
                    link.sendall(bytes(MB))
            try:
                return link.recv(1000).partition(b"\r\n")[0]
            except OSError:
                return b""

    def memory(self, entry="VmRSS"):
        """The process's current memory in bytes, or its peak (VmHWM)."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(rf"{entry}:\s+(\d+) kB", text)[0]) * 1024

    def end(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def membership_of(kit, key, authority="ca.crt"):
    federation = Federation.read(kit / "federation.toml")
    return ask_membership(
        ServerRoute(Address.parse(federation.server), kit / "certs" / authority), key
    )


def test_a_real_superlink_tells_silos_how_they_stand_and_keeps_its_memory(kits, tmp_path):
    """400 MB without a key, and with a member's key 400 MB more than an answer can have."""
    link = SuperLink(kits)
    try:
        north, south = kits / "north", kits / "south"
        assert membership_of(north, north / "keys" / "silo.key") == "member"
        dismiss(kits / "server", "south")
        assert membership_of(south, south / "keys" / "silo.key") == "revoked"
        (tmp_path / "stranger.key").write_bytes(keys.silo().private)
        assert membership_of(north, tmp_path / "stranger.key") == "unknown"
        (north / "certs" / "other.crt").write_bytes(certificates.authority("other").public)
        assert membership_of(north, north / "keys" / "silo.key", "other.crt") == "unsaid"
        memory_before = link.memory()
        for _ in range(3):
            assert link.post("POST", PIECE, [], 400 * MB) in (b"HTTP/1.1 401 Unauthorized", b"")
        assert link.post("POST", PIECE, signed(kits / "north"), 400 * MB) in (
            b"HTTP/1.1 413 Request Entity Too Large",
            b"",
        )
        assert link.memory("VmHWM") - memory_before < 40 * MB
        assert link.answers()
    finally:
        link.end()
