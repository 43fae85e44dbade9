"""Copies of other clients' models that clients keep, with each distinct row stored once.

A client's copy of another's model is what that client once sent, and is the same for all that keep
it. So a client stores one number per other client, and all share a bank in which each row exists
once, until no client has it any more.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pomona.core.errors import CheckpointError
from pomona.core.round import Roster
from pomona.core.state import NamedTensors
from pomona.federation.exchange import ClientRequest
from pomona.methods.base import Copies, Initial, Rows
from pomona.storage.equal_tensors import bits
from pomona.storage.row_bank import MemoryBank, RowBank

InitialCopies = Callable[[Initial, Roster], Rows]  # a client's initial copies; index (N,)
NewBank = Callable[[Tensor, int], RowBank]  # an example row (d,), and the number of rows per round
Numbers = NDArray[np.int64]
COPIES, ROW = "copies", "row"  # types of a checkpoint's tensors


def matrix_bytes(
    initial_copies: Mapping[str, InitialCopies], initial: Initial, roster: Roster
) -> int:
    """Return the bytes of the rows that one client keeps if none are shared."""
    firsts = [first(initial, roster) for first in initial_copies.values()]
    return sum(len(rows.index) * rows.bank[0].nbytes for rows in firsts)


class StaleModels:
    """The copies of some clients, by the downlink's entry in which models arrive."""

    def __init__(
        self,
        initial_copies: Mapping[str, InitialCopies],
        initial: Initial,
        banks: Mapping[str, RowBank],
    ) -> None:
        """Create the copies that a client half ``initial_copies``, with a bank for each entry."""
        self._firsts, self._initial = initial_copies, initial
        self._entries = {name: _Entry(name, banks[name]) for name in initial_copies}

    @classmethod
    def in_memory(cls, initial_copies: Mapping[str, InitialCopies], initial: Initial) -> Self:
        """Create copies in the memory of this process."""
        return cls(initial_copies, initial, {name: MemoryBank() for name in initial_copies})

    @classmethod
    def banked(
        cls,
        initial_copies: Mapping[str, InitialCopies],
        initial: Initial,
        roster: Roster,
        bank: NewBank,
    ) -> Self:
        """Create copies of a federation's clients in banks for rows like its initial ones."""
        examples = {name: first(initial, roster).bank[0] for name, first in initial_copies.items()}
        return cls(
            initial_copies,
            initial,
            {name: bank(example, len(roster)) for name, example in examples.items()},
        )

    def add_clients(self, ids: Sequence[int], roster: Roster, w: Tensor | None) -> None:
        """Give clients that join their initial copies; they start from ``w`` (d,), or the run's
        initial models.
        """
        for name, first in self._firsts.items():
            self._entries[name].add_clients(ids, first(self._initial.instead(w), roster))

    def received(
        self, visit: ClientRequest, downlink: Mapping[str, Rows | Copies]
    ) -> dict[str, Rows | Copies]:
        """Return a downlink with these clients' updated copies in place of the received models.

        The previous copies remain until ``commit``. Copies of clients that are not members are rows
        of 0.
        """
        return {
            name: self._entries[name].received(visit, rows)
            if name in self._entries and isinstance(rows, Rows)
            else rows
            for name, rows in downlink.items()
        }

    def commit(self, ids: Iterable[int]) -> None:
        """Commit the copies that these clients received in the last visit that trained."""
        for entry in self._entries.values():
            entry.commit(ids)

    def stored(self, ids: Sequence[int]) -> dict[str, Tensor]:
        """Return all that a checkpoint needs of these clients' copies, by dotted path; each row
        once.
        """
        return {
            path: t for entry in self._entries.values() for path, t in entry.stored(ids).items()
        }

    def restore(self, ids: Sequence[int], tensors: NamedTensors, roster: Roster) -> None:
        """Restore copies, the inverse of ``stored``.

        Raises CheckpointError if something is missing.
        """
        for name, first in self._firsts.items():
            if len(first(self._initial, roster).index):
                self._entries[name].restore(ids, tensors)

    def models_of(self, client: int) -> dict[str, Tensor]:
        """Return a client's copies (N, d) by entry."""
        return {
            name: entry.models_of(client)
            for name, entry in self._entries.items()
            if entry.has_client(client)
        }

    @property
    def filed(self) -> int:
        """The bytes in files on disk."""
        return sum(entry.bank.filed for entry in self._entries.values())


class _Entry:
    """The copies of one entry's models: per client a table (N,) of numbers in the bank."""

    def __init__(self, name: str, bank: RowBank) -> None:
        self.name, self.bank = name, bank
        self._tables: dict[int, Numbers] = {}
        self._pending: dict[int, Numbers] = {}
        self._numbers: dict[int, int] = {}  # the sum of a row's bits -> its number

    def add_clients(self, ids: Sequence[int], first: Rows) -> None:
        if len(first.index):
            numbers = np.array([self._number(row) for row in first.bank])
            self._tables |= {i: numbers[first.index.numpy()] for i in ids}

    def received(self, visit: ClientRequest, rows: Rows) -> Rows | Copies:
        if not self._tables:
            return rows
        self._drop_unused()
        absent = ~visit.roster.member_mask.numpy()
        numbers, tables = dict[int, int](), list[Numbers]()
        zero = self._number(torch.zeros_like(rows.bank[0])) if absent.any() else None
        for client, senders in zip(visit.ids, rows.index.tolist(), strict=True):
            table = self._tables[client].copy()
            if zero is not None:
                table[absent] = zero
            peers = [j for j in senders if j != client]
            numbers |= {j: self._number(rows.bank[j]) for j in peers if j not in numbers}
            table[peers] = [numbers[j] for j in peers]
            tables.append(table)
        self._pending = dict(zip(visit.ids, tables, strict=True)) if visit.trains else {}
        return Copies(self.bank, torch.from_numpy(np.stack(tables)), rows.index)

    def commit(self, ids: Iterable[int]) -> None:
        self._tables |= {i: self._pending[i] for i in ids if i in self._pending}
        self._pending = {}

    def has_client(self, client: int) -> bool:
        return client in self._tables

    def models_of(self, client: int) -> Tensor:
        return torch.stack([self.bank.row(number) for number in self._tables[client].tolist()])

    def stored(self, ids: Sequence[int]) -> dict[str, Tensor]:
        """Return tables of indices into the rows, which are in the order of first use."""
        clients = [i for i in ids if self.has_client(i)]
        if not clients:
            return {}
        tables = np.stack([self._tables[i] for i in clients])
        numbers, first, inverse = np.unique(tables, return_index=True, return_inverse=True)
        order = np.argsort(first)
        indices = torch.from_numpy(np.argsort(order)[inverse.reshape(tables.shape)])
        rows = {
            self._row(k): self.bank.row(number) for k, number in enumerate(numbers[order].tolist())
        }
        return {self._table(i): table for i, table in zip(clients, indices, strict=True)} | rows

    def restore(self, ids: Sequence[int], tensors: NamedTensors) -> None:
        self._require(tensors, map(self._table, ids))
        tables = {i: tensors[self._table(i)].numpy() for i in ids}
        indices = sorted({int(index) for table in tables.values() for index in np.unique(table)})
        self._require(tensors, map(self._row, indices))
        numbers = {index: self._number(tensors[self._row(index)]) for index in indices}
        self._tables |= {
            i: np.array([numbers[index] for index in t.tolist()]) for i, t in tables.items()
        }

    def _number(self, row: Tensor) -> int:
        """Return a row's number in the bank, adding the row unless one with the same bytes
        exists.
        """
        address = int(bits(row).sum())
        number = self._numbers.get(address)
        if number is None or not torch.equal(bits(self.bank.row(number)), bits(row)):
            number = self._numbers[address] = self.bank.put(row)
        return number

    def _drop_unused(self) -> None:
        used = set(np.unique(np.stack(list(self._tables.values()))).tolist())
        self.bank.retain(used)
        self._numbers = {
            address: number for address, number in self._numbers.items() if number in used
        }

    def _table(self, client: int) -> str:
        return f"{COPIES}.{client}.{self.name}"

    def _row(self, index: int) -> str:
        return f"{ROW}.{index}.{self.name}"

    @staticmethod
    def _require(tensors: NamedTensors, paths: Iterable[str]) -> None:
        if missing := [path for path in paths if path not in tensors]:
            raise CheckpointError(
                f"the stored copies are incomplete (missing: {missing[0]}); resume with the "
                "version of pomona that wrote them, or start over in another folder"
            )
