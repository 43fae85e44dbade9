"""Whether a SuperNode that lives still works, as far as that can be seen without asking the server about it."""

import http.client
import ssl
from base64 import b64encode
from collections.abc import Sequence
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


@dataclass(frozen=True)
class ConnectionState:
    """One look at a node that lives: was it connected to the server, and could the server be reached from here."""

    time: float
    connected: bool
    reachable: bool


def wedged(sights: Sequence[ConnectionState], patience: float = PATIENCE) -> bool:
    """Whether a node that lives has given up: never connected in ``patience`` seconds in which the server was there.

    After an error whose text speaks of TLS (a load balancer that drops a connection is enough) Flower's SuperNode stops
    its work for good, but its process goes on. Its log is silent then, as it is while a model trains for hours, and its
    status can be asked of the server only, which a silo must not. But a node that works opens a connection for every
    heartbeat, each 30 s, and keeps it for 5 s, whatever its app does: looking each second, none is missed, and five
    heartbeats in a row cannot be. While the server cannot be reached the node is right to wait, so that time does not
    count; nor does the time before the first look.

    Args:
        sights: looks at one process, oldest first, about one a second.
        patience: seconds.
    """
    if not sights or sights[-1].time - sights[0].time < patience:
        return False
    recent = [s for s in sights if s.time >= sights[-1].time - patience]
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


def through(proxy: str) -> Address | None:
    """Where a proxy listens; None for no proxy."""
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
class ProbeAnswer:
    """What a server that answers shows (UTC): its clock, where it says, and with TLS the end of its certificate."""

    clock: datetime | None
    until: datetime | None


def knock(federation: Federation, ca: Path, proxy: str = "", timeout: float = 10.0) -> ProbeAnswer:
    """Ask the server for its health as a silo would reach it.

    Raises ProtocolError with the reason and the remedy.
    """
    server = Address.parse(federation.server)
    host, port = through(proxy) or server
    try:
        if federation.insecure:
            line: http.client.HTTPConnection = http.client.HTTPConnection(host, port, timeout=timeout)
        else:
            context = ssl.create_default_context(cafile=str(ca))
            line = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        if proxy:
            line.set_tunnel(*server, headers=_authorization(proxy))
        try:
            line.request("GET", "/health")
            until = _until(line.sock)
            answer = line.getresponse()
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
    said = answer.headers.get("Date")
    return ProbeAnswer(parsedate_to_datetime(said).astimezone(UTC) if said else None, until)


def _until(socket: Any) -> datetime | None:
    """When the certificate at the other end of a connection ends; None without TLS."""
    if not isinstance(socket, ssl.SSLSocket):
        return None
    shown = socket.getpeercert()
    assert shown, "it was verified"
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), UTC)
