"""APPLE: each client learns how much of every other client's core model goes into its own.

Luo, Wu. Adapt to adaptation: learning personalization for cross-silo federated learning. IJCAI 2022 (arXiv 2110.08394).

    personal model   w_i = sum_j p_ij c_j                                                                  (eq. 4)
    objective        min_{c_i, p_i}  F_i(w_i) + lambda(r) mu / 2 ||p_i - p_0||^2,   p_0 = (n_1, ..., n_N) / n  (eq. 7)
    client           with g = dF_i/dw at w_i, jointly from the same g:
                     c_i  <- c_i  - lr p_ii g                                                               (eq. 5)
                     p_ij <- p_ij - dr_lr (<g, c_j> + lambda(r) mu (p_ij - p_0j))                           (eq. 6)
                     its own c_i is current, the others' are the copies it last downloaded
    server           keeps the last core of each client and hands out those that are asked for
    loss scheduler   cosine: (cos(pi r / L) + 1) / 2;  exponential: eps^(r / L), eps = 1e-3;  0 from round L on  (A.1)
    budget M         first those never downloaded, in random order; the rest without replacement, with
                     probability ~ b^|p_ij|, b = max(1.5, r M / N)                                       (eqs. 8, 9)

The core c_i goes up; the row p_i never does. A client chooses in private what to download next, and asks for it
along with its upload.

Differs from the paper: the exponential scheduler is printed as e^(r/L), which grows and drops the eps that the text
defines. p may be negative and need not sum to 1 (the "convex combination" of the text is enforced nowhere, in the
paper's code neither).
Differs from published code: the penalty has the paper's factor 1/2 (mu here is twice the code's); the record of what
was ever downloaded is kept, where the published one stays empty and the choice therefore uniform
(``selection="uniform"``); cores start from one model unless ``core_init="independent"``, which is what the code does.

The steps of p_i are SGD whatever the optimizer of the cores.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from pomona.core.rng import stream
from pomona.methods import base
from pomona.methods.request_bank import fresh_first, limit, request, unasked

EPSILON = 1e-3


class APPLE(base.MethodSettings):
    """APPLE's settings; symbols of the paper in brackets."""

    name: Literal["apple"] = "apple"
    dr_lr: float = Field(1e-3, ge=0, description="learning rate of the directed relationships (eta_2)")
    mu: float = Field(0.0, ge=0, description="weight of the proximal term on the directed relationships (mu)")
    schedule: Literal["cosine", "exponential"] = Field("cosine", description="loss scheduler lambda(r)")
    schedule_share: float = Field(
        0.2, ge=0, le=1, description="share of the rounds after which lambda is 0 (L / rounds)"
    )
    budget: int | None = Field(None, ge=1, description="cores a client downloads a round (M); all others if not set")
    selection: Literal["private", "uniform"] = Field(
        "private", description="choice under a budget: the paper's, or uniform as its code"
    )
    core_init: Literal["common", "independent"] = Field(
        "common", description="cores start from one model, or each from its own"
    )

    def method(self) -> base.Method:
        """The two halves."""
        weighed = self.mu > 0 and self.schedule_share > 0
        return base.Method(server(self), client(self), replace(CARD, needs_total=weighed))


def schedule(settings: APPLE, round_: base.Round) -> float:
    """lambda(r) of appendix A.1, r counted from 0; mu times this weighs the proximal term."""
    r, length = round_.number - 1, int(settings.schedule_share * round_.total)
    if r >= length:
        return 0.0
    if settings.schedule == "cosine":
        return (math.cos(math.pi * r / length) + 1) / 2
    return float(EPSILON ** (r / length))


# The server half: a bank of cores, and what each client asked for.


@dataclass(frozen=True)
class Bank:
    """The last core of each client (N, d), and the ids each asks for next (N, M)."""

    cores: Tensor
    requests: Tensor


def server(settings: APPLE) -> base.Server:
    """Keeps cores, hands out what is asked for."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Bank:
        N = len(roster)
        return Bank(initial_cores(settings, initial, N), unasked(settings.budget, N))

    def down(bank: Bank, ids: tuple[int, ...], roster: base.Roster, round_: base.Round) -> base.Downlink:
        return {"cores": base.Rows(bank.cores, torch.stack([wishes(settings, bank, i, roster, round_) for i in ids]))}

    def aggregate(
        bank: Bank, uplink: base.Uplink, ids: tuple[int, ...], roster: base.Roster, round_: base.Round
    ) -> Bank:
        return Bank(base.placed(bank.cores, ids, uplink["core"]), base.placed(bank.requests, ids, uplink["request"]))

    def welcome(bank: Bank, ids: tuple[int, ...], roster: base.Roster) -> tuple[Bank, Tensor]:
        row = base.mean_of(bank.cores, roster)
        return Bank(base.placed(bank.cores, ids, row), bank.requests), row

    def expects(bank: Bank) -> base.Uplink:
        return {"core": bank.cores[0], "request": bank.requests[0]}

    return base.Server(start, down, aggregate, welcome, expects, separable=True, relays={"cores": "core"})


def wishes(settings: APPLE, bank: Bank, client: int, roster: base.Roster, round_: base.Round) -> Tensor:
    """The ids (M,) that a client asked for, less those that have left; its own id marks a place left empty.

    Before its first uplink it has asked for none; a choice among cores never downloaded needs nothing private.
    """
    asked = bank.requests[client]
    if (asked == client).all():
        never = torch.zeros(len(roster), dtype=torch.bool)
        return choose(settings, roster.shares, never, client, roster, round_.seed, round_.number)
    return torch.where(roster.known[asked], asked, client)


def initial_cores(settings: APPLE, initial: base.Initial, n: int) -> Tensor:
    """All initial cores (n, d), made from the run's seed by every client, so that none is downloaded."""
    if settings.core_init == "common":
        return initial().expand(n, -1)
    return torch.stack([initial(j) for j in range(n)])


# The client half: one gradient, two updates.


@dataclass(frozen=True)
class APPLEState:
    """State of clients: core (n, d), its DR row (n, N), and under a budget its copies of all cores.

    ``copies`` (n, N, d) is empty, (n, 0, d), when every round brings all cores; ``fetched`` (n, N) marks what was ever
    downloaded.
    """

    core: Tensor
    dr: Tensor
    copies: Tensor
    fetched: Tensor


def client(settings: APPLE) -> base.Client:
    """Learns a core and a DR row."""

    def start(initial: base.Initial, roster: base.Roster, ids: tuple[int, ...], seed: int) -> APPLEState:
        n, N = len(ids), len(roster)
        cores = initial_cores(settings, initial, N)
        kept = cores if limit(settings.budget, N) < N - 1 else cores[:0]
        fetched = torch.zeros(n, N, dtype=torch.bool)
        return APPLEState(cores[list(ids)], roster.shares.to(cores).repeat(n, 1), kept.repeat(n, 1, 1), fetched)

    def train(
        state: APPLEState, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[APPLEState]:
        known = training.roster.known
        copies = refresh(state.copies, received["cores"], known)
        fetched = state.fetched.scatter(1, received["cores"].index, True)
        known = known.to(state.dr.device)
        C, P = state.core, state.dr.masked_fill(~known, 0)
        p0 = training.roster.shares.to(P)
        own = torch.nn.functional.one_hot(training.ids, P.shape[1]).bool().to(P.device)
        pull = schedule(settings, round_) * settings.mu
        plain = base.Optimizer()
        dr_round = replace(round_, lr=settings.dr_lr * round_.decay, weight_decay=0.0, optimizer=plain)

        rows = (C, P, base.moments_of(C, round_), base.moments_of(P, round_), own)
        scaled = torch.empty_like(C)  # memory for p_ii g, once instead of in each step
        for batch, c, p, vc, vp, mine in training.steps(round_.epochs, *rows):
            C0 = copies[: len(c)] if copies.dim() == 3 else copies
            _, G = training.gradient(personal(p, mine, C0, c), batch)
            D = (dots(G, C0, mine, c) + pull * (p - p0)) * known
            base.descend(c, torch.mul(G, p[mine].unsqueeze(1), out=scaled[: len(c)]), vc, round_)
            base.descend(p, D, vp, dr_round)

        if training.watches("trained"):
            training.observe("personal", personal(P, own, copies, C), "trained")
        asks = [
            choose(settings, p, f, i, training.roster, round_.seed, round_.number + 1)
            for p, f, i in zip(P.cpu(), fetched, training.clients, strict=True)
        ]
        kept = copies if copies.dim() == 3 else state.copies
        info = {"dr": P, "schedule": torch.full((len(P),), schedule(settings, round_))}
        return APPLEState(C, P, kept, fetched), {"core": C, "request": torch.stack(asks)}, info

    def adapt(
        state: APPLEState, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[APPLEState]:
        return train(state, received, training, replace(round_, lr=0.0))  # the DR row alone, over standing cores

    return base.Client(start, train, private=("dr", "fetched"), adapt=adapt)


def personal(p: Tensor, mine: Tensor, C0: Tensor, c: Tensor) -> Tensor:
    """Eq. 4 with the own core added apart: w_i = sum_{j != i} p_ij C0_j + p_ii c_i, rows (n, d).

    ``C0`` is (N, d) when all clients hold the same copies, else (n, N, d); ``mine`` (n, N) marks a client's own place.
    """
    others = p.masked_fill(mine, 0)
    mixed = others @ C0 if C0.dim() == 2 else torch.bmm(others.unsqueeze(1), C0).squeeze(1)
    return mixed.addcmul_(p[mine].unsqueeze(1), c)


def dots(G: Tensor, C0: Tensor, mine: Tensor, c: Tensor) -> Tensor:
    """dF_i/dp_ij = <g_i, c_j> of eq. 6 for all pairs (n, N): copies of the others' cores, the own core as it is now."""
    others = G @ C0.T if C0.dim() == 2 else torch.bmm(C0, G.unsqueeze(2)).squeeze(2)
    # On a CPU a batched product of single rows takes five times as long.
    own = torch.stack([torch.dot(g, core) for g, core in zip(G, c, strict=True)])
    return others.masked_scatter(mine, own)


def refresh(copies: Tensor, offer: base.Rows, known: Tensor) -> Tensor:
    """The cores a client mixes: what it just downloaded, and older copies of what it did not; none of who has left."""
    if not copies.shape[1]:
        return offer.bank
    copies[:, ~known] = 0
    copies[torch.arange(len(copies)).unsqueeze(1), offer.index] = offer.bank[offer.index]
    return copies


def choose(
    settings: APPLE, p: Tensor, fetched: Tensor, client: int, roster: base.Roster, seed: int, number: int
) -> Tensor:
    """The request (M,) of a client for round ``number`` (A.2)."""
    draw, places = stream(seed, "request", number, client), limit(settings.budget, len(p))
    others = np.array([i for i in roster.members if i != client], dtype=np.int64)
    M = min(places, len(others))
    if settings.selection == "uniform" or len(others) == M:
        chosen = draw.choice(others, M, replace=False)
    else:
        chosen = fresh_first(others, p.double().numpy()[others], fetched.numpy()[others], M, number - 1, draw)
    return request(chosen.tolist(), client, places)


QUANTITIES = (
    base.Quantity(
        "dr",
        "matrix",
        "Who listens to whom",
        "p(i, j)",
        "the directed relationships p(i, j), the weight that client i (row) gives the core model of client j "
        "(column). In a deployment each row stays with its client.",
        history="How each client came to choose",
        own="How much each client relies on itself",
        column="p",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("APPLE", 2, QUANTITIES),
    paper="Luo and Wu, IJCAI 2022, Algorithm 1, eqs. 4-9",
    summary="each client learns its own mixture of everybody's core models",
    down="M (all others without a budget)",
    up="1",
    private="the directed relationships and the personal model",
    headline=("personal", "trained"),
    keeps="its core and its DR row; under a budget copies of all cores (N models)",
    joining=(
        "p_0 follows the roster; a newcomer's core starts from the members' mean core, its row from p_0, its "
        "column at the others from 0; a leaver's column and copies become 0; unseen: learns its DR row alone "
        "over standing cores"
    ),
    gradients=(base.Gradients(),),
)
