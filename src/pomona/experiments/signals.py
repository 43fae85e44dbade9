"""Ctrl-C and SIGTERM at chosen places only.

An exception that a signal raises can hit any line, also one that has just taken a lock of ``concurrent.futures`` and
has not yet entered the block that gives it back. The threads that need this lock then wait for ever.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def postponed() -> Iterator[Callable[[], None]]:
    """Postpone both signals to the calls of the function that this gives, and to the end of the block.

    The signals' own handlers are run then, so that what they raise is raised there. Outside the main thread, where
    Python runs no handlers, nothing changes.
    """
    came: list[int] = []

    def heed() -> None:
        """Run the handler of the first signal that came, if one did."""
        if came:
            number = came[0]
            came.clear()
            handler = before[signal.Signals(number)]
            if callable(handler):
                handler(number, None)

    if current_thread() is not main_thread():
        yield lambda: None
        return

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    # SIG_IGN and SIG_DFL need no postponing: the first does nothing, the second ends the process at once.
    before: dict[signal.Signals, Any] = {s: signal.getsignal(s) for s in SIGNALS}
    mine = [s for s in SIGNALS if callable(before[s]) and before[s] not in (signal.SIG_IGN, signal.SIG_DFL)]
    for s in mine:
        signal.signal(s, note)
    try:
        yield heed
    finally:
        for s in mine:
            signal.signal(s, before[s])
    heed()
