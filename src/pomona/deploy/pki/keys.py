"""Keys: the silos' pairs, the authority's word on them, and how any of them is written.

All keys are EC P-384, which Flower authenticates its nodes by. The authority signs the server's certificate (TLS) and,
for every silo, that this public key belongs to this name: whoever has ``ca.crt`` can tell a member from a stranger.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP384R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)

from pomona.core.errors import ConfigError, StorageError
from pomona.storage.atomic_io import publish

PURPOSE = b"pomona silo key"


@dataclass(frozen=True)
class Pair:
    """A private key and what is public of it, a public key or a certificate, as the bytes of their files."""

    private: bytes
    public: bytes


def silo() -> Pair:
    """A new key pair of a silo, both OpenSSH; the private one is not encrypted, as a service starts without people."""
    key = generate_private_key(SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return Pair(private, _line(key.public_key()))


def public(path: Path) -> bytes:
    """The public key in a file, as one OpenSSH line without comment. Raises ConfigError if it is no EC P-384 key."""
    try:
        content = path.read_bytes()
    except OSError as fault:
        raise ConfigError(f"{path}: cannot be read ({fault.strerror}); name a silo's public key file") from None
    try:
        return _line(_public(content))
    except ValueError as fault:
        advice = "make one with: ssh-keygen -t ecdsa -b 384 -N '' -f silo.key"
        if b"PRIVATE KEY" in content:
            raise ConfigError(f"{path}: is a private key, which stays with its silo; name its .pub file") from None
        raise ConfigError(f"{path}: {fault}; {advice}") from None


def certify(ca_key: bytes, name: str, pub: bytes) -> bytes:
    """The authority's signature (ECDSA, SHA-384, DER) that a public key (OpenSSH) is the silo's of this name.

    Raises ValueError if the key is none, or not of the kind that silos have.
    """
    return signer(ca_key).sign(_statement(name, pub), ECDSA(SHA384()))


def certified(ca_cert: bytes, name: str, pub: bytes, signature: bytes) -> bool:
    """Whether the authority of this certificate (PEM) signed that the key is the silo's of this name."""
    key = x509.load_pem_x509_certificate(ca_cert).public_key()
    if not isinstance(key, EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, _statement(name, pub), ECDSA(SHA384()))
    except (InvalidSignature, ValueError):
        return False
    return True


def write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a new file, readable for its owner alone from the first moment on.

    Raises StorageError if it exists already: keys are never overwritten.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(handle)
        except BaseException:
            path.unlink(missing_ok=True)  # half a key is none
            raise
    except FileExistsError:
        raise StorageError(f"{path} exists already and is not overwritten; move it away first") from None
    except OSError as fault:
        raise StorageError(f"{path}: cannot be written ({fault.strerror}); choose another folder") from None


def replace(path: Path, content: bytes) -> None:
    """Put a file in the place of one that is there, in one step, for its owner alone. Raises StorageError."""
    try:
        publish(path.parent, [content], lambda _: path.name, f".{path.name}", 0o600)
    except OSError as fault:
        raise StorageError(f"{path}: cannot be replaced ({fault.strerror}); mend its folder's permissions") from None


def _statement(name: str, pub: bytes) -> bytes:
    """What is signed: by purpose, length and content, so that no other name and key read the same."""
    line, said = _line(_public(pub)), name.encode()
    return b"\0".join((PURPOSE, b"%d" % len(said), said, line))


def _public(content: bytes) -> EllipticCurvePublicKey:
    try:
        key = load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("holds no public key in OpenSSH's format") from None
    if not (isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP384R1)):
        raise ValueError("is no key on the curve P-384 (ecdsa-sha2-nistp384)")
    return key


def signer(pem: bytes) -> EllipticCurvePrivateKey:
    """An authority's private key (PEM)."""
    key = load_pem_private_key(pem, password=None)
    assert isinstance(key, EllipticCurvePrivateKey), "the authority's key is made here"
    return key


def _line(key: EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def pem(key: EllipticCurvePrivateKey) -> bytes:
    """A private key as the bytes of its file, not encrypted."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
