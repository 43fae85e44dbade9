"""The only app that a silo runs: the one with the SHA-256 in its kit, under its own id and version.

Flower looks an app up by the id, version and hash that a run names. They come from the server and become parts of a
path: another version could name the folder of another app.
"""

import hashlib
from typing import Any

from pomona.core.bounds import plain
from pomona.core.errors import ProtocolError
from pomona_federation import flower_internals

REFUSAL = "refused: the server's app is not the one that this silo agreed to run"


def require_hash(found: str, expected: str) -> None:
    """Raise ProtocolError unless a SHA-256 in hex is the kit's."""
    if found != expected:
        raise ProtocolError(f"{REFUSAL} (SHA-256 {plain(found)[:12]}, expected {expected[:12]})")


def require_pinned(expected: str, run: Any, fab: Any) -> None:
    """Raise ProtocolError unless this is the pinned app, and the run uses the app's own id and version.

    Args:
        expected: SHA-256 in hex of the app.
        run: Flower's record of a run.
        fab: Flower's bundle of an app, with its claimed hash.
    """
    for found in (hashlib.sha256(fab.content).hexdigest(), fab.hash_str, run.fab_hash):
        require_hash(found, expected)
    named, own = (run.fab_id, run.fab_version), flower_internals.app_identity(fab.content)
    if named != own:
        raise ProtocolError(f"{REFUSAL} ({plain(' '.join(named), 80)}, expected {' '.join(own)})")
