"""``backup`` and ``restore`` of a silo's or a server's kit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from pomona.cli.output import Json, emit, say, size
from pomona.core.bounds import ROUNDS
from pomona_federation.installation.contents import Role

if TYPE_CHECKING:
    from pomona_federation.installation.restore import Restoring

SiloKit = Annotated[Path, Parameter(help="the silo's kit")]
ServerKit = Annotated[Path, Parameter(help="the server's kit")]
Trust = Annotated[bool, Parameter(negative="", help="accept the code, rules and decisions in the backup")]
New = Annotated[Path, Parameter(help="a new folder for the kit")]
SECRET = "it holds keys and states, readable by its owner alone: encrypt it before it leaves this machine"  # noqa: S105


def silo(
    file: Path, *, folder: SiloKit = Path(),
    without_key: Annotated[bool, Parameter(negative="", help="leave the silo's private key out")] = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Write a silo's backup to a new file, also while it runs; the silo's data are not included.

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
    spent: Annotated[
        float | None, Parameter(validator=Number(gte=0), help="epsilon spent by private runs begun after the backup")
    ] = None,
    spent_delta: Annotated[float, Parameter(validator=Number(gte=0, lte=1), help="delta spent by the same runs")] = 0.0,
    trained_until: Annotated[
        int | None,
        Parameter(validator=Number(gte=0, lt=ROUNDS), help="last round trained after the backup; for privacy"),
    ] = None,
    trust: Trust = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Restore a silo's kit from its backup. The other copy must never run again.

    A backup cannot know what was spent of the silo's privacy after it was made: without --spent the command names the
    private runs that it knows, and ends.

    Parameters
    ----------
    file
        the backup
    """
    from pomona_federation.installation.restore import Restoring
    from pomona_federation.silo.data.privacy_budget import Cost

    since = None if spent is None else Cost(spent, spent_delta)
    _restore(file, folder, "silo", Restoring(since, trained_until, trust), json)


def restore_server(file: Path, *, folder: New, trust: Trust = False, json: Json = False) -> None:
    """Restore a server's kit from its backup. The other copy must never run again.

    Parameters
    ----------
    file
        the backup
    """
    from pomona_federation.installation.restore import Restoring

    _restore(file, folder, "server", Restoring(trusted=trust), json)


def _save(folder: Path, whose: Role, file: Path, without_key: bool, json: bool) -> None:
    from pomona_federation.installation.backup import backup

    made = backup(folder, whose, file, without_key)
    if json:
        emit(made.model_dump(mode="json"))
        return
    total = sum(one.size for one in made.files.values())
    say(f"{file}: {len(made.files)} files, {size(total)}, of {made.federation}; {SECRET}")
    say("not in it: data, own files but code, a proxy's password, other silos' models, logs")


def _restore(file: Path, folder: Path, whose: Role, said: "Restoring", json: bool) -> None:
    from pomona_federation.installation.restore import needs_key, restore
    from pomona_federation.installation.review import deciding, privacy_known

    told = restore(file, folder, whose, said)
    if json:
        emit({**told.model_dump(mode="json", exclude={"files"}), "files": len(told.files)})
        return
    say(f"{folder}: the {whose} of {told.federation} as of {told.made}, {len(told.files)} files")
    say("next: never run the other copy again; put the data where silo.toml says" if whose == "silo" else "")
    if needs_key(folder, told):
        say("      put the private key to keys/silo.key (mode 0600)")
    if any(name.endswith("ledger.jsonl") for name in told.files):
        until = said.trained_until
        known = "all that is left of the run" if until is None else f"rounds until {until}"
        say(f"      privacy: {known} counts as spent once more, since this backup cannot know what was")
    for line in privacy_known(folder) if whose == "silo" else ():
        say(f"      privacy: {line}")
    for line in deciding(folder, whose):
        say(f"      it brings {line}")
