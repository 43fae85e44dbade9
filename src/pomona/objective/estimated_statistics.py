"""Cache of the last estimated BatchNorm statistics, for evaluating one model on several splits in turn."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import ReferenceType, ref

from torch import Tensor


@dataclass
class Estimates:
    """BatchNorm statistics of a model on a client's training samples, until another model is evaluated.

    A model is recognised as the same tensor, unchanged since, without reading its bytes.
    """

    _row: ReferenceType[Tensor] | None = None
    _when: tuple[int, int] = (-1, -1)  # version of the row's memory, which in-place changes increase; client
    _values: list[Tensor] = field(default_factory=list)

    def of(self, row: Tensor, client: int) -> list[Tensor] | None:
        """Return the statistics of a model row (d,) for a client; None unless they are the last ones stored."""
        same = self._row is not None and self._row() is row and self._when == (row._version, client)
        return self._values if same else None

    def keep(self, row: Tensor, client: int, values: Sequence[Tensor]) -> None:
        """Store these statistics in place of the previous ones."""
        self._row, self._when, self._values = ref(row), (row._version, client), [*values]
