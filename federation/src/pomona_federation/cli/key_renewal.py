"""``renew-key`` for a silo, the lead and the server, and a silo's ``use-key``: replace a silo's key."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from pomona.cli.output import Json, emit, say

Kit = Annotated[Path, Parameter(help="the silo's kit")]
TELEPHONE = "by telephone, the lead and the server's administrator read the same"


def begin(*, folder: Kit = Path(), json: Json = False) -> None:
    """Make this silo's next key, beside the one in use; it never leaves the silo."""
    from pomona_federation.installation import key_renewal

    public, fingerprint = key_renewal.begin(folder)
    if json:
        emit({"key": public, "fingerprint": fingerprint})
        return
    say(f"{public}  {fingerprint}", f"compare    {TELEPHONE}")
    say("next       send that file to the lead (no secret), who runs there: pomona deploy renew-key NAME --key FILE")
    say("           with the folder that comes back: pomona silo stop, pomona silo use-key FOLDER, pomona silo start")


def use(came: Path, *, folder: Kit = Path(), json: Json = False) -> None:
    """Put this silo's next key into use, once the server knows it; the silo must be stopped.

    Parameters
    ----------
    came
        the folder returned by the lead
    """
    from pomona_federation.installation import key_renewal

    fingerprint = key_renewal.use(folder, came)
    if json:
        emit({"fingerprint": fingerprint})
    else:
        say(f"keys/silo.key is now {fingerprint}; `pomona silo start` goes on with it, and the key before is gone")


def certify(
    name: str,
    *,
    key: Annotated[Path, Parameter(help="the silo's next public key")],
    out: Annotated[Path, Parameter(help="folder of the kits, where the authority's key lies")] = Path("kits"),
    json: Json = False,
) -> None:
    """Certify a silo's next key.

    Parameters
    ----------
    name
        the silo
    """
    from pomona_federation.installation import key_renewal

    made = key_renewal.certify(out, name, key)
    if json:
        emit(vars(made))
        return
    say(f"{made.folder}  {made.fingerprint}; no secrets inside", f"compare    {TELEPHONE}")
    say(f"next       {name}.pub and {name}.cert to the server, whose administrator runs there, between two rounds:")
    say(f"           pomona server renew-key {name} --key {name}.pub", f"           then the folder to {name}")


def swap(
    name: str,
    *,
    key: Annotated[Path, Parameter(help="its next public key; the certificate lies beside it")],
    folder: Annotated[Path, Parameter(help="the server's kit")] = Path("kits/server"),
    json: Json = False,
) -> None:
    """Replace a silo's key with its next one; the previous key is refused from now on.

    Parameters
    ----------
    name
        the silo
    """
    from pomona_federation.server.members.registry_admin import renew_key

    fingerprint = renew_key(folder, name, key)
    if json:
        emit({"silo": name, "fingerprint": fingerprint})
    else:
        say(f"{name} connects with {fingerprint} from now on, and is absent until it does; its place and state stay")
