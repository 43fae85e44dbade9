"""Flower's SuperLink behind a gate: ``python -m pomona.deploy.server.superlink`` and flower-superlink's arguments.

SuperLink serves three interfaces on one port. Silos need the fleet's, whose requests they sign with their keys. The
control interface is not authenticated: whoever reaches it can submit code that runs on the server. Nor is the runtime's
first request. So everything but the fleet's interface and the health check is answered only to this machine itself.

A reverse proxy on the same machine must forward ``/v1/fleet`` and nothing else; a request that says that it was
forwarded is never taken for one of this machine's own.
"""

import ipaddress
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from pomona.deploy.federation import Address, Federation
from pomona.deploy.processes import QUIET, die_with_parent

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = "/v1/fleet/"
HEALTH = "/health"
FORWARDED = {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"}


def command(folder: Path, federation: Federation) -> list[str]:
    """The command line of a server kit's SuperLink."""
    bind = Address.parse(federation.bind)
    certs = folder / "certs"
    keys = ("--ssl-ca-certfile", "ca.crt"), ("--ssl-certfile", "server.crt"), ("--ssl-keyfile", "server.key")
    secured = [word for option, name in keys for word in (option, str(certs / name))]
    return [
        *(sys.executable, "-m", "pomona.deploy.server.superlink"),
        *("--host", bind.host, "--port", str(bind.port)),
        *("--database", str(folder / "run" / "superlink.db")),
        "--disable-runtime-dependency-installation",
        *(["--insecure"] if federation.insecure else ["--enable-supernode-auth", *secured]),
    ]


def passes(scope: Scope) -> bool:
    """Whether a request may go on: the fleet's and the health check always, others only from this machine itself."""
    path = scope.get("path", "")
    if scope["type"] == "lifespan" or (scope["type"] == "http" and (path.startswith(OPEN) or path == HEALTH)):
        return True
    if FORWARDED & {name.lower() for name, _ in scope.get("headers", ())}:
        return False
    peer, here = _ip(scope.get("client")), _ip(scope.get("server"))
    # Where the server listens on one address only, its own processes come from that address.
    return peer is not None and (peer.is_loopback or peer == here)


def _ip(end: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        ip = ipaddress.ip_address(end[0].partition("%")[0])
    except (TypeError, ValueError, IndexError, AttributeError):
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


class Gate:
    """ASGI middleware that answers 403 to what may not pass."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if passes(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": b"forbidden\n"})


def main() -> None:
    """Run Flower's SuperLink behind the gate."""
    os.environ.update(QUIET)  # Flower reads it when it is imported
    die_with_parent()
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    others = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(Gate), *others())
    flower_superlink()


if __name__ == "__main__":
    main()
