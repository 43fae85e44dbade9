"""Kits for a whole federation, and for a newcomer: rendered files, keys and certificates, written
once.

Everything is made in a temporary folder and renamed into place: a folder of kits is complete or
absent, and an existing one is never overwritten. Everything is readable only by its owner, from the
first moment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import tomli_w

from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import MAX_LOG_BYTES, content
from pomona.core.files import WEIGHTS as MOST_WEIGHTS
from pomona.core.toml import named_file, read_file, validated
from pomona_federation import certificates, flower_internals, keys
from pomona_federation.address import Address
from pomona_federation.agreement import Federation, FoundingMember
from pomona_federation.provision import kit_files
from pomona_federation.provision.kit_files import appearing, folders, write
from pomona_federation.provision.wheels import LOCK, SUMS, Libraries, installed, own_wheels

LOOPBACK = ("localhost", "127.0.0.1", "::1")
AGREED = "federation.toml"
RENEWED = "renewed"  # in the folder of kits: a folder for each silo, with one for each later key
SHOWN = "certs/silo.crt"  # certificate that a silo presents in mutual TLS
WEIGHTS = "weights.safetensors"  # first weights, in every kit


@dataclass(frozen=True)
class Member:
    """A silo's keys: its private key unless it supplied its own, its public key, and the
    authority's certificates.

    ``shown`` is the one for TLS, which is only in the silo's own kit.
    """

    name: str
    private: bytes | None
    public: bytes
    certificate: bytes
    shown: bytes = b""


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
    def until(self) -> datetime | None:
        """When the server's certificate expires; None in a federation without keys."""
        return (
            None
            if self.federation.insecure
            else certificates.expires(self.folder / "server" / "certs" / "server.crt")
        )


def provision(
    path: Path, out: Path, wheels: Path | None = None, libraries: Libraries | None = None
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
    if federation.own:
        with named_file(path):
            # it needs PyTorch, which commands that add or renew do not load
            from pomona_federation.agreed_scenario import require_possible

            require_possible(federation.own)
    agreed, names = _agreed(path, federation), tuple(silo.name for silo in federation.silo)
    brought = {
        silo.name: keys.public(path.parent / silo.key) for silo in federation.silo if silo.key
    }
    if federation.insecure and brought:
        raise ConfigError(
            f"{path}: insecure = true has no use for keys; take key out of silo {min(brought)!r}"
        )
    if out.exists() or out.is_symlink():
        raise StorageError(
            f"{out} exists already, and keys are never overwritten; name a new folder, or --add a "
            "silo"
        )
    fetched = installed(wheels, libraries)
    with appearing(out) as made:
        authority = None if federation.insecure else certificates.authority(federation.name)
        members = (
            [_member(authority, federation, name, brought.get(name)) for name in names]
            if authority
            else []
        )
        _distinct(members)
        if authority:
            write(made / "authority", {"ca.key": authority.private, "ca.crt": authority.public})
        write(made / "server", _server(federation, authority, members, fetched) | agreed)
        write(made / "server" / "wheels", fetched)
        digest = flower_internals.bundle_sha256(made / "server" / "app")
        write(made / "server", {flower_internals.PIN: f"{digest}\n".encode()})
        folders(made / "server" / kit_files.STATE["server"])
        for name in names:
            _silo(made / name, made / "server", name, members)
    return Provisioned(federation, out, names, frozenset(brought))


def add(out: Path, name: str, key: Path | None = None) -> Provisioned:
    """Make a newcomer's kit in a folder of kits, and put its public key into the others'.

    The server's kit gets it last; a call that was killed is completed by repeating it.

    Raises:
        ConfigError: a name that is taken or invalid, an invalid key, or no kits with their
            authority there.
        StorageError: the folder cannot be written.
    """
    server, federation = out / "server", provisioned(out)
    name = validated(FoundingMember, {"name": name}).name
    members, kit = _known(server / "keys"), out / name
    new = [
        member
        for member in _known(kit / "keys" / "peers")
        if member.name == name and (key is None or member.public == keys.public(key))
    ]
    if name in {member.name for member in members} or (kit.exists() and not new):
        raise ConfigError(
            f"silo {name!r} has a kit in {out}; choose a new name, also for one that was revoked"
        )
    if federation.insecure and key:
        raise ConfigError("a federation with insecure = true has no use for keys; leave --key out")
    if not (new or federation.insecure):
        new = [_member(issuer_of(out), federation, name, keys.public(key) if key else None)]
    members += new
    _distinct(
        [
            *members,
            *(one for folder in sorted((out / RENEWED).glob("*/*")) for one in _known(folder)),
        ]
    )
    if not kit.exists():
        with appearing(kit) as made:
            _silo(made, server, name, members)
    for folder in (*sorted(out.glob("*/keys/peers")), server / "keys"):
        for file, text in sorted(_public(new).items()):  # no key without its certificate
            keys.replace(folder / file, text)
    return Provisioned(federation, out, (name,), frozenset({name} if key else ()))


@dataclass(frozen=True)
class Renewed:
    """A renewed server certificate: its file, and its expiry before and now."""

    path: Path
    before: datetime
    until: datetime


def renew(out: Path) -> Renewed:
    """Renew the certificate of the server in a folder of kits: same key and names, same authority.

    The private key stays, so only one public file changes; silos trust the authority and need no
    update.

    Raises:
        ConfigError: no kits with their authority there, nothing to renew, or an authority that has
            expired.
        StorageError: the certificate cannot be written.
    """
    if provisioned(out).insecure:
        raise ConfigError(
            "a federation with insecure = true has no certificate; there is nothing to renew"
        )
    issuer, path = issuer_of(out), out / "server" / "certs" / "server.crt"
    before = certificates.expires(path)
    if before >= (last := certificates.valid(out / "authority" / "ca.crt")):
        raise ConfigError(
            f"{path} is valid as long as its authority, until {last:%Y-%m-%d}; {certificates.LAST}"
        )
    try:
        renewed = certificates.renewed(issuer, content(path))
    except ValueError as fault:
        raise ConfigError(f"{path}: {fault}; take the authority of these kits") from None
    keys.replace(path, renewed)
    return Renewed(path, before, certificates.validity(renewed))


def provisioned(out: Path) -> Federation:
    """The federation whose kits are in a folder. Raises ConfigError if there are none."""
    path = out / "server" / "federation.toml"
    if not path.is_file():
        raise ConfigError(
            f"{out} holds no kits; name the folder that `pomona deploy provision` made"
        )
    return Federation.load(path)


def _agreed(path: Path, federation: Federation) -> kit_files.Files:
    """The files that all kits share: the agreement as written, or with its first weights and their
    hash.
    """
    if not federation.own or (model := federation.own.config.model).init is None:
        return {AGREED: content(path)}
    tree = read_file(path)
    tree["run"]["model"] |= {"init": WEIGHTS, "init_sha256": model.init_sha256}
    return {AGREED: tomli_w.dumps(tree).encode(), WEIGHTS: content(model.init, MOST_WEIGHTS)}


def _server(
    federation: Federation,
    authority: keys.Pair | None,
    members: Sequence[Member],
    installed: Mapping[str, bytes],
) -> kit_files.Files:
    if not authority:
        return kit_files.server(federation, None, installed)
    # its own processes reach it by another address than the silos
    hosts = (Address.parse(at).host for at in (federation.server, federation.inside))
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
    own = next((member for member in members if member.name == name), None)
    brought = own is not None and own.private is None
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
        for name in (AGREED, WEIGHTS)
        if (server / name).exists()
    }
    if own:
        files |= {"certs/ca.crt": content(server / "certs" / "ca.crt"), "keys/silo.pub": own.public}
        files |= {SHOWN: own.shown}
        files |= {"keys/silo.key": own.private} if own.private else {}
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
    shown = certificates.client(authority, name, public)
    return Member(name, pair.private if pair else None, public, certificate, shown)


def _public(members: Sequence[Member]) -> kit_files.Files:
    """Public keys of members and the authority's certificates for them, as files."""
    return {f"{m.name}.pub": m.public for m in members} | {
        f"{m.name}.cert": m.certificate for m in members
    }


def _known(folder: Path) -> list[Member]:
    """The members whose public keys and certificates are in a folder; empty if there are none."""
    try:
        return [
            Member(path.stem, None, content(path), content(path.with_suffix(".cert")))
            for path in sorted(folder.glob("*.pub"))
        ]
    except OSError as fault:
        raise ConfigError(
            f"{fault.filename}: cannot be read ({fault.strerror}); kits of an older Pomona have no "
            "certificates: provision the federation again, in a new folder"
        ) from None


def issuer_of(out: Path) -> keys.Pair:
    """The authority in a folder of kits. Raises ConfigError if it is missing."""
    try:
        return keys.Pair(*(content(out / "authority" / name) for name in ("ca.key", "ca.crt")))
    except OSError as fault:
        raise ConfigError(
            f"{out / 'authority'} cannot be read ({fault.strerror}); go where the authority's key "
            "is"
        ) from None


def _distinct(members: Sequence[Member]) -> None:
    """Refuse a key that belongs to two silos: each could sign in the other's name."""
    owner: dict[bytes, str] = {}
    for member in members:
        first = owner.setdefault(member.public, member.name)
        if first != member.name:
            raise ConfigError(
                f"silos {first!r} and {member.name!r} have the same key; every silo needs its own"
            )
