"""Files of lines that grow: what is new since the last look, and whether what was seen is still there."""

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pomona.core.bounds import Count, Sha256
from pomona.core.errors import StorageError
from pomona.core.files import opened
from pomona.core.settings import Settings

AT_ONCE = 10_000  # lines of a look


class Mark(Settings):
    """A place in a file: where the last line that was seen begins and ends, and its SHA-256."""

    begin: Count = 0
    end: Count = 0
    sha256: Sha256 = hashlib.sha256().hexdigest()


class RewrittenError(StorageError):
    """A file that no longer has the line that was seen last in its place."""


def lines_after(path: Path, mark: Mark, most: int = AT_ONCE) -> Iterator[tuple[bytes, Mark]]:
    """Whole lines after a mark, each with the mark behind it; a last line without its end is not there yet.

    Args:
        path: of the file; one that is missing has no lines.
        mark: ``Mark()`` for the beginning.
        most: lines of one call.

    Raises:
        RewrittenError: the marked line is another one now, or gone.
        StorageError: the file cannot be read.
    """
    try:
        with opened(path) as file:
            file.seek(mark.begin)
            if hashlib.sha256(file.read(mark.end - mark.begin)).hexdigest() != mark.sha256:
                raise RewrittenError(f"{path} was rewritten: the line that ended at byte {mark.end} is another one now")
            at = mark.end
            for text in islice(file, most):
                if not text.endswith(b"\n"):
                    return
                now = Mark(begin=at, end=at + len(text), sha256=hashlib.sha256(text).hexdigest())
                at = now.end
                yield text[:-1], now
    except FileNotFoundError:
        if mark.end:
            raise RewrittenError(f"{path} is gone") from None
    except OSError as fault:
        raise StorageError(f"{path} cannot be read ({fault.strerror}); mend its permissions") from None
