"""A round's task on its way to one silo, and the rows of a downlink as the bytes that all silos' tasks share."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from pomona.deploy.agreement import Federation
from pomona.deploy.messages import Task, name, pack
from pomona.methods.base import Downlink, Rows


@dataclass
class OutgoingTask:
    """One silo's task on its way.

    Attributes:
        rows: the bytes of all rows that it may have to bring, by hash.
        attempts: how often it was sent.
        asked_for: the silo lacks rows that it was thought to hold: the next time all of them go along.
        over: nothing more is expected.
        reason: why there is no answer, as long as there is none.
        down, up: bytes so far.
    """

    task: Task
    rows: Mapping[str, bytes]
    attempts: int = 0
    asked_for: bool = False
    over: bool = False
    reason: str = "it did not answer in time"
    down: int = 0
    up: int = 0


class PackedRows:
    """A downlink's rows as bytes, each made once for all receivers."""

    def __init__(self, down: Downlink, federation: Federation) -> None:
        self.down: dict[str, Rows] = dict(down)
        self.rows: dict[str, bytes] = {}
        self._form = federation.wire, federation.places
        self._digests: dict[tuple[str, int], str] = {}

    def digest(self, key: str, j: int) -> str:
        """The hash of a row of a bank."""
        if (key, j) not in self._digests:
            self._digests[key, j] = self.add(self.down[key].bank[j])
        return self._digests[key, j]

    def add(self, row: Tensor) -> str:
        """Pack one row more."""
        data = pack(row, *self._form)
        digest = name(data)
        self.rows[digest] = data
        return digest
