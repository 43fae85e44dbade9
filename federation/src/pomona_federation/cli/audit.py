"""``pomona server audit`` and ``pomona silo audit``: show the audit log, verify it, send it to syslog."""

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from pomona.cli.output import Json, emit, say, talk
from pomona.core.errors import ConfigError
from pomona_federation.installation.contents import STATE, Role

FILE = "audit.jsonl"
Verify = Annotated[bool, Parameter(negative="", help="only say whether the file is as it was written")]
Syslog = Annotated[
    str | None, Parameter(help="send what was not sent yet to udp://HOST:PORT, tcp://HOST:PORT or unix:/dev/log")
]
Follow = Annotated[bool, Parameter(negative="", help="with syslog: and the lines that come, until Ctrl-C")]
Facility = Annotated[str, Parameter(help="syslog's name for who speaks, such as authpriv or local0")]


def server(
    *, folder: Annotated[Path, Parameter(help="the server's kit")] = Path("kits/server"), verify: Verify = False,
    syslog: Syslog = None, follow: Follow = False, facility: Facility = "local0", json: Json = False,
) -> None:  # fmt: skip
    """Show the server's audit log, verify it, or send it to syslog."""
    _audit("server", folder, verify, syslog, follow, facility, json)


def silo(
    *, folder: Annotated[Path, Parameter(help="the silo's kit")] = Path(), verify: Verify = False,
    syslog: Syslog = None, follow: Follow = False, facility: Facility = "local0", json: Json = False,
) -> None:  # fmt: skip
    """Show the silo's audit log, verify it, or send it to syslog."""
    _audit("silo", folder, verify, syslog, follow, facility, json)


def _audit(
    side: Role, folder: Path, verify: bool, syslog: str | None, follow: bool, facility: str, json: bool
) -> None:  # fmt: skip
    path = folder / STATE[side] / FILE
    if verify and syslog is not None:
        raise ConfigError("--verify and --syslog are two things to do; give one of them")
    if follow and syslog is None:
        raise ConfigError("--follow goes with --syslog; to look on, `logs --follow`")
    if syslog is not None:
        _export(side, folder, path, syslog, facility, follow, json)
    else:
        (_verify if verify else _show)(path, json)


def _show(path: Path, json: bool) -> None:
    from pomona_federation.audit import whole

    rows = whole(path)
    if json:
        emit(list(rows))
    for row in rows:
        rest = "  ".join(f"{k}={v}" for k, v in row.items() if k not in {"time", "event", "chain"})
        say(f"{row.get('time')}  {row.get('event')!s:<14} {rest}")


def _verify(path: Path, json: bool) -> None:
    from pomona_federation.audit import verify, whole

    first, lines, chain = verify(path), 0, "none"
    for line in whole(path):
        lines, chain = lines + 1, line["chain"]
    if json:
        emit({"whole": first is None, "first_broken_line": first, "lines": lines})
    elif first is None:
        print(f"whole: {lines} lines, last chain {chain}")
    if first is not None:
        raise ConfigError(f"{path}: line {first} is not as it was written; compare with a backup from there on")


def _export(side: Role, folder: Path, path: Path, syslog: str, facility: str, follow: bool, json: bool) -> None:
    from pomona_federation.monitoring.audit_export import exporter

    os.umask(0o077)
    export = exporter(side, folder, path, syslog, facility, talk)
    if not follow:
        sent = export.once()
        emit({"sent": sent}) if json else print(f"sent {sent} lines to {export.to}")
        return
    try:
        export.follow()
    except KeyboardInterrupt:
        sys.exit(130)
