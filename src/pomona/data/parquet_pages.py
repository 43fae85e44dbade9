"""Sizes of a Parquet file's pages, read from its footer and page headers (Thrift), which pyarrow
does not show.
"""

from os import SEEK_CUR, SEEK_END
from typing import IO, Any

DEEPEST = 8  # maximum nesting of structures
# Thrift type codes
TRUTHS, I8, I32, I64, DOUBLE, BYTES, LIST, STRUCTURE = (
    {1, 2},
    3,
    5,
    6,
    7,
    8,
    9,
    12,
)
# lists in parquet.thrift: pyarrow reads their elements as this type, whatever the file declares
LISTS: dict[tuple[int, ...], int] = {
    **dict.fromkeys(
        ((2,), (4,), (5,), (7,), (4, 1), (4, 4), (4, 1, 3, 8), (4, 1, 3, 13)), STRUCTURE
    ),
    **dict.fromkeys(((4, 1, 3, 3), (4, 1, 8, 2, 1)), BYTES),
    **dict.fromkeys(((4, 1, 3, 2), (4, 1, 3, 17, 2)), I32),
    **dict.fromkeys(((4, 1, 3, 16, 2), (4, 1, 3, 16, 3)), I64),
}


def groups(raw: IO[bytes]) -> list[list[dict[Any, Any]]]:
    """Return each row group's columns as Thrift structures: ``ColumnMetaData`` of parquet.thrift.

    Parsed here because pyarrow crashes the process when it accesses a column with damaged metadata,
    or writes it.
    """
    end = raw.seek(-8, SEEK_END)
    raw.seek(-8 - int.from_bytes(raw.read(4), "little"), SEEK_END)
    about = _structure(raw)
    if raw.tell() != end:
        raise _damaged()
    return [[chunk[3, STRUCTURE] for chunk in group[1, LIST]] for group in about[4, LIST]]


def largest_page(chunk: dict[Any, Any], raw: IO[bytes]) -> int:
    """Return the decompressed bytes of a column's largest page.

    Raises ValueError for pages outside the file.
    """
    if not chunk[5, I64]:  # pyarrow reads no page of a column without values, and there may be none
        return 0
    start, dictionary = chunk[9, I64], chunk.get((11, I64), 0)
    start = dictionary if 0 < dictionary < start else start  # as pyarrow does
    end, largest = start + chunk[7, I64], 0
    if not 0 <= start <= end <= raw.seek(0, SEEK_END):
        raise ValueError("a column does not lie in the file")
    raw.seek(start)
    while raw.tell() < end:
        header = _structure(raw)
        unpacked, packed = header.get((2, I32), -1), header.get((3, I32), -1)
        if unpacked < 0 or not 0 <= packed <= end - raw.tell():
            raise ValueError("a page does not lie in its column")
        largest = max(largest, unpacked)
        raw.seek(packed, SEEK_CUR)
    return largest


def _structure(raw: IO[bytes], at: tuple[int, ...] = ()) -> dict[tuple[int, int], Any]:
    """Parse a structure in Thrift's compact protocol by field and type, without booleans and bytes.

    Anything that another reader might interpret differently is rejected: a repeated field, a field
    number that does not fit 16 bits, or lists with element types that Parquet does not use. Such
    differences could hide a page of gigabytes.

    Source: Apache Thrift, "Thrift compact protocol encoding".

    Args:
        raw: positioned at the structure's first byte; left after its last.
        at: the path of fields to it.
    """
    found: dict[tuple[int, int], Any] = {}
    field = 0
    while kind := (head := _byte(raw)) & 15:
        before, field = field, field + (head >> 4) if head >> 4 else _signed(raw)
        if not before < field < 1 << 15 or len(at) > DEEPEST:
            raise _damaged()
        if kind not in TRUTHS:
            found[field, kind] = _value(raw, kind, (*at, field))
    return found


def _value(raw: IO[bytes], kind: int, at: tuple[int, ...]) -> Any:
    if kind in {I32, I64}:
        return _signed(raw)
    if kind == BYTES:
        return raw.seek(_unsigned(raw), SEEK_CUR)
    if kind == STRUCTURE:
        return _structure(raw, at)
    if kind == LIST:
        return _list(raw, at)
    if kind in {*TRUTHS, I8}:
        return _byte(raw)
    if kind == DOUBLE:  # not skipped: a list of 2^60 could take no bytes
        return [_byte(raw) for _ in range(8)]
    raise _damaged()


def _list(raw: IO[bytes], at: tuple[int, ...]) -> list[Any]:
    head = _byte(raw)
    of, length = head & 15, head >> 4 if head < 240 else _unsigned(raw)
    if length and (of == LIST or LISTS.get(at, of) != of):
        raise _damaged()
    return [_value(raw, of, at) for _ in range(length)]


def _damaged() -> ValueError:
    return ValueError("its metadata or a page's header are damaged")


def _byte(raw: IO[bytes]) -> int:
    if not (one := raw.read(1)):
        raise ValueError("the file ends within a page's header")
    return one[0]


def _unsigned(raw: IO[bytes]) -> int:
    value = 0
    for shift in range(0, 63, 7):
        value |= ((byte := _byte(raw)) & 127) << shift
        if byte < 128:
            return value
    raise _damaged()


def _signed(raw: IO[bytes]) -> int:
    value = _unsigned(raw)
    return value >> 1 ^ -(value & 1)
