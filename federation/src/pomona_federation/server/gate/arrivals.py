"""Notice of complete answers from the gate to the round loop in another process: tickets through a named pipe.

Nothing depends on it: without notice, the round loop still looks for answers from time to time.
"""

import os
import select
import stat
from contextlib import suppress
from pathlib import Path

PIPE = "arrivals"
LONGEST = 100  # characters of a ticket
AT_ONCE = 2**16  # bytes per read


def tell(run: Path, ticket: str) -> None:
    """Notify the round loop of a run's folder that an answer is complete; no effect without a listener."""
    if not 0 < len(ticket) <= LONGEST or not ticket.isalnum():
        return
    with suppress(OSError):
        pipe = os.open(run / PIPE, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                os.write(pipe, f"{ticket}\n".encode())
        finally:
            os.close(pipe)


class Arrivals:
    """The round loop's end of the pipe in a run's folder. Raises OSError if no pipe can be made."""

    def __init__(self, run: Path) -> None:
        path = run / PIPE
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # reading and writing: no end of file
        if not stat.S_ISFIFO(os.fstat(self._pipe).st_mode):
            raise FileExistsError(f"{path} is not a pipe")

    def wait(self, seconds: float) -> frozenset[str]:
        """The tickets received; waits up to this many seconds for the first one."""
        if not select.select([self._pipe], [], [], seconds)[0]:
            return frozenset()
        return frozenset(os.read(self._pipe, AT_ONCE).decode("ascii", "replace").split())
