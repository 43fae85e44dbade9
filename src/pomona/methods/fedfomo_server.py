"""FedFomo's server and a client's choice: models are kept, and those that a client asks for are handed out.

Zhang et al., ICLR 2021, sections 3.1 and 3.2. Shared by ``fedfomo`` and ``fedfomo_ma``, which differ in what is handed
out.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from pomona.core.rng import stream
from pomona.methods import base
from pomona.methods.request_bank import limit, request, servable, served, unasked


class Fomo(base.MethodSettings):
    """Settings of both variants; symbols of the paper in brackets."""

    budget: int | None = Field(None, ge=1, description="others' models a client downloads a round (M); all if not set")
    epsilon: float = Field(0.3, ge=0, le=1, description="chance of a random model in each place (epsilon)")
    epsilon_decay: float = Field(0.05, ge=0, le=1, description="taken off epsilon after each round")
    candidates: Literal["last-round", "everybody"] = Field(
        "last-round",
        description="models that can be downloaded: those of the last round (the paper), or the last of everybody who "
        "ever sent one; the same where all clients take part in each round",
    )


def told(settings: Fomo) -> dict[str, str]:
    """What a request tells the server, for the card."""
    if settings.candidates == "everybody":
        return {"request": "whose models it wants next" + (f", at most {settings.budget}" if settings.budget else "")}
    return {"request": "in which order it prefers the others' models"}


@dataclass(frozen=True)
class Bank:
    """The last model of each client (N, d); the round that it came in (N,), 0 for none; and requests, ids (N, K).

    With candidates from the last round a request is the order in which a client prefers all others, K = N - 1, as it
    does not know whose models there will be; from everybody it is the M that it wants. Its own id stands for none.
    """

    models: Tensor
    uploaded: Tensor
    requests: Tensor


def server(settings: Fomo, offer: Callable[[Bank, Tensor, Tensor], base.Downlink]) -> base.Server:
    """Keeps models; answers with ``offer(bank, index, offered)``, index (n, M) naming whose of those on offer (N,)."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Bank:
        N = len(roster)
        places = settings.budget if settings.candidates == "everybody" else None
        return Bank(initial().expand(N, -1), torch.zeros(N, dtype=torch.long), unasked(places, N))

    def down(bank: Bank, ids: tuple[int, ...], roster: base.Roster, round_: base.Round) -> base.Downlink:
        who = torch.tensor(ids)
        offered = on_offer(settings, bank.uploaded * roster.known)
        index = torch.stack([wishes(settings, bank, offered, i, round_) for i in ids])
        widest = int((index != who.unsqueeze(1)).sum(1).max())
        # Candidates of the last round are not known yet: a client orders all members.
        wanted = servable(offered, ids) if settings.candidates == "everybody" else roster.known
        return {**offer(bank, index[:, :widest], offered), "available": base.Rows.same(wanted, len(ids))}

    def aggregate(
        bank: Bank, uplink: base.Uplink, ids: tuple[int, ...], roster: base.Roster, round_: base.Round
    ) -> Bank:
        models, requests = uplink["model"], uplink["request"]
        uploaded = bank.uploaded.index_fill(0, torch.tensor(ids), round_.number)
        return Bank(base.placed(bank.models, ids, models), uploaded, base.placed(bank.requests, ids, requests))

    def welcome(bank: Bank, ids: tuple[int, ...], roster: base.Roster) -> tuple[Bank, Tensor]:
        row = base.mean_of(bank.models, roster)
        return replace(bank, models=base.placed(bank.models, ids, row)), row

    def expects(bank: Bank) -> base.Uplink:
        return {"model": bank.models[0], "request": bank.requests[0]}

    return base.Server(start, down, aggregate, welcome, expects, separable=True)


def on_offer(settings: Fomo, uploaded: Tensor) -> Tensor:
    """Mask (N,) of the models that can be downloaded, by the rounds (N,) that they came in.

    Those of the last round; where one client alone took part in it, those of the one before too, as it has its own.
    """
    if settings.candidates == "everybody":
        return uploaded > 0
    latest = uploaded.sort(descending=True).values[:2].min()
    return uploaded >= latest.clamp_min(1)


def wishes(settings: Fomo, bank: Bank, offered: Tensor, client: int, round_: base.Round) -> Tensor:
    """The ids (M,) that a client is sent, of those on offer (N,); its own id where there is none.

    A uniform draw if it never asked, else what it asked for, or epsilon-greedily by the order that it sent.
    """
    asked, N = bank.requests[client], len(bank.models)
    if not bank.uploaded[client]:
        return choose(settings, torch.zeros(N), offered, client, round_.seed, round_.number - 1)
    if settings.candidates == "everybody":
        return served(asked, offered, client)
    order = asked[asked != client]
    p = torch.zeros(N).index_copy(0, order, torch.arange(len(order), 0, -1, dtype=torch.float32))
    return choose(settings, p, offered, client, round_.seed, round_.number - 1)


def ask(settings: Fomo, p: Tensor, available: Tensor, client: int, round_: base.Round) -> Tensor:
    """A client's request: the ids (M,) that it wants of those available (N,), or the order of all of them (N - 1,)."""
    if settings.candidates == "everybody":
        return choose(settings, p, available, client, round_.seed, round_.number)
    order = preferred(p, available, client, stream(round_.seed, "request", round_.number, client))
    none = torch.full((len(p) - 1 - len(order),), client)
    return torch.cat([torch.from_numpy(order), none])


def preferred(p: Tensor, available: Tensor, client: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """The others that are available, by falling p (N,); ties in random order."""
    others = available.clone().index_fill_(0, torch.tensor(client), False).numpy().nonzero()[0]
    shuffled = draw.permutation(others)
    order: NDArray[np.int64] = shuffled[np.argsort(-p.numpy()[shuffled], kind="stable")]
    return order


def choose(settings: Fomo, p: Tensor, available: Tensor, client: int, seed: int, number: int) -> Tensor:
    """The ids (M,) that a client is given after round ``number``, epsilon-greedily by p (N,) among those available."""
    draw = stream(seed, "request", number, client)
    epsilon = settings.epsilon - settings.epsilon_decay * (number - 1)
    pool = preferred(p, available, client, draw).tolist()
    most = limit(settings.budget, len(p))
    places = min(most, len(pool))
    picked = [pool.pop(int(draw.integers(len(pool))) if draw.random() < epsilon else 0) for _ in range(places)]
    return request(picked, client, most)
