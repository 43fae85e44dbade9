"""Notes: what was dropped, guessed, chosen or looks wrong in a run, one line each."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Literal

from pomona.core.bounds import Number, plain
from pomona.core.errors import PomonaWarning

Topic = Literal["data", "partition", "settings", "training"]
LONGEST = 2000  # characters of a note, which may list columns or files


@dataclass(frozen=True)
class Note:
    r"""One note, the same on the terminal, in a record, on a page and in a warning.

    Attributes:
        text: one line: what, where, what to do.
        topic: what it is about.
        round: the round in which it was made; None before the first.

    >>> str(Note("engine = torch: the native package\nis not installed", "settings"))
    'engine = torch: the native package is not installed'
    """

    text: str
    topic: Topic = "data"
    round: Number | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", plain(self.text, LONGEST))

    def __str__(self) -> str:
        return self.text


def distinct(notes: Iterable[Note]) -> list[Note]:
    """Return notes without those whose text came before."""
    first: dict[str, Note] = {}
    for note in notes:
        first.setdefault(note.text, note)
    return [*first.values()]


class CallerWarnings:
    """Turns notes into warnings that point at a caller's line, each distinct one once.

    Args:
        frame: of the caller; in a public function ``sys._getframe(1)``.
    """

    def __init__(self, frame: FrameType) -> None:
        self._line = frame.f_code.co_filename, frame.f_lineno
        self._module = str(frame.f_globals.get("__name__", "<unknown>"))
        self._registry = frame.f_globals.setdefault("__warningregistry__", {})
        self._heard: set[str] = set()

    def on_note(self, text: str) -> None:
        """Warn of a note."""
        if text not in self._heard:
            self._heard.add(text)
            warnings.warn_explicit(
                text, PomonaWarning, *self._line, module=self._module, registry=self._registry
            )
