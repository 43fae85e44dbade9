"""Watchdog: whether a SuperNode still works, seen by its connections, and whether the server can be reached."""

import http.client
import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil

from pomona.core.errors import ProtocolError
from pomona.deploy.agreement import Address, Federation

HEARTBEAT = 30.0  # seconds between a SuperNode's signs of life
PATIENCE = 5 * HEARTBEAT
SHORT = 100  # bytes of an answer that are read


@dataclass(frozen=True)
class ConnectionState:
    """A running node at one moment: whether it is connected to the server, and whether the server can be reached."""

    time: float
    connected: bool
    reachable: bool


def stuck(seen: Sequence[ConnectionState], patience: float = PATIENCE) -> bool:
    """Return whether a running node has given up: no connection in ``patience`` seconds with the server in reach.

    After an error whose text speaks of TLS (a load balancer that drops a connection is enough) Flower's SuperNode stops
    its work for good, but its process goes on. Its log is silent then, as it is while a model trains for hours, and its
    status can be asked of the server only, which a silo must not. But a node that works opens a connection for every
    heartbeat, each 30 s, and keeps it for 5 s, whatever its app does: one observation a second misses none of them, and
    five heartbeats in a row cannot be missed. While the server cannot be reached the node is right to wait, so that
    time does not count; nor does the time before the first observation.

    Args:
        seen: states of one process, oldest first, about one a second.
        patience: seconds.
    """
    if not seen or seen[-1].time - seen[0].time < patience:
        return False
    recent = [s for s in seen if s.time >= seen[-1].time - patience]
    return all(s.reachable and not s.connected for s in recent)


def connected(pid: int, port: int, local: int) -> bool:
    """Return whether a process has a TCP connection to a remote port.

    Args:
        pid: the process's id.
        port: the remote port.
        local: the port that the process listens on itself; connections to that come from any remote port.
    """
    try:
        sockets = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(s.status == psutil.CONN_ESTABLISHED and s.raddr.port == port and s.laddr.port != local for s in sockets)


def proxy_address(proxy: str) -> Address | None:
    """Return the address of a proxy; None for no proxy."""
    if not proxy:
        return None
    way = urlsplit(proxy)
    return Address(way.hostname or "", way.port or (443 if way.scheme == "https" else 80))


def _authorization(proxy: str) -> dict[str, str]:
    way = urlsplit(proxy)
    if way.username is None:
        return {}
    known = f"{unquote(way.username)}:{unquote(way.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(known.encode()).decode()}"}


@dataclass(frozen=True)
class HealthAnswer:
    """A server's clock (UTC), if it states one, and the end of its certificate (UTC), with TLS."""

    clock: datetime | None
    certificate_until: datetime | None


@dataclass(frozen=True)
class Answered:
    """An answer with status 200: its first ``SHORT`` bytes, its date, and the end of the certificate, with TLS."""

    text: bytes
    date: str | None
    until: datetime | None


def ask_health(federation: Federation, ca: Path, proxy: str = "", timeout: float = 10.0) -> HealthAnswer:
    """Request the server's ``/health`` on the way that a silo reaches it.

    Raises ProtocolError if it does not answer, or not as the federation's server.
    """
    found = request(federation, ca, "/health", {}, proxy, timeout)
    return HealthAnswer(parsedate_to_datetime(found.date).astimezone(UTC) if found.date else None, found.until)


def request(
    federation: Federation, ca: Path, path: str, headers: Mapping[str, str], proxy: str = "", timeout: float = 10.0
) -> Answered:
    """GET a path of the server, on the way that a silo reaches it.

    Raises ProtocolError if it does not answer with 200, or not as the federation's server.
    """
    server = Address.parse(federation.server)
    host, port = proxy_address(proxy) or server
    try:
        if federation.insecure:
            line: http.client.HTTPConnection = http.client.HTTPConnection(host, port, timeout=timeout)
        else:
            context = ssl.create_default_context(cafile=str(ca))
            line = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        if proxy:
            line.set_tunnel(*server, headers=_authorization(proxy))
        try:
            line.request("GET", path, headers=dict(headers))
            until = _until(line.sock)
            answer = line.getresponse()
            text = answer.read(SHORT)
        finally:
            line.close()
    except ssl.SSLCertVerificationError as fault:
        raise ProtocolError(
            f"{federation.server} shows a certificate that is not the federation's ({fault.verify_message}); ask for "
            "the authority's ca.crt, and look for a proxy that opens TLS"
        ) from None
    except (OSError, http.client.HTTPException) as fault:
        way = f" through {host}:{port}" if proxy else ""
        raise ProtocolError(
            f"{federation.server} does not answer{way} ({fault}); is the server up, and the way out open?"
        ) from None
    if answer.status != 200:
        raise ProtocolError(f"{federation.server} answers {answer.status}; is it a Pomona server?")
    return Answered(text, answer.headers.get("Date"), until)


def _until(socket: Any) -> datetime | None:
    """Return the end (UTC) of the certificate at the other end of a connection; None without TLS."""
    if not isinstance(socket, ssl.SSLSocket):
        return None
    shown = socket.getpeercert()
    assert shown, "it was verified"
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), UTC)
