"""``pomona server audit`` and ``pomona silo audit``: show the audit log, or verify it."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from pomona.cli.output import Json, emit, say
from pomona.core.errors import ConfigError
from pomona_federation.installation.contents import STATE, Role

FILE = "audit.jsonl"
Verify = Annotated[bool, Parameter(negative="", help="only check that the file is unchanged")]


def server(
    *,
    folder: Annotated[Path, Parameter(help="the server's kit")] = Path("kits/server"),
    verify: Verify = False,
    json: Json = False,
) -> None:
    """Show the server's audit log, or verify it."""
    _audit("server", folder, verify, json)


def silo(
    *, folder: Annotated[Path, Parameter(help="the silo's kit")] = Path(), verify: Verify = False, json: Json = False
) -> None:
    """Show the silo's audit log, or verify it."""
    _audit("silo", folder, verify, json)


def _audit(side: Role, folder: Path, verify: bool, json: bool) -> None:
    (_verify if verify else _show)(folder / STATE[side] / FILE, json)


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
