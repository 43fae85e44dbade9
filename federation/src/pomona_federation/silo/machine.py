"""Seals: keyed hashes by which a silo recognises what was written on its own machine.

The key is the machine's id, which the maker of a kit does not know. Sealed are the mark of a silo's state, decisions on
studies, noise keys and the privacy budget: everything that a kit unpacked over a silo's folder could replace.
"""

import hashlib
import hmac
import re
from pathlib import Path

from pomona.core.errors import StorageError
from pomona.core.files import content

MACHINE = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


def seal(what: str, text: str = "") -> str:
    """The seal of a text, 64 hex digits; ``what`` is its kind. Raises StorageError without a machine id."""
    return hmac.new(_machine(), f"pomona {what}\n{text}".encode(), hashlib.sha256).hexdigest()


def sealed(found: object, what: str, text: str = "") -> bool:
    """Whether a value is the seal of a text. Raises as ``seal``."""
    return hmac.compare_digest(str(found).encode(), seal(what, text).encode())


def _machine() -> bytes:
    for path in MACHINE:
        try:
            found = content(path, 100).strip()
        except OSError:
            continue
        if re.fullmatch(rb"[0-9a-f]{32}", found):
            return found
    raise StorageError(
        f"{MACHINE[0]} is missing, by which a silo knows the state that it has made; in a container mount the "
        "machine's, read-only (compose.yaml does)"
    )
