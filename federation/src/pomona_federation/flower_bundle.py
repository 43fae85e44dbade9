"""The Flower app of a federation as an app bundle, and its SHA-256, which every kit pins."""

import hashlib
from pathlib import Path

from pomona.core import files
from pomona.core.bounds import MOST_BYTES
from pomona.core.errors import ConfigError

PIN = "app.sha256"


def bundle(app: Path) -> bytes:
    """The app in a folder, as ``flwr run`` sends it.

    Raises ConfigError without Flower, or for an app that Flower does not accept.
    """
    try:
        from flwr.cli.build import build_fab_from_disk
    except ImportError:
        raise ConfigError("Flower is needed to bundle its app; install pomona-federation again") from None
    try:
        for path in app.rglob("*"):
            if not path.is_dir():
                files.opened(path, MOST_BYTES).close()  # Flower reads them by their names
        built: bytes = build_fab_from_disk(app)
    except (OSError, ValueError) as fault:
        raise ConfigError(f"{app}: Flower does not accept the app ({fault}); copy it from the kit again") from None
    return built


def digest(app: Path) -> str:
    """SHA-256 in hex of the bundle of the app in a folder. Raises ConfigError as ``bundle``."""
    return hashlib.sha256(bundle(app)).hexdigest()


def pinned(kit: Path) -> str:
    """SHA-256 in hex of the app that a kit allows. Raises ConfigError."""
    try:
        text = files.text(kit / PIN, 1000).strip()
    except (OSError, ValueError):
        text = ""
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise ConfigError(f"{kit / PIN} holds no SHA-256; copy it from the kit again")
    return text


def agreed(kit: Path) -> bytes:
    """The bundle of the app in a server's kit, which must be the pinned one.

    Raises ConfigError for any other app, since every silo would refuse it.
    """
    content, expected = bundle(kit / "app"), pinned(kit)
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ConfigError(
            f"{kit / 'app'} is bundled with SHA-256 {found[:12]}, but {kit / PIN} and every silo pin {expected[:12]}; "
            "copy app from the kit again, take the Pomona, Flower and Python that made the kits, or provision again"
        )
    return content
