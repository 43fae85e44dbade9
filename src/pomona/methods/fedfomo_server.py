"""FedFomo's server and a client's choice: models are kept, and those that a client asks for are handed out.

Zhang et al., ICLR 2021, section 3.2. Shared by ``fedfomo`` and ``fedfomo_ma``, which differ in what is handed out.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from pomona.core.rng import stream
from pomona.methods import base
from pomona.methods.request_bank import limit, request, unasked


class Fomo(base.MethodSettings):
    """Settings of both variants; symbols of the paper in brackets."""

    budget: int | None = Field(None, ge=1, description="others' models a client downloads a round (M); all if not set")
    epsilon: float = Field(0.3, ge=0, le=1, description="chance of a random model in each place (epsilon)")
    epsilon_decay: float = Field(0.05, ge=0, le=1, description="taken off epsilon after each round")


@dataclass(frozen=True)
class Bank:
    """The last model of each client (N, d); who has sent one (N,); the ids each asks for (N, M), its own for none."""

    models: Tensor
    uploaded: Tensor
    requests: Tensor


def server(settings: Fomo, offer: Callable[[Bank, Tensor], base.Downlink]) -> base.Server:
    """Keeps models; answers with ``offer(bank, index)``, index (n, M) naming whose."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Bank:
        N = len(roster)
        return Bank(initial().expand(N, -1), torch.zeros(N, dtype=torch.bool), unasked(settings.budget, N))

    def down(bank: Bank, ids: tuple[int, ...], roster: base.Roster, round_: base.Round) -> base.Downlink:
        who = torch.tensor(ids)
        bank = replace(bank, uploaded=bank.uploaded & roster.known)
        index = torch.stack([wishes(settings, bank, i, round_) for i in ids])
        widest = int((index != who.unsqueeze(1)).sum(1).max())
        available = bank.uploaded.index_fill(0, who, True)  # when this round's requests are served
        return {**offer(bank, index[:, :widest]), "available": base.Rows.same(available, len(ids))}

    def aggregate(
        bank: Bank, uplink: base.Uplink, ids: tuple[int, ...], roster: base.Roster, round_: base.Round
    ) -> Bank:
        models, requests = uplink["model"], uplink["request"]
        uploaded = bank.uploaded.index_fill(0, torch.tensor(ids), True)
        return Bank(base.placed(bank.models, ids, models), uploaded, base.placed(bank.requests, ids, requests))

    def welcome(bank: Bank, ids: tuple[int, ...], roster: base.Roster) -> tuple[Bank, Tensor]:
        row = base.mean_of(bank.models, roster)
        return replace(bank, models=base.placed(bank.models, ids, row)), row

    def expects(bank: Bank) -> base.Uplink:
        return {"model": bank.models[0], "request": bank.requests[0]}

    return base.Server(start, down, aggregate, welcome, expects, separable=True)


def wishes(settings: Fomo, bank: Bank, client: int, round_: base.Round) -> Tensor:
    """The ids (M,) that a client asked for, or a uniform draw if it never did; its own id where there is none."""
    if not bank.uploaded[client]:
        equal = torch.zeros(len(bank.models))
        return choose(settings, equal, bank.uploaded, client, round_.seed, round_.number - 1)
    asked = bank.requests[client]
    return request(asked[bank.uploaded[asked] & (asked != client)].tolist(), client, len(asked))


def choose(settings: Fomo, p: Tensor, available: Tensor, client: int, seed: int, number: int) -> Tensor:
    """The ids (M,) that a client asks for in round ``number``, epsilon-greedily by p (N,) among those available."""
    draw = stream(seed, "request", number, client)
    epsilon = settings.epsilon - settings.epsilon_decay * (number - 1)
    others = available.clone().index_fill_(0, torch.tensor(client), False).numpy().nonzero()[0]
    shuffled = draw.permutation(others)  # ties are taken in random order
    pool = shuffled[np.argsort(-p.numpy()[shuffled], kind="stable")].tolist()
    most = limit(settings.budget, len(p))
    places = min(most, len(pool))
    picked = [pool.pop(int(draw.integers(len(pool))) if draw.random() < epsilon else 0) for _ in range(places)]
    return request(picked, client, most)
