"""A silo's requests to its server outside Flower's connection: whether it answers, and whether the
silo is a member.

The request about membership is signed by the silo's key, and the server's certificate authenticates
the answer. It affects only the connection: a revoked silo stops connecting after several identical
answers, and its administrator can make it try again.
"""

import re
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from threading import Lock, Timer
from typing import Any, Literal, get_args

from pomona.core.errors import ConfigError, ProtocolError
from pomona_federation import keys
from pomona_federation.messages.study_bodies import MEMBERSHIP
from pomona_federation.silo.http_client import ServerRoute

ANSWER_BYTES = 100  # bytes of an answer that are read
TOTAL_TIMEOUT = 60.0  # seconds until an answer must be complete: the supervisor has other duties


# httpcore events; a TLS stream replaces the plain one
CONNECTION_EVENTS = ("connect_tcp.complete", "start_tls.complete")


@dataclass
class TimeLimit:
    """One request's time limit; ``expired`` once it was reached.

    ``extensions`` belong to the request.
    """

    expired: bool = False
    _links: list[socket.socket] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    @property
    def extensions(self) -> dict[str, Any]:
        """Extensions to pass to httpx with the request, so that its connections are known."""
        return {"trace": self._trace}

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        if event.endswith(CONNECTION_EVENTS):
            with self._lock:
                self._links.append(info["return_value"].get_extra_info("socket"))
            if self.expired:
                self.end()

    def end(self) -> None:
        """Shut the connections down; any reader gets the end of the stream."""
        with self._lock:
            self.expired = True
            for link in self._links:
                with suppress(OSError):  # closed, or in TLS now
                    # an SSLSocket's own would change state that the reader is using
                    socket.socket.shutdown(link, socket.SHUT_RDWR)


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
class HealthAnswer:
    """A server's clock (UTC), if it sends a readable one, and the expiry of its certificate (UTC),
    with TLS.
    """

    clock: datetime | None
    certificate_until: datetime | None


@dataclass(frozen=True)
class Response:
    """An answer with status 200: its first bytes, its date, and the certificate's expiry, with
    TLS.
    """

    text: bytes
    date: str | None
    expiry: datetime | None


def ask_health(route: ServerRoute) -> HealthAnswer:
    """Request the server's ``/health`` over the silo's route.

    Raises ProtocolError if it does not answer, or not as the federation's server.
    """
    answer = request(route, "/health", {})
    return HealthAnswer(clock(answer.date or ""), answer.expiry)


def clock(date: str) -> datetime | None:
    """The time (UTC) in a ``Date`` header; None for an unreadable one."""
    # of the library, by the text
    try:
        return parsedate_to_datetime(date).astimezone(UTC)
    except (ValueError, TypeError, IndexError, ArithmeticError, OSError):
        return None


def request(
    route: ServerRoute,
    path: str,
    headers: Mapping[str, str],
    timeout: float = 10.0,
    body: bytes | None = None,
    max_bytes: int = ANSWER_BYTES,
    total_timeout: float = TOTAL_TIMEOUT,
) -> Response:
    """GET a path of the server, or POST a body to it, over the silo's route.

    Args:
        route: route to the server.
        path: of the request.
        headers: of the request.
        timeout: seconds until the next byte.
        body: to send, if any.
        max_bytes: bytes of the answer that are read.
        total_timeout: seconds until the answer must be complete.

    Raises ProtocolError if it does not answer with 200, or not as the federation's server.
    """
    import httpx  # installed with Flower, which a machine used only for viewing may lack

    from pomona_federation.silo.http_client import REFUSES, AnswerRefused, client

    through = f" through {route.proxy}" if route.proxy else ""
    try:
        method = "GET" if body is None else "POST"
        arguments: dict[str, Any] = {
            "method": method,
            "url": route.url + path,
            "headers": dict(headers),
            "content": body,
        }
        with (
            limited(total_timeout) as limit,
            client(route, timeout) as line,
            line.stream(**arguments, extensions=limit.extensions) as answer,
        ):
            expiry = _certificate_expiry(
                answer.extensions["network_stream"].get_extra_info("ssl_object")
            )
            text = _beginning(answer.iter_raw(2**16), max_bytes)
    except httpx.ProxyError as fault:
        raise ProtocolError(
            _refused(route, str(fault).removeprefix(REFUSES).strip(" ()"))
        ) from None
    except AnswerRefused as fault:
        raise ProtocolError(
            f"{route.server}: no readable answer ({fault}); if a proxy opens TLS, ask its "
            "administrator"
        ) from None
    except httpx.HTTPError as fault:
        if (problem := _certificate_fault(fault)) is not None:
            raise ProtocolError(
                f"{route.server} shows a certificate that this silo refuses {problem}"
            ) from None
        raise ProtocolError(
            f"{route.server} does not answer{through} ({fault}); is the server running, and the "
            "connection open?"
        ) from None
    if limit.expired:  # without a length, a complete and a cut answer look alike
        raise ProtocolError(
            f"{route.server} has not answered within {total_timeout:g} s; is the connection too "
            "slow?"
        )
    if answer.status_code == 401:
        raise ProtocolError(
            f"{route.server} refuses this silo's key (401): it was revoked or never added, or the "
            "clocks differ; `pomona silo check` compares them"
        )
    if answer.status_code != 200:
        raise ProtocolError(f"{route.server} answers {answer.status_code}; is it a Pomona server?")
    return Response(text, answer.headers.get("Date"), expiry)


def _refused(route: ServerRoute, answer: str) -> str:
    """Advice for a proxy that refuses."""
    if not answer.startswith(("407", "401")):  # the latter is tinyproxy's for a wrong password
        return (
            f"the proxy {route.proxy} refuses the way to {route.server} ({answer}); have its "
            "administrator open it"
        )
    remedy = "it asks for a password: set proxy_user and proxy_password_file in silo.toml"
    if route.login:
        remedy = f"it does not take the password of {route.login[0]}; correct proxy_password_file"
    return f"the proxy {route.proxy} refuses this silo ({answer}): {remedy}"


def _certificate_fault(fault: BaseException | None) -> str | None:
    """Why a certificate was not accepted, and what to do, if that caused the fault."""
    while fault is not None:
        if isinstance(fault, ssl.SSLCertVerificationError):
            remedy = "is this a kit of another federation? if not, look for a proxy that opens TLS"
            if re.search("expired|not yet valid", fault.verify_message):
                remedy = "correct this machine's clock, or have the server's administrator renew it"
            elif "not valid for" in fault.verify_message:
                remedy = "it is for another address: is server in federation.toml right?"
            return f"({fault.verify_message}); {remedy}"
        fault = fault.__cause__ or fault.__context__
    return None


def _beginning(pieces: Iterable[bytes], max_bytes: int) -> bytes:
    """Return the first bytes of an answer, reading no more than needed."""
    text = bytearray()
    for piece in pieces:
        text += piece
        if len(text) >= max_bytes:
            break
    return bytes(text[:max_bytes])


def _certificate_expiry(link: Any) -> datetime | None:
    """Return the expiry (UTC) of the certificate at the other end of a connection; None without
    TLS.
    """
    if link is None:
        return None
    certificate = link.getpeercert()
    assert certificate, "it was verified"
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC)


REFUSALS = 5  # consecutive "revoked" answers, each after a refused connection, until a silo stops
Membership = Literal["member", "revoked", "unknown", "unsaid"]


def ask_membership(route: ServerRoute, key: Path) -> Membership:
    """Ask the server; "unsaid" if it does not answer, gives no known answer, or has no keys.

    Args:
        route: route to the server.
        key: this silo's private key, in OpenSSH's format.
    """
    if route.ca is None:
        return "unsaid"
    try:
        text = request(route, MEMBERSHIP, signed(key)).text.decode("ascii", "replace").strip()
    except (ProtocolError, ConfigError, OSError, ValueError):
        return "unsaid"
    return next((value for value in get_args(Membership) if value == text), "unsaid")


def signed(key: Path) -> dict[str, str]:
    """Headers that authenticate a request, as Flower's nodes make them.

    Raises ConfigError for a bad key.
    """
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    private_key, timestamp = keys.private_key(key), now().isoformat()
    public_key = private_key.public_key()
    signature = sign_message(private_key, timestamp.encode())
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(public_key)).decode(),
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
        TIMESTAMP_HEADER: timestamp,
    }


def explained(membership: Membership, reason: str, times: int) -> str:
    """Why a node was refused; ``reason`` from its log, if the server has not said whether this silo
    is a member.

    Args:
        membership: from the server.
        reason: of the refusal.
        times: number of consecutive identical answers from the server.
    """
    match membership:
        case "revoked":
            return (
                f"the server says that this silo was revoked ({times} of {REFUSALS} times); ask "
                "its administrator, and if it was a mistake, `pomona silo start` tries again"
            )
        case "unknown":
            return (
                "the server does not know this silo's key, or the clocks differ: `pomona silo "
                "check` compares them; if they agree, ask the server's administrator about it"
            )
        case "member":
            return (
                "this silo is a member; the server still counts its last connection, for up to a "
                "minute, or was just starting; if it stays so, another copy of this silo runs"
            )
        case _:
            return reason
