"""The errors a user can meet: what went wrong, where, and what to do; one exit code each.

The codes are part of the command line's contract (``docs/errors.md``); 0 is success, 130 an interrupt.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar

SHORT = 12  # names that a message can list


class PomonaError(Exception):
    """A mistake or a fault that has a remedy; the message names both, in one line.

    Where several things are wrong at once, the first argument says what, and each further one names one of them.
    """

    code: ClassVar[int] = 1
    kind: ClassVar[str] = "ERROR"

    def __str__(self) -> str:
        what, *each = self._lines()
        return f"{what}: {'; '.join(each)}" if each else what

    def line(self) -> str:
        """All of it in one line: ``error[KIND]: what, where, what to do``."""
        return f"error[{self.kind}]: {self}"

    def text(self) -> str:
        """As a person reads it: one line, and below it, indented, one for each of several things."""
        what, *each = self._lines()
        return "\n".join((f"error[{self.kind}]: {what}{':' if each else ''}", *(f"  {line}" for line in each)))

    def _lines(self) -> list[str]:
        return [_printable(str(part)) for part in self.args] or [""]


def _printable(text: str) -> str:
    """Text in one line, without characters that a terminal obeys."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def worded(fault: BaseException) -> str:
    """Any fault in one line, with its kind: a user's own code and libraries raise what they like."""
    kind = fault.kind if isinstance(fault, PomonaError) else type(fault).__name__
    text = str(fault) if isinstance(fault, PomonaError) else _printable(str(fault).partition("\n")[0])[:200]
    return f"{kind}: {text}" if text else kind


def with_extra(name: str) -> str:
    """What to do where a library is missing that comes with an extra of the package (``pyproject.toml``)."""
    return f"install Pomona with its extra {name}"


class ConfigError(PomonaError):
    """A key, a value or a combination of settings that cannot be run."""

    code, kind = 2, "CONFIG"


class DataError(PomonaError):
    """Data that is missing, damaged, or does not fit the run."""

    code, kind = 3, "DATA"


class CheckpointError(PomonaError):
    """Checkpoints that cannot be resumed: damaged, or written by another run."""

    code, kind = 4, "CHECKPOINT"


class LockedError(PomonaError):
    """A run folder that already belongs to another run."""

    code, kind = 5, "LOCKED"


class StorageError(PomonaError):
    """A folder or a file that cannot be written or read."""

    code, kind = 6, "STORAGE"


class QuorumError(PomonaError):
    """A round that too few clients took part in."""

    code, kind = 7, "QUORUM"


class DivergedError(PomonaError):
    """Training that no longer yields finite numbers."""

    code, kind = 8, "DIVERGED"


class PrivacyError(PomonaError):
    """A release that would spend more privacy than a client allows and was not made, or a ledger that does not fit."""

    code, kind = 9, "PRIVACY"


class BudgetError(PrivacyError):
    """A release that would spend more privacy than the budget; it was not made."""


class WorkerError(PomonaError):
    """A worker process that is gone, and with it its clients' round in flight."""


class ProtocolError(PomonaError):
    """A message from another party that is not what was agreed."""

    code, kind = 10, "PROTOCOL"


class OutOfMemoryError(PomonaError):
    """Memory that a run needs and the machine, or this process's limit, does not have."""

    code, kind = 11, "MEMORY"


def near(name: str, known: Iterable[str]) -> str:
    """A closing half sentence for an unknown name: the nearest known ones, or all of them.

    Near in letters may be far in sense, so that a short choice is shown as a whole.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.6)
    every = f"known: {', '.join(names)}"
    if not close:
        return every
    return f"did you mean {' or '.join(close)}?" + (f" {every}" if len(close) < len(names) <= SHORT else "")
