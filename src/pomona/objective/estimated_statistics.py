"""The last estimate of BatchNorm statistics: one model is asked about several splits, one after another."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import ReferenceType, ref

from torch import Tensor


@dataclass
class Estimates:
    """What a client's training samples said of a model, until another one is asked about.

    A model is known again as the same tensor, unchanged since: its bytes need not be read.
    """

    _row: ReferenceType[Tensor] | None = None
    _when: tuple[int, int] = (-1, -1)  # version of the row's memory, which each change in place raises, and client
    _values: list[Tensor] = field(default_factory=list)

    def of(self, row: Tensor, client: int) -> list[Tensor] | None:
        """The statistics of a model row (d,) at a client; None unless they are what was kept last."""
        same = self._row is not None and self._row() is row and self._when == (row._version, client)
        return self._values if same else None

    def keep(self, row: Tensor, client: int, values: Sequence[Tensor]) -> None:
        """Keep these, in place of those before."""
        self._row, self._when, self._values = ref(row), (row._version, client), [*values]
