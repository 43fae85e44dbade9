"""``audit``, ``logs`` and ``metrics`` of ``pomona server`` and ``pomona silo``: what operators
read.

The pages of ``metrics`` are read-only, on loopback.
"""

import sys
import time
from collections.abc import Callable
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from pomona.cli.output import Json, echo, emit
from pomona.core.errors import ConfigError, StorageError
from pomona_federation.cli.folders import CURRENT_FOLDER, SERVER, ServerKit, SiloKit
from pomona_federation.installation.contents import STATE, Role
from pomona_federation.supervision.process_logs import LogLine, LogReader

AUDIT = "audit.jsonl"
Verify = Annotated[bool, Parameter(negative="", help="only check that the file is unchanged")]


def audit_server(*, folder: ServerKit = SERVER, verify: Verify = False, json: Json = False) -> None:
    """Show the server's audit log, or verify it."""
    _audit("server", folder, verify, json)


def audit_silo(
    *, folder: SiloKit = CURRENT_FOLDER, verify: Verify = False, json: Json = False
) -> None:
    """Show the silo's audit log, or verify it."""
    _audit("silo", folder, verify, json)


def _audit(side: Role, folder: Path, verify: bool, json: bool) -> None:
    (_verify if verify else _show_audit)(folder / STATE[side] / AUDIT, json)


def _show_audit(path: Path, json: bool) -> None:
    from pomona_federation.audit_log import complete_lines

    rows = complete_lines(path)
    if json:
        emit(list(rows))
    for row in rows:
        fields = "  ".join(
            f"{k}={v}" for k, v in row.items() if k not in {"time", "event", "chain"}
        )
        echo(f"{row.get('time')}  {row.get('event')!s:<14} {fields}")


def _verify(path: Path, json: bool) -> None:
    from pomona_federation.audit_log import complete_lines, verify

    first, lines, chain = verify(path), 0, "none"
    for line in complete_lines(path):
        lines, chain = lines + 1, line["chain"]
    if json:
        emit({"whole": first is None, "first_broken_line": first, "lines": lines})
    elif first is None:
        print(f"whole: {lines} lines, last chain {chain}")
    if first is not None:
        raise ConfigError(f"{path}: line {first} was changed; compare with a backup from there on")


PAUSE = 0.5  # seconds between looks for new lines
Lines = Annotated[int, Parameter(validator=Number(gte=0, lte=10**6), help="number of last lines")]
Follow = Annotated[bool, Parameter(negative="", help="show new lines too, until Ctrl-C")]


def logs_server(
    *, folder: ServerKit = SERVER, lines: Lines = 100, follow: Follow = False, json: Json = False
) -> None:
    """Show the last lines of the server's logs, by time, in UTC: its supervisor's, SuperLink's and
    the ServerApp's.
    """
    _show_logs(folder / "run" / "logs", lines, follow, json)


def logs_silo(
    *,
    folder: SiloKit = CURRENT_FOLDER,
    lines: Lines = 100,
    follow: Follow = False,
    json: Json = False,
) -> None:
    """Show the last lines of the silo's logs, by time, in UTC: its supervisor's, the node's and its
    app's.
    """
    _show_logs(folder / "state" / "logs", lines, follow, json)


def _show_logs(folder: Path, count: int, follow: bool, as_json: bool) -> None:
    if not folder.is_dir():
        raise StorageError(f"{folder} is missing; nothing has been started here yet")
    reader = LogReader(folder)
    try:
        _print(reader.last(count), as_json)
        while follow:
            time.sleep(PAUSE)
            _print(reader.new(), as_json)
    except KeyboardInterrupt:
        return
    except OSError as fault:
        raise StorageError(
            f"{folder} cannot be read ({fault.strerror}); fix its permissions"
        ) from None


def _print(lines: list[LogLine], as_json: bool) -> None:
    for line in lines:
        number = "" if line.round is None else f"[round {line.round}] "
        text = f"{line.time or '-':<24} {line.process:<10} {line.level:<8} {number}{line.text}"
        echo(dumps(vars(line)) if as_json else text)


Port = Annotated[
    int,
    Parameter(validator=Number(gte=0, lt=1 << 16), help="port on 127.0.0.1; 0 for any free one"),
]


def metrics_server(*, folder: ServerKit = SERVER, port: Port = 9464) -> None:
    """Serve /metrics for Prometheus and /health on loopback, until Ctrl-C."""
    from pomona_federation.monitoring.metrics import of_server

    _serve(of_server(folder), port)


def metrics_silo(*, folder: SiloKit = CURRENT_FOLDER, port: Port = 9465) -> None:
    """Serve /metrics for Prometheus and /health on loopback, until Ctrl-C."""
    from pomona_federation.monitoring.metrics import of_silo

    _serve(of_silo(folder), port)


def _serve(report: Callable[[], Any], port: int) -> None:
    from pomona_federation.monitoring.metrics_app import metrics_app, serve

    try:
        serve(metrics_app(report), port)
    except KeyboardInterrupt:
        sys.exit(130)
