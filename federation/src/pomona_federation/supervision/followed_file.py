"""Files that grow by lines, such as audit logs: reading each line once, from a position that can be
kept.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pomona.core.bounds import Count, Sha256
from pomona.core.errors import StorageError
from pomona.core.files import opened
from pomona.core.settings import Settings


class Mark(Settings):
    """A position in a file: where the last seen line begins and ends, and its SHA-256."""

    begin: Count = 0
    end: Count = 0
    sha256: Sha256 = hashlib.sha256().hexdigest()


class RewrittenError(StorageError):
    """The file no longer has the last seen line in its place."""


def lines_after(path: Path, mark: Mark) -> Iterator[tuple[bytes, Mark]]:
    """Complete lines after a mark, each with the mark after it; a last line without a line feed is
    left for later.

    Args:
        path: of the file; a missing file has no lines.
        mark: ``Mark()`` for the beginning.

    Raises:
        RewrittenError: the marked line has changed or is gone.
        StorageError: the file cannot be read.
    """
    try:
        with opened(path) as file:
            file.seek(mark.begin)
            if hashlib.sha256(file.read(mark.end - mark.begin)).hexdigest() != mark.sha256:
                raise RewrittenError(
                    f"{path} was rewritten: the line that ended at byte {mark.end} is another one "
                    "now"
                )
            position = mark.end
            for text in file:
                if not text.endswith(b"\n"):
                    return
                following = Mark(
                    begin=position,
                    end=position + len(text),
                    sha256=hashlib.sha256(text).hexdigest(),
                )
                position = following.end
                yield text[:-1], following
    except FileNotFoundError:
        if mark.end:
            raise RewrittenError(f"{path} is gone") from None
    except OSError as fault:
        raise StorageError(
            f"{path} cannot be read ({fault.strerror}); fix its permissions"
        ) from None


class Content(Protocol):
    """What a file's lines add up to."""

    def take(self, line: bytes) -> object:
        """Add a line."""


T = TypeVar("T", bound=Content)


@dataclass
class Followed(Generic[T]):
    """A growing file of lines and the content read so far: ``look`` adds new lines.

    Args:
        path: of the file.
        factory: makes the content before the first line.
    """

    path: Path
    factory: Callable[[], T]
    _mark: Mark = field(default_factory=Mark)
    _content: T | None = None

    def look(self) -> T:
        """The current content; a rewritten file, as after a resume, is read again.

        Raises StorageError.
        """
        if self._content is None:
            self._content = self.factory()
        try:
            self._read(self._content)
        except RewrittenError:
            self._content, self._mark = self.factory(), Mark()
            self._read(self._content)
        return self._content

    def _read(self, content: T) -> None:
        for line, mark in lines_after(self.path, self._mark):
            content.take(line)
            self._mark = mark
