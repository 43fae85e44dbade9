"""X.509 certificates of the authority, the server and the silos: creation, renewal, checks, and use
in TLS.
"""

import os
import ssl
import stat
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pomona.core import files
from pomona.core.errors import ConfigError
from pomona.core.files import reading
from pomona_federation.keys import Pair, load_public, pem, private_key, signer

LONGEST_PASSWORD = 1000  # characters of its file
AUTHORITY_DAYS = 3652
SERVER_DAYS = 825  # the longest that strict TLS clients accept
SKEW = timedelta(hours=1)  # tolerance for silos whose clocks run behind
SOON = timedelta(days=30)  # time before a certificate's end when warnings begin
RENEW = "renew it where the authority's key is: `pomona deploy renew`"
UNRENEWABLE = (
    "it cannot be renewed, and no silo connects after that: ask the lead for a new federation"
)


def authority(federation: str, time: datetime | None = None) -> Pair:
    """Return a new authority: its private key and its self-signed certificate, both PEM; valid for
    ten years.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    name, issued = _subject(f"{federation} authority"), _issue_time(time)
    certificate = (
        _certificate(name, name, key.public_key(), issued, issued + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(ca=True), critical=True)
        .sign(key, SHA384())
    )
    return Pair(pem(key), certificate.public_bytes(Encoding.PEM))


def server(issuer: Pair, hosts: Iterable[str], time: datetime | None = None) -> Pair:
    """Return a new key and a certificate for 825 days, both PEM, of a server with these host names
    or IP addresses.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    names = x509.SubjectAlternativeName([_general(host) for host in dict.fromkeys(hosts)])
    return Pair(pem(key), _served(issuer, key.public_key(), names, time))


def client(issuer: Pair, name: str, pub: bytes) -> bytes:
    """Return a certificate (PEM) that authenticates a silo's key (OpenSSH) to the server in mutual
    TLS.

    It is valid as long as the authority. Raises ValueError if the key is not of the kind that silos
    have.
    """
    above = x509.load_pem_x509_certificate(issuer.public)
    issued, expiry = above.not_valid_before_utc + SKEW, above.not_valid_after_utc
    builder = _certificate(_subject(name), above.subject, load_public(pub), issued, expiry)
    return _signed(builder, issuer, ExtendedKeyUsageOID.CLIENT_AUTH)


def renewed(issuer: Pair, certificate: bytes, time: datetime | None = None) -> bytes:
    """Return a new certificate (PEM) for a server with the same key and names, valid from now on.

    Raises ValueError if the old one is not a certificate of this issuer.
    """
    old, above = (x509.load_pem_x509_certificate(pem) for pem in (certificate, issuer.public))
    try:
        old.verify_directly_issued_by(above)
    except (InvalidSignature, ValueError):  # another key, another name
        raise ValueError("was not signed by this authority") from None
    names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    key = old.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey), "the authority signs no other"
    return _served(issuer, key, names, time)


def _served(
    issuer: Pair,
    key: ec.EllipticCurvePublicKey,
    names: x509.SubjectAlternativeName,
    time: datetime | None,
) -> bytes:
    """Return a server's certificate (PEM); it ends no later than the authority's."""
    above, issued = x509.load_pem_x509_certificate(issuer.public), _issue_time(time)
    expiry = min(issued + timedelta(days=SERVER_DAYS), above.not_valid_after_utc)
    builder = _certificate(_subject("server"), above.subject, key, issued, expiry).add_extension(
        names, critical=False
    )
    return _signed(builder, issuer, ExtendedKeyUsageOID.SERVER_AUTH)


def _signed(
    builder: x509.CertificateBuilder, issuer: Pair, purpose: x509.ObjectIdentifier
) -> bytes:
    """Return a certificate (PEM) for one side of TLS connections, signed by the authority."""
    key = signer(issuer.private)
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
        .sign(key, SHA384())
    )
    return certificate.public_bytes(Encoding.PEM)


def expires(path: Path) -> datetime:
    """Return the end (UTC) of a certificate file's validity.

    Raises ConfigError unless it contains a certificate.
    """
    return validity(content(path))


def content(path: Path) -> bytes:
    """Return the content of a certificate file (PEM).

    Raises ConfigError unless it contains a certificate.
    """
    remedy = "copy it from the kit again"
    with reading(path, remedy, ConfigError):
        data = files.content(path)
    try:
        validity(data)
    except ValueError:
        raise ConfigError(f"{path} is not a certificate; {remedy}") from None
    return data


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a certificate file as browsers show it.

    Raises ConfigError unless it contains a certificate.
    """
    sha256 = x509.load_pem_x509_certificate(content(path)).fingerprint(SHA256())
    return sha256.hex(":").upper()


def validity(certificate: bytes) -> datetime:
    """Return the end (UTC) of a certificate's (PEM) validity.

    Raises ValueError if it is not a certificate.
    """
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def private(path: Path) -> None:
    """Raise ConfigError unless a file exists and is readable only by its owner."""
    with reading(path, "put it there", ConfigError):
        mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ConfigError(f"{path} is open to others ({mode:04o}); run: chmod 600 {path}")


def password(path: Path, owner: str) -> str:
    """Return a password from its file.

    Raises ConfigError unless the file is readable only by its owner and holds one line.

    Args:
        path: of the file.
        owner: whose password it is, for the message.
    """
    private(path)
    try:
        text = files.text(path).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigError(
            f"{path}: cannot be read ({fault}); write {owner} password there, one line"
        ) from None
    if not text or len(text) > LONGEST_PASSWORD or not text.isprintable():
        raise ConfigError(f"{path}: write {owner} password there, in one line and nothing else")
    return text


def certificate(path: Path, key: Path, ca: Path) -> datetime:
    """Return the end (UTC) of a server certificate.

    Raises ConfigError unless it is valid now, signed by the authority, and belongs to the key.
    """
    try:
        leaf, above = (x509.load_pem_x509_certificate(files.content(file)) for file in (path, ca))
        public = load_pem_private_key(files.content(key), None).public_key()
        leaf.verify_directly_issued_by(above)
    except (OSError, ValueError, TypeError) as fault:
        raise ConfigError(
            f"{path.parent}: certificate and key cannot be used ({fault}); copy them again"
        ) from None
    except InvalidSignature:
        raise ConfigError(
            f"{path} was not signed by {ca.name}; copy both from the same kit"
        ) from None
    if public != leaf.public_key():
        raise ConfigError(f"{path} does not belong to {key.name}; copy both from the same kit")
    _require_current(leaf, path)
    return leaf.not_valid_after_utc


def _require_current(certificate: x509.Certificate, path: Path) -> None:
    """Raise ConfigError unless a certificate is valid now."""
    issued, expiry = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not issued <= datetime.now(UTC) <= expiry:
        raise ConfigError(
            f"{path} is valid from {issued:%Y-%m-%d} to {expiry:%Y-%m-%d}; renew a server's with "
            "`pomona deploy renew`, or correct this clock"
        )


def valid(path: Path) -> datetime:
    """Return the end (UTC) of a certificate file. Raises ConfigError if it is not valid now."""
    certificate = x509.load_pem_x509_certificate(content(path))
    _require_current(certificate, path)
    return certificate.not_valid_after_utc


def warning(expiry: datetime, time: datetime | None = None) -> str:
    """Return a warning for a certificate that ends within ``SOON`` or has ended; empty for all
    others.
    """
    remaining = expiry - (time or datetime.now(UTC))
    if remaining >= SOON:
        return ""
    if remaining.days >= 0:
        return f"ends in {remaining.days} days, on {expiry:%Y-%m-%d}"
    return f"ended on {expiry:%Y-%m-%d}"


def _subject(name: str) -> x509.Name:
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
    """Return the key usage: certificates for the authority, TLS handshakes for others."""
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


def _issue_time(time: datetime | None) -> datetime:
    """Return the time in whole seconds, the resolution of certificates."""
    return (time or datetime.now(UTC)).replace(microsecond=0)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issued: datetime,
    expiry: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(issued - SKEW)
        .not_valid_after(expiry)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


class ClientCertificate(NamedTuple):
    """The files a silo authenticates with: its certificate (PEM) and its private key (OpenSSH)."""

    certificate: Path
    key: Path


def client_context(ca: Path, identity: ClientCertificate | None) -> ssl.SSLContext:
    """Return TLS settings that trust exactly one authority and present a certificate, if any.

    Raises ConfigError for files that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=files.text(ca))
    except (OSError, ssl.SSLError, ValueError) as fault:
        raise ConfigError(
            f"{ca} is not a certificate ({fault}); copy it from the kit again"
        ) from None
    if identity:
        _load_identity(context, identity)
    return context


def _load_identity(context: ssl.SSLContext, identity: ClientCertificate) -> None:
    """Load certificate and key.

    TLS reads PEM only from files, so a pipe keeps the converted OpenSSH key off disk.
    """
    key = private_key(identity.key)
    if not identity.certificate.is_file():
        raise ConfigError(
            f"{identity.certificate} is missing, and mutual_tls = true needs it; the lead has it "
            "in the kit"
        )
    reader, writer = os.pipe()
    try:
        os.write(writer, pem(key))  # a few hundred bytes fit into a pipe
        os.close(writer)
        context.load_cert_chain(identity.certificate, f"/dev/fd/{reader}")
    except (OSError, ssl.SSLError):
        raise ConfigError(
            f"{identity.certificate} is not a certificate of {identity.key}; ask the lead for "
            "this key's certificate"
        ) from None
    finally:
        os.close(reader)
