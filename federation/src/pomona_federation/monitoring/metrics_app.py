"""``/metrics`` and ``/health`` of a server or a silo."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pomona.core.errors import LockedError, PomonaError
from pomona_federation.monitoring import metrics
from pomona_federation.monitoring.metrics import WatchedSilo
from pomona_federation.monitoring.prometheus_text import CONTENT_TYPE, Family, merged, rendered
from pomona_federation.monitoring.watched_server import WatchedServer

# host names that a browser on this machine, or a tunnel, may use
LOCAL = ["127.0.0.1", "localhost"]
MAX_CONNECTIONS = 32  # most connections


def application(routes: Sequence[Any]) -> Any:
    """An ASGI application with Starlette's routes, for GET and HEAD only.

    A request whose Host header names another machine is refused: a page elsewhere could let its own
    name point here.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=LOCAL, www_redirect=False)
    app = Starlette(routes=list(routes), middleware=[hosts])
    app.router.redirect_slashes = (
        False  # the redirect would go to whatever the Host header contains after a colon
    )
    return app


def listening(port: int) -> socket.socket:
    """A socket on loopback; port 0 picks a free port. Raises LockedError for a port in use."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as fault:
        raise LockedError(
            f"127.0.0.1:{port}: {fault.strerror}; stop the process that listens there, or give "
            "another --port"
        ) from None


def serve(make: Callable[[], Any], port: int, on_listening: Callable[[int], None]) -> None:
    """Serve an application until a signal.

    Args:
        make: builds the application.
        port: on loopback; 0 picks a free port.
        on_listening: called with the port when connections are accepted.

    Raises LockedError.
    """
    import uvicorn

    with listening(port) as listener:
        settings = uvicorn.Config(
            make(),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=2,
            lifespan="off",
        )
        on_listening(listener.getsockname()[1])
        uvicorn.Server(settings).run(sockets=[listener])


class Report(NamedTuple):
    """A snapshot: all metrics, and the states that determine health, by what they describe."""

    families: list[Family]
    states: dict[str, str]
    healthy: bool


def of_server(kit: Path) -> Callable[[], Report]:
    """A function that reports on a server's kit.

    Raises ConfigError for a folder that is not a kit.
    """
    server = WatchedServer(kit)

    def report() -> Report:
        views = {str(study.status["study"] or ""): study for study in server.studies()}
        families = {title: metrics.families_of_study(study) for title, study in views.items()}
        states = {title: metrics.state_of(study.status) for title, study in views.items()}
        return Report(
            merged("study", families), states, set(states.values()) <= metrics.HEALTHY_STUDY
        )

    return report


def of_silo(kit: Path) -> Callable[[], Report]:
    """A function that reports on a silo's kit.

    Raises ConfigError for a folder that is not a kit.
    """
    silo = WatchedSilo(kit)

    def report() -> Report:
        row, families = silo.report()
        states = {row["federation"]: str(row["state"])}
        return Report(families, states, row["state"] in metrics.HEALTHY_NODE)

    return report


def metrics_app(report: Callable[[], Report]) -> Any:
    """Build the application.

    An unreadable file gives a one-line 503, which Prometheus shows as a target that is down.

    ``/health`` answers 200 or 503, with the states as JSON.
    """
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    def metrics(_: Request) -> Response:
        try:
            return Response(rendered(report().families), media_type=CONTENT_TYPE)
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

    return application([Route("/metrics", metrics), Route("/health", health)])
