"""``pomona silo contents`` and ``pomona server contents``: what lies in a kit, what to keep, what is secret."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from pomona.cli.output import Json, emit, print_table, say, size
from pomona.core.table import of_records
from pomona_federation.installation.contents import Item, Kind, Role, contents, require_kit

KINDS: tuple[Kind, ...] = ("keep", "secret", "kit", "own")
Paths = Annotated[Kind | None, Parameter(help="print only the paths of these files, one a line", name="--paths")]
ELSEWHERE = (
    "elsewhere: the service (systemctl disable --now, its file in /etc/systemd/system), the container's image, the "
    "installed program, backups, a file with a proxy's password"
)


def silo(
    *, folder: Annotated[Path, Parameter(help="the silo's kit")] = Path(), paths: Paths = None, json: Json = False
) -> None:
    """Show what lies in this silo's kit: what to keep at the end, and what is secret."""
    _show(folder, "silo", paths, json)


def server(
    *, folder: Annotated[Path, Parameter(help="the server's kit")] = Path("kits/server"), paths: Paths = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Show what lies in this server's kit: what to keep at the end, and what is secret."""
    _show(folder, "server", paths, json)


def _show(folder: Path, whose: Role, paths: Kind | None, json: bool) -> None:
    require_kit(folder, whose)
    found = contents(folder, whose)
    if paths:
        found = [item for item in found if item.rule.kind == paths and item.plain]
        emit([str(item.path) for item in found]) if json else say(*(str(item.path) for item in found))
        return
    rows = _rows(found)
    if json:
        emit({"contents": rows, "notes": _notes(found)})
        return
    print_table(of_records([{**row, "bytes": size(row["bytes"])} for row in rows]))
    say("", *_notes(found), ELSEWHERE)


def _notes(found: list[Item]) -> list[str]:
    """What an administrator should know before the kit goes."""
    names = {str(item.path) for item in found}
    lines = [
        f"{item.path} is a link, or has another name elsewhere: its content is not only here"
        for item in found
        if item.rule.kind == "secret" and not item.plain
    ]
    if "state/rounds.jsonl" in names and "state/report.md" not in names:
        lines.append("there is no report yet: `pomona silo report` makes it, as long as the states are here")
    return lines


def _rows(found: list[Item]) -> list[dict[str, Any]]:
    """Contents of a kit by kind and description."""
    rows: dict[tuple[str, str], list[Item]] = {}
    for kind in KINDS:
        for item in found:
            if item.rule.kind == kind:
                rows.setdefault((kind, item.rule.what), []).append(item)
    return [
        {
            "kind": kind,
            "what": what,
            "files": len(items),
            "bytes": sum(item.size for item in items),
            "for example": str(items[0].path),
        }
        for (kind, what), items in rows.items()
    ]
