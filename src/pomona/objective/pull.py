"""What a method adds to the gradient of a local step, where it is affine in the row: proximal and linear terms."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Pull:
    """The term weight (w - centre) + constant; a part that is None is left out.

    Attributes:
        weight: of the proximal part.
        centre: rows (n, d) that it draws to.
        constant: rows (n, d) that do not depend on w.
    """

    weight: float = 0.0
    centre: Tensor | None = None
    constant: Tensor | None = None

    def __call__(self, w: Tensor) -> Tensor:
        """The term (a, d) of the first a rows, w (a, d)."""
        constant = None if self.constant is None else self.constant[: len(w)]
        if self.centre is None:
            return w.new_zeros(w.shape) if constant is None else constant
        proximal = self.weight * (w - self.centre[: len(w)])
        return proximal if constant is None else proximal + constant

    def row(self, k: int) -> "Pull":
        """The term of one row, whose centre and constant are (d,)."""
        return Pull(self.weight, *(None if part is None else part[k] for part in (self.centre, self.constant)))
