"""Tensors on the wire: rows of a downlink and uplinks as little-endian numbers and nothing else.

A row is identified by the SHA-256 of its bytes, so that a row that a silo already holds is named
but not sent again.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pomona.core.errors import ProtocolError
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
                f"a row has {len(data)} bytes, announced are {entry_form.width * travels.itemsize}"
            )
        row = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if data
            else torch.empty(0, dtype=torch.uint8)
        )
        if travels == torch.bool and (row > 1).any():
            raise ProtocolError("a row of truth values holds others than 0 and 1")
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
        return (
            self.unpack(rows[digest], EntryForm(many=False, dtype="F32", width=width))
            if digest
            else None
        )

    def narrow(self, tensor: Tensor) -> Tensor:
        """A tensor in its precision on the wire."""
        return (
            tensor.to(WIDTH[self.wire])
            if tensor.dtype == torch.float32 and tensor.numel() > self.n_places
            else tensor
        )


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
