"""Flower's SuperLink behind a gate.

``python -m pomona_federation.superlink KIT`` takes flower-superlink's arguments after the
kit.

SuperLink serves three interfaces on one port. Silos need the fleet's, whose requests they sign with
their keys. The control interface is not authenticated: anyone who reaches it can submit code that
runs on the server. Nor is the runtime's first request. So everything except the fleet's interface
and the health check is answered only to the account that the server runs under, and to root, on
this machine.

With mutual TLS, a silo is served only on a connection that presented a certificate for the key that
signs its requests. TLS asks every client for a certificate and closes the connection for one from
another authority. A connection without a certificate is closed before a byte of HTTP is read,
unless it comes from this machine: SuperLink's own processes have none, and their requests are not
the fleet's. The gate's knowledge about a key, such as its revocation, applies as without mutual
TLS.

A reverse proxy on the same machine must forward ``/v1/fleet`` and nothing else; a request that is
marked as forwarded never counts as one from this machine.
"""

import asyncio
import binascii
import os
import resource
import ssl
import sys
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pomona_federation import flower_internals
from pomona_federation.address import Address
from pomona_federation.agreement import Federation
from pomona_federation.messages.study_bodies import MEMBERSHIP, STUDIES
from pomona_federation.server import contacts
from pomona_federation.server.direct_handlers import DirectHandlers
from pomona_federation.server.gate import (
    OWN_ACCOUNT,
    PAGE,
    Application,
    Gate,
    Headers,
    RequestLimits,
    RequestRefused,
    Scope,
    from_own_account,
    local,
    uplink_limit,
)
from pomona_federation.server.long_poll import LongPoll, Waker, notify
from pomona_federation.server.registry_admin import keys_of, registry_mtime
from pomona_federation.server.study_requests import StudyRequests
from pomona_federation.supervision.supervisor import QUIET, die_with_parent

MODULES = (  # what SuperLink needs
    "alembic.command",
    "flwr.superlink.cli",
    "flwr.superlink.main",
    "httpcore",
    "uvicorn.protocols.http.h11_impl",
)
CLIENT_KEY = "pomona.shown"  # in a request's state: the public key of its connection's certificate


def client_certificate_settings(ca: Path) -> dict[str, Any]:
    """Uvicorn's settings that ask clients for a certificate of one authority (a file)."""
    return {"ssl_cert_reqs": ssl.CERT_OPTIONAL, "ssl_ca_certs": str(ca)}


def with_client_key(protocol: type[Any]) -> type[Any]:
    """Uvicorn's HTTP protocol, for connections that presented a certificate, and for this machine's
    own.
    """

    class WithClientKey(protocol):  # type: ignore[misc]
        app_state: dict[str, Any]

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            key = client_key(transport)
            self.app_state = {**self.app_state, CLIENT_KEY: key}
            if key is None and not local(self.client, self.server):
                transport.abort()

    return WithClientKey


def client_key(transport: asyncio.BaseTransport) -> bytes | None:
    """The public key (PEM) of a connection's client certificate, verified by TLS; None without a
    certificate.
    """
    link = transport.get_extra_info("ssl_object")
    certificate = link.getpeercert(binary_form=True) if link else None
    if not certificate:
        return None
    key = x509.load_der_x509_certificate(certificate).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def verified_head(scope: Scope) -> Headers:
    """A request's head, if its key is the one in its connection's certificate.

    Raises RequestRefused.
    """
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

    by_name = {name.decode("latin-1").lower(): value for name, value in scope["headers"]}
    try:
        key = b64decode(by_name[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
    except (KeyError, ValueError, binascii.Error):
        key = b""
    if not key or key != scope.get("state", {}).get(CLIENT_KEY):
        raise RequestRefused(401, "the connection did not show a certificate of the signing key")
    headers: Headers = scope["headers"]
    return headers


HEAD = 20.0  # seconds until a connection must have sent the complete head of a request
# seconds that a request waits while others write the database: a hundred silos may ask at once
DATABASE = 60


def command(folder: Path, federation: Federation) -> list[str]:
    """The command line of a server kit's SuperLink."""
    bind, certs = Address.parse(federation.bind), folder / "certs"
    keys = (
        ("--ssl-ca-certfile", "ca.crt"),
        ("--ssl-certfile", "server.crt"),
        ("--ssl-keyfile", "server.key"),
    )
    secured = [argument for option, name in keys for argument in (option, str(certs / name))]
    return [
        *(sys.executable, "-m", "pomona_federation.superlink", str(folder)),
        *("--host", bind.host, "--port", str(bind.port)),
        *("--database", str(folder / "run" / "superlink.db")),
        "--disable-runtime-dependency-installation",
        *("--isolation", "process"),  # the supervisor starts ServerApps
        *(["--insecure"] if federation.insecure else ["--enable-supernode-auth", *secured]),
    ]


class RequestAuth:
    """Authenticates requests by the silos' keys in the member registry."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._version, self._keys = folder, -1, dict[bytes, tuple[str, bool]]()

    def __call__(self, headers: Headers) -> str:
        """The member whose key signed a request's head, as Flower's nodes do.

        Raises RequestRefused for others.
        """
        name, revoked = self._signer(headers)
        if not name or revoked:
            raise RequestRefused(401, "no member has signed this request")
        return name

    def membership(self, headers: Headers) -> str:
        """Whether the silo that signed a request's head is a member; only that silo can ask."""
        name, revoked = self._signer(headers)
        return "revoked" if revoked else "member" if name else "unknown"

    def _signer(self, headers: Headers) -> tuple[str, bool]:
        """The silo whose key signed a request's head, and whether it was revoked; ("", False) for
        an unknown key.
        """
        from flwr.common.constant import (
            SYSTEM_TIME_TOLERANCE,
            TIMESTAMP_HEADER,
            TIMESTAMP_TOLERANCE,
        )
        from flwr.supercore.constant import (
            FLEET_HTTP_PUBLIC_KEY_HEADER,
            FLEET_HTTP_SIGNATURE_HEADER,
        )
        from flwr.supercore.date import now
        from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

        by_name = {name.decode("latin-1").lower(): value for name, value in headers}
        try:
            key = b64decode(by_name[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(by_name[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            timestamp = by_name[TIMESTAMP_HEADER]
            age = (now() - datetime.fromisoformat(timestamp.decode("ascii"))).total_seconds()
            silo = self._registered()[key]
            timely = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
            if not timely or not verify_signature(bytes_to_public_key(key), timestamp, signature):
                raise ValueError
        except (KeyError, ValueError, TypeError, UnicodeError, binascii.Error):
            return "", False
        return silo

    def _registered(self) -> Mapping[bytes, tuple[str, bool]]:
        """Silos by public key (PEM), reloaded whenever the registry has been written."""
        version = registry_mtime(self._folder)
        if version != self._version:
            registered = keys_of(self._folder).items()
            self._keys = {key: (name, revoked) for name, (key, revoked) in registered}
            self._version = version
        return self._keys


def http_protocol(seconds: float = HEAD, leaving: Callable[[], None] = lambda: None) -> type[Any]:
    """Uvicorn's HTTP protocol for servers open to strangers; closes a connection without a complete
    head in time.

    Uvicorn itself has no such limit: connections that send nothing, or an occasional byte, would be
    held for ever. Its protocol on h11 holds at most 64 KiB of a head or of trailers; that on
    httptools, its default, any number. Each request is marked with whether its connection belongs
    to the server's own account, checked once per connection.

    Args:
        seconds: until a connection must have sent the complete head of a request.
        leaving: called when the server is about to end; it waits for unanswered requests.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class HeadTimeout(H11Protocol):
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.app_state = {
                **self.app_state,
                OWN_ACCOUNT: from_own_account(self.client, self.server),
            }
            self.wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.wait()

        def connection_lost(self, fault: Exception | None) -> None:
            if self.timer:
                self.timer.cancel()
            super().connection_lost(fault)

        def shutdown(self) -> None:
            leaving()
            super().shutdown()

        def wait(self) -> None:
            if not self.timer and self.idle():
                self.timer = self.loop.call_later(seconds, self.leave)

        def leave(self) -> None:
            self.timer = None
            if self.idle():
                self.transport.close()

        def idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

    return HeadTimeout


def anonymous(_: Scope) -> str:
    """Return no name: in a federation without keys, requests are not authenticated."""
    return ""


def run(page: Callable[[Path, Federation], Application | None]) -> None:
    """Run Flower's SuperLink behind the gate.

    Args:
        page: makes the status page of a kit; None where ``server.toml`` does not ask for it.
    """
    os.environ.update(QUIET)  # Flower reads it on import
    die_with_parent()
    folder = Path(sys.argv.pop(1))
    federation = Federation.read(folder / "federation.toml")
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    # idle connections take a file each
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))

    from starlette.middleware import Middleware

    auth = RequestAuth(folder)
    head: Callable[[Scope], Headers] = (
        verified_head if federation.mutual_tls else lambda scope: scope["headers"]
    )
    authenticate: Callable[[Scope], str] = (
        anonymous if federation.insecure else lambda scope: auth(head(scope))
    )
    membership: Callable[[Scope], str] = (
        anonymous if federation.insecure else lambda scope: auth.membership(head(scope))
    )
    limits = RequestLimits(
        concurrent=RequestLimits.concurrent * (federation.places if federation.insecure else 1)
    )
    uplink = partial(uplink_limit, folder / "run")
    studies = StudyRequests(folder).answer
    gate = Middleware(
        Gate,
        authenticate=authenticate,
        uplink=uplink,
        limits=limits,
        membership=membership,
        studies=studies,
        page=page(folder, federation),
        on_request=partial(contacts.record_request, folder / "run"),
    )
    waker = Waker()
    long_poll = Middleware(LongPoll, on_answer=partial(notify, folder / "run"), waker=waker)
    server: dict[str, Any] = {"http": http_protocol(leaving=waker.close)}
    if federation.mutual_tls:
        print(  # noqa: T201 - the process's log
            "INFO : mutual TLS: silos need a certificate of their key", flush=True
        )
        server = {"http": with_client_key(server["http"])}
        server |= client_certificate_settings(folder / "certs" / "ca.crt")
    quiet = (MEMBERSHIP, STUDIES, PAGE, "/v1/control/list-nodes")  # a few per minute and silo
    layers = (gate, long_poll, Middleware(DirectHandlers))
    flower_internals.run_superlink(layers, server, DATABASE, quiet)
