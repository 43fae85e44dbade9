"""Kits for a whole federation, and for a newcomer: rendered files, keys and certificates, written
once.

Everything is made in a temporary folder and renamed into place: a folder of kits is complete or
absent, and an existing one is never overwritten. Everything is readable only by its owner, from the
first moment.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path

import tomli_w

from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import MAX_LOG_BYTES, content, reading
from pomona.core.files import WEIGHTS as MOST_WEIGHTS
from pomona.core.toml import named_file, read_file, validated
from pomona_federation import certificates, flower_internals, keys
from pomona_federation.address import Address
from pomona_federation.agreement import Federation, FoundingMember
from pomona_federation.provision import kit_files
from pomona_federation.provision.kit_files import (
    LOCK,
    SUMS,
    Libraries,
    appearing,
    folders,
    installed,
    own_wheels,
    write,
)

LOOPBACK = ("localhost", "127.0.0.1", "::1")
FEDERATION_FILE = "federation.toml"
RENEWED = "renewed"  # in the folder of kits: a folder for each silo, with one for each later key
TLS_CERTIFICATE = "certs/silo.crt"  # certificate that a silo presents in mutual TLS
WEIGHTS = "weights.safetensors"  # first weights, in every kit


@dataclass(frozen=True)
class Member:
    """A silo's keys: its private key unless it supplied its own, its public key, and the
    authority's certificates.

    ``tls_certificate`` is the one for TLS, which is only in the silo's own kit.
    """

    name: str
    private: bytes | None
    public: bytes
    certificate: bytes
    tls_certificate: bytes = b""


@dataclass(frozen=True)
class Provisioned:
    """The result: the kits' folder, the silos with new kits, and those that supplied their own
    keys.
    """

    federation: Federation
    folder: Path
    silos: tuple[str, ...]
    brought: frozenset[str]

    @property
    def digits(self) -> str:
        """The digits that silos compare by telephone."""
        return self.federation.compared(self.folder / "server")

    @property
    def expiry(self) -> datetime | None:
        """When the server's certificate expires; None in a federation without keys."""
        if self.federation.insecure:
            return None
        return certificates.expires(self.folder / "server" / "certs" / "server.crt")


def provision(
    path: Path, kits: Path, wheels: Path | None = None, libraries: Libraries | None = None
) -> Provisioned:
    """Make the authority and all kits of a ``federation.toml`` in a new folder.

    A folder of ``wheels`` gives each kit Pomona's wheels; its ``requirements.lock``, if it has one,
    stands in for this release's list of ``libraries``, which is the one for CPU unless another is
    asked for.

    Raises:
        ConfigError: an error in the file, an invalid silo key, no wheel of Pomona, or no Flower.
        StorageError: the folder already exists, or cannot be written.
    """
    federation = Federation.load(path)
    if federation.kit_terms:
        with named_file(path):
            # it needs PyTorch, which commands that add or renew do not load
            from pomona_federation.agreed_scenario import require_possible

            require_possible(federation.kit_terms)
    shared, names = _shared_files(path, federation), tuple(silo.name for silo in federation.silo)
    brought = {
        silo.name: keys.public(path.parent / silo.key) for silo in federation.silo if silo.key
    }
    if federation.insecure and brought:
        raise ConfigError(
            f"{path}: insecure = true uses no keys; remove key from silo {min(brought)!r}"
        )
    if os.path.lexists(kits):
        raise StorageError(
            f"{kits} exists already, and keys are never overwritten; name a new folder, or --add a "
            "silo"
        )
    fetched = installed(wheels, libraries)
    with appearing(kits) as temporary:
        authority: keys.Pair | None = None
        members: list[Member] = []
        if not federation.insecure:
            authority = certificates.authority(federation.name)
            members = [_member(authority, federation, name, brought.get(name)) for name in names]
            _distinct(members)
            pair = {"ca.key": authority.private, "ca.crt": authority.public}
            write(temporary / "authority", pair)
        write(temporary / "server", _server(federation, authority, members, fetched) | shared)
        write(temporary / "server" / "wheels", fetched)
        digest = flower_internals.bundle_sha256(temporary / "server" / "app")
        write(temporary / "server", {flower_internals.PIN: f"{digest}\n".encode()})
        folders(temporary / "server" / kit_files.STATE["server"])
        for name in names:
            _silo(temporary / name, temporary / "server", name, members)
    return Provisioned(federation, kits, names, frozenset(brought))


def add(kits: Path, name: str, key: Path | None = None) -> Provisioned:
    """Make a newcomer's kit in a folder of kits, and put its public key into the others'.

    The server's kit gets it last; a call that was killed is completed by repeating it.

    Raises:
        ConfigError: a name that is taken or invalid, an invalid key, or no kits with their
            authority there.
        StorageError: the folder cannot be written.
    """
    server, federation = kits / "server", provisioned(kits)
    name = validated(FoundingMember, {"name": name}).name
    members, kit = _members_in(server / "keys"), kits / name
    unfinished = _unfinished_members(kit, name, key)
    if name in {member.name for member in members} or (kit.exists() and not unfinished):
        raise ConfigError(
            f"silo {name!r} has a kit in {kits}; choose a new name, also for one that was revoked"
        )
    new = unfinished or _issued(kits, federation, name, key)
    members += new
    renewed = map(_members_in, sorted((kits / RENEWED).glob("*/*")))
    _distinct([*members, *chain.from_iterable(renewed)])
    if not kit.exists():
        with appearing(kit) as temporary:
            _silo(temporary, server, name, members)
    for folder in (*sorted(kits.glob("*/keys/peers")), server / "keys"):
        for file, text in sorted(_public(new).items()):  # no key without its certificate
            keys.replace(folder / file, text)
    return Provisioned(federation, kits, (name,), frozenset({name} if key else ()))


def _unfinished_members(kit: Path, name: str, key: Path | None) -> list[Member]:
    """The newcomer of a kit that a call with the same key, if any, has begun; else nobody."""
    return [
        member
        for member in _members_in(kit / "keys" / "peers")
        if member.name == name and (key is None or member.public == keys.public(key))
    ]


def _issued(kits: Path, federation: Federation, name: str, key: Path | None) -> list[Member]:
    """The newcomer with certificates for its key; nobody in a federation without keys."""
    if not federation.insecure:
        return [_member(issuer_of(kits), federation, name, keys.public(key) if key else None)]
    if key:
        raise ConfigError("a federation with insecure = true uses no keys; leave --key out")
    return []


@dataclass(frozen=True)
class Renewed:
    """A renewed server certificate: its file, and its expiry before and now."""

    path: Path
    previous_expiry: datetime
    expiry: datetime


def renew(kits: Path) -> Renewed:
    """Renew the certificate of the server in a folder of kits: same key and names, same authority.

    The private key stays, so only one public file changes; silos trust the authority and need no
    update.

    Raises:
        ConfigError: no kits with their authority there, nothing to renew, or an authority that has
            expired.
        StorageError: the certificate cannot be written.
    """
    if provisioned(kits).insecure:
        raise ConfigError(
            "a federation with insecure = true has no certificate; there is nothing to renew"
        )
    issuer, path = issuer_of(kits), kits / "server" / "certs" / "server.crt"
    previous = certificates.expires(path)
    if previous >= (last := certificates.valid(kits / "authority" / "ca.crt")):
        raise ConfigError(
            f"{path} is valid as long as its authority, until {last:%Y-%m-%d}; "
            f"{certificates.UNRENEWABLE}"
        )
    try:
        renewed = certificates.renewed(issuer, content(path))
    except ValueError as fault:
        raise ConfigError(f"{path}: {fault}; take the authority of these kits") from None
    keys.replace(path, renewed)
    return Renewed(path, previous, certificates.validity(renewed))


def provisioned(kits: Path) -> Federation:
    """The federation whose kits are in a folder. Raises ConfigError if there are none."""
    path = kits / "server" / "federation.toml"
    if not path.is_file():
        raise ConfigError(
            f"{kits} has no kits; name the folder that `pomona deploy provision` made"
        )
    return Federation.load(path)


def _shared_files(path: Path, federation: Federation) -> kit_files.Files:
    """The files that all kits share: the agreement as written, or with its first weights and their
    hash.
    """
    if not federation.kit_terms or (model := federation.kit_terms.config.model).init is None:
        return {FEDERATION_FILE: content(path)}
    tree = read_file(path)
    tree["run"]["model"] |= {"init": WEIGHTS, "init_sha256": model.init_sha256}
    return {
        FEDERATION_FILE: tomli_w.dumps(tree).encode(),
        WEIGHTS: content(model.init, MOST_WEIGHTS),
    }


def _server(
    federation: Federation,
    authority: keys.Pair | None,
    members: Sequence[Member],
    installed: Mapping[str, bytes],
) -> kit_files.Files:
    if not authority:
        return kit_files.server(federation, None, installed)
    # its own processes reach it by another address than the silos
    hosts = (Address.parse(address).host for address in (federation.server, federation.inside))
    certificate = certificates.server(
        authority, (*hosts, *(LOOPBACK if federation.loopback else ()))
    )
    files = kit_files.server(federation, certificates.validity(certificate.public), installed)
    files |= {"certs/ca.crt": authority.public, "certs/server.crt": certificate.public}
    files |= {"certs/server.key": certificate.private}
    return files | {f"keys/{name}": content for name, content in _public(members).items()}


def _silo(folder: Path, server: Path, name: str, members: Sequence[Member]) -> None:
    """Write a silo's kit; files shared with the server are copied from the server's kit."""
    federation = Federation.load(server / "federation.toml")
    digest = flower_internals.pinned(server)
    owner = next((member for member in members if member.name == name), None)
    brought = owner is not None and owner.private is None
    wheels = server / "wheels"
    fetched = {
        p.name: content(p, MAX_LOG_BYTES)
        for p in wheels.iterdir()
        if p.name in (*own_wheels(), SUMS, LOCK)
    }
    files = kit_files.silo(
        federation, name, digest, fetched, own_key=brought, digits=federation.compared(server)
    )
    files |= {f"wheels/{file}": text for file, text in fetched.items()}
    files |= {
        name: content(server / name, MOST_WEIGHTS)
        for name in (FEDERATION_FILE, WEIGHTS)
        if (server / name).exists()
    }
    if owner:
        files |= {
            "certs/ca.crt": content(server / "certs" / "ca.crt"),
            "keys/silo.pub": owner.public,
        }
        files |= {TLS_CERTIFICATE: owner.tls_certificate}
        files |= {"keys/silo.key": owner.private} if owner.private else {}
        files |= {f"keys/peers/{peer}": content for peer, content in _public(members).items()}
    write(folder, files)
    folders(folder / "data")
    folders(folder / kit_files.STATE["silo"])


def _member(
    authority: keys.Pair, federation: Federation, name: str, brought: bytes | None
) -> Member:
    pair = keys.silo() if brought is None else None
    public = pair.public if pair else brought
    assert public
    certificate = keys.certify(authority, federation.name, name, public)
    tls_certificate = certificates.client(authority, name, public)
    return Member(name, pair.private if pair else None, public, certificate, tls_certificate)


def _public(members: Sequence[Member]) -> kit_files.Files:
    """Public keys of members and the authority's certificates for them, as files."""
    return {f"{m.name}.pub": m.public for m in members} | {
        f"{m.name}.cert": m.certificate for m in members
    }


def _members_in(folder: Path) -> list[Member]:
    """The members whose public keys and certificates are in a folder; empty if there are none."""
    remedy = "kits of an older Pomona have no certificates: provision again, in a new folder"
    with reading(folder, remedy, ConfigError):
        return [
            Member(path.stem, None, content(path), content(path.with_suffix(".cert")))
            for path in sorted(folder.glob("*.pub"))
        ]


def issuer_of(kits: Path) -> keys.Pair:
    """The authority in a folder of kits. Raises ConfigError if it is missing."""
    with reading(kits / "authority", "go where the authority's key is", ConfigError):
        return keys.Pair(*(content(kits / "authority" / name) for name in ("ca.key", "ca.crt")))


def _distinct(members: Sequence[Member]) -> None:
    """Refuse a key that belongs to two silos: each could sign in the other's name."""
    owner: dict[bytes, str] = {}
    for member in members:
        first = owner.setdefault(member.public, member.name)
        if first != member.name:
            raise ConfigError(
                f"silos {first!r} and {member.name!r} have the same key; every silo needs its own"
            )
