"""Terms that a method adds to the gradient of a local step, affine in the row: proximal and linear terms."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Pull:
    """The term weight (w - centre) + constant; parts that are None are omitted.

    Attributes:
        weight: of the proximal part.
        centre: rows (n, d) that attract w.
        constant: rows (n, d) that do not depend on w.
    """

    weight: float = 0.0
    centre: Tensor | None = None
    constant: Tensor | None = None

    def __call__(self, w: Tensor) -> Tensor:
        """Return the term (a, d) for the first a rows, w (a, d)."""
        constant = None if self.constant is None else self.constant[: len(w)]
        if self.centre is None:
            return w.new_zeros(w.shape) if constant is None else constant
        proximal = self.weight * (w - self.centre[: len(w)])
        return proximal if constant is None else proximal + constant

    def row(self, k: int) -> "Pull":
        """Return the term for one row, whose centre and constant are (d,)."""
        return Pull(self.weight, *(None if part is None else part[k] for part in (self.centre, self.constant)))
