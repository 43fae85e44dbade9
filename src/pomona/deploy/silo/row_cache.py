"""Model rows that a silo holds, one file each, named by the hash of its bytes."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pomona.core.errors import ProtocolError
from pomona.deploy.messages import name
from pomona.storage.atomic_io import publish

_NAME = re.compile(r"[0-9a-f]{64}")


class RowCache:
    """The rows of one folder. Nothing else can be named: whatever is no hash is refused before the disk is touched."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def held(self) -> tuple[str, ...]:
        """Hashes of all rows that lie here, sorted."""
        if not self._folder.is_dir():
            return ()
        return tuple(sorted(path.name for path in self._folder.iterdir() if _NAME.fullmatch(path.name)))

    def missing(self, needed: Iterable[str], enclosed: Mapping[str, bytes]) -> tuple[str, ...]:
        """Which rows are neither enclosed nor here, sorted. Raises ProtocolError for a name that is no hash."""
        return tuple(sorted(d for d in needed if d not in enclosed and not self._path(d).exists()))

    def rows(self, needed: Iterable[str], enclosed: Mapping[str, bytes]) -> dict[str, bytes]:
        """The bytes of rows by hash, none of which is missing; nothing is written.

        Raises ProtocolError for bytes that are not what their name says, or that nobody needs.
        """
        wanted = set(needed)
        if any(digest not in wanted or name(data) != digest for digest, data in enclosed.items()):
            raise ProtocolError("a row came that is not what its name says; check the connection")
        return {digest: enclosed[digest] if digest in enclosed else self._row(digest) for digest in wanted}

    def keep(self, rows: Mapping[str, bytes]) -> None:
        """Keep these rows, by hash, and no others."""
        for digest in set(self.held) - set(rows):
            self._path(digest).unlink()
        for digest in set(rows) - set(self.held):
            publish(self._folder, [rows[digest]], lambda content: content)

    def _row(self, digest: str) -> bytes:
        data = self._path(digest).read_bytes()
        if name(data) != digest:
            self._path(digest).unlink()
            raise ProtocolError("a row that was held has changed on the disk; it will be fetched again")
        return data

    def _path(self, digest: str) -> Path:
        """The one place that makes a path of a name."""
        if not _NAME.fullmatch(digest):
            raise ProtocolError("a row is not named by its SHA-256; check the server's version")
        return self._folder / digest
