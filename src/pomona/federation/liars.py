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
Numbers sent next to models (a loss, steps) and BatchNorm statistics are not falsified, except by
nan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pomona.core.attack import Attack
from pomona.core.rng import stream
from pomona.core.round import Ids, Roster
from pomona.core.state import NamedTensors
from pomona.federation.exchange import Arrival, ClientRequest
from pomona.federation.transport import SIMULATION, Transport
from pomona.methods.base import Downlink, Initial
from pomona.methods.card import is_model
from pomona.objective.training import STATISTICS

UPLINK_ATTACKS = ("scale", "sign", "noise", "collude", "free-rider", "nan")
"""Kinds of attacks on an uplink."""


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

    def visit(self, visit: ClientRequest, downlink: Downlink) -> list[Arrival]:
        """Exchange with the clients, and falsify what liars send."""
        arrivals, attack = self.honest.visit(visit, downlink), self.attack
        attacking = visit.trains and not visit.adapts and visit.round.number >= attack.from_round
        if attack.kind not in UPLINK_ATTACKS or not attacking:
            return arrivals
        sound = [a.reply for a in arrivals if not a.reply.fault]
        honest_uplinks = [reply.uplink for reply in sound if reply.client not in attack.clients]
        liars = {reply.client for reply in sound}.intersection(attack.clients)
        return [
            self._lie(a, visit, downlink, honest_uplinks) if a.reply.client in liars else a
            for a in arrivals
        ]

    def _lie(
        self,
        arrival: Arrival,
        visit: ClientRequest,
        downlink: Downlink,
        honest_uplinks: Sequence[Mapping[str, Tensor]],
    ) -> Arrival:
        reply, attack = arrival.reply, self.attack
        position, number = visit.ids.index(reply.client), visit.round.number
        uplink = dict(reply.uplink)
        for name, tensor in reply.uplink.items():
            if not tensor.is_floating_point():
                continue
            if attack.kind == "nan":
                uplink[name] = torch.full_like(tensor, torch.nan)
            elif tensor.numel() > 1 and name != STATISTICS:
                w = self._origin(name, tensor, downlink, position)
                generator = stream(self.seed, "attack", number, reply.client)
                uplink[name] = lie(
                    attack, tensor, w, generator, [honest[name] for honest in honest_uplinks]
                )
        return replace(arrival, reply=replace(reply, uplink=uplink))

    def _origin(self, name: str, tensor: Tensor, downlink: Downlink, position: int) -> Tensor:
        """Return the model (k,) from which a liar's change is counted."""
        rows = downlink.get(name)
        if rows is not None and rows.index.dim() == 1 and rows.bank.shape[1:] == tensor.shape:
            return rows.bank[rows.index[position]]
        # other entries that were not received are changes
        if is_model(name) and (row := self.initial()).shape == tensor.shape:
            return row
        return torch.zeros_like(tensor)

    def add_clients(self, ids: Ids, roster: Roster, row: Tensor | None) -> None:
        """Create the initial states of clients that join."""
        self.honest.add_clients(ids, roster, row)

    def commit(self, ids: Sequence[int]) -> None:
        """Commit the last visit for these clients."""
        self.honest.commit(ids)

    def save(self, ids: Sequence[int]) -> tuple[NamedTensors, Any]:
        """Return a checkpoint's data for these clients."""
        return self.honest.save(ids)

    def restore(self, ids: Sequence[int], tensors: NamedTensors, note: Any, roster: Roster) -> None:
        """Restore clients from a checkpoint."""
        self.honest.restore(ids, tensors, note, roster)


def lie(
    attack: Attack,
    honest: Tensor,
    w: Tensor,
    generator: np.random.Generator,
    honest_rows: Sequence[Tensor],
) -> Tensor:
    """Return what a liar sends instead of its honest row ``honest`` (k,).

    Args:
        attack: its kind is one of an uplink.
        honest: its honest row.
        w: the row (k,) from which it trained.
        generator: generator of the noise.
        honest_rows: the honest clients' rows; without any, colluding liars send their own.
    """
    s, D, row = attack.strength, honest - w, honest
    match attack.kind:
        case "scale":
            row = w + s * D
        case "sign":
            row = w - s * D
        case "noise":
            z = torch.from_numpy(generator.standard_normal(honest.shape)).to(honest)
            row = w + s * D.norm() * z / z.norm()
        case "collude" if honest_rows:
            rows = torch.stack(list(honest_rows))
            row = rows.mean(0) - s * rows.std(0, correction=0)
        case "free-rider":
            row = w.clone()
    return row
