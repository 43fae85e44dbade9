"""Signatures of silos: one on each answer, and one on each model row that the server relays to other silos.

The server has no silo's key, so it can neither forge nor swap answers and rows. Signatures are ECDSA over P-384 with
SHA-384, by the key that a silo also connects with; every kind of statement has its own prefix.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from pomona.core.errors import ConfigError
from pomona.core.files import content
from pomona_federation.pki.keys import UNREADABLE

_PURPOSE = b"pomona silo statement\0"


class Signer:
    """Signer with a silo's private key (OpenSSH file); without a key (federation without keys) it signs nothing."""

    def __init__(self, path: Path | None) -> None:
        self._key: EllipticCurvePrivateKey | None = None
        if path:
            try:
                key = load_ssh_private_key(content(path), None)
            except (OSError, *UNREADABLE):
                raise ConfigError(f"{path.name} cannot be read as a private key; copy it from the kit again") from None
            if not isinstance(key, EllipticCurvePrivateKey):
                raise ConfigError(f"{path.name} is not an EC key; copy it from the kit again")
            self._key = key

    def sign(self, kind: str, statement: Mapping[str, Any]) -> str:
        """Return the signature in hex; empty without a key."""
        return self._key.sign(_said(kind, statement), ECDSA(SHA384())).hex() if self._key else ""


def signed(public: str, kind: str, statement: Mapping[str, Any], signature: str) -> bool:
    """Return whether a statement's signature (hex) was made with a public key (one OpenSSH line)."""
    try:
        key = load_ssh_public_key(public.encode())
        if not isinstance(key, EllipticCurvePublicKey):
            return False
        key.verify(bytes.fromhex(signature), _said(kind, statement), ECDSA(SHA384()))
    except (InvalidSignature, *UNREADABLE):
        return False
    return True


def _said(kind: str, statement: Mapping[str, Any]) -> bytes:
    """Return the bytes to sign: purpose, kind, and the statement as canonical JSON."""
    body = json.dumps(statement, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return _PURPOSE + kind.encode() + b"\0" + body.encode()
