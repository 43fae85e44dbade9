"""Tensors in the safetensors format: written as a stream, and read with full validation.

The safetensors package reads and writes the same bytes, but its reader accepts duplicate names (the
last one wins) and needs the whole input twice, and its writer rejects tensors that share memory.
The format: the header's length (8 bytes, little-endian), a JSON object with one ``name: {dtype,
shape, data_offsets}`` per tensor and one ``__metadata__`` of strings, then the tensor data.
Machines are assumed to be little-endian, as all of PyTorch's targets are.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

import torch
from torch import Tensor

from pomona.core.state import NamedTensors, meta_tensors
from pomona.storage.mapped_tensor import let_go, slices

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_META, _NOTE = "__metadata__", "pomona"


@dataclass(frozen=True)
class TensorEntry:
    """A tensor's entry in the header; ``start`` and ``end`` are offsets from the end of the
    header.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def header(tensors: NamedTensors, note: str = "") -> bytes:
    """Return the bytes before the data, padded to a multiple of 8; tensors may be on the meta
    device.
    """
    table: dict[str, Any] = {_META: {_NOTE: note}} if note else {}
    offset, shapes = 0, meta_tensors(tensors)
    for name in _order(shapes):
        tensor = shapes[name]
        stop = offset + tensor.numel() * tensor.element_size()
        table[name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, stop],
        }
        offset = stop
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def pieces(tensors: NamedTensors, note: str = "") -> Iterator[bytes | memoryview]:
    """Yield a file's content, without copying contiguous tensors in memory; lazy tensors one at a
    time.
    """
    yield header(tensors, note)
    for name in _order(meta_tensors(tensors)):
        for chunk in slices(tensors[name].detach()):
            yield memory(chunk)


def layout(file: BinaryIO, size: int, limit: int) -> tuple[dict[str, TensorEntry], str]:
    """Read and validate a header only, leaving the file at the first tensor.

    Args:
        file: positioned at its start.
        size: total size in bytes.
        limit: maximum length of the header in bytes.

    Returns:
        Entries in the order of their data, which they cover without gap or overlap; and the note.

    Raises:
        ValueError: the header is invalid; the message is a phrase.
        RecursionError: the header is nested too deeply.
    """
    length = int.from_bytes(file.read(8), "little")
    if length > min(size - 8, limit):
        raise ValueError(
            f"a header of {length} bytes; at most {max(0, min(size - 8, limit))} are possible"
        )
    table = json_object(file.read(length).decode())
    notes = table.pop(_META, {})
    if not isinstance(notes, dict) or not all(isinstance(v, str) for v in notes.values()):
        raise ValueError("its metadata are not strings")
    entries = sorted(
        ((name, _entry(name, claim)) for name, claim in table.items()),
        key=lambda e: (e[1].start, e[1].end),
    )
    offset = 0
    for name, entry in entries:
        if entry.start != offset:
            raise ValueError(
                f"the bytes of {quoted(name)} start at {entry.start}, but those before it end at "
                f"{offset}"
            )
        offset = entry.end
    if offset != size - 8 - length:
        raise ValueError(
            f"the header describes {offset} bytes of tensors, but the file has {size - 8 - length}"
        )
    return dict(entries), notes.get(_NOTE, "")


def fill(
    file: BinaryIO,
    entries: Mapping[str, TensorEntry],
    allocate: Callable[..., Tensor] = torch.empty,
) -> dict[str, Tensor]:
    """Read the tensors of a validated layout, each directly into ``allocate(shape, dtype=)``.

    Raises ValueError if bytes are missing.
    """
    tensors = {}
    for name, entry in entries.items():
        tensor = allocate(entry.shape, dtype=entry.dtype)
        raw = memory(tensor)
        if file.readinto(raw) != raw.nbytes:  # type: ignore[attr-defined]
            raise ValueError(f"it ends within {quoted(name)}")
        if entry.dtype == torch.bool and (tensor.view(torch.uint8) > 1).any():
            raise ValueError(f"{quoted(name)} has boolean values other than 0 and 1")
        let_go(tensor)
        tensors[name] = tensor
    return tensors


def memory(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes in row-major order; its own memory if it is contiguous on the CPU."""
    flat: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a SHA-256 in hex over sorted (name, dtype, shape, little-endian bytes): equal only for
    equal tensors.
    """
    content = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        content.update(
            json.dumps([name, _CODES[tensor.dtype], list(tensor.shape)]).encode() + b"\n"
        )
        content.update(memory(tensor))
    return content.hexdigest()


def quoted(name: str) -> str:
    """Return an external name, made safe for a message."""
    return ascii(name if len(name) <= 60 else name[:57] + "...")


def _order(tensors: NamedTensors) -> list[str]:
    """Return the names by type width, widest first for alignment, then alphabetically."""
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def _entry(name: str, claim: Any) -> TensorEntry:
    match claim:
        case {"dtype": str(code), "shape": [*shape], "data_offsets": [begin, end], **rest} if (
            not rest
        ):
            if code not in DTYPES or not are_counts([*shape, begin, end]):
                raise ValueError(
                    f"{quoted(name)} has an unknown dtype, or a shape or offsets that are not "
                    "whole numbers"
                )
        case _:
            raise ValueError(f"{quoted(name)} is not described by dtype, shape and data_offsets")
    if prod(max(length, 1) for length in shape) >= 2**63:  # even if empty, for PyTorch's strides
        raise ValueError(f"{quoted(name)} has too large a shape")
    if end - begin != prod(shape) * DTYPES[code].itemsize:
        raise ValueError(f"{quoted(name)} has {end - begin} bytes, which does not match its shape")
    return TensorEntry(DTYPES[code], tuple(shape), begin, end)


def are_counts(values: Sequence[Any]) -> bool:
    """Return whether all values are whole numbers within PyTorch's range for sizes."""
    return all(type(value) is int and 0 <= value < 2**63 for value in values)


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object without repeated names, NaN and infinities.

    Raises ValueError, or RecursionError if it is nested too deeply.
    """
    table = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    if not isinstance(table, dict):
        raise ValueError("its header or note is not a JSON object")
    return table


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name appears twice in the header")
    return table


def _refuse(constant: str) -> None:
    raise ValueError(f"the header holds {constant}")
