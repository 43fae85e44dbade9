"""The account that owns the other end of a connection within this machine, from Linux's socket tables."""

import os
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from pomona.core.files import LONG, content

TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
UID, INODE = 6, 8  # columns, counted from the local address
ROOT = 0

Address = IPv4Address | IPv6Address


def ours(client: Any, server: Any) -> bool:
    """Whether a connection comes from this machine and from this process's account or root's, by its two ends."""
    there, here = _ip(client), _ip(server)
    if there is None or here is None or not local(client, server):
        return False
    return of_this_account((there, client[1]), (here, server[1]))


def local(client: Any, server: Any) -> bool:
    """Whether a connection comes from this machine, by the addresses of its two ends."""
    peer, here = _ip(client), _ip(server)
    # Where the server listens on one address only, its own processes come from that address.
    return peer is not None and (peer.is_loopback or peer == here)


def of_this_account(client: tuple[Address, int], server: tuple[Address, int]) -> bool:
    """Whether the other end of a connection is a socket of this process's account, or of root's.

    Args:
        client: address and port of that end.
        server: those of this one.
    """
    return any(uid in {ROOT, os.getuid()} for uid in _owners(client, server))


def _owners(client: tuple[Address, int], server: tuple[Address, int]) -> Iterator[int]:
    for version, table in TABLES.items():
        ends = [_as_listed(end, version) for end in (client, server)]
        if None in ends or not table.exists():
            continue
        text, both = content(table, LONG), " ".join(map(str, ends)).encode()
        begin = text.find(both)
        # A socket closed by its process has no inode, and is listed as root's.
        if begin >= 0 and (found := text[begin:].split(maxsplit=INODE + 1))[INODE] != b"0":
            yield int(found[UID])


def _as_listed(end: tuple[Address, int], version: int) -> str | None:
    """An address and port in a table's format: words of 32 bits in this machine's order; None if not representable."""
    address, port = end
    if version == 4 and isinstance(address, IPv6Address):
        return None
    if version == 6 and isinstance(address, IPv4Address):
        address = IPv6Address(f"::ffff:{address}")
    words = struct.unpack(f"={len(address.packed) // 4}I", address.packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"


def _ip(end: Any) -> Address | None:
    try:
        ip = ip_address(end[0].partition("%")[0])
    except (TypeError, ValueError, IndexError, AttributeError):
        return None
    return getattr(ip, "ipv4_mapped", None) or ip
