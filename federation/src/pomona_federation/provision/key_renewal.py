"""Certificates for a silo's next key, issued where the authority's key is: two for the silo, one for the server."""

from dataclasses import dataclass
from pathlib import Path

from pomona.core.errors import ConfigError
from pomona.core.files import content
from pomona_federation.pki import certificates, keys
from pomona_federation.provision import provision as kits
from pomona_federation.provision.new_files import appearing, folders, write


@dataclass(frozen=True)
class RenewedKey:
    """The result: a folder for the silo and the server, without secrets, and the key's fingerprint."""

    folder: Path
    fingerprint: str


def renew_key(out: Path, name: str, key: Path) -> RenewedKey:
    """Certify a key that replaces a silo's current key, in a folder of kits.

    Raises:
        ConfigError: no kits with their authority there, no such silo, or a key that is invalid or already known.
        StorageError: the folder cannot be written.
    """
    federation = kits.provisioned(out)
    if federation.insecure:
        raise ConfigError("a federation with insecure = true has no keys; there is nothing to renew")
    first = out / "server" / "keys" / f"{name}.cert"
    if not first.is_file():
        raise ConfigError(f"{out} has no kit of a silo {name!r}; name one that is there")
    public = keys.public(key)
    owners = [*(out / "server" / "keys").glob("*.pub"), *(out / kits.RENEWED).glob("*/*/*.pub")]
    for other in sorted(owners):
        if content(other) == public:
            raise ConfigError(f"{key} is a key that silo {other.stem!r} has or had; make a new one")
    known = [first, *(out / kits.RENEWED / name).glob(f"*/{name}.cert")]
    serial = max(keys.serial(content(path)) for path in known) + 1
    authority = kits.issuer_of(out)
    folder = out / kits.RENEWED / name / str(serial)
    folders(folder.parent)
    with appearing(folder) as made:
        certificate = keys.certify(authority, federation.name, name, public, serial)
        shown = certificates.client(authority, name, public)
        write(made, {f"{name}.pub": public, f"{name}.cert": certificate, "silo.crt": shown})
    return RenewedKey(folder, keys.fingerprint(public))
