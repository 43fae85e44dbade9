"""What a SuperNode knows its resident process by: a secret in a file of the silo, new at each start of the supervisor.

The SuperNode's runtime listens on loopback, where every account of the machine can ask it. Without a secret Flower
gives whoever asks first the next message to do, with the models in it.
"""

import secrets
from pathlib import Path

from pomona.storage.atomic_io import publish

BYTES = 32


def secret_file(kit: Path) -> Path:
    """Where a silo's kit has it, in a folder that no backup holds."""
    return kit / "state" / "node" / "runtime.secret"


def renew(kit: Path) -> None:
    """Write a new one, readable by its owner alone. Raises OSError."""
    path = secret_file(kit)
    publish(path.parent, [secrets.token_bytes(BYTES)], lambda _: path.name, ".runtime", 0o600)
