"""A client's TLS: which authority it trusts, and the certificate it presents if the server asks for one."""

import os
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from pomona.core.errors import ConfigError
from pomona.core.files import content, text
from pomona_federation.pki.keys import UNREADABLE, pem


class Shown(NamedTuple):
    """The files a silo authenticates with: its certificate (PEM) and its private key (OpenSSH)."""

    certificate: Path
    key: Path


def client_context(ca: Path, shown: Shown | None) -> ssl.SSLContext:
    """Return TLS settings that trust exactly one authority and present a certificate, if any.

    Raises ConfigError for files that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=text(ca))
    except (OSError, ssl.SSLError, ValueError) as fault:
        raise ConfigError(f"{ca}: holds no certificate ({fault}); copy it from the kit again") from None
    if shown:
        _show(context, shown)
    return context


def _show(context: ssl.SSLContext, shown: Shown) -> None:
    """Load certificate and key. TLS reads PEM only from files, so a pipe keeps the converted OpenSSH key off disk."""
    try:
        key = load_ssh_private_key(content(shown.key), None)
        if not isinstance(key, EllipticCurvePrivateKey):
            raise ValueError("not on a curve")
    except (OSError, *UNREADABLE) as fault:
        raise ConfigError(
            f"{shown.key} cannot be read as a private key ({fault}); copy it from the kit again"
        ) from None
    if not shown.certificate.is_file():
        raise ConfigError(f"{shown.certificate} is missing, and mutual_tls = true needs it; the lead has it in the kit")
    out, into = os.pipe()
    try:
        os.write(into, pem(key))  # a few hundred bytes fit into a pipe
        os.close(into)
        context.load_cert_chain(shown.certificate, f"/dev/fd/{out}")
    except (OSError, ssl.SSLError):
        raise ConfigError(
            f"{shown.certificate} is not a certificate of {shown.key}; ask the lead for the one of this key"
        ) from None
    finally:
        os.close(out)
