"""APPLE: each client learns how much of every other client's core model goes into its own.

Luo, Wu. Adapt to adaptation: learning personalization for cross-silo federated learning. IJCAI 2022
(arXiv 2110.08394).

    personal model   w_i = sum_j p_ij c_j                                                                  (eq. 4)
    objective        min_{c_i, p_i}  F_i(w_i) + lambda(r) mu / 2 ||p_i - p_0||^2,   p_0 = (n_1, ..., n_N) / n  (eq. 7)
    client           with g = dF_i/dw at w_i, jointly from the same g:
                     c_i  <- c_i  - lr p_ii g                                                               (eq. 5)
                     p_ij <- p_ij - dr_lr (<g, c_j> + lambda(r) mu (p_ij - p_0j))                           (eq. 6)
                     its own c_i is current, the others' are the copies it last downloaded
    server           keeps the last core of each client and sends those that are requested
    loss scheduler   cosine: (cos(pi r / L) + 1) / 2;  exponential: eps^(r / L), eps = 1e-3;  0 from round L on  (A.1)
    budget M         first those never downloaded, in random order; the rest without replacement, with
                     probability ~ b^|p_ij|, b = max(1.5, r M / N)                                       (eqs. 8, 9)

The core c_i is uploaded; the row p_i never is. A client chooses privately what to download next,
and sends the request with its upload. Under a budget no core is downloaded before its first upload,
since every client can compute it. The server announces which cores are available, and a client
chooses among those.

Extension, not in the paper: ``core_step = "local"``. Eq. 5 moves the personal model by lr p_ii^2 g,
at N equal clients lr g / N^2 at first. Here the client trains a model of its own, which starts at
its mixture, and uploads the change:

    mixture          m_i(p) = o_i + sum_j p_ij (c_j - o_i), all cores as of the round's start; o_i is the
                     model that the client started from: where sum_j p_ij = 1, this is eq. 4
    start            w_i = m_i(p_i)
    each step        p_i  <- p_i + dp,  dp = -R_i D_i,  D_ij = <g, c_j - o_i> + lambda(r) mu (p_ij - p_0j)
                     w_i  <- w_i - lr g + sum_j dp_j (c_j - o_i)
    rates            R_i = ((K + k I) / lr + (lambda(r) mu + 1 / dr_lr) I)^-1,  K_jl = <c_j - o_i, c_l - o_i>, k the
                     mean eigenvalue of K;  0 while K = 0: relationships need progress to choose from
    end              c_i  <- c_i + w_i - m_i(p_i)  goes up;  w_i is the personal model

- While lr L <= 1, F_i being L-smooth, a full-batch step without momentum never raises F_i at mu =
  0, whatever dr_lr: dr_lr needs no search, and only slows the relationships down. Over all rounds
  no bound is proved: each client's own optimum is a fixed point, which can repel, and cores grow
  without bound in the kernel of P.
- Slower than Separate along directions in which the loss is flat: on three clients with curvatures
  from 1 down to 0.01 the loss after 120 full-batch steps was 2.7 times Separate's. Derivations are
  in ``docs/internals/decisions.md``.
- Rows p_0 and dr_lr = 0: mixtures are FedAvg's model, w_i is FedAvg-local's. One-hot rows and dr_lr
  = 0: Separate.

Extension, not in the paper: ``core_radius`` = c, against clients that lie. A client moves each core
that it received to at most c median distances from the median by coordinate of all cores, of its
own the current one. Relationships turn away from cores that point elsewhere, but not before one
that is out of all proportion has spoilt the mixture.

Differs from the paper: the exponential scheduler is printed as e^(r/L), which grows and drops the
eps that the text defines. p may be negative and need not sum to 1 (the "convex combination" of the
text is not enforced anywhere, nor is it in the paper's code). Differs from published code: the
penalty has the paper's factor 1/2 (mu here is twice the code's); the record of downloads is kept,
while the published one stays empty, which makes the choice uniform (``selection="uniform"``); cores
start from one model unless ``core_init="independent"``, as in the published code. From one model c
all slopes of p_i are <g, c> at first, and its step moves the mixture by N dr_lr <g, c> c: up to N
times as far as with cores at right angles, so that a ``dr_lr`` of the paper's can be too large.

The steps of p_i are SGD whatever the optimizer of the cores, with the run's momentum. With
``local``, weight decay and clipping act on w_i as they do in FedAvg.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.rng import stream
from pomona.methods import base
from pomona.methods.mixtures.apple_steps import RULES, Mixing
from pomona.methods.mixtures.request_bank import (
    by_relations,
    initial_requests,
    limit,
    other_clients,
    request,
    requestable,
    served,
    unlimited,
)
from pomona.methods.robustness.robust_rules import clipped, median

EPSILON = 1e-3


class APPLE(base.MethodSettings):
    """APPLE's settings; symbols of the paper in brackets.

    Attributes:
        core_step: a core learns by the paper's equation 5, or as a separate model (an extension)
        dr_lr: learning rate of the directed relationships (eta_2), 0.001 if not set; with core_step
            local the largest, none if not set
        mu: weight of the proximal term on the directed relationships (mu)
        schedule: loss scheduler lambda(r)
        schedule_share: share of the rounds after which lambda is 0 (L / rounds)
        budget: cores a client downloads a round (M); all others if not set
        selection: choice under a budget: the paper's, or uniform as its code
        core_init: cores start from one model, or each from its own
        core_radius: longest distance of a received core from the cores' median by coordinate, in
            medians of these distances (an extension, against clients that lie); no limit if not set
    """

    name: Literal["apple"] = "apple"
    core_step: Literal["paper", "local"] = "paper"
    dr_lr: float | None = Field(None, ge=0)
    mu: float = Field(0.0, ge=0)
    schedule: Literal["cosine", "exponential"] = "cosine"
    schedule_share: float = Field(0.2, ge=0, le=1)
    budget: int | None = Field(None, ge=1)
    selection: Literal["private", "uniform"] = "private"
    core_init: Literal["common", "independent"] = "common"
    core_radius: float | None = Field(None, gt=0, le=1e6)

    def idle(self) -> dict[str, str]:
        """A choice is for a budget."""
        return {} if self.budget else {"selection": "only with a budget"}

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = CARDS[self.core_step]
        request = {"request": f"whose cores it wants next, at most {self.budget}"}
        exchange = replace(
            card.exchange,
            down_models=lambda clients: limit(self.budget, clients),
            reveals=request if self.budget else card.exchange.reveals,
        )
        weighed = replace(card.needs, total_rounds=self.mu > 0 and self.schedule_share > 0)
        card = replace(card, exchange=exchange, needs=weighed)
        return base.Method(server(self), client(self), card, self.caution)

    def caution(self, round_: base.Round, _members: int) -> str | None:
        """Warn of a proximal term that has no weight in any round, or a schedule without it."""
        if self.mu and not base.floored(self.schedule_share, round_.total):
            return (
                f"method.mu has no effect: method.schedule_share = {self.schedule_share:g} of "
                f"{round_.total} rounds is none; raise it, or rounds"
            )
        shape = {"schedule", "schedule_share"} & self.model_fields_set
        if shape and "mu" not in self.model_fields_set:  # who sets 0, as a search does, knows
            return f"method.{min(shape)} has no effect, since method.mu = 0; set method.mu"
        return None


def schedule(settings: APPLE, round_: base.Round) -> float:
    """Return lambda(r) of appendix A.1, r counted from 0; mu times this is the weight of the
    proximal term.
    """
    r, length = round_.number - 1, base.floored(settings.schedule_share, round_.total)
    if r >= length:
        return 0.0
    if settings.schedule == "cosine":
        return (math.cos(math.pi * r / length) + 1) / 2
    return float(EPSILON ** (r / length))


# The server half: a bank of cores, and each client's request.


@dataclass(frozen=True)
class Bank:
    """The last core of each client (N, d); whether it is available (N,); the ids of each client's
    request (N, M).
    """

    cores: Tensor
    offered: Tensor
    requests: Tensor


def server(settings: APPLE) -> base.Server:
    """Keep cores and send those that are requested."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Bank:
        N = len(roster)
        # Clients that keep copies compute the initial cores themselves; others must receive them.
        offered = torch.full((N,), unlimited(settings.budget, N))
        return Bank(
            initial_cores(settings, initial, range(N)),
            offered,
            initial_requests(settings.budget, N),
        )

    def downlink(
        bank: Bank, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        available = bank.offered & roster.member_mask
        index = torch.stack([served_ids(settings, bank, available, i, roster, round_) for i in ids])
        entries = {"cores": base.Rows(bank.cores, index)}
        if unlimited(settings.budget, len(roster)):
            return entries
        return {**entries, "available": base.Rows.broadcast(requestable(available, ids), len(ids))}

    def aggregate(
        bank: Bank, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Bank:
        requests = base.replace_rows(bank.requests, ids, uplink["request"])
        return Bank(
            base.replace_rows(bank.cores, ids, uplink["core"]), handed_out(bank, ids), requests
        )

    def add_clients(bank: Bank, ids: base.Ids, roster: base.Roster) -> tuple[Bank, Tensor]:
        row = base.members_mean(bank.cores, roster)
        return Bank(
            base.replace_rows(bank.cores, ids, row), handed_out(bank, ids), bank.requests
        ), row

    def uplink_form(bank: Bank) -> base.Uplink:
        return {"core": bank.cores[0], "request": bank.requests[0]}

    return base.Server(
        start,
        downlink,
        aggregate,
        add_clients,
        uplink_form,
        separable=True,
        relays={"cores": "core"},
    )


def handed_out(bank: Bank, ids: base.Ids) -> Tensor:
    """Return the mask (N,) of available cores, now that those of ids differ from their start."""
    return bank.offered.index_fill(0, torch.tensor(ids, dtype=torch.long), True)


def served_ids(
    settings: APPLE,
    bank: Bank,
    available: Tensor,
    client: int,
    roster: base.Roster,
    round_: base.Round,
) -> Tensor:
    """Return the available ids (M,) that a client requested; its own id marks an empty place.

    Without a budget these are all, also who joined since. Before its first uplink it has requested
    none; choosing among cores never downloaded needs no private data.
    """
    requested, fetched = bank.requests[client], torch.zeros_like(available)
    if unlimited(settings.budget, len(roster)) or (requested == client).all():
        round_key = round_.seed, round_.number
        return choose(settings, roster.shares, fetched, available, client, roster, *round_key)
    return served(requested, available, client)


def initial_cores(settings: APPLE, initial: base.Initial, ids: Sequence[int]) -> Tensor:
    """Return the initial cores (n, d) of these clients, which any client can compute from the run's
    seed.
    """
    if settings.core_init == "common":
        return initial().expand(len(ids), -1)
    return torch.stack([initial(j) for j in ids])


# The client half: one gradient, two updates.


@dataclass(frozen=True)
class APPLEState:
    """State of clients: core (n, d), its DR row (n, N), and the origin of its progress.

    ``seen`` (n, N) marks cores that were ever downloaded; ``origin`` (n, d) is the model that it
    started from, (n, 0) with the paper's step.
    """

    core: Tensor
    dr: Tensor
    seen: Tensor
    origin: Tensor


def client(settings: APPLE) -> base.Client:
    """Learn a core and a DR row."""
    rule = RULES[settings.core_step]

    def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> APPLEState:
        n, cores = len(ids), initial_cores(settings, initial, ids).clone()
        fetched = torch.zeros(n, len(roster), dtype=torch.bool)
        return APPLEState(
            cores, roster.shares.to(cores).repeat(n, 1), fetched, rule.origin(initial(), n)
        )

    def copies(initial: base.Initial, roster: base.Roster) -> base.Rows:
        N = len(roster)
        if unlimited(settings.budget, N):
            return base.Rows.broadcast(initial(), 0)  # every round brings all
        if settings.core_init == "common":
            return base.Rows.broadcast(initial(), N)
        return base.Rows(initial_cores(settings, initial, range(N)), torch.arange(N))

    def train(
        state: APPLEState, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[APPLEState]:
        members = training.roster.member_mask.to(state.dr.device)
        offer = received["cores"]
        cores = mixed_cores(settings, offer, state.core, training)
        received_ids = offer.received if isinstance(offer, base.Copies) else offer.index
        fetched = state.seen.scatter(1, received_ids, True)
        P = state.dr.masked_fill(~members, 0)
        p0 = training.roster.shares.to(P)
        is_self = torch.nn.functional.one_hot(training.ids, P.shape[1]).bool().to(P.device)
        mixing = Mixing(
            cores, state.origin, is_self, members, p0, schedule(settings, round_) * settings.mu
        )
        C, P, model = rule.move(state.core, P, mixing, training, round_, settings.dr_lr)
        if training.watches("trained"):
            training.observe("personal", model(), "trained")
        available = received.get("available", training.roster.member_mask.expand_as(fetched))
        requests = torch.stack(
            [
                choose(settings, p, f, offered, i, training.roster, round_.seed, round_.number + 1)
                for p, f, offered, i in zip(
                    P.cpu(), fetched, available, training.clients, strict=True
                )
            ]
        )
        info = {"dr": P, "schedule": torch.full((len(P),), schedule(settings, round_))}
        return APPLEState(C, P, fetched, state.origin), {"core": C, "request": requests}, info

    def adapt(
        state: APPLEState, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[APPLEState]:
        return train(state, received, training, rule.unseen(round_))

    # Within a radius clients have their own copies, as with ``local`` under a budget, and a call
    # for several reads as much as calls for each.
    reads_alike = mixes_only(settings) or (settings.budget is None and settings.core_radius is None)
    return base.Client(
        start,
        train,
        private=("dr", "seen"),
        adapt=adapt,
        keeps={"cores": copies},
        reads_alike=reads_alike,
        rate=rule.rate,
    )


def mixes_only(settings: APPLE) -> bool:
    """Return whether copies under a budget are needed in mixtures alone."""
    return settings.core_step == "paper" and settings.core_radius is None


def mixed_cores(
    settings: APPLE, offer: base.Copies | base.Rows, C: Tensor, training: base.LocalTraining
) -> Any:
    """Return what the mixtures of a round read: the downloaded cores (N, d) or (n, N, d), limited
    where the settings say so. Copies under a budget that only mixtures need stay in their bank.
    """
    if isinstance(offer, base.Copies) and mixes_only(settings):
        return training.objective.copies(offer.bank, offer.index)
    cores = offer.rows() if isinstance(offer, base.Copies) else offer.bank
    if settings.core_radius:
        members = training.roster.member_mask.to(C.device)
        cores = bounded(cores, C, training.clients, members, settings.core_radius)
    return training.objective.mixing_layout(cores)


def bounded(cores: Tensor, C: Tensor, clients: base.Ids, members: Tensor, c: float) -> Tensor:
    """Return downloaded cores (N, d) or (n, N, d) within reach of their median, for clients whose
    own current cores, which no download has, are C (n, d); copies (n, N, d) if there are several.
    """
    copies = cores if cores.dim() == 3 else [cores] * len(C)
    clipped_cores = [
        within_reach(base.replace_rows(client_copies, (i,), core), members, c)
        for i, core, client_copies in zip(clients, C, copies, strict=True)
    ]
    return torch.stack(clipped_cores) if cores.dim() == 3 or len(C) > 1 else clipped_cores[0]


def within_reach(cores: Tensor, members: Tensor, c: float) -> Tensor:
    """Return cores (N, d) in which each member's is at most c median distances from the members'
    median; the same tensor if none moved.
    """
    member_cores = base.chunked(cores)[members].compute()
    clipped_cores = clipped(member_cores, median(member_cores), c)
    ids = tuple(members.nonzero().squeeze(1).tolist())
    return cores if clipped_cores is member_cores else base.replace_rows(cores, ids, clipped_cores)


def choose(
    settings: APPLE,
    p: Tensor,
    fetched: Tensor,
    available: Tensor,
    client: int,
    roster: base.Roster,
    seed: int,
    number: int,
) -> Tensor:
    """Return a client's request (M,) for round ``number`` (A.2), from those available (N,)."""
    if settings.selection == "private":
        return by_relations(p, fetched, available, client, roster, settings.budget, seed, number)
    ids, size = other_clients(available, client), limit(settings.budget, len(roster))
    draw = stream(seed, "request", number, client)
    chosen = draw.choice(ids, min(size, len(ids)), replace=False)
    return request(chosen.tolist(), client, size)


QUANTITIES = (
    base.Quantity(
        "dr",
        "matrix",
        "Who listens to whom",
        "p(i, j)",
        "the directed relationships p(i, j), the weight that client i (row) gives the core model "
        "of client j (column). In a deployment each row stays with its client.",
        history="How the relationships developed",
        own="How much each client relies on itself",
        column="p",
    ),
    base.Quantity(
        "schedule",
        "values",
        "The loss scheduler",
        "λ(r)",
        "the weight λ(r) of the penalty μ/2 ‖p \N{MINUS SIGN} p₀‖² that holds the directed "
        "relationships near their start. While it is high, clients learn globally; as it falls, "
        "each follows its own objective.",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("APPLE", QUANTITIES),
    paper="Luo and Wu, IJCAI 2022, Algorithm 1, eqs. 4-9",
    summary="each client learns its own mixture of everybody's core models",
    exchange=base.Exchange(
        down="M (all others without a budget)",
        up="1",
        private="the directed relationships and the personal model",
        keeps="its core and its DR row; under a budget copies of all cores (N models)",
        reveals={"request": "whose cores it wants next: everybody's"},
    ),
    headline=("personal", "trained"),
    joining=(
        "p_0 follows the roster; a newcomer's core starts from the members' mean core, its row "
        "from p_0, its column at the others from 0; a leaver's column and copies become 0; an "
        "unseen client learns its DR row alone, over the final cores"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)

CARDS = {
    "paper": CARD,
    "local": replace(
        CARD,
        presentation=base.Presentation("APPLE-local", QUANTITIES),
        paper="an extension of this package to Luo and Wu, IJCAI 2022",
        summary=(
            "each client learns a model of its own over a learned mixture of everybody's progress"
        ),
        exchange=replace(
            CARD.exchange,
            keeps=(
                "its core, its DR row and the model it started from; under a budget copies of "
                "all cores (N models)"
            ),
        ),
        joining=(
            "p_0 follows the roster; a newcomer's core and origin are the members' mean core, its "
            "row starts from p_0, its column at the others from 0; a leaver's column and copies "
            "become 0; an unseen client learns its DR row and a model of its own"
        ),
    ),
}
