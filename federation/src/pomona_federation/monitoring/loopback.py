"""A small read-only web server on loopback, with checks of the Host header and strict headers."""

import socket
from collections.abc import Callable, Sequence
from typing import Any

from pomona.core.errors import ConfigError, LockedError

LOCAL = ["127.0.0.1", "localhost"]  # host names that a browser on this machine, or a tunnel, may use
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
AT_ONCE = 32  # most connections


def application(routes: Sequence[Any], middleware: Sequence[Any] = ()) -> Any:
    """An ASGI application with Starlette's routes, for GET and HEAD only.

    A request whose Host header names another machine is refused: a page elsewhere could let its own name point here.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=LOCAL, www_redirect=False)
    app = Starlette(routes=list(routes), middleware=[hosts, *middleware])
    app.router.redirect_slashes = False  # the redirect would go to whatever the Host header contains after a colon
    return Strict(app)


class Strict:
    """ASGI middleware that sets ``HEADERS`` on every answer."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on."""

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                strict = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *strict]}
            await send(message)

        await self.app(scope, receive, sent)


def listening(port: int) -> socket.socket:
    """A socket on loopback; port 0 picks a free port. Raises LockedError for a port in use."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as fault:
        raise LockedError(
            f"127.0.0.1:{port}: {fault.strerror}; stop who listens there, or give another --port"
        ) from None


def require_web() -> None:
    """Raise ConfigError if the web server that comes with Flower is not installed."""
    try:
        import starlette
        import uvicorn
    except ImportError as fault:
        raise ConfigError(f"this needs a web server ({fault}); install pomona-federation again") from None
    assert starlette
    assert uvicorn


def serve(make: Callable[[], Any], port: int, say: Callable[[int], None]) -> None:
    """Serve an application until a signal.

    Args:
        make: builds the application.
        port: on loopback; 0 picks a free port.
        say: called with the port when connections are accepted.

    Raises ConfigError, LockedError.
    """
    require_web()
    import uvicorn

    with listening(port) as taken:
        # No access log: the first request's address contains the token.
        settings = uvicorn.Config(
            make(), log_level="warning", access_log=False, server_header=False, proxy_headers=False,
            limit_concurrency=AT_ONCE, timeout_keep_alive=5, timeout_graceful_shutdown=2, lifespan="off",
        )  # fmt: skip
        say(taken.getsockname()[1])
        uvicorn.Server(settings).run(sockets=[taken])
