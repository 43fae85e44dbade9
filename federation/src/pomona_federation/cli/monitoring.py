"""``pomona server metrics`` and ``pomona silo metrics``: read-only pages on loopback."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from pomona.cli.output import talk

Port = Annotated[int, Parameter(validator=Number(gte=0, lt=1 << 16), help="port on 127.0.0.1; 0 for any free one")]


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
    from pomona_federation.monitoring.metrics_app import serve

    try:
        serve(make, port, lambda taken: talk(where.format(taken)))
    except KeyboardInterrupt:
        sys.exit(130)
