"""ASGI gate before the runtime that a SuperNode serves on loopback: to this account's processes, and root's, alone.

Flower reads and parses a request's body before it looks at the token, and every account of the machine reaches the
port. Whose a connection is the kernel says, before a byte of a body is read.
"""

from dataclasses import dataclass

from pomona_federation.supervision.asgi import Application, Receive, Scope, Send
from pomona_federation.supervision.connection_owner import ours

REFUSED = b"this port serves its own account alone\n"


@dataclass(frozen=True)
class OwnAccount:
    """ASGI middleware; ``app`` is Flower's."""

    app: Application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403 and read nothing of it."""
        if scope["type"] == "lifespan" or ours(scope.get("client"), scope.get("server")):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSED})
