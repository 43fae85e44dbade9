"""Callbacks that observe the round loop."""

from collections.abc import Sequence
from typing import Protocol

from pomona.record.rows import Evaluation, RoundRow


class Callback(Protocol):
    """Observes a run (for example, a progress bar)."""

    def begin(self) -> None:
        """Called when everything is ready for round 1."""

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Called after each committed round."""

    def note(self, text: str) -> None:
        """Called with a message for the user."""


class NullCallback:
    """Callback that does nothing."""

    def begin(self) -> None:
        """Do nothing."""

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""


class CallbackList:
    """Several callbacks as one."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = callbacks

    def begin(self) -> None:
        """Call all."""
        for callback in self.callbacks:
            callback.begin()

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Call all."""
        for callback in self.callbacks:
            callback.round(row, evaluations)

    def note(self, text: str) -> None:
        """Call all."""
        for callback in self.callbacks:
            callback.note(text)
