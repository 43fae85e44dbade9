"""A partition: the rows of each client by split, with a canonical text form, a hash, and checks;
conversion of shares to rows, by two random draws within one row of the exact share.
"""

import hashlib
import json
import reprlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from pomona.core import bounds, files
from pomona.core.bounds import SPLITS, ClientId
from pomona.core.errors import DataError, listed, titled
from pomona.core.settings import Settings
from pomona.data.dataset import Dataset

FORMAT = "pomona-partition-1"
MOST_BYTES = 2**30  # of a saved partition: some hundred million rows
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class ClientRows:
    """One client's rows of the data set, each list ascending; test and validation may be empty."""

    train: Rows
    validation: Rows
    test: Rows


@dataclass(frozen=True)
class Partition:
    """Rows per client, and the ground truth behind them if known.

    Attributes:
        clients: one ClientRows per client, in id order.
        recipe: its origin (name, settings, seed, fingerprint of the data).
        groups: (n,) the hidden group of each client, if the recipe has groups; never shown to a
            method.
        turns: (n,) quarter turns applied to a client's images, () for none (e.g. a scanner mounted
            differently).
        targets: (n,) the client whose validation and test rows each client gets, () if each keeps
            its own.
    """

    clients: tuple[ClientRows, ...]
    recipe: dict[str, Any]
    groups: tuple[int, ...] = ()
    turns: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()

    def text(self) -> str:
        """The canonical JSON form."""
        clients = [{k: getattr(c, k).tolist() for k in SPLITS} for c in self.clients]
        body = {
            "format": FORMAT,
            "recipe": self.recipe,
            "groups": self.groups,
            "turns": self.turns,
            "clients": clients,
        }
        if self.targets:  # omitted if empty, so that existing partitions keep their text and hash
            body["targets"] = self.targets
        return json.dumps(body, sort_keys=True, separators=(",", ":"))

    @cached_property
    def sha256(self) -> str:
        """Hash of the canonical form, the same on every machine."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    @property
    def target_groups(self) -> tuple[int, ...]:
        """(n,) the hidden group whose samples each client is evaluated on; () if its own, or
        unknown.
        """
        return tuple(self.groups[t] for t in self.targets) if self.groups else ()

    def save(self, path: Path) -> None:
        """Write the canonical form to a file."""
        path.write_text(self.text(), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Partition":
        """Read a file written by ``save``. Raises DataError with its name if it is invalid."""

        def fault(reason: str) -> DataError:
            return DataError(
                f"{path} is not a partition file ({reason}); make one with `pomona data show "
                "--save`"
            )

        try:
            saved = _Saved.model_validate(
                bounds.parse(files.content(path, MOST_BYTES), fault, MOST_BYTES)
            )
        except OSError as wrong:
            raise fault(str(wrong)) from wrong
        except ValidationError as wrong:
            first = wrong.errors()[0]
            reason = (
                f"{'.'.join(map(str, first['loc']))} = {reprlib.repr(first['input'])}: "
                f"{first['msg']}"
            )
            raise fault(bounds.plain(reason, 200)) from None
        clients = tuple(
            ClientRows(*(np.array(rows, np.int64) for rows in (c.train, c.validation, c.test)))
            for c in saved.clients
        )
        return cls(
            clients, saved.recipe, tuple(saved.groups), tuple(saved.turns), tuple(saved.targets)
        )


Integer = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]


class _Rows(Settings):
    train: list[Integer]
    validation: list[Integer]
    test: list[Integer]


class _Saved(Settings):
    format: Literal["pomona-partition-1"]
    recipe: dict[str, Any]
    groups: list[ClientId]
    turns: list[Integer]
    targets: list[Integer] = Field([])
    clients: list[_Rows]


ANEW = "make the partition again"


def _mark_rows(rows: Rows, used: NDArray[np.bool_], location: str, name: str) -> None:
    """Mark rows as used.

    Raises DataError unless they ascend, are among those of the data, and free.
    """
    if np.any(np.diff(rows) <= 0):
        raise DataError(f"{location}: row numbers are not in ascending order; {ANEW}")
    if len(rows) and (rows[0] < 0 or rows[-1] >= len(used)):
        outside = rows[0] if rows[0] < 0 else rows[-1]
        raise DataError(
            f"{location}: row {outside} is not among the {len(used)} rows of {name}; {ANEW}"
        )
    if used[rows].any():
        raise DataError(f"{location}: row {rows[used[rows]][0]} occurs twice; {ANEW}")
    used[rows] = True


def client_names(partition: Partition, dataset: Dataset) -> list[str]:
    """Return the names of clients: the data's own, else their numbers."""
    owners, n = dataset.owners, len(partition.clients)
    natural = partition.recipe.get("name") == "natural"
    if owners is not None and natural and len(owners.names) == n:
        return list(owners.names)
    return [f"client {i}" for i in range(n)]


def _clients_have(names: list[str]) -> str:
    """Return clients as the subject of a sentence, with its verb."""
    if len(names) == 1:
        return f"{titled(names[0])} has"
    return f"clients {listed([name.removeprefix('client ') for name in names])} have"


def check(partition: Partition, dataset: Dataset, source: str, remedy: str = ANEW) -> None:
    """Raise DataError unless the partition fits this data set.

    Row numbers must be within the data and ascending, and occur only once; every client must have
    training rows; groups and turns, if any, must have one number per client, and targets must name
    each client once.

    Args:
        partition: the partition to check.
        dataset: its data set.
        source: its origin, for the start of the message.
        remedy: for clients without training rows.
    """
    names = client_names(partition, dataset)
    named_clients = zip(names, partition.clients, strict=True)
    if idle := [name for name, client in named_clients if not len(client.train)]:
        raise DataError(f"{source}: {_clients_have(idle)} no training rows; {remedy}")
    used = np.zeros(len(dataset), dtype=bool)
    for i, client in enumerate(partition.clients):
        for split in SPLITS:
            location = f"{source}: {titled(names[i])}, {split}"
            _mark_rows(getattr(client, split), used, location, dataset.name)
    for field, values in (("groups", partition.groups), ("turns", partition.turns)):
        if len(values) not in (0, len(partition.clients)):
            raise DataError(
                f"{source}: {field} has {len(values)} entries for {len(partition.clients)} "
                f"clients; {ANEW}"
            )
    if sorted(partition.targets) not in ([], list(range(len(partition.clients)))):
        raise DataError(f"{source}: targets must name each client once; {ANEW}")
    if not set(partition.turns) <= set(range(4)):
        got = sorted(set(partition.turns))
        raise DataError(f"{source}: turns must be 0, 1, 2 or 3 quarter turns, got {got}; {ANEW}")


Labels = NDArray[np.int64]
Shares = NDArray[np.float64]


def deal(labels: NDArray[np.integer[Any]], shares: Shares, rng: np.random.Generator) -> list[Rows]:
    """Deal rows to clients by a table of shares.

    The rows of a class are shuffled and cut at ``floor(cumsum(shares[:, c]) * count + u)``, with
    one offset u ~ U[0, 1) per class. Every client is within one row of its exact share of every
    class; no row is dealt twice; all rows of a class are used if its shares sum to 1. The offset
    makes the expected number of rows exact; without it, rounding would favour the same clients in
    every class.

    Args:
        labels: (N,) class numbers in [0, n_classes).
        shares: (n, n_classes); ``shares[i, c]`` is the share of class c's rows for client i.
        rng: the stream for shuffling and rounding.

    Returns:
        One ascending array of positions in ``labels`` per client.

    Raises:
        ValueError: the table is not a valid table of shares.
    """
    if not (np.all(shares >= 0) and np.all(shares.sum(axis=0) < 1 + 1e-9)):
        raise ValueError("shares must be non-negative, and those of a class sum to at most 1")
    pieces: list[list[Rows]] = [[] for _ in shares]
    for c, column in enumerate(shares.T):
        rows = rng.permutation(np.flatnonzero(labels == c))
        # 0.91 * 100 is 91, not 91.00000000000001
        exact = np.round(np.cumsum(column) * len(rows), 6)
        cuts = np.minimum(np.floor(exact + rng.random()), len(rows)).astype(np.int64)
        lower = np.concatenate(([0], cuts[:-1]))
        for i in np.flatnonzero(cuts > lower):
            pieces[i].append(rows[lower[i] : cuts[i]])
    return [np.sort(np.concatenate(p)) if p else np.empty(0, dtype=np.int64) for p in pieces]


def sample(labels: NDArray[np.integer[Any]], size: int, rng: np.random.Generator) -> Rows:
    """Draw exactly ``size`` rows without replacement, stratified: each class within one row of its
    exact share.

    Systematic sampling: every (N / size)-th row of the shuffled rows in class order, from a random
    start, so that all rows have the same probability.

    Args:
        labels: (N,) class numbers.
        size: number of rows, at most N.
        rng: the stream for shuffling and the start.

    Returns:
        (size,) ascending positions in ``labels``.

    Raises:
        ValueError: ``size`` exceeds N.
    """
    count = len(labels)
    if not 0 <= size <= count:
        raise ValueError(f"cannot draw {size} of {count} rows")
    order = np.lexsort((rng.permutation(count), labels))
    start = rng.integers(max(count, 1))
    return np.sort(order[(np.arange(size) * count + start) // max(size, 1)]).astype(np.int64)
