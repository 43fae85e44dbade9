"""How long an uplink can be: the round loop knows, and the gate before SuperLink, another process, has to."""

from pathlib import Path

from pomona.core.bounds import parse
from pomona.core.errors import StorageError
from pomona.storage.atomic_io import publish

UPLINK = "uplink.json"


def announce(run: Path, size: int) -> None:
    """Write down the bytes of the longest uplink that is waited for, where that is news."""
    if announced(run) != size:
        publish(run, [b"%d\n" % size], lambda _: UPLINK, ".uplink")


def announced(run: Path) -> int:
    """The bytes that were written down; 0 as long as none were."""
    try:
        size = parse((run / UPLINK).read_bytes(), StorageError, 100)
    except (OSError, StorageError):
        return 0
    return size if isinstance(size, int) and size > 0 else 0
