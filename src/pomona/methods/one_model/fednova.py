"""FedNova: FedAvg normalised by local steps, so that clients with more steps do not dominate the
model.

Wang, Liu, Liang, Joshi, Poor. Tackling the objective inconsistency problem in heterogeneous
federated optimization. NeurIPS 2020 (arXiv 2007.07481), Algorithm 1.

    objective        min_w  sum_i p_i F_i(w),   p_i = n_i / n over the cohort
    client           w_i <- SGD(w; E epochs), with momentum and a proximal term if set; as a sum of its gradients
                     w - w_i = lr sum_t a_i,t g_i,t                                                  (eq. 5)
                     d_i = (w - w_i) / (lr |a_i|_1)         its mean step
    server           w <- w - lr tau_eff sum_i p_i d_i,     tau_eff = sum_i p_i |a_i|_1               (eqs. 8, 9)

|a_i|_1 is a client's distance, over lr, if every gradient is 1. The client counts it by the
recursion of its own steps: from v = z = 0, v <- momentum v + 1 - mu lr z;  z <- z + v;
|a_i|_1 = z. For plain SGD it is the number of steps tau_i, with momentum rho (tau - rho
(1 - rho^tau) / (1 - rho)) / (1 - rho), with the proximal term (1 - (1 - lr mu)^tau) / (lr mu), as
in the paper.

FedAvg's fixed point is that of sum_i p_i |a_i|_1 F_i: a client with twice the samples, and so twice
the steps, counts four times. Where all |a_i|_1 are equal FedNova is FedAvg, to the bit. Named
models are FedAvg's.

|a_i|_1 follows from a client's number of samples: the server accepts no other from it. Where shares
are limited (``largest_share``), p_i / |a_i|_1 over their sum is, and tau_eff is at most 1 / sum_i
p_i / |a_i|_1, which moves the model no further than the clients went; the paper leaves tau_eff
open, and the fixed point does not depend on it.

Differs from published code: with a proximal term that takes the number of steps for tau_eff, and
with one and momentum it adds both to |a_i|_1; here tau_eff is eq. 9 and the recursion is exact.
Its server momentum is ``fednova+momentum``.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.methods.one_model.reweighting import reweighted_server

# |a_i| starts at 1; only a pull of lr mu near 2, where nothing is learned, could lower it
SHORTEST = 1e-3
EXACT_STEPS = 10_000  # steps counted one by one


class FedNova(base.MethodSettings):
    """FedNova's settings; symbols of the paper in brackets.

    Attributes:
        mu: weight of a proximal term as FedProx has it (mu); 0: none
    """

    name: Literal["fednova"] = "fednova"
    mu: float = Field(0.0, ge=0)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        server = reweighted_server(
            {"steps": SHORTEST}, ratios, lambda *arguments: {"steps": bounds(self.mu, *arguments)}
        )
        return base.Method(server, client(self.mu), CARD)


def ratios(w: Tensor, uplink: base.Uplink, p: Tensor, round_: base.Round) -> Tensor:
    """Return tau_eff / |a_i|_1 (n,); exactly 1 if all clients took the same."""
    a = uplink["steps"].squeeze(1).to(p)
    return (a[0] + p @ (a - a[0])) / a


def bounds(
    mu: float, ids: base.Ids, roster: base.Roster, round_: base.Round
) -> tuple[Tensor, Tensor]:
    """Return the minimum and maximum |a_i|_1 (n,) of clients with these samples.

    They differ if an epoch leaves one sample over: with BatchNorm it joins the previous batch.
    """
    limits = []
    for n in (roster.sizes[i] for i in ids):
        batches = -(-n // round_.batch_size)
        fewest = batches - (batches > 1 and n % round_.batch_size == 1)
        steps = [round_.passes.batches(k) for k in (fewest, batches)]
        limits.append(sorted(length(k, round_.momentum, mu * round_.lr) for k in steps))
    low, high = torch.tensor(limits, dtype=torch.float64).T
    return low, high


@lru_cache(1024)
def length(steps: int, momentum: float, pull: float) -> float:
    """Return |a|_1 of so many steps as a client counts it, to the bit for up to ``EXACT_STEPS``;
    ``pull`` is mu lr.
    """
    if not momentum and not pull:
        return float(steps)
    if steps > EXACT_STEPS:  # a claim of very many samples costs no time
        with np.errstate(over="ignore", invalid="ignore"):
            # of (z, v, 1)
            step = np.array([[1 - pull, momentum, 1.0], [-pull, momentum, 1.0], [0.0, 0.0, 1.0]])
            return float(np.linalg.matrix_power(step, steps)[0, 2])
    v = z = 0.0
    for _ in range(steps):
        v = v * momentum + (1 - pull * z)
        z += v
    return z


def client(mu: float) -> base.Client:
    """Run FedAvg's or FedProx's client and count its steps."""

    def train(
        state: None, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[None]:
        w = received["model"]
        training.observe("global", w, "received")
        local = received.get("start", w).clone()
        z = torch.zeros(len(w), 1, dtype=torch.float64, device=w.device)
        v = torch.zeros_like(z)
        rows = (local, w, z, v, base.optimizer_state(local, round_))
        for batch, y, anchor, distance, speed, velocity in training.steps(round_.passes, *rows):
            training.step(y, batch, velocity, round_, base.Pull(mu, anchor) if mu else None)
            speed.mul_(round_.momentum).add_(1 - mu * round_.lr * distance)
            distance.add_(speed)
        training.observe("local", local, "trained")
        return None, {"model": local, "steps": z}, {"steps": z.squeeze(1)}

    return base.Client(base.stateless, train)


QUANTITIES = (
    base.Quantity(
        "steps",
        "values",
        "How far each client would go with gradients of 1",
        "|a|",
        "the size |a| of a client's local training: its number of steps, with momentum more and "
        "with a proximal term less; FedNova divides each client's change by it.",
    ),
)

CARD = replace(
    fedavg.CARD,
    presentation=base.Presentation("FedNova", quantities=QUANTITIES),
    paper="Wang et al., NeurIPS 2020, Algorithm 1",
    summary=(
        "one global model, the mean of locally trained copies, each by the length of its training"
    ),
    needs=base.Needs(steps="sgd"),
    exchange=replace(
        fedavg.CARD.exchange,
        reveals={"steps": "how far it trained, which follows from its number of samples"},
    ),
)
