"""The HTTP client of a silo: through TLS and a proxy, at a limited speed; the only one that leaves the machine.

Nothing is taken from the environment.
"""

from collections.abc import Iterator

import httpx

from pomona.deploy.pki.client_context import client_context
from pomona.deploy.silo.connection.bandwidth import Bandwidth
from pomona.deploy.silo.connection.way_out import WayOut

REFUSES = "the proxy refuses"  # begins the text of a proxy's refusal; Flower's log has it, too
AWAY = "5"  # begins a proxy's answer where it is the server that cannot be reached


def client(way: WayOut, timeout: float = 30.0) -> httpx.Client:
    """A client on a silo's way out.

    Raises ConfigError where a certificate or a key of the silo cannot be used, and StorageError for files that cannot
    be read.
    """
    proxy = httpx.Proxy(way.proxy, auth=way.login) if way.proxy else None
    context = client_context(way.ca, way.shown) if way.ca else True
    line = Line(httpx.HTTPTransport(verify=context, proxy=proxy), Bandwidth.of(way.up), Bandwidth.of(way.down))
    return httpx.Client(transport=line, timeout=timeout, follow_redirects=False, trust_env=False)


class Line(httpx.BaseTransport):
    """A transport at a limited speed, whose proxy's refusals are told from a server that is away."""

    def __init__(self, line: httpx.BaseTransport, up: Bandwidth | None, down: Bandwidth | None) -> None:
        self._line, self._up, self._down = line, up, down

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the answer's body is still to come."""
        if self._up:
            assert isinstance(request.stream, httpx.SyncByteStream), "Flower's requests have their bytes"
            request.stream = Paced(request.stream, self._up)
        try:
            answer = self._line.handle_request(request)
        except httpx.ProxyError as fault:
            if str(fault).startswith(AWAY):  # as without a proxy: Flower tries again
                raise httpx.ConnectError(f"the proxy does not reach the server ({fault})") from None
            raise httpx.ProxyError(f"{REFUSES} ({fault})") from None
        if self._down:
            assert isinstance(answer.stream, httpx.SyncByteStream), "of a synchronous transport"
            answer.stream = Paced(answer.stream, self._down)
        return answer

    def close(self) -> None:
        """Close all connections."""
        self._line.close()


class Paced(httpx.SyncByteStream):
    """A body that passes at a limited speed."""

    def __init__(self, body: httpx.SyncByteStream, bandwidth: Bandwidth) -> None:
        self._body, self._bandwidth = body, bandwidth

    def __iter__(self) -> Iterator[bytes]:
        return self._bandwidth.paced(self._body)

    def close(self) -> None:
        """Let go of the body."""
        self._body.close()
