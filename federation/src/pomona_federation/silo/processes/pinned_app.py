"""The one app that a silo runs: that of its kit's SHA-256, under the id and the version which that app itself bears.

Flower looks an app up by the id, the version and the hash that a run names. They are the server's words, and parts of a
path: another version could name a folder that some other app lies in.
"""

import hashlib
from typing import Any

from pomona.core.bounds import plain
from pomona.core.errors import ProtocolError
from pomona_federation import flower_internals

REFUSAL = "refused: the server's app is not the one that this silo agreed to run"


def require_hash(found: str, expected: str) -> None:
    """Raise ProtocolError for another SHA-256, in hex, than the kit's."""
    if found != expected:
        raise ProtocolError(f"{REFUSAL} (SHA-256 {plain(found)[:12]}, expected {expected[:12]})")


def require_pinned(expected: str, run: Any, fab: Any) -> None:
    """Raise ProtocolError unless this is the pinned app, and the run names it as it names itself.

    Args:
        expected: SHA-256 in hex of the app.
        run: Flower's record of a run.
        fab: Flower's bundle of an app, with the hash that was said to be its.
    """
    for found in (hashlib.sha256(fab.content).hexdigest(), fab.hash_str, run.fab_hash):
        require_hash(found, expected)
    named, own = (run.fab_id, run.fab_version), flower_internals.app_identity(fab.content)
    if named != own:
        raise ProtocolError(f"{REFUSAL} ({plain(' '.join(named), 80)}, expected {' '.join(own)})")
