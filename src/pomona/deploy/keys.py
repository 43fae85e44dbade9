"""Keys and certificates: the authority of a federation, the server's certificate, the silos' key pairs.

All keys are EC P-384, which Flower authenticates its nodes by. The authority signs the server's certificate (TLS) and,
for every silo, that this public key belongs to this name: whoever has ``ca.crt`` can tell a member from a stranger.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
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
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pomona.errors import ConfigError, StorageError

AUTHORITY_DAYS = 3652
SERVER_DAYS = 825  # the longest that strict TLS clients accept
SKEW = timedelta(hours=1)  # clocks of silos that run behind
PURPOSE = b"pomona silo key"


@dataclass(frozen=True)
class Pair:
    """A private key and what is public of it, a public key or a certificate, as the bytes of their files."""

    private: bytes
    public: bytes


def authority(federation: str, now: datetime | None = None) -> Pair:
    """A new authority: its private key and its self-signed certificate, both PEM; valid for ten years."""
    key = generate_private_key(SECP384R1())
    name = _named(f"{federation} authority")
    certificate = (
        _certificate(name, name, key.public_key(), AUTHORITY_DAYS, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(ca=True), critical=True)
        .sign(key, SHA384())
    )
    return Pair(_pem(key), certificate.public_bytes(Encoding.PEM))


def server(issuer: Pair, hosts: Iterable[str], now: datetime | None = None) -> Pair:
    """A new key and a certificate, both PEM, for a server at these hosts (names or IP addresses); for 825 days."""
    key = generate_private_key(SECP384R1())
    above, signer = x509.load_pem_x509_certificate(issuer.public), _private(issuer.private)
    names = list(dict.fromkeys(hosts))
    certificate = (
        _certificate(_named("server"), above.subject, key.public_key(), SERVER_DAYS, now)
        .add_extension(x509.SubjectAlternativeName([_general(host) for host in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, SHA384())
    )
    return Pair(_pem(key), certificate.public_bytes(Encoding.PEM))


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
    return _private(ca_key).sign(_statement(name, pub), ECDSA(SHA384()))


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


def expires(path: Path) -> datetime:
    """The last moment (UTC) at which a certificate file is valid. Raises ConfigError if it is none."""
    try:
        return validity(path.read_bytes())
    except OSError as fault:
        raise ConfigError(f"{path}: cannot be read ({fault.strerror}); copy it from the kit again") from None
    except ValueError:
        raise ConfigError(f"{path}: holds no certificate; copy it from the kit again") from None


def validity(certificate: bytes) -> datetime:
    """The last moment (UTC) at which a certificate (PEM) is valid. Raises ValueError if it is none."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


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


def _private(pem: bytes) -> EllipticCurvePrivateKey:
    key = load_pem_private_key(pem, password=None)
    assert isinstance(key, EllipticCurvePrivateKey), "the authority's key is made here"
    return key


def _line(key: EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _named(name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Pomona"),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, ca: bool) -> x509.KeyUsage:
    """The authority signs certificates and silos' keys; a server only its handshakes."""
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePublicKey, days: int, now: datetime | None
) -> x509.CertificateBuilder:
    start = (now or datetime.now(UTC)).replace(microsecond=0)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - SKEW)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
