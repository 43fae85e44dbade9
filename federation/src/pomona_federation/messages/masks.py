"""Pairwise masks of secure aggregation (Bonawitz et al., CCS 2017, without shares).

Every two silos in a sum agree on a secret by X25519, derive a ChaCha20 key from it by HKDF, bound
to the sum's context and to both silos' places and public keys, and take its key stream as a vector
of integers modulo 2^b: the silo with the lower place adds it, the other subtracts it. In the sum
over all silos masks cancel; to whoever lacks the private keys, the masked vector of a silo is
uniform. Places are bound so that no two peers of a silo share a stream, which would cancel in its
vector alone, even where one peer repeats the other's key. ``docs/internals/decisions.md`` has the
threat model.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pomona.core.errors import ProtocolError
from pomona.core.fixed_point import Integers

_PURPOSE = b"pomona secure aggregation mask 2\0"
_NONCE = bytes(16)  # a key is used for one stream
_MODULUS = 2**255 - 19  # of X25519's coordinates
_TEST_SECRET = "01" * 32  # a private key that finds points of small order as every other does


def new_secret() -> str:
    """Return a new private key in hex, from the operating system."""
    return X25519PrivateKey.generate().private_bytes_raw().hex()


def public(secret: str) -> str:
    """Return the public key in hex of a private one."""
    key = X25519PrivateKey.from_private_bytes(bytes.fromhex(secret))
    return key.public_key().public_bytes_raw().hex()


def require_keys(keys: Mapping[str, str]) -> None:
    """Check the public keys in hex of silos in one sum, by name.

    Raises:
        ProtocolError: with a key no secret can be agreed on, since it is a point of small order; or
            it is another spelling of a smaller number; or two silos have the same key.
    """
    silos: dict[str, str] = {}
    for silo, key in keys.items():
        if (
            int.from_bytes(bytes.fromhex(key), "little") >= _MODULUS
            or _shared(_TEST_SECRET, key) is None
        ):
            raise ProtocolError(
                f"the key of {silo} for the sum is not a usable X25519 key; have {silo} check its "
                "version, and ask the server's operator"
            )
        if (earlier := silos.setdefault(key, silo)) != silo:
            raise ProtocolError(
                f"{silo} has the same key for the sum as {earlier}, so that it may not be its own; "
                "ask the server's operator"
            )


def masked(
    values: Integers, secret: str, member: int, keys: Mapping[int, str], context: str
) -> Integers:
    """Return a silo's integers (d,) with its masks added.

    Args:
        values: the silo's integers modulo 2^b, of an unsigned type.
        secret: the silo's private key, in hex.
        member: the silo's.
        keys: public keys in hex of all silos in the sum, by place, as ``require_keys`` has checked
            them; this one's among them.
        context: SHA-256 in hex of what the sum is.

    Raises:
        ProtocolError: with a key no secret can be agreed on.
    """
    total = values.copy()
    for peer in sorted(keys):
        if peer == member:
            continue
        secret_of_pair = _shared(secret, keys[peer])
        if secret_of_pair is None:
            raise ProtocolError(f"the key at place {peer} of the sum is not a usable X25519 key")
        endpoints = sorted((i, bytes.fromhex(keys[i])) for i in (member, peer))
        info = _PURPOSE + b"".join(i.to_bytes(4, "big") + key for i, key in endpoints)
        key = HKDF(SHA256(), 32, bytes.fromhex(context), info).derive(secret_of_pair)
        mask = np.frombuffer(_stream(key, total.nbytes), total.dtype)
        if member < peer:
            total += mask
        else:
            total -= mask
    return total


def _shared(secret: str, peer: str) -> bytes | None:
    """Return the secret of two silos; None where it would be 0, by a point of small order."""
    private = X25519PrivateKey.from_private_bytes(bytes.fromhex(secret))
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(peer)))
    except ValueError:
        return None


def _stream(key: bytes, length: int) -> bytes:
    encryptor: Any = Cipher(ChaCha20(key, _NONCE), None).encryptor()
    stream: bytes = encryptor.update(bytes(length))
    return stream
