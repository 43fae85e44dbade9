"""Pairwise masks of secure aggregation (Bonawitz et al., CCS 2017, without shares).

Every two silos in a sum agree on a secret by X25519, derive a ChaCha20 key from it by HKDF, bound
to the sum's context and both public keys, and take its key stream as a vector of integers modulo
2^b: the silo with the lower place adds it, the other subtracts it. In the sum over all silos masks
cancel; to whoever lacks the private keys, the masked vector of a silo is uniform.
``docs/internals/decisions.md`` has the threat model.
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
from pomona.core.fixed_point import Words

_PURPOSE = b"pomona secure aggregation mask\0"
_NONCE = bytes(16)  # a key is used for one stream


def new_secret() -> str:
    """Return a new private key in hex, from the operating system."""
    return X25519PrivateKey.generate().private_bytes_raw().hex()


def public(secret: str) -> str:
    """Return the public key in hex of a private one."""
    key = X25519PrivateKey.from_private_bytes(bytes.fromhex(secret))
    return key.public_key().public_bytes_raw().hex()


def require_key(peer: str) -> None:
    """Raise ProtocolError for a public key in hex with which no secret can be agreed on: a point of
    small order.
    """
    _shared(new_secret(), peer)


def masked(values: Words, secret: str, place: int, keys: Mapping[int, str], context: str) -> Words:
    """Return a silo's integers (d,) with its masks added.

    Args:
        values: the silo's integers modulo 2^b, of an unsigned type.
        secret: the silo's private key, in hex.
        place: the silo's.
        keys: public keys in hex of all silos in the sum, by place; this one's among them.
        context: SHA-256 in hex of what the sum is.

    Raises:
        ProtocolError: a key of a peer is none, or this silo's own.
    """
    total = values.copy()
    for peer in sorted(keys):
        if peer == place:
            continue
        stream = _stream(_key(secret, keys[place], keys[peer], context), total.nbytes)
        mask = np.frombuffer(stream, total.dtype)
        if place < peer:
            total += mask
        else:
            total -= mask
    return total


def _key(secret: str, own: str, peer: str, context: str) -> bytes:
    """The ChaCha20 key that two silos share in a sum."""
    if own == peer:
        raise ProtocolError("another silo is shown with this silo's key; ask the server's operator")
    pair = b"".join(sorted((bytes.fromhex(own), bytes.fromhex(peer))))
    info = _PURPOSE + pair
    return HKDF(SHA256(), 32, bytes.fromhex(context), info).derive(_shared(secret, peer))


def _shared(secret: str, peer: str) -> bytes:
    private = X25519PrivateKey.from_private_bytes(bytes.fromhex(secret))
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(peer)))
    except ValueError:  # a point of small order: the secret would be 0
        raise ProtocolError("a silo's key for the sum is none; ask the server's operator") from None


def _stream(key: bytes, length: int) -> bytes:
    encryptor: Any = Cipher(ChaCha20(key, _NONCE), None).encryptor()
    stream: bytes = encryptor.update(bytes(length))
    return stream
