"""Tensors on the wire: rows of a downlink and uplinks as little-endian numbers and nothing else.

A row is identified by the SHA-256 of its bytes, so that a row that a silo already holds is named
but not sent again.

Masks of secure aggregation (Bonawitz et al., CCS 2017, without shares): every two silos in a sum
agree on a secret by X25519, and derive a ChaCha20 key stream from it by HKDF, bound to the sum's
context, and to both silos' places and public keys. The silo with the lower place adds it, the other
subtracts it. Places are bound so that no two peers of a silo share a stream, which would cancel in
its vector alone. ``docs/internals/decisions.md`` has the threat model.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from pomona.core.errors import ProtocolError
from pomona.core.fixed_point import Integers
from pomona.methods.base import Downlink, Rows
from pomona.storage.mapped_tensor import let_go, next_to
from pomona.storage.safetensors_stream import DTYPES, memory, pieces
from pomona.storage.tensor_validation import decode, largest
from pomona_federation.messages.message_bodies import DownlinkEntry, EntryForm

Wire = Literal["fp32", "bf16"]
WIDTH: dict[Wire, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
CODES: dict[torch.dtype, Any] = {dtype: code for code, dtype in DTYPES.items()}


class Encoding(NamedTuple):
    """Encoding of tensors in a federation: precision and number of places.

    Model rows are narrowed to ``wire``. Numbers about clients, one a place or fewer, are sent as
    they are.
    """

    wire: Wire
    n_places: int

    def pack(self, row: Tensor) -> bytes:
        """The bytes of a row (w,) of a downlink's bank."""
        return bytes(memory(self.narrow(row)))

    def unpack(self, data: bytes, entry_form: EntryForm) -> Tensor:
        """Decode a row (w,).

        Raises ProtocolError for another length or numbers that are not finite.
        """
        blank = torch.empty(entry_form.width, dtype=DTYPES[entry_form.dtype], device="meta")
        travels = self.narrow(blank).dtype
        if len(data) != entry_form.width * travels.itemsize:
            raise ProtocolError(
                f"a row has {len(data)} bytes, but {entry_form.width * travels.itemsize} were "
                "announced"
            )
        row = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if data
            else torch.empty(0, dtype=torch.uint8)
        )
        if travels == torch.bool and (row > 1).any():
            raise ProtocolError("a boolean row has values other than 0 and 1")
        row = row.view(travels).to(blank.dtype)
        if row.is_floating_point() and not torch.isfinite(row).all():
            raise ProtocolError("a row has numbers that are not finite")
        return row

    def pack_uplink(self, uplink: Mapping[str, Tensor]) -> bytes:
        """The bytes of an uplink, in the format of safetensors."""
        return b"".join(pieces({k: self.narrow(t) for k, t in uplink.items()}))

    def unpack_uplink(self, data: bytes, expects: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Decode a peer's uplink into the form that the server half expects.

        Raises ProtocolError.
        """
        spec = {k: self.narrow(t) for k, t in expects.items()}
        return {k: t.to(expects[k].dtype) for k, t in decode(data, spec, largest(spec)).items()}

    def entry(self, entry: DownlinkEntry, rows: Mapping[str, bytes]) -> Rows:
        """Build one silo's entry of the downlink from its rows' bytes by hash.

        Raises ProtocolError.
        """
        unpacked = {j: self.unpack(rows[digest], entry.form) for j, digest in entry.rows.items()}
        height = self.n_places if entry.form.many else len(unpacked)
        # Rows that were not sent stay untouched zeros, which take up no memory.
        sample = next(iter(unpacked.values()), torch.zeros(entry.form.width))
        bank = torch.zeros(height, entry.form.width, dtype=sample.dtype)
        for j, row in unpacked.items():
            bank[j] = row
        index = torch.tensor(entry.index, dtype=torch.long)
        return Rows(bank, index.unsqueeze(0) if entry.form.many else index)

    def start(self, digest: str | None, rows: Mapping[str, bytes], width: int) -> Tensor | None:
        """The model (width,) that a newcomer starts from; None for the run's initial model.

        Raises ProtocolError.
        """
        if digest:
            return self.unpack(rows[digest], EntryForm(many=False, dtype="F32", width=width))
        return None

    def narrow(self, tensor: Tensor) -> Tensor:
        """A tensor in its precision on the wire."""
        if tensor.dtype == torch.float32 and tensor.numel() > self.n_places:
            return tensor.to(WIDTH[self.wire])
        return tensor


class PackedRows:
    """A downlink's rows as bytes by hash, each packed once for all receivers; on disk if the bank
    is on disk.
    """

    def __init__(self, downlink: Downlink, encoding: Encoding) -> None:
        self.downlink: dict[str, Rows] = dict(downlink)
        self.rows: dict[str, memoryview] = {}
        self._encoding = encoding
        self._digests: dict[tuple[str, int], str] = {}

    def digest(self, key: str, j: int) -> str:
        """The hash of a row of a bank."""
        if (key, j) not in self._digests:
            self._digests[key, j] = self.add(self.downlink[key].bank[j])
        return self._digests[key, j]

    def add(self, row: Tensor) -> str:
        """Pack one more row and return its hash."""
        travels = next_to(self._encoding.narrow(row), row)
        data = memory(travels)
        digest = sha256(data)
        let_go(travels)
        self.rows[digest] = data
        return digest


def entry_form_of(entry: Rows) -> EntryForm:
    """The form of a locally made entry."""
    return EntryForm(
        many=entry.index.dim() == 2, dtype=CODES[entry.bank.dtype], width=entry.bank.shape[1]
    )


def sha256(data: bytes | memoryview) -> str:
    """SHA-256 in hex, which identifies a row or an uplink by its bytes."""
    return hashlib.sha256(data).hexdigest()


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
                f"{silo} has the same key for the sum as {earlier}, so it may not be its own; ask "
                "the server's operator"
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
