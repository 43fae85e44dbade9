"""Answers are plain bytes, counted as they come: an encoded one is refused before a byte of it is
read.
"""

import gzip
import socket
import threading
import tracemalloc
from contextlib import suppress

import httpx
import pytest

pytest.importorskip("flwr")

from pomona.core.errors import ProtocolError
from pomona_federation.address import Address
from pomona_federation.silo import http_client
from pomona_federation.silo.http_client import AnswerRefused, ServerRoute, client
from pomona_federation.silo.server_requests import request

UNPACKED = 64 * 2**20
BOMB = gzip.compress(gzip.compress(bytes(UNPACKED)))
MEMORY = UNPACKED // 2  # bytes of memory, as threads of earlier tests allocate some, too
ENCODINGS = (
    "gzip, gzip",
    "gzip",
    "x-gzip",
    "deflate",
    "br",
    "zstd",
    "identity",
    "GZIP",
    "",
    "unheard-of, gzip",
)


@pytest.fixture
def peer():
    """A server on loopback; ``peer(head, body)`` sets its answer, ``peer.asked`` is the last
    request.
    """

    class Peer:
        def __init__(self):
            self.listening, self.asked, self.sent = socket.create_server(("127.0.0.1", 0)), b"", 0
            self.address = Address("127.0.0.1", self.listening.getsockname()[1])
            self.way = ServerRoute(self.address, None)

        def __call__(self, head, body):
            def serve():
                link, _ = self.listening.accept()
                with suppress(OSError), link:
                    self.asked = link.recv(2**16)
                    link.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + head + b"\r\n")
                    for piece in body:
                        link.sendall(piece)
                        self.sent += len(piece)
                    link.shutdown(socket.SHUT_WR)
                    while link.recv(2**16):  # closed with bytes unread, it would be reset
                        pass

            threading.Thread(target=serve, daemon=True).start()

    server = Peer()
    yield server
    server.listening.close()


def fleet(route):
    """Read a whole answer, as a silo's node does."""
    with client(route) as line:
        return line.post(route.url, content=b"asked").content


READERS = {"request": lambda route: request(route, "/", {}, max_bytes=2**20), "fleet": fleet}


@pytest.fixture(params=READERS)
def read(request):
    """Each way in which a silo reads an answer."""
    return READERS[request.param]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_encoded_answer_is_refused_by_name_in_little_memory(encoding, read, peer):
    peer(f"Content-Encoding: {encoding}\r\nContent-Length: {len(BOMB)}\r\n".encode(), [BOMB])
    tracemalloc.start()
    try:
        with pytest.raises(
            (ProtocolError, AnswerRefused), match=f"the content encoding '{encoding}'"
        ):
            read(peer.way)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    assert b"\r\naccept-encoding: identity\r\n" in peer.asked.lower()


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n",
        b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",  # of which the HTTP library knows the second alone
    ],
)
def test_other_ways_to_name_an_encoding(head, read, peer):
    peer(head, [b"%x\r\n" % len(BOMB), BOMB, b"\r\n0\r\n\r\n"])
    with pytest.raises(
        (ProtocolError, httpx.RequestError), match=r"content encoding|chunked|Transfer-Encoding"
    ):
        read(peer.way)


def test_an_answer_that_does_not_end_is_read_up_to_its_limit(peer, monkeypatch):
    monkeypatch.setattr(http_client, "LONGEST", 2**18)
    piece = bytes(2**16)
    peer(b"", (piece for _ in range(10_000)))
    with pytest.raises(AnswerRefused, match=f"more than {2**18} bytes"):
        fleet(peer.way)
    assert peer.sent < 2**27  # what lies between: buffers of the system


def test_the_longest_answer_is_read(peer, monkeypatch):
    monkeypatch.setattr(http_client, "LONGEST", 2**18)
    peer(b"", [bytes(2**18)])
    assert fleet(peer.way) == bytes(2**18)


def test_an_answer_is_told_as_one_that_is_not_read(peer):
    peer(b"Content-Encoding: gzip, gzip\r\n", [BOMB])
    message = (
        rf"127\.0\.0\.1:{peer.address.port}: no readable answer \(its answer has the content encoding "
        r"'gzip, gzip'.*ask"
    )
    with pytest.raises(ProtocolError, match=message):
        request(peer.way, "/health", {})
