"""Ctrl-C and SIGTERM while a command runs."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import NoReturn

SOON = 0.01  # seconds until a lost signal is delivered again, when the callback has returned
CODE = 143


@contextmanager
def handle_signals() -> Iterator[None]:
    """SIGTERM ends the block with SystemExit(143); neither it nor Ctrl-C is swallowed by a
    callback.

    SIGTERM keeps its handler after the block, for the interpreter's shutdown. Outside the main
    thread, where Python runs no handlers, nothing changes.
    """
    if current_thread() is not main_thread():
        yield
        return
    lost: list[signal.Signals] = []

    def again(*_: object) -> None:
        if lost:
            signal.raise_signal(lost.pop())  # handled or postponed elsewhere from here on

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        number = _signal(unraisable.exc_value)
        if number is None:
            previous_hook(unraisable)
            return
        lost[:] = [number]
        signal.setitimer(signal.ITIMER_REAL, SOON)

    signal.signal(signal.SIGTERM, _terminate)
    alarm, previous_hook = signal.signal(signal.SIGALRM, again), sys.unraisablehook
    sys.unraisablehook = hook
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = previous_hook
        signal.signal(signal.SIGALRM, alarm)


def _signal(fault: BaseException | None) -> signal.Signals | None:
    """Return the signal of an exception, None for others."""
    if isinstance(fault, KeyboardInterrupt):
        return signal.SIGINT
    return signal.SIGTERM if isinstance(fault, SystemExit) and fault.code == CODE else None


def _terminate(*_: object) -> NoReturn:
    """End a run on SIGTERM as on Ctrl-C: the current round is dropped, and the status is
    written.
    """
    raise SystemExit(CODE)
