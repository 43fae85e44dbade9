"""The secret by which a SuperNode recognises its resident process, in a file of the silo, new at each supervisor start.

The SuperNode's runtime listens on loopback, open to every account of the machine. Without a secret Flower gives the
next message, with the models in it, to whoever asks first.
"""

import secrets
from pathlib import Path

from pomona.storage.atomic_io import publish

BYTES = 32


def secret_file(kit: Path) -> Path:
    """Path of the secret in a silo's kit, in a folder that no backup includes."""
    return kit / "state" / "node" / "runtime.secret"


def renew(kit: Path) -> None:
    """Write a new secret, readable only by its owner. Raises OSError."""
    path = secret_file(kit)
    publish(path.parent, [secrets.token_bytes(BYTES)], lambda _: path.name, ".runtime", 0o600)
