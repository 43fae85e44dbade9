"""Clients that lie to the server, in a simulation: what arrives of them is not what they trained.

With w_i a liar's honest model, w the model of that name that it received (else the run's initial
model for a whole model of its own, else 0), and D_i = w_i - w, strength s:

    scale        w + s D_i                   model replacement; Bagdasaryan et al., AISTATS 2020
    sign         w - s D_i                   ascent instead of descent; Li et al., AAAI 2019 (RSA)
    noise        w + s |D_i| z / |z|         z standard normal; Blanchard et al., NeurIPS 2017
    collude      mean_j w_j - s std_j w_j    over the honest clients, by coordinate, the same of all
                                             liars: within the spread of honest models; Baruch et
                                             al., NeurIPS 2019 (A little is enough)
    free-rider   w                           nothing was trained
    nan          not a number                refused by admission, and quarantined

It lies between transport and admission, so that one process, worker processes and a Ray cluster
have the same liars. A lie is a function of the round's arrivals and of its own random stream: a run
that is resumed repeats it to the bit. What a liar keeps, and is evaluated on, is its honest model.
Numbers beside models (a loss, steps) and BatchNorm statistics are not falsified, except by nan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pomona.core.attack import Attack
from pomona.core.rng import stream
from pomona.core.round import Roster
from pomona.core.state import Named
from pomona.federation.exchange import Arrival, ClientRequest
from pomona.federation.transport import SIMULATION, Transport
from pomona.methods.base import Downlink, Initial, is_model
from pomona.objective.training import STATISTICS

TOLD = ("scale", "sign", "noise", "collude", "free-rider", "nan")
"""Kinds of lies in an uplink."""


@dataclass(frozen=True)
class Lying:
    """A transport whose clients ``attack.clients`` lie.

    Attributes:
        honest: the transport of what they trained.
        attack: who lies, how.
        initial: the run's initial models.
        seed: of the run.
    """

    honest: Transport
    attack: Attack
    initial: Initial
    seed: int

    run = SIMULATION

    def visit(self, visit: ClientRequest, down: Downlink) -> list[Arrival]:
        """Exchange with the clients, and falsify what liars send."""
        arrivals, attack = self.honest.visit(visit, down), self.attack
        lies = visit.trains and not visit.adapts and visit.round.number >= attack.from_round
        if attack.kind not in TOLD or not lies:
            return arrivals
        own = [a for a in arrivals if a.reply.client not in attack.clients and not a.reply.fault]
        others = [a.reply.uplink for a in own]
        return [
            self._lie(a, visit, down, others)
            if a.reply.client in attack.clients and not a.reply.fault
            else a
            for a in arrivals
        ]

    def _lie(
        self,
        arrival: Arrival,
        visit: ClientRequest,
        down: Downlink,
        others: Sequence[Mapping[str, Tensor]],
    ) -> Arrival:
        reply, attack = arrival.reply, self.attack
        place, number = visit.ids.index(reply.client), visit.round.number
        uplink = dict(reply.uplink)
        for name, true in reply.uplink.items():
            if not true.is_floating_point():
                continue
            if attack.kind == "nan":
                uplink[name] = torch.full_like(true, torch.nan)
            elif true.numel() > 1 and name != STATISTICS:
                w = self._origin(name, true, down, place)
                draw = stream(self.seed, "attack", number, reply.client)
                uplink[name] = lie(attack, true, w, draw, [other[name] for other in others])
        return replace(arrival, reply=replace(reply, uplink=uplink))

    def _origin(self, name: str, true: Tensor, down: Downlink, place: int) -> Tensor:
        """Return the model (k,) from which a liar's change is counted."""
        got = down.get(name)
        if got is not None and got.index.dim() == 1 and got.bank.shape[1:] == true.shape:
            return got.bank[got.index[place]]
        # other entries that were not received are changes
        if is_model(name) and (row := self.initial()).shape == true.shape:
            return row
        return torch.zeros_like(true)

    def begin(self, ids: tuple[int, ...], roster: Roster, row: Tensor | None) -> None:
        """Create the initial states of clients that join."""
        self.honest.begin(ids, roster, row)

    def commit(self, ids: Sequence[int]) -> None:
        """Commit the last visit for these clients."""
        self.honest.commit(ids)

    def save(self, ids: Sequence[int]) -> tuple[Named, Any]:
        """Return a checkpoint's data for these clients."""
        return self.honest.save(ids)

    def restore(self, ids: Sequence[int], tensors: Named, note: Any, roster: Roster) -> None:
        """Restore clients from a checkpoint."""
        self.honest.restore(ids, tensors, note, roster)


def lie(
    attack: Attack, true: Tensor, w: Tensor, draw: np.random.Generator, others: Sequence[Tensor]
) -> Tensor:
    """Return what a liar sends instead of its honest row ``true`` (k,).

    Args:
        attack: its kind is one of an uplink.
        true: its honest row.
        w: the row (k,) from which it trained.
        draw: generator of the noise.
        others: the honest clients' rows; without any, colluding liars send their own.
    """
    s, D, sent = attack.strength, true - w, true
    match attack.kind:
        case "scale":
            sent = w + s * D
        case "sign":
            sent = w - s * D
        case "noise":
            z = torch.from_numpy(draw.standard_normal(true.shape)).to(true)
            sent = w + s * D.norm() * z / z.norm()
        case "collude" if others:
            rows = torch.stack(list(others))
            sent = rows.mean(0) - s * rows.std(0, correction=0)
        case "free-rider":
            sent = w.clone()
    return sent
