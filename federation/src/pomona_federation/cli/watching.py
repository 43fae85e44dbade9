"""``audit``, ``logs`` and ``metrics`` of ``pomona server`` and ``pomona silo``: what operators
read.

The pages of ``metrics`` are read-only, on loopback.
"""

import sys
import time
from contextlib import suppress
from json import dumps
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from pomona.cli.output import Json, echo, emit
from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import reading
from pomona_federation.cli.kits import Kit, kit_folder
from pomona_federation.installation.contents import STATE, role_of
from pomona_federation.supervision.process_logs import LogLine, LogReader

AUDIT = "audit.jsonl"
Verify = Annotated[bool, Parameter(negative="", help="only check that the file is unchanged")]


def audit(*, folder: Kit = None, verify: Verify = False, json: Json = False) -> None:
    """Show the audit log of a server or a silo, or verify it."""
    path = _state(folder) / AUDIT
    if verify:
        _verify(path, json)
    else:
        _show_audit(path, json)


def _state(folder: Path | None) -> Path:
    kit = kit_folder(folder)
    return kit / STATE[role_of(kit)]


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


def logs(
    *, folder: Kit = None, lines: Lines = 100, follow: Follow = False, json: Json = False
) -> None:
    """Show the last lines of the logs of all processes of a server or a silo, by time, in UTC."""
    state = _state(folder) / "logs"
    if not state.is_dir():
        raise StorageError(f"{state} is missing; nothing has been started here yet")
    reader = LogReader(state)
    with suppress(KeyboardInterrupt), reading(state, "fix its permissions"):
        _print(reader.last(lines), json)
        while follow:
            time.sleep(PAUSE)
            _print(reader.new(), json)


def _print(lines: list[LogLine], as_json: bool) -> None:
    for line in lines:
        number = "" if line.round is None else f"[round {line.round}] "
        text = f"{line.time or '-':<24} {line.process:<10} {line.level:<8} {number}{line.text}"
        echo(dumps(vars(line)) if as_json else text)


Port = Annotated[
    int | None,
    Parameter(
        validator=Number(gte=0, lt=1 << 16),
        help="port on 127.0.0.1; 0 for any free one; default 9464 for a server, 9465 for a silo",
    ),
]


def metrics(*, folder: Kit = None, port: Port = None) -> None:
    """Serve /metrics for Prometheus and /health on loopback, until Ctrl-C."""
    from pomona_federation.monitoring.metrics import metrics_app, of_server, of_silo, serve

    kit = kit_folder(folder)
    report, default = (of_server, 9464) if role_of(kit) == "server" else (of_silo, 9465)
    try:
        serve(metrics_app(report(kit)), default if port is None else port)
    except KeyboardInterrupt:
        sys.exit(130)
