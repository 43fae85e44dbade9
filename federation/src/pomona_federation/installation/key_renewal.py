"""A silo's next key: made on the silo, certified by the lead, registered at the server, and only
then put into use.

The server's part is ``renew_key`` in ``server/registry_admin.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pomona.core.errors import ConfigError, ProtocolError
from pomona.core.files import content, reading
from pomona.storage.lock import locked
from pomona_federation import certificates, keys
from pomona_federation.agreement import Federation
from pomona_federation.audit_log import write_line
from pomona_federation.certificates import ClientCertificate, client_context
from pomona_federation.provision import provision
from pomona_federation.provision.kit_files import appearing, folders, write
from pomona_federation.silo import state_origin
from pomona_federation.silo.http_client import ServerRoute
from pomona_federation.silo.server_requests import Membership, ask_membership
from pomona_federation.silo.settings import SiloFile

NEXT = "next.key", "next.pub"
CERTIFIED = "`pomona deploy renew-key`"
NO_KEYS = "a federation with insecure = true has no keys; there is nothing to renew"


def make_next_key(folder: Path) -> tuple[Path, str]:
    """Make the next key of a silo's kit, next to the one in use.

    Returns its public file, and its fingerprint.

    Raises ConfigError for a kit without keys, or if there is a next key already.
    """
    if Federation.read(folder / "federation.toml").insecure:
        raise ConfigError(NO_KEYS)
    private, public = (folder / "keys" / name for name in NEXT)
    if private.exists() and public.exists():  # only one of them: a kill fell between the two
        raise ConfigError(
            f"{private} already exists: continue with it, or remove it and next.pub to start over"
        )
    if not private.exists():
        keys.replace(private, keys.silo().private)
    public_key = keys.line(keys.private_key(private).public_key())
    keys.replace(public, public_key)
    public.chmod(0o644)  # public, to be copied, whatever the umask
    return public, keys.fingerprint(public_key)


@dataclass(frozen=True)
class RenewedKey:
    """The result: a folder for the silo and the server, without secrets, and the key's
    fingerprint.
    """

    folder: Path
    fingerprint: str


def certify(kits: Path, name: str, key: Path) -> RenewedKey:
    """Certify a key that replaces a silo's current key, in a folder of provision.

    Raises:
        ConfigError: no kits with their authority there, no such silo, or a key that is invalid or
            already known.
        StorageError: the folder cannot be written.
    """
    federation = provision.provisioned(kits)
    if federation.insecure:
        raise ConfigError(NO_KEYS)
    first = kits / "server" / "keys" / f"{name}.cert"
    if not first.is_file():
        raise ConfigError(f"{kits} has no kit of a silo {name!r}; name an existing one")
    public = keys.public(key)
    owners = [
        *(kits / "server" / "keys").glob("*.pub"),
        *(kits / provision.RENEWED).glob("*/*/*.pub"),
    ]
    for owner_path in sorted(owners):
        if content(owner_path) == public:
            raise ConfigError(
                f"{key} is a key that silo {owner_path.stem!r} has or had; make a new one"
            )
    earlier = [first, *(kits / provision.RENEWED / name).glob(f"*/{name}.cert")]
    serial = max(keys.serial(content(path)) for path in earlier) + 1
    authority = provision.issuer_of(kits)
    folder = kits / provision.RENEWED / name / str(serial)
    folders(folder.parent)
    with appearing(folder) as temporary:
        certificate = keys.certify(authority, federation.name, name, public, serial)
        tls_certificate = certificates.client(authority, name, public)
        write(
            temporary,
            {f"{name}.pub": public, f"{name}.cert": certificate, "silo.crt": tls_certificate},
        )
    return RenewedKey(folder, keys.fingerprint(public))


def use(
    folder: Path, received: Path, query: Callable[[ServerRoute, Path], Membership] = ask_membership
) -> str:
    """Put the next key into use, with the certificates from the lead. Returns its fingerprint.

    Nothing changes before the server confirms that it knows the key. After a kill the same call
    continues.

    Args:
        folder: the silo's kit; the silo must be stopped.
        received: a folder with NAME.pub, NAME.cert and silo.crt.
        query: asks the server for the membership of a key's silo.

    Raises:
        ConfigError: a file is missing, or does not belong to the next key; or the state was not
            made on this machine.
        ProtocolError: the authority has not certified the key, or the server does not know it.
        LockedError: the silo is running.
    """
    federation = Federation.read(folder / "federation.toml")
    silo = SiloFile.load(folder / "silo.toml")
    private, public = (folder / "keys" / name for name in NEXT)
    if not private.is_file():
        raise ConfigError(f"{private} is missing; `pomona silo renew-key` makes it")
    public_key = keys.line(keys.private_key(private).public_key())
    certificate = _read(received / f"{silo.name}.cert")
    tls_certificate = received / "silo.crt"
    authority = certificates.content(folder / "certs" / "ca.crt")
    if not keys.certified(authority, federation.name, silo.name, public_key, certificate):
        raise ProtocolError(
            f"{received} has no certificate of {public} by this federation's authority; "
            f"{CERTIFIED} makes it"
        )
    # raises unless they belong together
    client_context(folder / "certs" / "ca.crt", ClientCertificate(tls_certificate, private))
    state_origin.ensure_origin(folder)
    state = folder / "state"
    with locked(state):
        route = ServerRoute.of_kit(folder, silo, federation)
        pair = ClientCertificate(tls_certificate, private) if route.certificate else None
        membership = query(replace(route, certificate=pair), private)
        if membership != "member":
            raise ProtocolError(
                f"the server does not confirm that it knows this key ({membership}); is it up, "
                "and has "
                f"its administrator run `pomona server renew-key {silo.name}`? Nothing was changed"
            )
        keys.replace(folder / "certs" / "silo.crt", _read(tls_certificate))
        for path in (folder / "keys" / "silo.pub", folder / "keys" / "peers" / f"{silo.name}.pub"):
            keys.replace(path, public_key)
        keys.replace(folder / "keys" / "peers" / f"{silo.name}.cert", certificate)
        write_line(state, "renewed", key=keys.fingerprint(public_key))
        public.unlink(missing_ok=True)
        private.replace(folder / "keys" / "silo.key")  # last: until here this can be called again
    return keys.fingerprint(public_key)


def _read(path: Path) -> bytes:
    with reading(path, f"{CERTIFIED} makes it", ConfigError):
        return content(path)
