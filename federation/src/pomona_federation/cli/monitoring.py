"""``pomona server metrics``, ``pomona silo metrics`` and ``pomona server dashboard``: read-only pages on loopback."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from pomona.cli.output import talk

Port = Annotated[int, Parameter(validator=Number(gte=0, lt=1 << 16), help="of 127.0.0.1; 0 takes a free one")]


def server(
    *, folder: Annotated[Path, Parameter(help="the server's kit")] = Path("kits/server"), port: Port = 9464
) -> None:
    """Serve /metrics for Prometheus and /health on loopback, until Ctrl-C."""
    from pomona_federation.monitoring.metrics_app import metrics_app, of_server

    report = of_server(folder)
    _serve(lambda: metrics_app(report), port, "http://127.0.0.1:{}/metrics and /health")


def silo(*, folder: Annotated[Path, Parameter(help="the silo's kit")] = Path(), port: Port = 9465) -> None:
    """Serve /metrics for Prometheus and /health on loopback, until Ctrl-C."""
    from pomona_federation.monitoring.metrics_app import metrics_app, of_silo

    report = of_silo(folder)
    _serve(lambda: metrics_app(report), port, "http://127.0.0.1:{}/metrics and /health")


def _serve(make: Callable[[], Any], port: int, where: str) -> None:
    from pomona_federation.monitoring.loopback import serve

    try:
        serve(make, port, lambda taken: talk(where.format(taken)))
    except KeyboardInterrupt:
        sys.exit(130)


def dashboard(
    *, folder: Annotated[Path, Parameter(help="the server's kit")] = Path("kits/server"), port: Port = 8050
) -> None:
    """Serve a page of the federation's state on loopback, read only; it opens only at the printed address."""
    from pomona_federation.monitoring.loopback import require_web

    require_web()
    from pomona_federation.monitoring.dashboard_app import dashboard_app, new_token
    from pomona_federation.monitoring.watched_server import WatchedServer

    kit, token = WatchedServer.of(folder), new_token()
    _serve(lambda: dashboard_app(kit, token), port, f"open http://127.0.0.1:{{}}/?token={token}")
