"""``/metrics`` and ``/health`` of a server or a silo."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pomona.core.errors import PomonaError
from pomona_federation.monitoring import server_metrics, silo_metrics
from pomona_federation.monitoring.loopback import application
from pomona_federation.monitoring.prometheus_text import CONTENT_TYPE, Family, rendered, together
from pomona_federation.monitoring.silo_metrics import WatchedSilo
from pomona_federation.monitoring.watched_server import WatchedServer


class Report(NamedTuple):
    """A snapshot: all metrics, and the states that determine health, by what they describe."""

    families: list[Family]
    states: dict[str, str]
    healthy: bool


def of_server(kit: Path) -> Callable[[], Report]:
    """A function that reports on a server's kit. Raises ConfigError for a folder that is not a kit."""
    server = WatchedServer.of(kit)

    def report() -> Report:
        found = {str(study.standing["study"] or ""): study for study in server.studies()}
        families = {title: server_metrics.families(study) for title, study in found.items()}
        states = {title: server_metrics.state_of(study.standing) for title, study in found.items()}
        return Report(together("study", families), states, set(states.values()) <= server_metrics.HEALTHY)

    return report


def of_silo(kit: Path) -> Callable[[], Report]:
    """A function that reports on a silo's kit. Raises ConfigError for a folder that is not a kit."""
    silo = WatchedSilo.of(kit)

    def report() -> Report:
        now, families = silo.look()
        states = {now["federation"]: str(now["state"])}
        return Report(families, states, now["state"] in silo_metrics.HEALTHY)

    return report


def metrics_app(report: Callable[[], Report]) -> Any:
    """Build the application. An unreadable file gives a one-line 503, which Prometheus shows as a target that is down.

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
            found = report()
        except PomonaError as fault:
            return JSONResponse({"healthy": False, "error": fault.line()}, 503)
        return JSONResponse({"healthy": found.healthy, "states": found.states}, 200 if found.healthy else 503)

    return application([Route("/metrics", metrics), Route("/health", health)])
