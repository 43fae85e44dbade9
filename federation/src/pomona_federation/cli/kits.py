"""``backup``, ``restore`` and ``contents`` of a kit, and replacing a silo's key: ``renew-key`` and
``use-key``.
"""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from pomona.cli.output import Json, echo, echo_stderr, printable, respond, size
from pomona.core.bounds import ROUNDS
from pomona.core.errors import ConfigError, PomonaWarning
from pomona.core.table import grouped, of_records
from pomona_federation.installation.contents import FileKind, Item, Role, role_of
from pomona_federation.installation.contents import contents as kit_contents

if TYPE_CHECKING:
    from pomona_federation.installation.backup import Backup

ServerKit = Annotated[Path, Parameter(help="the server's kit")]
SiloKit = Annotated[Path, Parameter(help="the silo's kit")]
Kit = Annotated[
    Path | None,
    Parameter(name="--folder", help="the kit; default this folder if it is one, or kits/server"),
]
SERVER = Path("kits/server")
CURRENT_FOLDER = Path()


def kit_folder(folder: Path | None) -> Path:
    """The folder of a kit of either role, or the default one."""
    if folder is not None:
        return folder
    try:
        role_of(CURRENT_FOLDER)
    except ConfigError:
        return SERVER
    return CURRENT_FOLDER


New = Annotated[Path, Parameter(help="a new folder for the kit")]
WithoutKey = Annotated[bool, Parameter(negative="", help="leave a silo's private key out")]
SpentEpsilon = Annotated[
    float | None,
    Parameter(validator=Number(gte=0), help="epsilon spent by private runs begun after the backup"),
]
SpentDelta = Annotated[
    float, Parameter(validator=Number(gte=0, lte=1), help="delta spent by the same runs")
]
LastRound = Annotated[
    int | None,
    Parameter(
        validator=Number(gte=0, lt=ROUNDS), help="last round trained after the backup; for privacy"
    ),
]
SECRET = "it contains keys and states, readable only by its owner: encrypt it"  # noqa: S105


def backup(
    file: Path, *, folder: Kit = None, without_key: WithoutKey = False, json: Json = False
) -> None:
    """Write a kit's backup to a new file: a silo's also while it runs, a server's once it has
    stopped. A silo's data are not included.

    Parameters
    ----------
    file
        the backup
    """
    from pomona_federation.installation.backup import backup as write_backup

    manifest = write_backup(kit_folder(folder), file, without_key)
    total = size(sum(entry.size for entry in manifest.files.values()))
    respond(
        json,
        manifest.model_dump(mode="json"),
        f"{file}: {len(manifest.files)} files, {total}, of {manifest.federation}; {SECRET}",
        "not included: data, your files except code, proxy passwords, other silos' models, logs",
        f"it has no signature: note what `sha256sum {file.name}` prints, and compare it later",
    )


def restore_silo(
    file: Path,
    *,
    folder: New,
    spent: SpentEpsilon = None,
    spent_delta: SpentDelta = 0.0,
    trained_until: LastRound = None,
    json: Json = False,
) -> None:
    """Restore a silo's kit from its backup. The other copy must never run again.

    A backup cannot know what was spent of the silo's privacy after it was made: without --spent the
    command names the private runs that it knows, and ends.

    Parameters
    ----------
    file
        the backup; compare its sha256sum first, since it has no signature
    """
    from pomona_federation.installation.restore import needs_key, privacy_known
    from pomona_federation.silo.privacy_budget import Cost

    cost = None if spent is None else Cost(spent, spent_delta)
    manifest = _restored(file, folder, "silo", json, cost, trained_until)
    if json:
        return
    echo("next: never run the other copy again; put the data where silo.toml says")
    if needs_key(folder, manifest):
        echo("      copy the private key to keys/silo.key (mode 0600)")
    if any(name.endswith("ledger.jsonl") for name in manifest.files):
        rounds = (
            "all remaining rounds" if trained_until is None else f"rounds until {trained_until}"
        )
        echo(
            f"      privacy: {rounds} count as spent again, since the backup cannot know what "
            "was spent"
        )
    for line in privacy_known(folder):
        echo(f"      privacy: {line}")


def restore_server(file: Path, *, folder: New, json: Json = False) -> None:
    """Restore a server's kit from its backup. The other copy must never run again.

    Parameters
    ----------
    file
        the backup; compare its sha256sum first, since it has no signature
    """
    _restored(file, folder, "server", json)


def _restored(file: Path, folder: Path, role: Role, json: bool, *privacy: Any) -> "Backup":
    """Restore a kit; print its description, and which of its files run code or decide on studies.

    ``privacy``: what has been spent since the backup, and the last round trained.
    """
    from pomona_federation.installation.restore import effective, restore

    with warnings.catch_warnings(action="ignore", category=PomonaWarning):  # the same is printed
        manifest = restore(file, folder, role, *privacy)
    for name in effective(manifest):
        echo_stderr(printable(f"note: {folder / name} runs or decides here: check it"))
    count = len(manifest.files)
    text = f"the {role} of {manifest.federation} as of {manifest.made}, {count} files"
    record = {**manifest.model_dump(mode="json", exclude={"files"}), "files": count}
    respond(json, record, f"{folder}: {text}")
    return manifest


ORDER: tuple[FileKind, ...] = ("keep", "secret", "kit", "own")
Paths = Annotated[
    FileKind | None,
    Parameter(help="print only the paths of these files, one a line", name="--paths"),
]
ELSEWHERE = (
    "elsewhere: the service (systemctl disable --now, its file in /etc/systemd/system), the "
    "container's image, the installed program, backups, a file with a proxy's password"
)


def contents(*, folder: Kit = None, paths: Paths = None, json: Json = False) -> None:
    """List the files of a kit: what to keep at the end, and what is secret."""
    items = kit_contents(kit_folder(folder))
    if paths:
        names = [str(item.path) for item in items if item.rule.kind == paths and item.plain]
        respond(json, names, *names)
        return
    rows, notes = _rows(items), _notes(items)
    table = of_records([{**row, "bytes": size(row["bytes"])} for row in rows])
    respond(json, {"contents": rows, "notes": notes}, table, "", *notes, ELSEWHERE)


def _notes(items: list[Item]) -> list[str]:
    """What an administrator should know before the kit goes."""
    names = {str(item.path) for item in items}
    lines = [
        f"{item.path} is a link, or has another name elsewhere: its content is also elsewhere"
        for item in items
        if item.rule.kind == "secret" and not item.plain
    ]
    if "state/rounds.jsonl" in names and "state/report.md" not in names:
        lines.append(
            "there is no report yet: `pomona silo report` writes it while the states are here"
        )
    return lines


def _rows(items: list[Item]) -> list[dict[str, Any]]:
    """Contents of a kit by kind and description."""
    in_order = sorted(items, key=lambda item: ORDER.index(item.rule.kind))
    rows = grouped(((item.rule.kind, item.rule.description), item) for item in in_order)
    return [
        {
            "kind": kind,
            "what": description,
            "files": len(group),
            "bytes": sum(item.size for item in group),
            "for example": str(group[0].path),
        }
        for (kind, description), group in rows.items()
    ]


TELEPHONE = "by telephone: the lead and the server's administrator must see the same"


def next_key(*, folder: SiloKit = CURRENT_FOLDER, json: Json = False) -> None:
    """Make this silo's next key, in addition to the one in use; it never leaves the silo."""
    from pomona_federation.installation import key_renewal

    public, fingerprint = key_renewal.make_next_key(folder)
    respond(
        json,
        {"key": public, "fingerprint": fingerprint},
        f"{public}  {fingerprint}",
        f"compare    {TELEPHONE}",
        "next       send that file to the lead (it is not secret), who runs: pomona deploy "
        "renew-key NAME --key FILE",
        "           with the folder that comes back: pomona silo stop, pomona silo use-key "
        "FOLDER, pomona silo start",
    )


def use_key(certified: Path, *, folder: SiloKit = CURRENT_FOLDER, json: Json = False) -> None:
    """Put this silo's next key into use, once the server knows it; the silo must be stopped.

    Parameters
    ----------
    certified
        the folder returned by the lead
    """
    from pomona_federation.installation import key_renewal

    fingerprint = key_renewal.use(folder, certified)
    respond(
        json,
        {"fingerprint": fingerprint},
        f"keys/silo.key is now {fingerprint}; `pomona silo start` continues with it; the "
        "previous key is deleted",
    )


def certify_key(name: str, *, key: Path, out: Path = Path("kits"), json: Json = False) -> None:
    """Certify a silo's next key.

    Parameters
    ----------
    name
        the silo
    key
        the silo's next public key
    out
        folder of the kits, where the authority's key is
    """
    from pomona_federation.installation import key_renewal

    certified = key_renewal.certify(out, name, key)
    respond(
        json,
        vars(certified),
        f"{certified.folder}  {certified.fingerprint}; no secrets inside",
        f"compare    {TELEPHONE}",
        f"next       send {name}.pub and {name}.cert to the server's administrator, who runs "
        "between two rounds:",
        f"           pomona server renew-key {name} --key {name}.pub",
        f"           then send the folder to {name}",
    )


def replace_key(name: str, *, key: Path, folder: ServerKit = SERVER, json: Json = False) -> None:
    """Replace a silo's key with its next one; the previous key is refused from now on.

    Parameters
    ----------
    name
        the silo
    key
        its next public key; the certificate is next to it
    """
    from pomona_federation.server.registry_admin import renew_key

    fingerprint = renew_key(folder, name, key)
    respond(
        json,
        {"silo": name, "fingerprint": fingerprint},
        f"{name} connects with {fingerprint} from now on, and is absent until it does; its "
        "place and state stay",
    )
