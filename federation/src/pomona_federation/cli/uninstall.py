"""``pomona silo uninstall`` and ``pomona server uninstall``: show the contents of a kit, and erase it."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from pomona.cli.output import Json, emit, print_table, say, size
from pomona.core.table import of_records
from pomona_federation.installation.contents import KEPT, Item, Role, contents, require_kit
from pomona_federation.installation.uninstall import CAVEAT, notes, uninstall

Do = Annotated[bool, Parameter(name="--do", negative="", help="do it; without it, only show what would be done")]


def silo(
    *, folder: Annotated[Path, Parameter(help="the silo's kit")] = Path(), do: Do = False, json: Json = False
) -> None:
    """Uninstall this silo: models, report, audit log and privacy ledger are kept, keys and states erased."""
    _end(folder, "silo", do, json)


def server(
    *, folder: Annotated[Path, Parameter(help="the server's kit")] = Path("kits/server"), do: Do = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Uninstall this server: record, results and audit log are kept, silos' models, keys and states erased."""
    _end(folder, "server", do, json)


MACHINE = (
    "the service (systemctl disable --now, its file in /etc/systemd/system), the container's image, the installed "
    "program, backups"
)
ELSEWHERE = {
    "silo": f"{MACHINE}, a file with a proxy's password, and this silo's membership: ask the server's administrator "
    "to revoke it",
    "server": f"{MACHINE}, the authority's key, and each silo's kit: `pomona silo uninstall` there",
}


def _end(folder: Path, whose: Role, do: bool, json: bool) -> None:
    require_kit(folder, whose)
    found = uninstall(folder, whose) if do else contents(folder, whose)
    rows = _rows(found)
    if json:
        emit({"done": do, "contents": rows, "notes": notes(found), "caveat": CAVEAT})
        return
    print_table(of_records([{**row, "bytes": size(row["bytes"])} for row in rows]))
    say("", *notes(found), f"Nothing else is touched; end yourself: {ELSEWHERE[whose]}.", f"Erasing: {CAVEAT}.")
    if do:
        say(f"Done. What is kept lies in {folder / KEPT}; move it where your rules want it.")
    elif any(row["then"] != "stays" for row in rows):
        say("Nothing has been done; `--do` does it.")
    else:
        say("There is nothing to do.")


def _rows(found: list[Item]) -> list[dict[str, Any]]:
    """Contents of a kit by fate and description."""
    rows: dict[tuple[str, str], list[Item]] = {}
    for fate in ("keep", "erase", "remove", "stays"):
        for item in found:
            if item.rule.fate == fate:
                rows.setdefault((fate, item.rule.what), []).append(item)
    return [
        {
            "then": fate,
            "what": what,
            "files": len(items),
            "bytes": sum(item.size for item in items),
            "for example": str(items[0].path),
        }
        for (fate, what), items in rows.items()
    ]
