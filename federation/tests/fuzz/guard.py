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
LONGEST = 20_000  # characters of an error line: a file with many faults tells all of them

Act = Callable[[bytes], object]


class TooLong(BaseException):
    """More processor time than an input of a few kilobytes may take; not caught by ``except
    Exception``.
    """


@contextmanager
def bounded() -> Iterator[None]:
    """Limit memory and processor time within the block."""

    def over(*_: object) -> None:
        raise TooLong(f"more than {SECONDS:g} s of processor time")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGVTALRM, over)
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, before)


def seal(*folders: Path) -> str:
    """A hash of all files in folders."""
    content = hashlib.sha256()
    for path in sorted(p for folder in folders for p in folder.rglob("*")):
        content.update(f"{path}\n".encode() + (path.read_bytes() if path.is_file() else b""))
    return content.hexdigest()


def outcome(act: Act, data: bytes, *beside: Path) -> str:
    """Outcome of an input: "refused" by a PomonaError of one line, or the reader's result ("taken"
    by default).

    Raises whatever else the reader raises, which is a fault; and AssertionError for a line that a
    terminal would obey.
    """
    before, said = seal(*beside), io.StringIO()
    try:
        with bounded(), redirect_stdout(said), redirect_stderr(said):
            came = act(data)
    except PomonaError as fault:
        line, came = fault.line(), "refused"
        assert line.isprintable(), line
        assert len(line) < LONGEST, f"{len(line)} characters: {line[:200]}"
    except SystemExit as end:  # a command that has said why
        came = "refused" if end.code else "taken"
    assert seal(*beside) == before, "what lies beside was changed"
    assert all(c.isprintable() or c == "\n" for c in said.getvalue()), (
        "a terminal would obey what was said"
    )
    return came if isinstance(came, str) else "taken"
