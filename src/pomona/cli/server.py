"""``pomona server``: start, look at, stop and resume the server of a federation, add and revoke silos."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from pomona.cli.output import Json, emit, out, print_table, say, shown, size, talk
from pomona.core.errors import ConfigError, StorageError
from pomona.core.table import of_records

Folder = Annotated[Path, Parameter(help="the server's kit")]
KIT = Path("kits/server")


def start(*, folder: Folder = KIT, json: Json = False) -> None:
    """Run the federation until it ends; a run that was begun goes on after its last committed round."""
    _serve(folder, json, resume=False)


def resume(*, folder: Folder = KIT, json: Json = False) -> None:
    """Go on with a run that was interrupted, or that failed; refused where there is nothing to go on with."""
    _serve(folder, json, resume=True)


def _serve(folder: Path, json: bool, resume: bool) -> None:
    from pomona.deploy.server.launcher import serve

    try:
        status = serve(folder, talk, resume)
    except KeyboardInterrupt:
        print("error[INTERRUPTED]: stopped before the end; `pomona server resume` goes on", file=sys.stderr)
        sys.exit(130)
    if json:
        emit(status.model_dump())
    if status.state == "failed":
        print(shown(f"error[RUN]: after round {status.round}: {status.reason}"), file=sys.stderr)
    elif not json:
        print(f"finished after round {status.round}")
    sys.exit(status.code or 0)


def status(
    *,
    folder: Folder = KIT,
    watch: Annotated[bool, Parameter(negative="", help="again every two seconds, until Ctrl-C")] = False,
    json: Json = False,
) -> None:
    """Show the round, who is present, absent or rejected and why, bytes and time."""
    from pomona.deploy.status import server

    while True:
        standing = server(folder)
        if watch and not json:
            out.clear()
        emit(standing) if json else _show(standing)
        if not watch:
            return
        try:
            time.sleep(2)
        except KeyboardInterrupt:
            return


def _show(s: dict[str, Any]) -> None:
    lines = [
        f"{s['federation']}, {s['method']}: {s['state']}"
        + (f" (process {s['pid']} since {s['since']})" if s["pid"] else ""),
        f"round {s['round']} of {s['rounds']}",
    ]
    if s["waiting"]:
        lines.append(s["waiting"]["line"])
    if s["seconds"] is not None:
        lines.append(
            f"last round: {s['seconds']:.1f} s, {size(s['bytes_down'] or 0)} down, {size(s['bytes_up'] or 0)} up"
        )
    if s["reason"]:
        lines.append(f"why: {s['reason']} (code {s['code']})")
    if s["certificate"]:
        lines.append(f"certificate valid until {s['certificate']}")
    lines += [f"warning: {warning}" for warning in (s["warning"], *s["notes"]) if warning]
    say(*lines)
    if s["silos"]:
        print_table(of_records(s["silos"]))


def stop(*, folder: Folder = KIT, json: Json = False) -> None:
    """Stop the server in order; the round in flight is dropped, and `pomona server resume` goes on."""
    stopping(folder / "run", "server", json)


def stopping(state: Path, what: str, json: bool) -> None:
    """Ask the process that holds a folder to stop, and say whether it did."""
    from pomona.deploy.processes import ask_to_stop, holder

    if not holder(state):
        raise StorageError(f"no {what} runs in {state}; nothing to stop")
    stopped = ask_to_stop(state)
    if not stopped:
        raise StorageError(f"the {what} in {state} has not stopped; look at its logs, or stop it on its own machine")
    emit({"stopped": True}) if json else print("stopped")


def add(
    name: str,
    *,
    key: Annotated[Path | None, Parameter(help="its public key")] = None,
    folder: Folder = KIT,
    json: Json = False,
) -> None:
    """Add a silo: it takes a free place and joins at the next round.

    Parameters
    ----------
    name
        as in its kit, see `pomona deploy provision --add`
    """
    from pomona.deploy.server.registry_admin import admit

    place = admit(folder, name, key)
    if json:
        emit({"silo": name, "place": place})
    else:
        print(f"{name} has place {place} and joins at the next round that it is there for")


def revoke(name: str, *, folder: Folder = KIT, json: Json = False) -> None:
    """Revoke a silo: its key can no longer connect, and its model is not sent from the next round on.

    Parameters
    ----------
    name
        the silo
    """
    from pomona.deploy.server.registry_admin import LASTING, dismiss

    dismiss(folder, name)
    if json:
        emit({"silo": name, "revoked": True, "remains": LASTING})
    else:
        print(f"{name} is revoked from the next round on. What cannot be undone: {LASTING}")


def audit(
    *,
    folder: Folder = KIT,
    verify: Annotated[bool, Parameter(negative="", help="only say whether the file is as it was written")] = False,
    json: Json = False,
) -> None:
    """Show the audit log, or verify it."""
    from pomona.deploy.audit import read
    from pomona.deploy.audit import verify as broken

    path = folder / "run" / "audit.jsonl"
    if not verify:
        rows = read(path)
        if json:
            emit(rows)
        for row in () if json else rows:
            rest = "  ".join(f"{k}={v}" for k, v in row.items() if k not in {"time", "event", "chain"})
            say(f"{row.get('time')}  {row.get('event')!s:<14} {rest}")
        return
    first = broken(path)
    lines = read(path)
    if json:
        emit({"whole": first is None, "first_broken_line": first, "lines": len(lines)})
    elif first is None:
        print(f"whole: {len(lines)} lines, last chain {lines[-1]['chain'] if lines else 'none'}")
    if first is not None:
        raise ConfigError(f"{path}: line {first} is not as it was written; compare with a backup from there on")
