"""What a task brings, as tensors: each entry of the downlink, and a newcomer's first model."""

from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor

from pomona.deploy.silo.seat import counted
from pomona.deploy.wire import Offer, Task, Wire, pack, unpack
from pomona.federation.loop import round_of
from pomona.methods.base import Downlink, Rows, Server
from pomona.scenario import Scenario


def entry(offer: Offer, rows: Mapping[str, bytes], wire: Wire, places: int) -> Rows:
    """An entry of the downlink, as one silo alone gets it, from its rows' bytes by hash. Raises ProtocolError."""
    unpacked = {j: unpack(rows[digest], offer, wire, places) for j, digest in offer.rows.items()}
    height = places if offer.many else len(unpacked)
    # Rows that nobody offered stay untouched zeros, which take no memory.
    some = next(iter(unpacked.values()), torch.zeros(offer.width))
    bank = torch.zeros(height, offer.width, dtype=some.dtype)
    for j, row in unpacked.items():
        bank[j] = row
    index = torch.tensor(offer.index, dtype=torch.long)
    return Rows(bank, index.unsqueeze(0) if offer.many else index)


def start(task: Task, rows: Mapping[str, bytes], width: int, wire: Wire, places: int) -> Tensor | None:
    """The model (width,) that a newcomer starts from; None for the run's initial one. Raises ProtocolError."""
    form = Offer(many=False, index=(0,), dtype="F32", width=width, rows={})
    return unpack(rows[task.start], form, wire, places) if task.start else None


def beginning(
    task: Task, server: Server, scenario: Callable[[], Scenario], wire: Wire, places: int
) -> Callable[[str, int], bytes]:
    """Of an entry and a place: the row as the run starts, which everybody can make; made when first asked for."""

    @cache
    def down() -> Downlink:
        known = scenario()
        roster = counted(task, known.config)
        begun = server.start(known.initial, roster, known.config.seed)
        return server.down(begun, (task.place,), roster, round_of(known.config, 1))

    return lambda key, j: pack(down()[key].bank[j], wire, places)
