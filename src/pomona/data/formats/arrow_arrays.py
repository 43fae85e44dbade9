"""Arrow arrays from buffers: ``pyarrow.array`` would load pandas, where it is installed, in each
child process that reads a file.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def text_array(cells: Sequence[str | None]) -> pa.Array:
    """Return texts (n,) as Arrow; None is a gap."""
    encoded = [b"" if cell is None else cell.encode() for cell in cells]
    offsets = np.zeros(len(cells) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    missing = np.array([cell is None for cell in cells], bool)
    buffers = [_validity(missing), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    array = pa.Array.from_buffers(pa.large_string(), len(cells), buffers)
    return array.cast(pa.string()) if offsets[-1] < 2**31 else array


def number_array(values: NDArray[Any], missing: NDArray[np.bool_]) -> pa.Array:
    """Return numbers or moments (n,) as Arrow, with gaps where they are missing."""
    if values.dtype.kind == "M":
        days = np.datetime_data(values.dtype)[0] == "D"
        kind = pa.date32() if days else pa.timestamp("us")
        values = values.view(np.int64).astype(np.int32 if days else np.int64)
    else:
        kind = pa.from_numpy_dtype(values.dtype)
    content = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [_validity(missing), content])


def _validity(missing: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(~missing, bitorder="little"))
