"""PGFed whose clients weight the others' gradients themselves, so that the coefficients a_i stay
private.

For the equations see ``pgfed``, under ``mixing = "client"``; the choice under a budget is APPLE's
(Luo and Wu, IJCAI 2022, appendix A.2) with a_ij instead of p_ij.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pomona.methods import base
from pomona.methods.pgfed_risks import UNMET, Risks, meeting, most, risk, with_momentum
from pomona.methods.request_bank import by_relations, servable, served, unasked, unlimited


@dataclass(frozen=True)
class Bank:
    """The server's state.

    The mean model (d,); for each client the last gradient (N, d) and its offset (N, 1); the clients
    that have sent one (N,) bool; the ids that each requests (N, M), its own for none.
    """

    model: Tensor
    gradients: Tensor
    offsets: Tensor
    sent: Tensor
    requests: Tensor


def server(settings: Risks) -> base.Server:
    """Average models as FedAvg, and send single gradients on request."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Bank:
        w, N = initial(), len(roster)
        gradients, nobody = torch.zeros_like(w).expand(N, -1), torch.zeros(N, dtype=torch.bool)
        return Bank(w, gradients, w.new_zeros(N, 1), nobody, unasked(settings.budget, N))

    def down(
        bank: Bank, ids: tuple[int, ...], roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        sent = bank.sent & roster.known
        index = torch.stack([wishes(settings, bank, sent, i, roster, round_) for i in ids])
        return {
            "model": base.Rows.same(bank.model, len(ids)),
            "gradients": base.Rows(bank.gradients, index),
            "offsets": base.Rows.same(bank.offsets.squeeze(1), len(ids)),
            "sent": base.Rows.same(sent, len(ids)),
            "available": base.Rows.same(servable(sent, ids), len(ids)),
        }

    def aggregate(
        bank: Bank,
        uplink: base.Uplink,
        ids: tuple[int, ...],
        roster: base.Roster,
        round_: base.Round,
    ) -> Bank:
        return Bank(
            base.weighted_mean(uplink["model"], roster.weights(ids)),
            base.replace_rows(bank.gradients, ids, uplink["gradient"]),
            base.replace_rows(bank.offsets, ids, uplink["offset"]),
            bank.sent.index_fill(0, torch.tensor(ids), True),
            base.replace_rows(bank.requests, ids, uplink["request"]),
        )

    def welcome(bank: Bank, ids: tuple[int, ...], roster: base.Roster) -> tuple[Bank, Tensor]:
        return replace(bank, sent=bank.sent.index_fill(0, torch.tensor(ids), False)), bank.model

    def expects(bank: Bank) -> base.Uplink:
        own = {
            "gradient": bank.gradients[0],
            "offset": bank.offsets[0],
            "request": bank.requests[0],
        }
        return {"model": bank.model, **own}

    relays = {"gradients": "gradient"}
    return base.Server(start, down, aggregate, welcome, expects, relays=relays, global_model=True)


def wishes(
    settings: Risks, bank: Bank, sent: Tensor, client: int, roster: base.Roster, round_: base.Round
) -> Tensor:
    """Return the ids (M,) that a client requested, of those that have ``sent`` (N,); its own id in
    an empty place.

    Without a budget these are all. For a client that has never taken part the server draws at
    random, since it has met no risks and all are equal to it.
    """
    if not sent[client] or unlimited(settings.budget, len(roster)):
        unmet, now = torch.full((len(roster),), UNMET), (round_.seed, round_.number)
        return choose(settings, unmet, sent, client, roster, *now)
    return served(bank.requests[client], sent, client)


@dataclass(frozen=True)
class PrivateState:
    """State of clients: coefficients a_i (n, N), own last gradient (n, d), last mixture (n, d).

    ``mixture`` is (n, 0) without beta.
    """

    weights: Tensor
    gradient: Tensor
    mixture: Tensor


def client(settings: Risks, beta: float) -> base.Client:
    """Compute one gradient on the own samples, and make both updates."""

    def start(
        initial: base.Initial, roster: base.Roster, ids: tuple[int, ...], seed: int
    ) -> PrivateState:
        w = initial()
        gradient = torch.zeros_like(w).repeat(len(ids), 1)
        return PrivateState(
            w.new_full((len(ids), len(roster)), UNMET),
            gradient,
            gradient[:, : len(w) if beta else 0].clone(),
        )

    def train(
        state: PrivateState,
        received: base.Received,
        training: base.LocalTraining,
        round_: base.Round,
    ) -> base.Trained[PrivateState]:
        training.observe("global", received["model"], "received")
        whose, came, gradients = offered(received, state.gradient, training.ids)
        N = state.weights.shape[1]
        present = came.new_zeros(len(whose), N + 1).scatter(1, whose, came)[:, :N]
        weights = meeting(state.weights, present, training.roster.known)
        mu, rate = settings.mu, settings.risk_lr * round_.decay
        limit = most(training.roster)
        a = padded(weights).gather(1, whose).where(came, 0).clamp_max(limit)
        offsets = padded(received["offsets"]).gather(1, whose)

        W = received["model"].clone()
        rows = (W, a, came, gradients, offsets, state.mixture, base.optimizer_state(W, round_))
        for batch, own, p, mine, others, o, before, velocity in training.steps(
            round_.passes, *rows
        ):
            slope = mu * (o + products(others, own))
            pull = with_momentum(mu * mixed(p, others), before, beta)
            training.step(own, batch, velocity, round_, base.Pull(constant=pull))
            p.sub_(rate * slope).clamp_(0, limit).mul_(mine)
        training.observe("personal", W, "trained")

        weights = padded(weights).scatter(1, whose, a)[:, :N]
        mixture = (
            with_momentum(mu * mixed(a, gradients), state.mixture, beta) if beta else state.mixture
        )
        G, offset = risk(training, W, round_)
        asks = [
            choose(settings, row, available, i, training.roster, round_.seed, round_.number + 1)
            for row, available, i in zip(
                weights.cpu(), received["available"], training.clients, strict=True
            )
        ]
        uplink = {"model": W, "gradient": G, "offset": offset, "request": torch.stack(asks)}
        return PrivateState(weights, G, mixture), uplink, {"risk_weights": weights.clamp_min(0)}

    return base.Client(start, train, private=("weights",))


def offered(received: base.Received, own: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the owners of the available gradients (n, M + 1), N if empty; which are filled; and
    the gradients.

    Gradients are (n, M + 1, d); the last place is the client's own, ``own`` (n, d).
    """
    offer, sent = received["gradients"], received["sent"].to(own.device)
    index, mine = offer.index.to(own.device), ids.unsqueeze(1).to(own.device)
    came = torch.cat([index != mine, sent.gather(1, mine)], 1)
    whose = torch.cat([index, mine], 1).masked_fill(~came, sent.shape[1])
    return whose, came, torch.cat([offer.bank[offer.index], own.unsqueeze(1)], 1)


def padded(rows: Tensor) -> Tensor:
    """Append a column of zeros to rows (n, N), for the indices of empty places."""
    return torch.nn.functional.pad(rows, (0, 1))


def mixed(p: Tensor, others: Tensor) -> Tensor:
    """Return sum_j p_ij g_j (n, d) of gradients (n, M, d) with weights (n, M)."""
    return torch.bmm(p.unsqueeze(1), others).squeeze(1)


def products(others: Tensor, w: Tensor) -> Tensor:
    """Return <g_j, w_i> (n, M) of gradients (n, M, d) with rows (n, d)."""
    return torch.bmm(others, w.unsqueeze(2)).squeeze(2)


def choose(
    settings: Risks,
    a: Tensor,
    available: Tensor,
    client: int,
    roster: base.Roster,
    seed: int,
    number: int,
) -> Tensor:
    """Return a client's request (M,) with coefficients a (N,) for round ``number``, from those
    available (N,).
    """
    return by_relations(a, a >= 0, available, client, roster, settings.budget, seed, number)
