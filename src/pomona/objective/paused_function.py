"""A user's training function, run in a thread that pauses before each batch: who calls it can set
the model between two steps.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any


class LoaderView:
    """A loader that iterates other batches, and is the loader in all else, such as ``dataset``.

    Args:
        loader: a user's.
        epochs: the batches of each iteration, made when it begins.
        length: the number of batches; None for that of the loader.
    """

    def __init__(
        self, loader: Any, epochs: Callable[[], Iterable[Any]], length: int | None = None
    ) -> None:
        self._loader, self._epochs, self._length = loader, epochs, length

    def __iter__(self) -> Iterator[Any]:
        return iter(self._epochs())

    def __len__(self) -> int:
        return len(self._loader) if self._length is None else self._length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def single(loader: Any, batch: Any) -> LoaderView:
    """Return a loader of one batch, and of none in later iterations: a function of several epochs
    takes one step.
    """
    rest = iter([[batch]])
    return LoaderView(loader, lambda: next(rest, []), length=1)


class _StoppedError(BaseException):
    """Ends a user's function whose results are not needed; no ``except Exception`` catches it."""


class PausedFunction:
    """A call of ``function(loader)`` that has drawn a batch and not used it yet.

    Args:
        function: a user's training, with its model.
        loader: a user's.
        first: the batches of its first iteration.

    Attributes:
        batch: what it has drawn.
        ended: whether it has returned.
        result: what it has returned.
    """

    def __init__(self, function: Callable[[Any], Any], loader: Any, first: Iterator[Any]) -> None:
        self._drawn: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._permits: SimpleQueue[bool] = SimpleQueue()
        epochs = iter([first])
        view = LoaderView(loader, lambda: self._offered(next(epochs, loader)))
        self.batch: Any = None
        self.result: Any = None
        self.ended = False
        Thread(target=self._run, args=(function, view), daemon=True).start()
        self._wait()

    def advance(self) -> None:
        """Let it use its batch; returns when it draws the next one, or returns.

        Raises what the function raises.
        """
        self._permits.put(True)
        self._wait()

    def stop(self) -> None:
        """End it where it is."""
        if not self.ended:
            self._permits.put(False)
            with suppress(Exception):  # of a clean-up that nobody waits for
                self._wait()

    def _run(self, function: Callable[[Any], Any], view: LoaderView) -> None:
        try:
            result = function(view)
        except _StoppedError:
            self._drawn.put(("end", None))
        except BaseException as fault:  # raised again where it is waited for
            self._drawn.put(("fault", fault))
        else:
            self._drawn.put(("end", result))

    def _offered(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            self._drawn.put(("batch", batch))
            if not self._permits.get():
                raise _StoppedError
            yield batch

    def _wait(self) -> None:
        event, value = self._drawn.get()
        self.ended, self.batch, self.result = event != "batch", None, None
        if event == "fault":
            raise value
        if event == "batch":
            self.batch = value
        else:
            self.result = value
