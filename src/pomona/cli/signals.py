"""SIGTERM and Ctrl-C as exceptions that cannot be lost.

A signal's handler runs between any two instructions of the main thread, also inside a weak reference's callback or a
``__del__``. What is raised there goes to ``sys.unraisablehook``, is printed, and the program goes on. The hook of this
module delivers the signal again, a moment later and as often as it takes.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import NoReturn

SOON = 0.01  # seconds until a lost signal is delivered again: by then the callback it fell into has returned
CODE = 143


@contextmanager
def heeded() -> Iterator[None]:
    """SIGTERM ends the block with SystemExit(143), and no callback swallows it, nor Ctrl-C.

    SIGTERM keeps its handler after the block, for the interpreter's last moments. Outside the main thread, where Python
    runs no handlers, nothing changes.
    """
    if current_thread() is not main_thread():
        yield
        return
    lost: list[signal.Signals] = []

    def again(*_: object) -> None:
        if lost:
            signal.raise_signal(lost.pop())  # whoever handles or postpones it now does

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        number = _signal(unraisable.exc_value)
        if number is None:
            before(unraisable)
            return
        lost[:] = [number]
        signal.setitimer(signal.ITIMER_REAL, SOON)

    signal.signal(signal.SIGTERM, _terminate)
    alarm, before = signal.signal(signal.SIGALRM, again), sys.unraisablehook
    sys.unraisablehook = hook
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = before
        signal.signal(signal.SIGALRM, alarm)


def _signal(fault: BaseException | None) -> signal.Signals | None:
    """The signal that an exception stands for, None for others."""
    if isinstance(fault, KeyboardInterrupt):
        return signal.SIGINT
    return signal.SIGTERM if isinstance(fault, SystemExit) and fault.code == CODE else None


def _terminate(*_: object) -> NoReturn:
    """SIGTERM ends a run as Ctrl-C does: the round in flight is dropped, the status is written."""
    raise SystemExit(CODE)
