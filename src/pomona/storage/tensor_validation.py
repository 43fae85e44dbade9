"""Validation of an uplink: exactly the agreed tensors, with usable values.

The questions return None where all is well, else one half sentence that names the tensor and what is wrong with it.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Protocol

import torch
from torch import Tensor

from pomona.core.errors import ProtocolError
from pomona.storage.mapped_tensor import slices
from pomona.storage.safetensors_stream import fill, header, layout, shown


class TensorForm(Protocol):
    """Whatever has a dtype and a shape."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""

    @property
    def shape(self) -> Sequence[int]:
        """Sizes along the axes."""


def decode(data: bytes, spec: Mapping[str, Tensor], limit: int) -> dict[str, Tensor]:
    """An uplink from a peer's bytes, with exactly the names, shapes and dtypes of the spec.

    Every claim is checked before a tensor is made; at most the input's size is allocated, and what its header takes,
    whose length is bounded by twice that of an honest one and 1 KiB.

    Args:
        data: in the safetensors format, in any order of tensors.
        spec: example tensors by name.
        limit: the most bytes that may come; ``largest(spec)`` is enough.

    Raises:
        ProtocolError: whatever is wrong, and nothing else.
    """
    if len(data) > limit:
        raise ProtocolError(f"an uplink of {len(data)} bytes came where at most {limit} may; check the peer's version")
    file = BytesIO(data)
    try:
        entries, _ = layout(file, len(data), 2 * len(header(spec)) + 1024)
        wrong = mismatch(entries, spec)
        if wrong:
            raise ValueError(wrong)
        return fill(file, entries)
    except (ValueError, RecursionError) as fault:
        raise ProtocolError(f"an uplink cannot be read ({fault}); check the peer's version and settings") from None


def largest(spec: Mapping[str, Tensor]) -> int:
    """Bytes of the longest uplink that ``decode`` reads for a spec."""
    return 8 + 2 * len(header(spec)) + 1024 + sum(t.numel() * t.element_size() for t in spec.values())


def clip(delta: Tensor, norm: float) -> Tensor:
    """A finite change (d,) scaled down to an L2 norm of ``norm``, up to rounding; unchanged where it is within."""
    length = torch.linalg.vector_norm(delta, dtype=torch.float64)
    return delta if length <= norm else (delta.double() * (norm / length)).to(delta.dtype)


def not_plain(tensors: Mapping[str, object]) -> str | None:
    """First entry that is not a dense tensor with values."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta:
            return f"tensor {shown(str(name))} is no plain tensor"
    return None


def mismatch(forms: Mapping[str, TensorForm], spec: Mapping[str, Tensor]) -> str | None:
    """The first way in which names, shapes or dtypes differ from the spec's."""
    for what, names in (("is missing", spec.keys() - forms.keys()), ("is unknown", forms.keys() - spec.keys())):
        if names:
            return f"tensor {shown(min(names))} {what}, expected {', '.join(sorted(spec)) or 'none'}"
    for name, example in spec.items():
        got, want = forms[name], example
        if got.dtype != want.dtype:
            return f"tensor {shown(name)} has dtype {got.dtype}, expected {want.dtype}"
        if tuple(got.shape) != tuple(want.shape):
            return f"tensor {shown(name)} has shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    return None


def non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The first tensor with NaN or infinite values, and how many; receivers ask again."""
    for name, tensor in tensors.items():
        parts = slices(tensor) if tensor.is_floating_point() else ()
        bad = sum(int((~torch.isfinite(part)).sum()) for part in parts)
        if bad:
            return f"tensor {shown(name)} has values that are not finite ({bad} of {tensor.numel()})"
    return None


def strangers(tensors: Mapping[str, Tensor], members: int) -> str | None:
    """The first integer tensor that names clients other than 0 to ``members`` - 1."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() and tensor.dtype != torch.bool and tensor.numel():
            low, high = (int(v) for v in torch.aminmax(tensor))
            if low < 0 or high >= members:
                return f"tensor {shown(name)} names clients {low} to {high}, there are 0 to {members - 1}"
    return None
