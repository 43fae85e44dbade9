"""A run's notes outside its rounds: passed on at once, recorded when the record is open."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from pomona.core.notes import Note, Topic
from pomona.federation.callbacks import Callback
from pomona.record.run_folder import RunRecord


@dataclass(frozen=True)
class RunNotes:
    """Notes made before round 1 and after the last.

    Those of the rounds are recorded by ``Loop``, since a resumed run makes them again.
    """

    callback: Callback
    has_callback: bool = True
    _notes: list[Note] = field(default_factory=list)

    def add(self, text: str, topic: Topic = "settings") -> None:
        """Make a note."""
        self.extend([Note(text, topic)])

    def extend(self, notes: Iterable[Note]) -> None:
        """Make several notes."""
        for note in notes:
            self._notes.append(note)
            self.callback.on_note(note.text)

    def failed(self, text: str) -> None:
        """Make a note of what failed next to the training; on standard error if there is no
        callback, as in a bench's cell.
        """
        self.add(text, "training")
        if not self.has_callback:
            with suppress(OSError, ValueError):
                sys.stderr.write(f"note: {text}\n")

    def pass_on(self, text: str) -> None:
        """Pass on a message about this process, which does not belong to the run's record."""
        self.callback.on_note(text)

    def write(self, record: RunRecord) -> None:
        """Record all notes that the record does not have."""
        for note in self._notes:
            record.note(note)
