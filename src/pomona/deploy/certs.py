"""Certificates and private keys that lie in a kit: whether they can be used, now."""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from pomona.errors import ConfigError


def private(path: Path) -> None:
    """Raise ConfigError unless a file is there and readable by its owner alone."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as fault:
        raise ConfigError(f"{path} cannot be read ({fault.strerror}); put it there") from None
    if mode & 0o077:
        raise ConfigError(f"{path} is open to others ({mode:04o}); run: chmod 600 {path}")


def certificate(path: Path, key: Path, ca: Path) -> datetime:
    """The end (UTC) of a server certificate that is valid, signed by the authority, and the key's.

    Raises ConfigError for one that is not.
    """
    try:
        own, above = (x509.load_pem_x509_certificate(file.read_bytes()) for file in (path, ca))
        public = load_pem_private_key(key.read_bytes(), None).public_key()
        own.verify_directly_issued_by(above)
    except (OSError, ValueError, TypeError) as fault:
        raise ConfigError(f"{path.parent}: certificate and key cannot be used ({fault}); copy them again") from None
    except InvalidSignature:
        raise ConfigError(f"{path} was not signed by {ca.name}; copy both from the same kit") from None
    if public != own.public_key():
        raise ConfigError(f"{path} does not belong to {key.name}; copy both from the same kit")
    left(own.not_valid_before_utc, own.not_valid_after_utc, path)
    return own.not_valid_after_utc


def left(begin: datetime, end: datetime, path: Path, now: datetime | None = None) -> timedelta:
    """How long a certificate is valid yet. Raises ConfigError for one that is not valid now."""
    now = now or datetime.now(UTC)
    if not begin <= now <= end:
        raise ConfigError(f"{path} is valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d}; renew it, or set this clock right")
    return end - now
