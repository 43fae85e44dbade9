"""``pomona deploy``: kits for a federation between organisations."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pomona.cli.arguments import config_of
from pomona.cli.output import Json, activity, respond
from pomona.core.errors import ConfigError
from pomona.core.files import content
from pomona_federation.provision.kit_files import LOCK, Libraries, described

if TYPE_CHECKING:
    from pomona_federation.provision.provision import Provisioned


def provision(
    federation: Path | None = None,
    *,
    out: Path = Path("kits"),
    add: str | None = None,
    key: Path | None = None,
    wheels: Path | None = None,
    libraries: Libraries | None = None,
    json: Json = False,
) -> None:
    """Make keys and a kit for the server and each silo of a federation.

    Parameters
    ----------
    federation
        the federation.toml; not with --add, which uses that of the kits
    out
        folder of the kits: a new one, or with --add the existing one
    add
        name of a newcomer to make a kit for
    key
        with --add: the newcomer's own public key
    wheels
        folder with Pomona's two wheels, for kits; its requirements.lock, if any, replaces the list
    libraries
        what kits install by hash: PyTorch for CPU (default) or CUDA
    """
    from pomona_federation.provision import provision as kits

    with activity(f"writing kits to {out}"):
        if add is not None and federation is None and wheels is None and libraries is None:
            provisioned, closing = kits.add(out, add, key), _newcomer_lines
        elif federation is not None and add is None and key is None:
            provisioned, closing = kits.provision(federation, out, wheels, libraries), _kit_lines
        else:
            raise ConfigError(
                "give either a federation.toml, or --add NAME with or without --key FILE; a "
                "newcomer's kit has the wheels and libraries of the earlier kits"
            )
    respond(json, _record(provisioned), *closing(provisioned))


def renew(*, out: Path = Path("kits"), json: Json = False) -> None:
    """Renew the server's certificate: same key, names and authority, so the silos need no
    update.

    Parameters
    ----------
    out
        folder of the kits, where the authority's key is
    """
    from pomona_federation.provision import provision as kits

    renewal = kits.renew(out)
    previous, expiry = renewal.previous_expiry, renewal.expiry
    respond(
        json,
        {"certificate": renewal.path, "before": previous.isoformat(), "until": expiry.isoformat()},
        f"{renewal.path}  valid until {expiry:%Y-%m-%d} (before: {previous:%Y-%m-%d}); it is not "
        "a secret",
        "next       copy it into the server's kit, if that is elsewhere; then `pomona server stop` "
        "and `resume` there",
    )


def task(*words: str, out: Path = Path("task.toml"), json: Json = False) -> None:
    """Write section task of a federation.toml or STUDY.toml, for silos with files like yours.

    Parameters
    ----------
    words
        settings of the data: data=table data.path=rows.csv data.label_column=outcome
    out
        file to write the section to
    """
    config = config_of(words)
    with activity(f"reading {config.data.name}"):
        import tomli_w

        from pomona.core.files import publish, writing
        from pomona.scenario import Scenario
        from pomona_federation.task_settings import of_files

        tree = {"task": of_files(Scenario.prepare(config).dataset)}
    with writing(out):
        publish(out, [tomli_w.dumps(tree).encode("utf-8")])
    respond(json, {**tree, "written": out}, str(out))


def _kit_lines(provisioned: "Provisioned") -> Iterator[str]:
    f = provisioned.federation
    method = f.kit_terms.config.method.name if f.kit_terms else "without its own study"
    yield f"federation {f.name}, {method}: kits for the server and {len(provisioned.silos)} silos"
    if provisioned.expiry:
        yield (
            f"{provisioned.folder}/authority  stays with you: ca.key adds silos; back it up "
            "offline, put it into no kit"
        )
        validity = f"its certificate is valid until {provisioned.expiry:%Y-%m-%d}"
        yield (
            f"{provisioned.folder}/server  for who runs {f.server}; certs/server.key is secret; "
            f"{validity}"
        )
    else:
        yield (
            f"{provisioned.folder}/server  for who runs {f.server}; INSECURE: no encryption, no "
            "keys, this machine only"
        )
    yield from _silo_lines(provisioned)
    wheels = provisioned.folder / "server" / "wheels"
    yield f"libraries  by hash: {described(content(wheels / LOCK))}"
    yield f"agreement  {f.agreement}"
    yield (
        f"           {provisioned.digits}: by telephone, every silo reads what `pomona silo check` "
        "prints at compare"
    )
    wheel = (
        "" if (wheels / "SHA256SUMS").exists() else "Pomona's two wheels to each kit's wheels/ and "
    )
    yield f"next       add {wheel}your number to each kit's README.md, then send it"


def _newcomer_lines(provisioned: "Provisioned") -> Iterator[str]:
    name = provisioned.silos[0]
    yield from _silo_lines(provisioned)
    if provisioned.expiry:
        keys = f"{provisioned.folder}/server/keys/{name}.pub"
        yield (
            f"next       send {keys} and {name}.cert (no secrets) to the server's "
            "administrator, who runs there"
        )
        yield f"           pomona server add {name} --key {name}.pub"
        yield (
            "others     need copy nothing: the authority's certificate travels with the next round"
        )
    else:
        yield f"next       pomona server add {name}"


def _silo_lines(provisioned: "Provisioned") -> Iterator[str]:
    for name in provisioned.silos:
        if name in provisioned.brought:
            secrecy = (
                "its own key: no secret inside, but it must arrive unchanged (it says whom the "
                "silo trusts)"
            )
        elif provisioned.expiry:
            secrecy = "keys/silo.key is secret: hand the kit over in person or encrypted"
        else:
            secrecy = "no keys"
        yield f"{provisioned.folder}/{name}  for silo {name}; {secrecy}"


def _record(provisioned: "Provisioned") -> dict[str, object]:
    return {
        "federation": provisioned.federation.name,
        "folder": provisioned.folder,
        "agreement": provisioned.federation.agreement,
        "certificate_until": provisioned.expiry.isoformat() if provisioned.expiry else None,
        "silos": [
            {"name": name, "kit": provisioned.folder / name, "own_key": name in provisioned.brought}
            for name in provisioned.silos
        ],
    }
