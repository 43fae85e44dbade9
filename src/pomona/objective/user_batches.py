"""The batches of a client's own loader, each with the step that a user's code takes on it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any, NoReturn

from torch import nn

from pomona.core.training_settings import Passes
from pomona.objective.batches import Pass
from pomona.objective.paused_function import PausedFunction
from pomona.objective.user_code import UserCode, loss_of


class LocalBatches:
    """The batches of one pass over a client's loader, and the user's steps on them.

    Args:
        code, model, loader: the user's.
        pass_: how often the loader is iterated, and the share of its batches. A ``train`` that has
            begun decides for itself.
        usual: the passes of a round.
        refuse: raises the method's error for a reason.
    """

    def __init__(
        self,
        code: UserCode,
        model: nn.Module,
        loader: Any,
        pass_: Pass,
        usual: Passes,
        refuse: Callable[[str], NoReturn],
    ) -> None:
        self._code, self._model, self._loader = code, model, loader
        self._passes, self._share, self._refuse = pass_.passes, pass_.share, refuse
        self._usual = usual
        self._epoch: Iterator[Any] = iter(())
        self._function: PausedFunction | None = None
        self._used = False
        self._samples = 0
        self.batch: Any = None

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches():
            self.batch, self._used = batch, False
            yield batch
            if self._function:
                yield from self._of_function(self._function)
                return

    def close(self) -> None:
        """End a function that a method does not draw all batches of."""
        if self._function:
            self._function.stop()

    def advance(self, size: int) -> float | None:
        """Take the user's step on the latest batch, of ``size`` samples; returns its loss, if any.

        The loss that ``train`` returns comes with its last batch, as that of all its samples.
        """
        if self._code.step:
            return loss_of(self._code.step(self._model, self.batch))
        if self._used:
            self._refuse("takes several steps on a batch; give step, not train")
        self._used = True
        if self._function is None:
            self._function = self._start_function()
        self._function.advance()
        self._samples += size
        if not self._function.ended:
            return 0.0
        loss = loss_of(self._function.result)
        return None if loss is None else loss * self._samples / size

    def _start_function(self) -> PausedFunction:
        assert self._code.train
        if self._passes != self._usual:
            self._refuse("sets the epochs of a pass itself; give step, not train")
        train, model = self._code.train, self._model
        first = chain([self.batch], self._epoch)
        return PausedFunction(lambda loader: train(model, loader), self._loader, first)

    def _batches(self) -> Iterator[Any]:
        if self._passes.steps is None:
            for _ in range(self._passes.epochs):
                self._epoch = self._shared()
                yield from self._epoch
        else:
            endless = chain.from_iterable(repeat(self._loader))
            yield from islice(endless, self._passes.steps)

    def _shared(self) -> Iterator[Any]:
        batches: Iterator[Any] = iter(self._loader)
        if self._share == 1:
            return batches
        return islice(batches, max(1, round(self._share * len(self._loader))))

    def _of_function(self, function: PausedFunction) -> Iterator[Any]:
        while not function.ended:
            if not self._used:
                self._refuse("takes steps on some batches only; give step, not train")
            self.batch, self._used = function.batch, False
            yield self.batch


@dataclass(frozen=True)
class DrawnBatch:
    """A batch of a pass, and its number of samples."""

    source: LocalBatches
    batch: Any
    size: int
