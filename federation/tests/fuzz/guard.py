"""What no input may cause: disproportionate time or memory, changes to other files, unexpected
exceptions.
"""

import hashlib
import io
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from pomona.core.errors import PomonaError

MEMORY = 2**30  # bytes beyond what the process has
SECONDS = 30.0  # of the processor, which other processes on the machine cannot make longer
LONGEST = 20_000  # characters of an error line: a file with many faults lists them all

Act = Callable[[bytes], object]


class TooLong(BaseException):
    """More processor time than an input of a few kilobytes may take; not caught by ``except
    Exception``.
    """


@contextmanager
def bounded() -> Iterator[None]:
    """Limit memory and processor time within the block."""

    def expire(*_: object) -> None:
        raise TooLong(f"more than {SECONDS:g} s of processor time")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    previous = signal.signal(signal.SIGVTALRM, expire)
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, previous)


def seal(*folders: Path) -> str:
    """A hash of all files in folders."""
    content = hashlib.sha256()
    for path in sorted(p for folder in folders for p in folder.rglob("*")):
        content.update(f"{path}\n".encode() + (path.read_bytes() if path.is_file() else b""))
    return content.hexdigest()


def outcome(act: Act, data: bytes, *folders: Path) -> str:
    """Outcome of an input: "refused" by a PomonaError of one line, or the reader's result ("taken"
    by default).

    Raises whatever else the reader raises, which is a fault; and AssertionError for a line that a
    terminal would obey.
    """
    sealed, output = seal(*folders), io.StringIO()
    try:
        with bounded(), redirect_stdout(output), redirect_stderr(output):
            result = act(data)
    except PomonaError as fault:
        line, result = fault.line(), "refused"
        assert line.isprintable(), line
        assert len(line) < LONGEST, f"{len(line)} characters: {line[:200]}"
    except SystemExit as end:  # a command that has printed why
        result = "refused" if end.code else "taken"
    assert seal(*folders) == sealed, "a file outside the folder was changed"
    assert all(c.isprintable() or c == "\n" for c in output.getvalue()), (
        "the output has control characters"
    )
    return result if isinstance(result, str) else "taken"
