"""Notes of the rounds: recorded, passed on to the callback, by the clients' names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pomona.core.notes import Note
from pomona.federation.admission import Rejection
from pomona.federation.callbacks import Callback
from pomona.federation.exchange import with_name
from pomona.record.run_folder import RunRecord


@dataclass(frozen=True)
class RoundNotes:
    """Writes the notes of a run's rounds.

    ``client_name``: a client's name in notes.
    """

    record: RunRecord
    callback: Callback
    client_name: Callable[[int], str]
    _affected: dict[str, frozenset[int]] = field(default_factory=dict)

    def add(self, text: str, number: int) -> None:
        """Record a note of a round, and pass it on."""
        note = Note(text, "training", number)
        self.record.note(note)
        self.callback.on_note(note.text)

    def add_new(self, topic: str, reasons: Mapping[int, str], number: int) -> tuple[str, ...]:
        """Return a line for each client with a reason; those that had none in the last call of this
        topic get a note.
        """
        lines = {i: f"{self.client_name(i)}, round {number}: {reasons[i]}" for i in sorted(reasons)}
        for client in sorted(reasons.keys() - self._affected.get(topic, frozenset())):
            self.add(lines[client], number)
        self._affected[topic] = frozenset(reasons)
        return tuple(lines.values())

    def fault(self, text: str, client: int) -> str:
        """Return a fault that a client reports of itself, by the client's name."""
        return with_name(text, client, self.client_name(client))

    def rejection(self, rejection: Rejection, number: int) -> str:
        """Return why a client's reply is not used; a fault of its own has its round already."""
        if rejection.line == rejection.reason:
            return self.fault(rejection.line, rejection.client)
        return f"{self.client_name(rejection.client)}, round {number}: {rejection.reason}"
