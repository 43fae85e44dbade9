"""Callbacks that observe the round loop, or end it."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from pomona.core.errors import ConfigError
from pomona.record.rows import Evaluation, RoundRow

if TYPE_CHECKING:
    from torch import Tensor

    from pomona.federation.exchange import Arrival, ClientRequest
    from pomona.methods.base import Downlink


class Callback(Protocol):
    """Observes a run (for example, a progress bar).

    A callback of your own has any of these methods, and any of ``Steering`` and ``Witness``. An
    exception that it raises ends the run, which can be resumed.
    """

    def begin(self) -> None:
        """Called when everything is ready for round 1."""

    def trained(self, number: int) -> None:
        """Called when round ``number`` is aggregated and evaluated, before it is committed."""

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Called after each committed round."""

    def note(self, text: str) -> None:
        """Called with a message for the user."""


Models: TypeAlias = "Mapping[int, Mapping[str, Tensor]]"


@runtime_checkable
class Steering(Protocol):
    """What a callback may have besides: a look at the clients' models after each round, and the end
    of the run.

    >>> import pomona
    >>> class Enough(NullCallback):
    ...     def ends(self, row, evaluations, models):
    ...         return row.round == 2 and len(models) == 3
    >>> settings = {"method": "apple", "clients": 3, "rounds": 9, "lr": 0.1}
    >>> len(pomona.run(**settings, watcher=Enough()).rounds)
    2
    """

    def ends(self, row: RoundRow, evaluations: Sequence[Evaluation], models: Models) -> bool:
        """Return whether the run ends after this round, which is aggregated and evaluated, and not
        committed yet.

        The run is then finished, and can be given more rounds; without, it stays as it is. Clients
        evaluate and keep their trained models in every round, as for early stopping.

        Args:
            row: the round.
            evaluations: the new ones.
            models: each client's headline model as last evaluated, by number: tensors by name,
                fetched on access. In a federation between organisations there are none.
        """


@runtime_checkable
class Witness(Protocol):
    """What a callback may have besides: a look at everything that server and clients exchange."""

    def exchanged(
        self, visit: "ClientRequest", down: "Downlink", arrivals: "Sequence[Arrival]"
    ) -> None:
        """Called when the answers of a visit have arrived, before any checks; none may be changed.

        After the last round clients are visited once more, without training.
        """


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


METHODS = ("begin", "trained", "round", "note", "ends", "exchanged")
"""Methods of which a callback has any."""


def require_methods(watcher: object) -> None:
    """Raise ConfigError for a watcher that would never be called."""
    if watcher is not None and not any(callable(getattr(watcher, name, None)) for name in METHODS):
        raise ConfigError(
            f"watcher: {type(watcher).__name__} has none of {', '.join(METHODS)}; give an object "
            "with those that you want to hear of"
        )


class CallbackList:
    """Several callbacks as one; each is called by the methods that it has."""

    def __init__(self, *callbacks: object) -> None:
        self._callbacks = callbacks
        if asked := self._methods("ends"):
            self.ends = lambda *seen: True in [ends(*seen) for ends in asked]  # all see the round
        if told := self._methods("exchanged"):
            self.exchanged = lambda *seen: [exchanged(*seen) for exchanged in told]

    def _methods(self, name: str) -> list[Callable[..., Any]]:
        return [method for each in self._callbacks if callable(method := getattr(each, name, None))]

    def begin(self) -> None:
        """Call all."""
        for begin in self._methods("begin"):
            begin()

    def trained(self, number: int) -> None:
        """Call all."""
        for trained in self._methods("trained"):
            trained(number)

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Call all."""
        for seen in self._methods("round"):
            seen(row, evaluations)

    def note(self, text: str) -> None:
        """Call all."""
        for heard in self._methods("note"):
            heard(text)


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
