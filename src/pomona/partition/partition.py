"""Who holds which rows: the result of every partition, with a stable text form and a hash."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.errors import DataError

FORMAT = "pomona-partition-1"
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class ClientRows:
    """One client's rows of the data set, each list ascending; test and validation may be empty."""

    train: Rows
    validation: Rows
    test: Rows


@dataclass(frozen=True)
class Partition:
    """Rows per client, and what is known of the truth behind them.

    Attributes:
        clients: one ClientRows a client, in id order.
        recipe: how it was made (name, settings, seed, fingerprint of the data).
        groups: (n,) the hidden group of each client, where the recipe has groups; never shown to a method.
        turns: (n,) quarter turns applied to a client's images, () for none (a scanner that stands differently).
    """

    clients: tuple[ClientRows, ...]
    recipe: dict[str, Any]
    groups: tuple[int, ...] = ()
    turns: tuple[int, ...] = ()

    def text(self) -> str:
        """The canonical JSON form."""
        clients = [{k: getattr(c, k).tolist() for k in ("train", "validation", "test")} for c in self.clients]
        body = {"format": FORMAT, "recipe": self.recipe, "groups": self.groups, "turns": self.turns, "clients": clients}
        return json.dumps(body, sort_keys=True, separators=(",", ":"))

    @cached_property
    def sha256(self) -> str:
        """Hash of the canonical form: the same partition on every machine has the same hash."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the canonical form to a file."""
        path.write_text(self.text(), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Partition":
        """Read what ``save`` wrote. Raises DataError naming the file if it is anything else."""
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if body["format"] != FORMAT:
                raise ValueError(f"format {body['format']!r}, expected {FORMAT!r}")
            numbers = [
                *body["groups"],
                *body["turns"],
                *(i for c in body["clients"] for part in c.values() for i in part),
            ]
            if not all(type(n) is int for n in numbers):
                raise ValueError("rows, groups and turns must be whole numbers")
            rows = tuple(
                ClientRows(*(np.asarray(c[k], dtype=np.int64).reshape(-1) for k in ("train", "validation", "test")))
                for c in body["clients"]
            )
            return cls(rows, dict(body["recipe"]), tuple(body["groups"]), tuple(body["turns"]))
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as fault:
            raise DataError(
                f"{path} is not a partition file ({fault}); make one with `pomona data show --save`"
            ) from fault
