"""Files of kits: written once, readable only by their owner, complete or not at all."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pomona.core.errors import StorageError
from pomona.storage.atomic_io import sync
from pomona_federation.pki import keys

EXECUTABLE = "start.sh"


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write new files, by their paths in a folder. Raises StorageError if one exists."""
    for name, content in files.items():
        path = folder / name
        folders(path.parent)
        keys.write(path, content, 0o700 if path.name == EXECUTABLE else 0o600)


def folders(path: Path) -> None:
    """Create a folder and its parents, all private to their owner; ``Path.mkdir`` would open the parents to others."""
    if not path.is_dir():
        folders(path.parent)
        path.mkdir(mode=0o700)


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill, renamed to ``folder`` on success and removed on failure. Raises StorageError."""
    made, place = None, folder.absolute()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        yield made
        made.rename(place)
        sync(place.parent)
    except OSError as fault:
        raise StorageError(f"{folder}: cannot be written ({fault.strerror}); choose another place") from None
    finally:
        if made:
            shutil.rmtree(made, ignore_errors=True)  # after the rename nothing with that name is left
