"""What a task brings, as tensors: each entry of the downlink, and a newcomer's first model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pomona.deploy.messages import EntryForm, Offer, Task, Wire, pack, unpack
from pomona.deploy.silo.silo_scenario import counted
from pomona.federation.batchnorm_statistics import accompanied
from pomona.federation.loop import round_of
from pomona.methods.base import Downlink, Rows, Server
from pomona.scenario import Scenario


def entry(offer: Offer, rows: Mapping[str, bytes], wire: Wire, places: int) -> Rows:
    """An entry of the downlink, as one silo alone gets it, from its rows' bytes by hash. Raises ProtocolError."""
    unpacked = {j: unpack(rows[digest], offer.form, wire, places) for j, digest in offer.rows.items()}
    height = places if offer.form.many else len(unpacked)
    # Rows that nobody offered stay untouched zeros, which take no memory.
    some = next(iter(unpacked.values()), torch.zeros(offer.form.width))
    bank = torch.zeros(height, offer.form.width, dtype=some.dtype)
    for j, row in unpacked.items():
        bank[j] = row
    index = torch.tensor(offer.index, dtype=torch.long)
    return Rows(bank, index.unsqueeze(0) if offer.form.many else index)


def start(task: Task, rows: Mapping[str, bytes], width: int, wire: Wire, places: int) -> Tensor | None:
    """The model (width,) that a newcomer starts from; None for the run's initial one. Raises ProtocolError."""
    form = EntryForm(many=False, dtype="F32", width=width)
    return unpack(rows[task.start], form, wire, places) if task.start else None


@dataclass(frozen=True)
class InitialDownlink:
    """What the server gives this silo in a run's first round, which everybody can make; made when first asked for.

    Attributes:
        task: from the server; its counts have been judged.
        server: the server half of the method agreed on.
        scenario: makes the own data at the silo's place among all.
    """

    task: Task
    server: Server
    scenario: Callable[[], Scenario]

    @cached_property
    def down(self) -> Downlink:
        """The first round's downlink."""
        known = self.scenario()
        server, roster = accompanied(self.server, known.initial), counted(self.task, known.config)
        begun = server.start(known.initial, roster, known.config.seed)
        return server.down(begun, (self.task.place,), roster, round_of(known.config, 1))

    @property
    def forms(self) -> dict[str, EntryForm]:
        """The form of each entry, which is that of every round."""
        return {key: EntryForm.of(rows) for key, rows in self.down.items()}

    def row(self, key: str, j: int, wire: Wire, places: int) -> bytes:
        """Of an entry and a place: the row as the run starts."""
        return pack(self.down[key].bank[j], wire, places)
