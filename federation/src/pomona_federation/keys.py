"""Keys: the silos' key pairs, the authority's OpenSSH certificates for them, key files, and silos'
signatures.

All keys are EC P-384, by which Flower authenticates its nodes. The authority signs the server's
certificate (X.509, for TLS) and one OpenSSH certificate for every silo, whose principal is the
silo's name; ``ssh-keygen -L -f NAME.cert`` shows it. Its critical option names the federation;
OpenSSH refuses certificates with an unknown option, so no SSH server accepts one for a login.

A silo signs each answer, and each model row that the server relays to other silos, by ECDSA over
P-384 with SHA-384. The server has no silo's key, so it can neither forge nor swap them; every kind
of statement has its own prefix.
"""

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    SSHCertificate,
    SSHCertificateBuilder,
    SSHCertificateType,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_identity,
    load_ssh_public_key,
)

from pomona.core import files
from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import publish, reading, writing

_PURPOSE = b"pomona silo statement\0"
SIGNATURE = ec.ECDSA(SHA384())
FEDERATION = b"federation@pomona"
# The library's errors for a key in OpenSSH format; the last is for a point in compressed form.
UNREADABLE = (ValueError, UnsupportedAlgorithm, NotImplementedError)


@dataclass(frozen=True)
class Pair:
    """A private key and its public counterpart (a public key or a certificate), as the bytes of
    their files.
    """

    private: bytes
    public: bytes


def silo() -> Pair:
    """Return a silo's new key pair (OpenSSH); the private key is not encrypted, as a service starts
    unattended.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return Pair(private, line(key.public_key()))


def public(path: Path) -> bytes:
    """Return the public key in a file as one OpenSSH line without comment.

    Raises ConfigError if it is not EC P-384.
    """
    with reading(path, "name a silo's public key file", ConfigError):
        content = files.content(path)
    try:
        return line(load_public(content))
    except ValueError as fault:
        advice = "make one with: ssh-keygen -t ecdsa -b 384 -N '' -f silo.key"
        if b"PRIVATE KEY" in content:
            raise ConfigError(
                f"{path}: is a private key, which stays with its silo; name its .pub file"
            ) from None
        raise ConfigError(f"{path}: {fault}; {advice}") from None


def certify(authority: Pair, federation: str, name: str, pub: bytes, serial: int = 0) -> bytes:
    """Return the authority's OpenSSH certificate (one line) that binds a public key (OpenSSH) to a
    silo's name.

    ``serial`` is 0 for a silo's first key, and higher for each replacement. The certificate is
    valid as long as the authority. Raises ValueError if the key is not of the kind that silos have.
    """
    issuer = x509.load_pem_x509_certificate(authority.public)
    certificate = (
        SSHCertificateBuilder()
        .public_key(load_public(pub))
        .serial(serial)
        .type(SSHCertificateType.USER)
        .key_id(name.encode())
        .valid_principals([name.encode()])
        .valid_after(issuer.not_valid_before_utc.timestamp())
        .valid_before(issuer.not_valid_after_utc.timestamp())
        .add_critical_option(FEDERATION, federation.encode())
        .sign(signer(authority.private))
    )
    return certificate.public_bytes() + b"\n"


def certified(
    authority: bytes,
    federation: str,
    name: str,
    pub: bytes,
    certificate: bytes,
    time: datetime | None = None,
) -> bool:
    """Return whether an OpenSSH certificate is the authority's (PEM) for this federation, name and
    key, and valid now.

    ``verify_cert_signature`` checks the signature with the key inside the certificate, so that key
    is compared first.
    """
    issuer = x509.load_pem_x509_certificate(authority).public_key()
    try:
        identity = load_ssh_public_identity(certificate)
        if not isinstance(identity, SSHCertificate) or identity.signature_key() != issuer:
            return False
        identity.verify_cert_signature()
        expected = {
            "public_bytes": certificate.strip(),
            "type": SSHCertificateType.USER,
            "valid_principals": [name.encode()],
            "public_key": load_public(pub),
            "critical_options": {FEDERATION: federation.encode()},
            "extensions": {},
        }
        stated = {key: getattr(identity, key) for key in expected}
        stated |= {key: stated[key]() for key in ("public_bytes", "public_key")}
        seconds = (time or datetime.now(UTC)).timestamp()
        return stated == expected and identity.valid_after <= seconds < identity.valid_before
    except (InvalidSignature, *UNREADABLE):
        return False


def serial(certificate: bytes) -> int:
    """Return the serial number of an OpenSSH certificate. Raises ValueError for anything else."""
    try:
        identity = load_ssh_public_identity(certificate)
    except UNREADABLE:
        identity = None
    if not isinstance(identity, SSHCertificate):
        raise ValueError("is not an OpenSSH certificate")
    return identity.serial


def fingerprint(pub: bytes) -> str:
    """Return a public key's (OpenSSH) fingerprint as ``ssh-keygen -l`` prints it, for comparison by
    telephone.
    """
    return "SHA256:" + b64encode(sha256(b64decode(pub.split()[1])).digest()).decode().rstrip("=")


def write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a new file, readable only by its owner from the first moment.

    Raises StorageError if it already exists: keys are never overwritten.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(handle)
        except BaseException:
            path.unlink(missing_ok=True)  # remove an incomplete key
            raise
    except FileExistsError:
        raise StorageError(
            f"{path} exists already and is not overwritten; move it away first"
        ) from None
    except OSError as fault:
        raise StorageError(
            f"{path}: cannot be written ({fault.strerror}); choose another folder"
        ) from None


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically, readable only by its owner. Raises StorageError.

    What a kill leaves half written has another suffix: nobody takes it for a key.
    """
    with writing(path):
        publish(path, [content], f".{path.name}.new", 0o600)


def load_public(content: bytes) -> ec.EllipticCurvePublicKey:
    """Return a silo's public key from its OpenSSH line. Raises ValueError if it is not on P-384."""
    try:
        key = load_ssh_public_key(content)
    except UNREADABLE:
        raise ValueError("is not a public key in OpenSSH's format") from None
    if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)):
        raise ValueError("is not a key on the curve P-384 (ecdsa-sha2-nistp384)")
    return key


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a silo's private key from its file (OpenSSH). Raises ConfigError for any other."""
    with reading(path, "put the private key of this silo there", ConfigError):
        data = files.content(path)
    try:
        key = load_ssh_private_key(data, None)
    except (TypeError, *UNREADABLE):  # the former for a passphrase
        key = None
    if not (isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP384R1)):
        raise ConfigError(
            f"{path} is not an unencrypted private key on P-384 in OpenSSH's format; put this "
            "silo's there"
        )
    return key


def signer(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Return an authority's private key from PEM."""
    key = load_pem_private_key(pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey), "the authority's key is made here"
    return key


def line(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key as one OpenSSH line without comment."""
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM, not encrypted."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class Signer:
    """Signer with a silo's private key (OpenSSH file); without a key (federation without keys) it
    signs nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._key = private_key(path) if path else None

    def sign(self, statement_type: str, statement: Mapping[str, Any]) -> str:
        """Return the signature in hex; empty without a key."""
        if self._key is None:
            return ""
        return self._key.sign(_signed_bytes(statement_type, statement), SIGNATURE).hex()


def signed(public: str, statement_type: str, statement: Mapping[str, Any], signature: str) -> bool:
    """Return whether a statement's signature (hex) was made with a public key (one OpenSSH
    line).
    """
    try:
        key = load_public(public.encode())
        key.verify(bytes.fromhex(signature), _signed_bytes(statement_type, statement), SIGNATURE)
    except (InvalidSignature, *UNREADABLE):
        return False
    return True


def _signed_bytes(statement_type: str, statement: Mapping[str, Any]) -> bytes:
    """Return the bytes to sign: purpose, kind, and the statement as canonical JSON."""
    body = json.dumps(statement, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return _PURPOSE + statement_type.encode() + b"\0" + body.encode()
