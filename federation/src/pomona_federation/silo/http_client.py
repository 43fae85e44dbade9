"""A silo's HTTP client, through TLS and a proxy at a limited speed; the only one that reaches
beyond the machine.

Nothing is taken from the environment. Answers are read as plain bytes and counted as they come: no
decoder runs, since a few kB in two layers of gzip can expand to gigabytes.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import httpx

from pomona_federation.address import Address
from pomona_federation.agreement import Federation
from pomona_federation.certificates import ClientCertificate, client_context, password
from pomona_federation.silo.settings import SiloFile, proxy_address


@dataclass(frozen=True)
class ServerRoute:
    """A silo's route to its server.

    Attributes:
        server: its address.
        ca: the certificate of the federation's authority; None without TLS.
        certificate: the silo's own certificate and key; None if the server does not ask for them.
        proxy: URL without name and password; "" for none.
        login: name and password for the proxy.
        upload, download: limits in megabits a second; None for no limit.
    """

    server: Address
    ca: Path | None = None
    certificate: ClientCertificate | None = None
    proxy: str = ""
    login: tuple[str, str] | None = field(default=None, repr=False)
    upload: float | None = None
    download: float | None = None

    @classmethod
    def of_kit(cls, folder: Path, silo: SiloFile, federation: Federation) -> "ServerRoute":
        """The route of a silo's kit. Raises ConfigError for an unusable password file."""
        certificate = ClientCertificate(folder / "certs" / "silo.crt", folder / "keys" / "silo.key")
        return cls(
            Address.parse(federation.server),
            None if federation.insecure else folder / "certs" / "ca.crt",
            certificate if federation.mutual_tls else None,
            silo.proxy,
            _login(silo),
            silo.max_upload_mbit_s,
            silo.max_download_mbit_s,
        )

    @property
    def url(self) -> str:
        """The server's URL, without a path."""
        return f"{'https' if self.ca else 'http'}://{self.server}"

    @property
    def port(self) -> int:
        """The port at the other end of this machine's connections: the proxy's, or the server's."""
        return proxy_address(self.proxy).port if self.proxy else self.server.port


def _login(silo: SiloFile) -> tuple[str, str] | None:
    path = silo.proxy_password_file
    return None if path is None else (silo.proxy_user, password(path, "the proxy's"))


# start of the text for a proxy's refusal; Flower's log contains it, too
REFUSES = "the proxy refuses"
UNREACHABLE = "5"  # start of a proxy's answer if the server cannot be reached
# bytes of an answer: Flower's app has 10 MB at most, and a piece of a message 5 MiB
LONGEST = 32 * 2**20


PIECE = 2**14  # bytes sent at once: small, so that heartbeats pass between the pieces of a model
MBIT = 1e6 / 8  # bytes
SLOWEST = MBIT  # bytes a second of one of two requests at once on a line of 2 Mbit/s


@dataclass
class Bandwidth:
    """Bandwidth limit, granted in order of request.

    Each caller reserves the next free time span under a lock, and waits for its end without the
    lock.

    Args:
        rate: bytes a second.
        clock, sleep: of the machine; seconds.
    """

    rate: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _free: float = float("-inf")  # when everything granted so far has been sent
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def of_mbit(cls, mbit: float | None) -> "Bandwidth | None":
        """A limit in megabits a second; None for no limit."""
        return None if mbit is None else cls(mbit * MBIT)

    def acquire(self, size: int) -> None:
        """Wait until ``size`` more bytes have passed."""
        with self._lock:
            current = self.clock()
            self._free = max(self._free, current) + size / self.rate
            seconds = self._free - current
        self.sleep(seconds)

    def paced(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The same bytes in paced pieces."""
        for chunk in chunks:
            for offset in range(0, len(chunk), PIECE):
                piece = chunk[offset : offset + PIECE]
                self.acquire(len(piece))
                yield piece


class AnswerRefused(httpx.RequestError):
    """An answer that is not read; Flower does not retry it, as it would after a broken
    connection.
    """


def ask_plain(request: httpx.Request) -> None:
    """Make a request ask for an answer without a content encoding."""
    request.headers["Accept-Encoding"] = "identity"


def require_plain(answer: httpx.Response) -> None:
    """Raise AnswerRefused for an answer with any content encoding, before a byte of its body is
    read.
    """
    if (encoding := answer.headers.get("Content-Encoding")) is not None:
        raise AnswerRefused(
            f"its answer has the content encoding {encoding[:40]!r}, and only plain bytes are read"
        )


PLAIN: dict[str, list[Callable[..., None]]] = {"request": [ask_plain], "response": [require_plain]}
"""Hooks of a client that reads plain bytes."""


def client(route: ServerRoute, timeout: float = 30.0) -> httpx.Client:
    """A client for a silo's route to the server.

    Raises ConfigError if a certificate or a key of the silo cannot be used, and StorageError for
    files that cannot be read.
    """
    proxy = httpx.Proxy(route.proxy, auth=route.login) if route.proxy else None
    context = client_context(route.ca, route.certificate) if route.ca else True
    transport = LimitedTransport(
        httpx.HTTPTransport(verify=context, proxy=proxy),
        Bandwidth.of_mbit(route.upload),
        Bandwidth.of_mbit(route.download),
    )
    return httpx.Client(
        transport=transport,
        timeout=timeout,
        follow_redirects=False,
        trust_env=False,
        event_hooks=PLAIN,
    )


class LimitedTransport(httpx.BaseTransport):
    """A transport with limited speed that distinguishes a proxy's refusals from an unreachable
    server.
    """

    def __init__(
        self, transport: httpx.BaseTransport, upload: Bandwidth | None, download: Bandwidth | None
    ) -> None:
        self._transport, self._upload, self._download = transport, upload, download

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the answer's body is read later, and raises AnswerRefused beyond
        ``LONGEST``.

        A large body can be in the kernel's buffers long before it is at the server: its answer is
        waited for as long as a slow line takes. Sent again and again, it would never arrive.
        """
        timeout, size = request.extensions.get("timeout", {}), request.headers.get("Content-Length")
        if size and timeout.get("read"):
            timeout["read"] += int(size) / SLOWEST
        if self._upload:
            assert isinstance(request.stream, httpx.SyncByteStream), (
                "Flower's requests have their bytes"
            )
            request.stream = PacedBody(request.stream, self._upload)
        try:
            answer = self._transport.handle_request(request)
        except httpx.ProxyError as fault:
            if str(fault).startswith(UNREACHABLE):  # as without a proxy: Flower tries again
                raise httpx.ConnectError(f"the proxy does not reach the server ({fault})") from None
            raise httpx.ProxyError(f"{REFUSES} ({fault})") from None
        assert isinstance(answer.stream, httpx.SyncByteStream), "of a synchronous transport"
        answer.stream = BoundedBody(answer.stream)
        if self._download:
            answer.stream = PacedBody(answer.stream, self._download)
        return answer

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()


class BoundedBody(httpx.SyncByteStream):
    """A body of at most ``LONGEST`` bytes; raises AnswerRefused beyond."""

    def __init__(self, body: httpx.SyncByteStream) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for piece in self._body:
            size += len(piece)
            if size > LONGEST:
                raise AnswerRefused(f"its answer has more than {LONGEST} bytes")
            yield piece

    def close(self) -> None:
        """Close the body."""
        self._body.close()


class PacedBody(httpx.SyncByteStream):
    """A body with limited speed."""

    def __init__(self, body: httpx.SyncByteStream, bandwidth: Bandwidth) -> None:
        self._body, self._bandwidth = body, bandwidth

    def __iter__(self) -> Iterator[bytes]:
        return self._bandwidth.paced(self._body)

    def close(self) -> None:
        """Close the body."""
        self._body.close()
