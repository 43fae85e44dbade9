"""Errors for users: what went wrong, where, and how to fix it; one exit code for each class.

The codes are part of the command line's contract (``docs/errors.md``); 0 is success, 130 an
interrupt.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import ClassVar

from pomona.core.synonyms import intended, normalized


class PomonaWarning(UserWarning):
    """A note on a run: what was dropped, guessed, chosen or looks wrong in data and settings."""


class PomonaError(Exception):
    """An error with a remedy; the message states both in one line.

    If there are several problems, the first argument is the summary, and each further argument
    describes one of them.
    """

    code: ClassVar[int] = 1
    label: ClassVar[str] = "ERROR"

    def __str__(self) -> str:
        summary, *problems = self._lines()
        return f"{summary}: {'; '.join(problems)}" if problems else summary

    def line(self) -> str:
        """Return the whole message in one line: ``error[LABEL]: what, where, what to do``."""
        return f"error[{self.label}]: {self}"

    def text(self) -> str:
        """Return the message for display: one line, followed by one indented line for each
        problem.
        """
        summary, *problems = self._lines()
        return "\n".join(
            (
                f"error[{self.label}]: {summary}{':' if problems else ''}",
                *(f"  {line}" for line in problems),
            )
        )

    def _lines(self) -> list[str]:
        return [_printable(str(arg)) for arg in self.args] or [""]


def _printable(text: str) -> str:
    """Return the text in one line, without terminal control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def worded(fault: BaseException) -> str:
    """Format any exception in one line, with its type; code from users and libraries may raise any
    of them.
    """
    label = fault.label if isinstance(fault, PomonaError) else type(fault).__name__
    text = (
        str(fault)
        if isinstance(fault, PomonaError)
        else _printable(str(fault).partition("\n")[0])[:200]
    )
    return f"{label}: {text}" if text else label


def stated(fault: BaseException) -> str:
    """Return one of our own messages as it is, any other with its type; in one line."""
    text = str(fault) if isinstance(fault, PomonaError) else f"{type(fault).__name__}: {fault}"
    return " ".join(text.split())


def with_extra(name: str) -> str:
    """Return the remedy for a missing library that an extra of the package installs
    (``pyproject.toml``).
    """
    return f"install Pomona with its extra {name}"


class ConfigError(PomonaError):
    """A setting, or a combination of settings, that is not valid."""

    code, label = 2, "CONFIG"


class DataError(PomonaError):
    """Missing or damaged data, or data that does not fit the run."""

    code, label = 3, "DATA"


class CheckpointError(PomonaError):
    """A checkpoint that cannot be resumed because it is damaged or belongs to another run."""

    code, label = 4, "CHECKPOINT"


class LockedError(PomonaError):
    """A run folder that is in use by another run."""

    code, label = 5, "LOCKED"


class StorageError(PomonaError):
    """A folder or file that cannot be read or written."""

    code, label = 6, "STORAGE"


class QuorumError(PomonaError):
    """A round with too few participating clients."""

    code, label = 7, "QUORUM"


class DivergedError(PomonaError):
    """Training that produced values that are not finite."""

    code, label = 8, "DIVERGED"


class PrivacyError(PomonaError):
    """A release that was refused because it exceeds a client's privacy limit, or a ledger that does
    not match.
    """

    code, label = 9, "PRIVACY"


class BudgetError(PrivacyError):
    """A release that was refused because it exceeds the privacy budget."""


class WorkerError(PomonaError):
    """A worker process that died, with the current round of its clients."""


class ProtocolError(PomonaError):
    """A message from another party that violates the protocol."""

    code, label = 10, "PROTOCOL"


class OutOfMemoryError(PomonaError):
    """The machine, or this process's limit, has less memory than the run needs."""

    code, label = 11, "MEMORY"


def suggestion(name: str, choices: Iterable[str]) -> str:
    """Return a phrase that suggests the known names that may be meant, else the nearest ones; or
    lists them, the first ones if they are many.

    A short list is shown in full, because the intended name may be spelled very differently.
    """
    names = sorted(choices)
    if synonyms := intended(name, names):
        return f"did you mean {' or '.join(synonyms)}?"
    spelled = {normalized(choice): choice for choice in reversed(names)}
    close = [
        spelled[choice] for choice in get_close_matches(normalized(name), spelled, n=3, cutoff=0.6)
    ]
    listing = f"known: {listed(names, MAX_LISTED)}"
    if not close:
        return listing
    return f"did you mean {' or '.join(close)}?" + (
        f" {listing}" if len(close) < len(names) <= MAX_LISTED else ""
    )


SMALLER = "take a smaller model, batch_size or workers, less data, or a machine with more memory"
# messages of PyTorch on a CPU, and of NumPy and PyTorch on a GPU; each gives the size requested
PATTERNS = (
    r"can't allocate memory: you tried to allocate (\d+ bytes)",
    r"Unable to allocate ([\d.]+ \w+)",
    r"out of memory.*?Tried to allocate ([\d.]+ \w+)",
)


@contextmanager
def explaining_memory_errors(activity: str, remedy: str = SMALLER) -> Iterator[None]:
    """Turn memory errors of Python, NumPy and PyTorch into OutOfMemoryError with the activity and
    the size.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as fault:
        match = next((m for p in PATTERNS if (m := re.search(p, str(fault), re.DOTALL))), None)
        if match is None and not isinstance(fault, MemoryError):
            raise
        request = f" for {_readable(match[1])} more" if match else ""
        raise OutOfMemoryError(f"{activity}: not enough memory{request}; {remedy}") from fault


def _readable(amount: str) -> str:
    number, unit = amount.split()
    return f"{int(number) / 1e9:.1f} GB" if unit == "bytes" else amount


MAX_LISTED = 16  # names that a message lists at most


MOST_PROBLEMS = 20  # maximum lines of problems; a file can have one for each row


def refuse(
    source: object,
    problems: Sequence[str],
    remedies: Sequence[str] = (),
    error: type[PomonaError] = DataError,
) -> None:
    """Raise one ``error`` with all problems and remedies; return if there are none.

    File paths below the folder ``source`` are shown relative to it.
    """
    if not problems:
        return
    lines = [problem.replace(f"{source}/", "") for problem in problems[:MOST_PROBLEMS]]
    if len(problems) == 1:
        raise error(f"{source}: {'; '.join([*lines, *remedies])}")
    omitted = [f"and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
    raise error(f"{source} has {len(problems)} problems", *lines, *omitted, *remedies)


def titled(client: str) -> str:
    """Return a client's name for a sentence: ``client North``; ``client 2`` where it has none."""
    return client if client.startswith("client ") else f"client {client}"


def listed(names: Sequence[str], max_names: int = 5) -> str:
    """Join names for a message, truncated after the first few."""
    return ", ".join(names[:max_names]) + (
        f" and {len(names) - max_names} more" if len(names) > max_names else ""
    )


def kind_of(code: int | None) -> str:
    """Return the kind of error (``CONFIG``, ``QUORUM``, ...) that an exit code stands for."""
    if code in {130, 143}:  # SIGINT, SIGTERM
        return "INTERRUPTED"
    kinds = (kind for kind in PomonaError.__subclasses__() if kind.code == code)
    return next(kinds, PomonaError).label
