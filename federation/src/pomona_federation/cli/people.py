"""``page`` and ``notify`` of ``pomona server``, for people without a terminal."""

from typing import Annotated, Any

from cyclopts import Parameter

from pomona.cli.output import Json, echo, emit, print_table
from pomona.core.errors import ConfigError
from pomona.core.table import of_records
from pomona_federation.agreement import Federation
from pomona_federation.cli.folders import SERVER, ServerKit
from pomona_federation.installation.contents import require_kit
from pomona_federation.server.gate import PAGE
from pomona_federation.server.settings import NAME, ServerFile


def page(
    name: Annotated[
        str | None, Parameter(help="a person; list all who may read it if unset")
    ] = None,
    *,
    folder: ServerKit = SERVER,
    revoke: Annotated[bool, Parameter(negative="", help="end the person's access")] = False,
    json: Json = False,
) -> None:
    """List who may read the status page; give a person access, or end it."""
    from pomona_federation.certificates import fingerprint
    from pomona_federation.server import page_readers

    federation = Federation.read(folder / "federation.toml")
    require_kit(folder, "server")
    if name is None:
        names = sorted(page_readers.readers(folder).tokens)
        emit(names) if json else echo(*(names or ["no one may read the status page"]))
        return
    if revoke:
        page_readers.revoke(folder, name)
        emit({"reader": name, "revoked": True}) if json else print(f"access of {name} ended")
        return
    if not ServerFile.load(folder, federation).page:
        raise ConfigError(f"write page = true into {folder / NAME}, and start the server again")
    row = {
        "url": f"https://{federation.server}{PAGE}",
        "user": name,
        "password": page_readers.add(folder, name),
        "certificate_sha256": fingerprint(folder / "certs" / "server.crt"),
    }
    emit(row) if json else echo(*(f"{key.replace('_', ' ')}: {row[key]}" for key in row))


def notify(
    *,
    folder: ServerKit = SERVER,
    test: Annotated[bool, Parameter(negative="", help="send a notice to every receiver")] = False,
    json: Json = False,
) -> None:
    """Show where notices go and how many wait, or send one to try it."""
    from pomona_federation.server.notifier import pending, try_out

    federation = Federation.read(folder / "federation.toml")
    settings = ServerFile.load(folder, federation).notify
    if settings is None:
        raise ConfigError(f"{folder / NAME} has no section [notify]: no notice is sent")
    rows: list[dict[str, Any]]
    if test:
        outcomes = try_out(folder, federation.name, settings)
        rows = [{"receiver": name, "outcome": text} for name, text in outcomes.items()]
    else:
        counts = pending(folder)
        rows = [{"receiver": name, "waiting": counts[name]} for name in settings.channels]
    emit(rows) if json else print_table(of_records(rows))
    if failed := [row["receiver"] for row in rows if row.get("outcome", "sent") != "sent"]:
        raise ConfigError(f"no notice reaches {', '.join(failed)}; correct [notify] in {NAME}")
