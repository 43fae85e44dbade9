"""Mutual TLS at the server's port: a silo is served only on a connection that presented a certificate for its own key.

TLS asks every client for a certificate and closes the connection for one from another authority. A connection without a
certificate is closed before a byte of HTTP is read, unless it comes from this machine: SuperLink's own processes have
none, and their requests are not the fleet's. A silo's request must be signed with the key of its connection's
certificate, and the gate's knowledge about that key, such as its revocation, applies as without mutual TLS.
"""

import asyncio
import binascii
import ssl
from base64 import b64decode
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pomona_federation.server.gate.auth_proxy import Headers, RequestRefused, Scope
from pomona_federation.supervision.connection_owner import local

SHOWN = "pomona.shown"  # in a request's state: the public key of its connection's certificate


def asked(ca: Path) -> dict[str, Any]:
    """Uvicorn's settings that ask clients for a certificate of one authority (a file)."""
    return {"ssl_cert_reqs": ssl.CERT_OPTIONAL, "ssl_ca_certs": str(ca)}


def showing(protocol: type[Any]) -> type[Any]:
    """Uvicorn's HTTP protocol, for connections that presented a certificate, and for this machine's own."""

    class Showing(protocol):  # type: ignore[misc]
        app_state: dict[str, Any]

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            key = shown_key(transport)
            self.app_state = {**self.app_state, SHOWN: key}
            if key is None and not local(self.client, self.server):
                transport.abort()

    return Showing


def shown_key(transport: asyncio.BaseTransport) -> bytes | None:
    """The public key (PEM) of a connection's client certificate, verified by TLS; None without a certificate."""
    link = transport.get_extra_info("ssl_object")
    shown = link.getpeercert(binary_form=True) if link else None
    if not shown:
        return None
    key = x509.load_der_x509_certificate(shown).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def shown_head(scope: Scope) -> Headers:
    """A request's head, if its key is the one in its connection's certificate. Raises RequestRefused."""
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

    named = {name.decode("latin-1").lower(): value for name, value in scope["headers"]}
    try:
        key = b64decode(named[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
    except (KeyError, ValueError, binascii.Error):
        key = b""
    if not key or key != scope.get("state", {}).get(SHOWN):
        raise RequestRefused(401, "the connection has shown no certificate of the key that signs")
    headers: Headers = scope["headers"]
    return headers
