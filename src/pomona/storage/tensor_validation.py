"""Validation of an uplink: exactly the agreed tensors, with usable values.

Checks return None if all is well, otherwise a phrase that names the tensor and the problem.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Protocol

import torch
from torch import Tensor

from pomona.core.errors import ProtocolError
from pomona.storage.mapped_tensor import slices
from pomona.storage.safetensors_stream import fill, header, layout, quoted


class TensorForm(Protocol):
    """Any object with a dtype and a shape."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the elements."""

    @property
    def shape(self) -> Sequence[int]:
        """The sizes along the axes."""


def decode(data: bytes, spec: Mapping[str, Tensor], limit: int) -> dict[str, Tensor]:
    """Decode an uplink with exactly the names, shapes and dtypes of the spec.

    Everything is validated before a tensor is created. At most the input's size is allocated, plus
    the header, whose length is limited to twice that of a valid one plus 1 KiB.

    Args:
        data: in the safetensors format, tensors in any order.
        spec: example tensors by name.
        limit: maximum number of bytes; ``largest(spec)`` is enough.

    Raises:
        ProtocolError: for any problem; no other exception is raised.
    """
    if len(data) > limit:
        raise ProtocolError(
            f"an uplink has {len(data)} bytes; the limit is {limit}: check the peer's version"
        )
    file = BytesIO(data)
    try:
        entries, _ = layout(file, len(data), 2 * len(header(spec)) + 1024)
        problem = mismatch(entries, spec)
        if problem:
            raise ValueError(problem)
        return fill(file, entries)
    except (ValueError, RecursionError) as fault:
        raise ProtocolError(
            f"an uplink cannot be read ({fault}); check the peer's version and settings"
        ) from None


def largest(spec: Mapping[str, Tensor]) -> int:
    """Return the maximum length of an uplink that ``decode`` accepts for a spec."""
    return (
        8 + 2 * len(header(spec)) + 1024 + sum(t.numel() * t.element_size() for t in spec.values())
    )


def not_plain(tensors: Mapping[str, object]) -> str | None:
    """Describe the first entry that is not a dense tensor with values."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta:
            return f"tensor {quoted(str(name))} is not a plain tensor"
    return None


def mismatch(entries: Mapping[str, TensorForm], spec: Mapping[str, Tensor]) -> str | None:
    """Describe the first difference in names, shapes or dtypes from the spec."""
    for problem, names in (
        ("is missing", spec.keys() - entries.keys()),
        ("is unknown", entries.keys() - spec.keys()),
    ):
        if names:
            expected_names = ", ".join(sorted(spec)) or "none"
            return f"tensor {quoted(min(names))} {problem}, expected {expected_names}"
    for name, expected in spec.items():
        actual = entries[name]
        if actual.dtype != expected.dtype:
            return f"tensor {quoted(name)} has dtype {actual.dtype}, expected {expected.dtype}"
        if tuple(actual.shape) != tuple(expected.shape):
            return (
                f"tensor {quoted(name)} has shape {tuple(actual.shape)}, expected "
                f"{tuple(expected.shape)}"
            )
    return None


def non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Describe the first tensor with NaN or infinite values, with their count."""
    for name, tensor in tensors.items():
        chunks = slices(tensor) if tensor.is_floating_point() else ()
        bad = sum(int((~torch.isfinite(chunk)).sum()) for chunk in chunks)
        if bad:
            return (
                f"tensor {quoted(name)} has values that are not finite ({bad} of {tensor.numel()})"
            )
    return None


def strangers(tensors: Mapping[str, Tensor], members: int) -> str | None:
    """Describe the first integer tensor with client ids outside 0 to ``members`` - 1."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() and tensor.dtype != torch.bool and tensor.numel():
            low, high = (int(v) for v in torch.aminmax(tensor))
            if low < 0 or high >= members:
                return (
                    f"tensor {quoted(name)} names clients {low} to {high}, there are 0 to "
                    f"{members - 1}"
                )
    return None
