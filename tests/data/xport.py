"""SAS transport files (XPORT, version 5), after the record layout that SAS published (TS-140)."""

import struct


def number(value):
    """A number in IBM's floating point: sign, exponent of 16 in excess 64, 56 bits of fraction."""
    if isinstance(value, str):  # a missing value, "." or its letter
        return value.encode() + bytes(7)
    if not value:
        return bytes(8)
    sign, value, exponent = (0x80 if value < 0 else 0), abs(value), 64
    while value >= 1:
        value, exponent = value / 16, exponent + 1
    while value < 1 / 16:
        value, exponent = value * 16, exponent - 1
    return bytes([sign | exponent]) + int(value * 2**56).to_bytes(7, "big")


def _record(text):
    return text.encode().ljust(80)


def _header(name, digits="0" * 30):
    return _record(f"HEADER RECORD*******{name:8}HEADER RECORD!!!!!!!{digits}")


def _padded(content):
    return content + b" " * (-len(content) % 80)


def library(*members):
    """A file with data sets of ``member``."""
    header = _header("LIBRARY") + _record("SAS     SAS     SASLIB  9.4     X64_10PR")
    return header + _record("01MAR24:10:00:00") + b"".join(members)


def member(name, columns, rows, encoding="ascii"):
    """A data set. Columns are (name, bytes, format, width), texts where the format begins with $."""
    content = _header("MEMBER", "000000000000000001600000000140") + _header("DSCRPTR")
    content += _record(f"SAS     {name:8}SASDATA 9.4     X64_10PR") + _record("01MAR24:10:00:00")
    content += _header("NAMESTR", f"000000{len(columns):04d}" + "0" * 20)
    entries, position = b"", 0
    for index, (label, length, format_, width) in enumerate(columns):
        type_code = 2 if format_.startswith("$") else 1
        entries += struct.pack(">4h8s40s8s3h2s8s2hl52s", type_code, 0, length, index + 1,
            label.ljust(8).encode(), b" " * 40, format_.ljust(8).encode(), width, 0, 0, b"  ",
            b" " * 8, 0, 0, position, b"")  # fmt: skip
        position += length
    content += _padded(entries) + _header("OBS")
    cells = b"".join(
        value.encode(encoding).ljust(length) if format_.startswith("$") else number(value)[:length]
        for row in rows
        for (_, length, format_, _), value in zip(columns, row, strict=True)
    )
    return content + _padded(cells)
