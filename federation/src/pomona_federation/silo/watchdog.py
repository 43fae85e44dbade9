"""Watchdog: whether a SuperNode still works, judged by its connections, and whether the server can be reached."""

import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock, Timer
from typing import Any

import psutil

from pomona.core.errors import ProtocolError
from pomona_federation.silo.http_client import ServerRoute

HEARTBEAT = 30.0  # seconds between a SuperNode's heartbeats
PATIENCE = 5 * HEARTBEAT
SHORT = 100  # bytes of an answer that are read
WHOLE = 60.0  # seconds until an answer must be complete: the supervisor has other duties


MADE = ("connect_tcp.complete", "start_tls.complete")  # httpcore events; a TLS stream replaces the plain one


@dataclass
class TimeLimit:
    """One request's time limit; ``over`` once it was reached. ``extensions`` belong to the request."""

    over: bool = False
    _links: list[socket.socket] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    @property
    def extensions(self) -> dict[str, Any]:
        """Extensions to pass to httpx with the request, so that its connections are known."""
        return {"trace": self._seen}

    def _seen(self, event: str, about: dict[str, Any]) -> None:
        if event.endswith(MADE):
            with self._lock:
                self._links.append(about["return_value"].get_extra_info("socket"))
            if self.over:
                self.end()

    def end(self) -> None:
        """Shut the connections down; any reader gets the end of the stream."""
        with self._lock:
            self.over = True
            for link in self._links:
                with suppress(OSError):  # closed, or in TLS now
                    socket.socket.shutdown(
                        link, socket.SHUT_RDWR
                    )  # an SSLSocket's own would change state that the reader is using


@contextmanager
def limited(seconds: float) -> Iterator[TimeLimit]:
    """Limit the requests in the block to this many seconds in total."""
    limit = TimeLimit()
    timer = Timer(seconds, limit.end)
    timer.daemon = True
    timer.start()
    try:
        yield limit
    finally:
        timer.cancel()


@dataclass(frozen=True)
class ConnectionState:
    """A running node at one moment: whether it is connected to the server, and whether the server is reachable."""

    time: float
    connected: bool
    reachable: bool


def stuck(seen: Sequence[ConnectionState], patience: float = PATIENCE) -> bool:
    """Return whether a running node has given up: no connection in ``patience`` seconds with the server in reach.

    After an error whose text mentions TLS (a load balancer that drops a connection is enough) Flower's SuperNode stops
    its work for good, but its process keeps running. Its log is silent then, as it is while a model trains for hours,
    and only the server's control interface, which is closed to silos, knows its status. But a working node opens a
    connection for every heartbeat, every 30 s, and keeps it for 5 s, whatever its app does: one observation a second
    misses none of them, and five heartbeats in a row cannot be missed. While the server cannot be reached the node is
    right to wait, so that time does not count; nor does the time before the first observation.

    Args:
        seen: states of one process, oldest first, about one a second.
        patience: seconds.
    """
    if not seen or seen[-1].time - seen[0].time < patience:
        return False
    recent = [s for s in seen if s.time >= seen[-1].time - patience]
    return all(s.reachable and not s.connected for s in recent)


def connected(pid: int, port: int) -> bool:
    """Return whether a process has a TCP connection to a remote port."""
    try:
        sockets = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(s.status == psutil.CONN_ESTABLISHED and s.raddr.port == port for s in sockets)


@dataclass(frozen=True)
class HealthAnswer:
    """A server's clock (UTC), if it sends a readable one, and the expiry of its certificate (UTC), with TLS."""

    clock: datetime | None
    certificate_until: datetime | None


@dataclass(frozen=True)
class Answered:
    """An answer with status 200: its first bytes, its date, and the certificate's expiry, with TLS."""

    text: bytes
    date: str | None
    until: datetime | None


def ask_health(way: ServerRoute, timeout: float = 10.0) -> HealthAnswer:
    """Request the server's ``/health`` over the silo's route.

    Raises ProtocolError if it does not answer, or not as the federation's server.
    """
    found = request(way, "/health", {}, timeout)
    return HealthAnswer(clock(found.date or ""), found.until)


def clock(date: str) -> datetime | None:
    """The time (UTC) in a ``Date`` header; None for an unreadable one."""
    try:
        return parsedate_to_datetime(date).astimezone(UTC)
    except (ValueError, TypeError, IndexError, ArithmeticError, OSError):  # of the library, by the text
        return None


def request(
    way: ServerRoute,
    path: str,
    headers: Mapping[str, str],
    timeout: float = 10.0,
    body: bytes | None = None,
    most: int = SHORT,
    whole: float = WHOLE,
) -> Answered:
    """GET a path of the server, or POST a body to it, over the silo's route.

    Args:
        way: route to the server.
        path: of the request.
        headers: of the request.
        timeout: seconds until the next byte.
        body: to send, if any.
        most: bytes of the answer that are read.
        whole: seconds until the answer must be complete.

    Raises ProtocolError if it does not answer with 200, or not as the federation's server.
    """
    import httpx  # installed with Flower, which a machine used only for viewing may lack

    from pomona_federation.silo.http_client import REFUSES, AnswerRefused, client

    through = f" through {way.proxy}" if way.proxy else ""
    try:
        word = "GET" if body is None else "POST"
        asked: dict[str, Any] = {"method": word, "url": way.url + path, "headers": dict(headers), "content": body}
        with (
            limited(whole) as limit,
            client(way, timeout) as line,
            line.stream(**asked, extensions=limit.extensions) as answer,
        ):
            until = _until(answer.extensions["network_stream"].get_extra_info("ssl_object"))
            text = _beginning(answer.iter_raw(2**16), most)
    except httpx.ProxyError as fault:
        raise ProtocolError(_refused(way, str(fault).removeprefix(REFUSES).strip(" ()"))) from None
    except AnswerRefused as fault:
        raise ProtocolError(
            f"{way.server} is not read: {fault}; look for a proxy that opens TLS, and ask its administrator"
        ) from None
    except httpx.HTTPError as fault:
        if (shown := _certificate_fault(fault)) is not None:
            raise ProtocolError(
                f"{way.server} shows a certificate that is not the federation's ({shown}); ask for the authority's "
                "ca.crt, and look for a proxy that opens TLS"
            ) from None
        raise ProtocolError(
            f"{way.server} does not answer{through} ({fault}); is the server running, and the connection open?"
        ) from None
    if limit.over:  # without a length, a complete and a cut answer look alike
        raise ProtocolError(f"{way.server} has not answered within {whole:g} s; is the connection too slow?")
    if answer.status_code == 401:
        raise ProtocolError(
            f"{way.server} refuses this silo's key (401): it was revoked or never added, or the clocks differ; "
            "`pomona silo check` compares them"
        )
    if answer.status_code != 200:
        raise ProtocolError(f"{way.server} answers {answer.status_code}; is it a Pomona server?")
    return Answered(text, answer.headers.get("Date"), until)


def _refused(way: ServerRoute, answer: str) -> str:
    """Advice for a proxy that refuses."""
    if not answer.startswith(("407", "401")):  # the latter is tinyproxy's for a wrong password
        return f"the proxy {way.proxy} refuses the way to {way.server} ({answer}); have its administrator open it"
    remedy = (
        f"it does not take the password of {way.login[0]}; correct proxy_password_file"
        if way.login
        else "it asks for a password: set proxy_user and proxy_password_file in silo.toml"
    )
    return f"the proxy {way.proxy} refuses this silo ({answer}): {remedy}"


def _certificate_fault(fault: BaseException | None) -> str | None:
    """Why a certificate was not accepted, if that caused the fault."""
    while fault is not None:
        if isinstance(fault, ssl.SSLCertVerificationError):
            return fault.verify_message
        fault = fault.__cause__ or fault.__context__
    return None


def _beginning(pieces: Iterable[bytes], most: int) -> bytes:
    """Return the first bytes of an answer, reading no more than needed."""
    text = bytearray()
    for piece in pieces:
        text += piece
        if len(text) >= most:
            break
    return bytes(text[:most])


def _until(link: Any) -> datetime | None:
    """Return the expiry (UTC) of the certificate at the other end of a connection; None without TLS."""
    if link is None:
        return None
    shown = link.getpeercert()
    assert shown, "it was verified"
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), UTC)
