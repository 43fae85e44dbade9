"""Callbacks that observe the round loop, or end it; among them the one that writes TensorBoard
scalars.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pomona.core.errors import ConfigError, with_extra
from pomona.core.files import writing
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.result import Result
from pomona.record.rows import Evaluation, RoundRow

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Callback(Protocol):
    """Observes a run (for example, a progress bar).

    An exception that it raises ends the run, which can be resumed.
    """

    def begin(self) -> None:
        """Called when everything is ready for round 1."""

    def trained(self, number: int) -> None:
        """Called when round ``number`` is aggregated and evaluated, before it is committed."""

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Called after each committed round."""

    def note(self, text: str) -> None:
        """Called with a message for the user."""


class NullCallback:
    """Callback that does nothing."""

    def begin(self) -> None:
        """Do nothing."""

    def trained(self, number: int) -> None:
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

    def trained(self, number: int) -> None:
        """Call all."""
        for callback in self.callbacks:
            callback.trained(number)

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Call all."""
        for callback in self.callbacks:
            callback.round(row, evaluations)

    def note(self, text: str) -> None:
        """Call all."""
        for callback in self.callbacks:
            callback.note(text)


class StopAfter(NullCallback):
    """Ends a run like Ctrl-C in round ``number``: after it is committed, or before, so that it is
    repeated on resuming.

    >>> import pomona
    >>> config = pomona.Config(method="fedavg", clients=3, rounds=4, lr=0.1)
    >>> pomona.run(config, "stopped", watcher=StopAfter(2))
    Traceback (most recent call last):
    KeyboardInterrupt
    >>> len(pomona.run(config, "stopped", resume=True).rounds)
    4
    """

    def __init__(self, number: int, committed: bool = True) -> None:
        self.number, self.committed = number, committed

    def trained(self, number: int) -> None:
        """Raise KeyboardInterrupt before that round is committed."""
        if number == self.number and not self.committed:
            raise KeyboardInterrupt

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:  # noqa: ARG002
        """Raise KeyboardInterrupt after that round is committed."""
        if row.round == self.number and self.committed:
            raise KeyboardInterrupt


class TensorBoardCallback(NullCallback):
    """Writes each round's metrics; on resuming, withdraws those that an earlier start wrote for the
    same rounds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: SummaryWriter | None = None
        self._told: set[tuple[str, int]] = set()

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Add the scalars of a round and of its new evaluations."""
        from torch.utils.tensorboard import SummaryWriter

        with writing(self.folder):
            self._writer = self._writer or SummaryWriter(self.folder, purge_step=row.round)
            figures = scalars(row, evaluations)
            for (name, number), value in figures.items():
                if (name, number) not in self._told:
                    self._writer.add_scalar(name, value, number)
            self._told |= figures.keys()
            self._writer.flush()

    def end(self, result: Result) -> None:
        """Add the evaluations after the last round, of the models made from its uploads."""
        if self._writer:
            last = result.rounds[-1]
            self.round(last, [e for e in result.evaluations if e.round == last.round])

    def close(self) -> None:
        """Close the file, if open."""
        if self._writer:
            self._writer.close()


def scalars(row: RoundRow, evaluations: Sequence[Evaluation]) -> dict[tuple[str, int], float]:
    """Return (name, round) -> value.

    An evaluation has the number of the round that made its model.
    """
    figures: dict[tuple[str, int], float | None] = {
        ("train_loss_mean_over_clients", row.round): mean_of_known(row.loss),
        ("bytes/down", row.round): float(sum(row.bytes_down)),
        ("bytes/up", row.round): float(sum(row.bytes_up)),
        ("seconds", row.round): row.seconds,
        ("clients/taking_part", row.round): float(len(row.cohort)),
        ("clients/refused", row.round): float(len(row.refused)),
    }
    for e in evaluations:
        model = f"{e.model}.{e.when}"
        figures[f"{e.split}_{e.metric}_mean_over_clients/{model}", e.round] = e.mean
        figures[f"{e.split}_{e.metric}_worst_client/{model}", e.round] = e.worst
        figures[f"{e.split}_accuracy_mean_over_clients/{model}", e.round] = e.accuracy_mean
        figures[f"{e.split}_loss_mean_over_clients/{model}", e.round] = mean_of_known(e.loss)
    return {key: value for key, value in figures.items() if value is not None}


@contextmanager
def tracking(folder: Path | None) -> Iterator[tuple[TensorBoardCallback, ...]]:
    """Yield the callbacks for ``--track``: none without a folder.

    Raises ConfigError without TensorBoard.
    """
    if folder is None:
        yield ()
        return
    if not find_spec("tensorboard"):
        raise ConfigError(f"--track needs TensorBoard; {with_extra('track')}")
    watcher = TensorBoardCallback(folder)
    try:
        yield (watcher,)
    finally:
        watcher.close()
