"""``backup`` and ``restore`` of a silo's or a server's kit."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from pomona.cli.output import Json, emit, say, size
from pomona.core.bounds import ROUNDS
from pomona.deploy.installation.contents import Role

SiloKit = Annotated[Path, Parameter(help="the silo's kit")]
ServerKit = Annotated[Path, Parameter(help="the server's kit")]
New = Annotated[Path, Parameter(help="a new folder for the kit")]
SECRET = "it holds keys and states, readable by its owner alone: encrypt it before it leaves this machine"  # noqa: S105


def silo(
    file: Path, *, folder: SiloKit = Path(),
    without_key: Annotated[bool, Parameter(negative="", help="leave the silo's private key out")] = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Write a silo's backup to a new file, also while it runs; data are not in it.

    Parameters
    ----------
    file
        the backup
    """
    _save(folder, "silo", file, without_key, json)


def server(file: Path, *, folder: ServerKit = Path("kits/server"), json: Json = False) -> None:
    """Write a stopped server's backup to a new file.

    Parameters
    ----------
    file
        the backup
    """
    _save(folder, "server", file, False, json)


def restore_silo(
    file: Path, *, folder: New,
    trained_until: Annotated[
        int | None,
        Parameter(validator=Number(gte=0, lt=ROUNDS), help="last round trained since, if you know; for privacy"),
    ] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Make a silo's kit of its backup. The other copy must never run again.

    Parameters
    ----------
    file
        the backup
    """
    _restore(file, folder, "silo", trained_until, json)


def restore_server(file: Path, *, folder: New, json: Json = False) -> None:
    """Make a server's kit of its backup. The other copy must never run again.

    Parameters
    ----------
    file
        the backup
    """
    _restore(file, folder, "server", None, json)


def _save(folder: Path, whose: Role, file: Path, without_key: bool, json: bool) -> None:
    from pomona.deploy.installation.backup import backup

    made = backup(folder, whose, file, without_key)
    if json:
        emit(made.model_dump(mode="json"))
        return
    total = sum(one.size for one in made.files.values())
    say(f"{file}: {len(made.files)} files, {size(total)}, of {made.federation}; {SECRET}")
    say("not in it: data, own files but code, a proxy's password, other silos' models, logs")


def _restore(file: Path, folder: Path, whose: Role, trained_until: int | None, json: bool) -> None:
    from pomona.deploy.installation.restore import needs_key, restore

    told = restore(file, folder, whose, trained_until)
    if json:
        emit({**told.model_dump(mode="json", exclude={"files"}), "files": len(told.files)})
        return
    say(f"{folder}: the {whose} of {told.federation} as of {told.made}, {len(told.files)} files")
    say("next: never run the other copy again; put the data where silo.toml says" if whose == "silo" else "")
    if needs_key(folder, told):
        say("      put the private key to keys/silo.key (mode 0600)")
    if any(name.endswith("ledger.jsonl") for name in told.files):
        known = "all that is left of the run" if trained_until is None else f"rounds until {trained_until}"
        say(f"      privacy: {known} counts as spent once more, since this backup cannot know what was")
