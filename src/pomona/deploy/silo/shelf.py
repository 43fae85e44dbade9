"""Model rows that a silo holds, one file each, named by the hash of its bytes."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pomona.deploy.wire import name
from pomona.errors import ProtocolError
from pomona.federation.durable import publish

_NAME = re.compile(r"[0-9a-f]{64}")


class Shelf:
    """The rows of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def held(self) -> tuple[str, ...]:
        """Hashes of all rows that lie here, sorted."""
        if not self._folder.is_dir():
            return ()
        return tuple(sorted(path.name for path in self._folder.iterdir() if _NAME.fullmatch(path.name)))

    def take(self, enclosed: Mapping[str, bytes], needed: Iterable[str]) -> tuple[str, ...]:
        """Put enclosed rows here, and say which of the needed ones are still missing. Raises ProtocolError."""
        wanted = set(needed)
        for digest, data in enclosed.items():
            if digest not in wanted or name(data) != digest:
                raise ProtocolError("a row came that is not what its name says; check the connection")
            publish(self._folder, [data], lambda content: content)
        return tuple(sorted(digest for digest in wanted if not (self._folder / digest).exists()))

    def row(self, digest: str) -> bytes:
        """A row's bytes. Raises ProtocolError if they were changed on the disk."""
        data = (self._folder / digest).read_bytes()
        if name(data) != digest:
            (self._folder / digest).unlink()
            raise ProtocolError("a row that was held has changed on the disk; it will be fetched again")
        return data

    def keep(self, digests: Iterable[str]) -> None:
        """Keep these rows and no others."""
        for digest in set(self.held) - set(digests):
            (self._folder / digest).unlink()
