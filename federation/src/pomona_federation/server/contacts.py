"""Which silos are connected, and since when: ``run/seen/`` has a file for each silo.

The gate writes them. A file's time is that of the silo's last request, its content the time since
which it is connected; it is empty once the silo's node has left in order.
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pomona.core.files import content, publish
from pomona_federation.server.gate import ACTIVATE, DEACTIVATE

FOLDER = "seen"
# seconds without a request: two of a node's signs of life, as SuperLink counts
OFFLINE_AFTER = 60.0
MAX_BYTES = 100  # bytes of a file that are read


@dataclass(frozen=True)
class Contact:
    """A silo's connection; times are seconds since 1970.

    Attributes:
        since: of the last change between connected and not.
        last_request: of its last request.
    """

    connected: bool
    since: float
    last_request: float


def record_request(run: Path, silo: str, path: str) -> None:
    """Record a request of a silo's node for a path; "" for a silo without a key."""
    if silo and path == DEACTIVATE:
        leave(run, silo)
    elif silo:
        record(run, silo, activated=path == ACTIVATE)


def record(run: Path, silo: str, activated: bool = False) -> None:
    """Record a request of a silo; ``activated``: its node has just started.

    Errors of the disk are ignored.
    """
    path, current_time = run / FOLDER / silo, time.time()
    with suppress(OSError):
        try:
            record = path.stat()
            connected = record.st_size > 0 and current_time - record.st_mtime <= OFFLINE_AFTER
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            connected = False
        if connected and not activated:
            os.utime(path)
        else:
            publish(path, [repr(current_time).encode()], f".{silo}", 0o600)


def leave(run: Path, silo: str) -> None:
    """Record that a silo's node has left in order."""
    with suppress(OSError):
        publish(run / FOLDER / silo, [b""], f".{silo}", 0o600)


def contacts(run: Path) -> dict[str, Contact]:
    """The silos that have ever been connected, by name."""
    silos: dict[str, Contact] = {}
    with suppress(OSError):
        for path in (run / FOLDER).iterdir():
            with suppress(OSError, ValueError):
                last_request = path.stat().st_mtime
                activation = content(path, MAX_BYTES)
                connected = bool(activation) and time.time() - last_request <= OFFLINE_AFTER
                changed = float(activation) if connected else last_request
                silos[path.name] = Contact(connected, changed, last_request)
    return silos
