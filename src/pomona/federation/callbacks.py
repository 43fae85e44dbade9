"""Callbacks that observe the round loop, or end it."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from pomona.core.errors import ConfigError
from pomona.core.notes import Note, Topic
from pomona.record.rows import Evaluation, RoundRow

if TYPE_CHECKING:
    from torch import Tensor

    from pomona.federation.exchange import Arrival, ClientRequest
    from pomona.methods.base import Downlink
    from pomona.record.run_folder import RunRecord


class Callback(Protocol):
    """Observes a run (for example, a progress bar).

    Your own callback may have any of these methods, and any of ``StoppingCallback`` and
    ``ModelObserver``. An exception that it raises ends the run, which can be resumed.
    """

    def on_run_begin(self) -> None:
        """Called when everything is ready for round 1."""

    def on_before_commit(self, number: int) -> None:
        """Called when round ``number`` is aggregated and evaluated, before it is committed."""

    def on_round_end(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Called after each committed round."""

    def on_note(self, text: str) -> None:
        """Called with a message for the user."""


Models: TypeAlias = "Mapping[int, Mapping[str, Tensor]]"


@runtime_checkable
class StoppingCallback(Protocol):
    """A callback that gets the clients' models after each round, and may end the run.

    >>> import pomona
    >>> class SecondRound(NullCallback):
    ...     def should_stop(self, row, evaluations, models):
    ...         return row.round == 2 and len(models) == 3
    >>> settings = {"method": "apple", "clients": 3, "rounds": 9, "lr": 0.1}
    >>> len(pomona.run(**settings, callback=SecondRound()).rounds)
    2
    """

    def should_stop(self, row: RoundRow, evaluations: Sequence[Evaluation], models: Models) -> bool:
        """Return whether the run ends after this round, which is aggregated and evaluated, and not
        committed yet.

        The run is then finished, and can be given more rounds. Clients evaluate and keep their
        trained models in every round, as for early stopping.

        Args:
            row: the round.
            evaluations: the new ones.
            models: each client's headline model as last evaluated, by number: tensors by name,
                fetched on access. In a federation between organisations there are none.
        """


@runtime_checkable
class ModelObserver(Protocol):
    """A callback that gets all models and other tensors that server and clients exchange."""

    def on_exchange(
        self, visit: "ClientRequest", downlink: "Downlink", arrivals: "Sequence[Arrival]"
    ) -> None:
        """Called when the answers of a visit have arrived, before any checks; none may be changed.

        After the last round clients are visited again, without training.
        """


class NullCallback:
    """Callback that does nothing."""

    def on_run_begin(self) -> None:
        """Do nothing."""

    def on_before_commit(self, number: int) -> None:
        """Do nothing."""

    def on_round_end(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Do nothing."""

    def on_note(self, text: str) -> None:
        """Do nothing."""


HOOKS = (
    "on_run_begin",
    "on_before_commit",
    "on_round_end",
    "on_note",
    "should_stop",
    "on_exchange",
)
"""Methods of which a callback has any."""


def require_hooks(callback: object) -> None:
    """Raise ConfigError for a callback that would never be called."""
    if callback is not None and not any(callable(getattr(callback, name, None)) for name in HOOKS):
        raise ConfigError(
            f"callback: {type(callback).__name__} has none of {', '.join(HOOKS)}; give an object "
            "with at least one of them"
        )


class CallbackList:
    """Several callbacks as one; each is called by the methods that it has.

    It has ``should_stop`` and ``on_exchange`` only if one of them does, as both make the loop do
    more.
    """

    def __init__(self, *callbacks: object) -> None:
        self._callbacks = callbacks
        if stopping := self._hooks("should_stop"):
            # a list: all get the round, also after one that stops
            self.should_stop = lambda *args: (
                True in [should_stop(*args) for should_stop in stopping]
            )
        if observers := self._hooks("on_exchange"):
            self.on_exchange = lambda *args: [on_exchange(*args) for on_exchange in observers]

    def _hooks(self, name: str) -> list[Callable[..., Any]]:
        hooks = (getattr(callback, name, None) for callback in self._callbacks)
        return [hook for hook in hooks if callable(hook)]

    def _notify(self, name: str, *args: object) -> None:
        for hook in self._hooks(name):
            hook(*args)

    def on_run_begin(self) -> None:
        """Call all."""
        self._notify("on_run_begin")

    def on_before_commit(self, number: int) -> None:
        """Call all."""
        self._notify("on_before_commit", number)

    def on_round_end(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Call all."""
        self._notify("on_round_end", row, evaluations)

    def on_note(self, text: str) -> None:
        """Call all."""
        self._notify("on_note", text)


class StopAfter(NullCallback):
    """Ends a run like Ctrl-C in round ``number``: after it is committed, or before, so that it is
    repeated on resuming.

    >>> import pomona
    >>> config = pomona.Config(method="fedavg", clients=3, rounds=4, lr=0.1)
    >>> pomona.run(config, "stopped", callback=StopAfter(2))
    Traceback (most recent call last):
    KeyboardInterrupt
    >>> len(pomona.run(config, "stopped", resume=True).rounds)
    4
    """

    def __init__(self, number: int, committed: bool = True) -> None:
        self.number, self.committed = number, committed

    def on_before_commit(self, number: int) -> None:
        """Raise KeyboardInterrupt before that round is committed."""
        if number == self.number and not self.committed:
            raise KeyboardInterrupt

    def on_round_end(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:  # noqa: ARG002
        """Raise KeyboardInterrupt after that round is committed."""
        if row.round == self.number and self.committed:
            raise KeyboardInterrupt


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

    def write(self, record: "RunRecord") -> None:
        """Record all notes that the record does not have."""
        for note in self._notes:
            record.note(note)
