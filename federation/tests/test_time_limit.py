"""A server that sends an occasional byte: each read succeeds, but the whole answer has a time
limit.
"""

import socket
import ssl
import threading
import time
from contextlib import suppress

import pytest

from pomona.core.errors import ProtocolError
from pomona_federation import certificates
from pomona_federation.address import Address
from pomona_federation.silo.http_client import ServerRoute
from pomona_federation.silo.server_requests import request

pytestmark = pytest.mark.long

HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
BODY = b"\r\nmember"
SLOW = 100  # bytes that come one by one, 0.05 s apart; then the answer goes on as any other


@pytest.fixture(params=["http", "https"])
def trickling(request, tmp_path):
    """A route to a server, and a function that sets its answer: at once, slowly, and at once
    again.
    """
    listening, ca = socket.create_server(("127.0.0.1", 0)), tmp_path / "ca.crt"
    context = None
    if request.param == "https":
        authority = certificates.authority("clinics")
        pair = certificates.server(authority, ["127.0.0.1"])
        for name, content in (
            ("ca.crt", authority.public),
            ("own.crt", pair.public),
            ("own.key", pair.private),
        ):
            (tmp_path / name).write_bytes(content)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "own.crt", tmp_path / "own.key")

    def answer(first, slowly, last):
        def serve():
            plain, _ = listening.accept()
            with suppress(OSError), context.wrap_socket(plain, True) if context else plain as link:
                link.recv(2**16)
                link.sendall(first)
                for byte in slowly:
                    link.sendall(bytes([byte]))
                    time.sleep(0.05)
                link.sendall(last)

        threading.Thread(target=serve, daemon=True).start()

    yield (
        ServerRoute(Address("127.0.0.1", listening.getsockname()[1]), ca if context else None),
        answer,
    )
    listening.close()


@pytest.mark.parametrize(
    "pieces",
    [(HEAD, b"X-More: " + b"x" * SLOW, b"\r\n" + BODY), (HEAD + b"\r\n", b"x" * SLOW, b"")],
    ids=["head", "body"],
)
def test_an_answer_that_trickles_ends_at_the_limit(trickling, pieces):
    route, answer = trickling
    answer(*pieces)
    with pytest.raises(ProtocolError, match=r"does not answer|has not answered within 0\.5 s"):
        request(route, "/health", {}, max_bytes=10**6, total_timeout=0.5)


def test_a_slow_answer_within_the_limit_is_read(trickling):
    route, answer = trickling
    answer(HEAD, b"X-More: x", b"\r\n" + BODY)
    assert request(route, "/health", {}, total_timeout=30.0).text == b"member"
