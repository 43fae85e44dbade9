"""Length of local training. It loads no PyTorch, for settings and accounting."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Passes:
    """Length of a client's training: passes over its samples, or the first ``steps`` batches of
    such passes.
    """

    epochs: int = 1
    steps: int | None = None

    def batches(self, per_epoch: int) -> int:
        """Return the number of batches of a client whose passes have ``per_epoch`` each."""
        return self.epochs * per_epoch if self.steps is None else self.steps

    def __str__(self) -> str:
        count, unit = (self.epochs, "epoch") if self.steps is None else (self.steps, "step")
        return f"{count} {unit}{'s' * (count != 1)}"
