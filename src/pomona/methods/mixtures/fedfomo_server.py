"""FedFomo's server and client requests: models are stored, and sent on request.

Zhang et al., ICLR 2021, sections 3.1 and 3.2. Shared by ``fedfomo`` and ``fedfomo_ma``, which
differ in what is sent.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.rng import stream
from pomona.methods import base
from pomona.methods.mixtures.request_bank import (
    initial_requests,
    limit,
    other_clients,
    request,
    requestable,
    served,
)


class Fomo(base.MethodSettings):
    """Settings of both variants; symbols of the paper in brackets.

    Attributes:
        budget: others' models a client downloads a round (M); all if not set
        epsilon: chance of a random model in each place (epsilon)
        epsilon_decay: taken off epsilon after each round
        candidates: models that can be downloaded: those of the last round (the paper), or the last
            of everybody who ever sent one; the same where all clients take part in each round
    """

    budget: int | None = Field(None, ge=1)
    epsilon: float = Field(0.3, ge=0, le=1)
    epsilon_decay: float = Field(0.05, ge=0, le=1)
    candidates: Literal["last-round", "everybody"] = "last-round"

    def idle(self) -> dict[str, str]:
        """A choice is for a budget."""
        keys = ("epsilon", "epsilon_decay") if self.budget is None else ()
        return dict.fromkeys(keys, "only with a budget: without one all models are downloaded")


def describe_requests(settings: Fomo) -> dict[str, str]:
    """Describe for the card what a request reveals to the server."""
    if settings.candidates == "everybody":
        return {
            "request": "whose models it wants next"
            + (f", at most {settings.budget}" if settings.budget else "")
        }
    return {"request": "in which order it prefers the others' models"}


@dataclass(frozen=True)
class Bank:
    """The last model of each client (N, d); its round (N,), 0 for none; and requests, ids (N, K).

    With candidates from the last round, a request is a client's ranking of all others, K = N - 1,
    since i does not know which models will exist; with all candidates it is the M wanted. Its own
    id means none.
    """

    models: Tensor
    uploaded: Tensor
    requests: Tensor


def server(settings: Fomo, offer: Callable[[Bank, Tensor, Tensor], base.Downlink]) -> base.Server:
    """Keep models; answer with ``offer(bank, index, offered)``, index (n, M) of models among those
    offered (N,).
    """

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Bank:
        N = len(roster)
        budget = settings.budget if settings.candidates == "everybody" else None
        return Bank(
            initial().expand(N, -1), torch.zeros(N, dtype=torch.long), initial_requests(budget, N)
        )

    def downlink(
        bank: Bank, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        receivers = torch.tensor(ids)
        offered = on_offer(settings, bank.uploaded * roster.member_mask)
        index = torch.stack([served_ids(settings, bank, offered, i, round_) for i in ids])
        widest = int((index != receivers.unsqueeze(1)).sum(1).max())
        # Candidates of the last round are not known yet: a client ranks all members.
        available = (
            requestable(offered, ids) if settings.candidates == "everybody" else roster.member_mask
        )
        return {
            **offer(bank, index[:, :widest], offered),
            "available": base.Rows.broadcast(available, len(ids)),
        }

    def aggregate(
        bank: Bank, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Bank:
        models, requests = uplink["model"], uplink["request"]
        uploaded = bank.uploaded.index_fill(0, torch.tensor(ids), round_.number)
        return Bank(
            base.replace_rows(bank.models, ids, models),
            uploaded,
            base.replace_rows(bank.requests, ids, requests),
        )

    def add_clients(bank: Bank, ids: base.Ids, roster: base.Roster) -> tuple[Bank, Tensor]:
        row = base.members_mean(bank.models, roster)
        return replace(bank, models=base.replace_rows(bank.models, ids, row)), row

    def uplink_form(bank: Bank) -> base.Uplink:
        return {"model": bank.models[0], "request": bank.requests[0]}

    return base.Server(start, downlink, aggregate, add_clients, uplink_form, separable=True)


def on_offer(settings: Fomo, uploaded: Tensor) -> Tensor:
    """Return the mask (N,) of available models, from the rounds (N,) in which they were sent.

    These are the models of the last round; if a single client took part in it, also those of the
    previous one, since it has its own.
    """
    if settings.candidates == "everybody":
        return uploaded > 0
    latest = uploaded.sort(descending=True).values[:2].min()
    return uploaded >= latest.clamp_min(1)


def served_ids(
    settings: Fomo, bank: Bank, offered: Tensor, client: int, round_: base.Round
) -> Tensor:
    """Return the available ids (M,) sent to a client; its own id if there is none.

    A uniform draw if it never made a request, else what it requested, or epsilon-greedily by its
    ranking.
    """
    requested, N = bank.requests[client], len(bank.models)
    if not bank.uploaded[client]:
        return choose(settings, torch.zeros(N), offered, client, round_.seed, round_.number - 1)
    if settings.candidates == "everybody":
        return served(requested, offered, client)
    order = requested[requested != client]
    p = torch.zeros(N).index_copy(0, order, torch.arange(len(order), 0, -1, dtype=torch.float32))
    return choose(settings, p, offered, client, round_.seed, round_.number - 1)


def make_request(
    settings: Fomo, p: Tensor, available: Tensor, client: int, round_: base.Round
) -> Tensor:
    """Return a client's request: the ids (M,) wanted of those available (N,), or a ranking of all
    of them (N - 1,).
    """
    if settings.candidates == "everybody":
        return choose(settings, p, available, client, round_.seed, round_.number)
    order = preferred(p, available, client, stream(round_.seed, "request", round_.number, client))
    padding = torch.full((len(p) - 1 - len(order),), client)
    return torch.cat([torch.from_numpy(order), padding])


def preferred(
    p: Tensor, available: Tensor, client: int, draw: np.random.Generator
) -> NDArray[np.int64]:
    """Return the available others in descending order of p (N,); ties in random order."""
    shuffled = draw.permutation(other_clients(available, client))
    order: NDArray[np.int64] = shuffled[np.argsort(-p.numpy()[shuffled], kind="stable")]
    return order


def choose(
    settings: Fomo, p: Tensor, available: Tensor, client: int, seed: int, number: int
) -> Tensor:
    """Return the ids (M,) for a client after round ``number``, epsilon-greedily by p (N,) among
    those available.
    """
    draw = stream(seed, "request", number, client)
    epsilon = settings.epsilon - settings.epsilon_decay * (number - 1)
    pool = preferred(p, available, client, draw).tolist()
    size = limit(settings.budget, len(p))
    count = min(size, len(pool))
    picked = [
        pool.pop(int(draw.integers(len(pool))) if draw.random() < epsilon else 0)
        for _ in range(count)
    ]
    return request(picked, client, size)
