"""``/metrics`` and ``/health`` of a server or a silo."""

import socket
from collections.abc import Callable
from typing import Any

from pomona.cli.output import echo_stderr
from pomona.core.errors import LockedError, PomonaError
from pomona_federation.monitoring.metrics import Report

# host names that a browser on this machine, or a tunnel, may use
LOCAL = ["127.0.0.1", "localhost"]
MAX_CONNECTIONS = 32  # most connections


def listening(port: int) -> socket.socket:
    """A socket on loopback; port 0 picks a free port. Raises LockedError for a port in use."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as fault:
        raise LockedError(
            f"127.0.0.1:{port}: {fault.strerror}; stop the process that listens there, or give "
            "another --port"
        ) from None


def serve(app: Any, port: int) -> None:
    """Serve an application on a loopback port (0 for any free one) until a signal.

    Raises LockedError.
    """
    import uvicorn

    with listening(port) as listener:
        settings = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=2,
            lifespan="off",
        )
        echo_stderr(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics and /health")
        uvicorn.Server(settings).run(sockets=[listener])


def metrics_app(report: Callable[[], Report]) -> Any:
    """Build the ASGI application, for GET and HEAD only.

    A request whose Host header names another machine is refused: a page elsewhere could let its own
    name point here. An unreadable file gives a one-line 503, which Prometheus shows as a target
    that is down. ``/health`` answers 200 or 503, with the states as JSON.
    """
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    def metrics(_: Request) -> Response:
        try:
            return Response(generate_latest(report()), media_type=CONTENT_TYPE_LATEST)
        except PomonaError as fault:
            return PlainTextResponse(f"{fault.line()}\n", 503)

    def health(_: Request) -> Response:
        try:
            snapshot = report()
        except PomonaError as fault:
            return JSONResponse({"healthy": False, "error": fault.line()}, 503)
        return JSONResponse(
            {"healthy": snapshot.healthy, "states": snapshot.states},
            200 if snapshot.healthy else 503,
        )

    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=LOCAL, www_redirect=False)
    routes = [Route("/metrics", metrics), Route("/health", health)]
    app = Starlette(routes=routes, middleware=[hosts])
    # a redirect would go to whatever the Host header contains after a colon
    app.router.redirect_slashes = False
    return app
