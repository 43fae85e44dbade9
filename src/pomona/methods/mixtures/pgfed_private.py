"""PGFed whose clients weight the others' gradients themselves, so that the coefficients a_i stay
private.

For the equations see ``pgfed``, under ``mixing = "client"``; the choice under a budget is APPLE's
(Luo and Wu, IJCAI 2022, appendix A.2) with a_ij instead of p_ij.
"""

from dataclasses import dataclass, replace

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.mixtures.pgfed_risks import (
    UNMET,
    Risks,
    largest_coefficient,
    meeting,
    risk,
    with_momentum,
)
from pomona.methods.mixtures.request_bank import (
    by_relations,
    initial_requests,
    requestable,
    served,
    unlimited,
)


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
        gradients, no_senders = torch.zeros_like(w).expand(N, -1), torch.zeros(N, dtype=torch.bool)
        return Bank(
            w, gradients, w.new_zeros(N, 1), no_senders, initial_requests(settings.budget, N)
        )

    def downlink(
        bank: Bank, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        senders = bank.sent & roster.member_mask
        index = torch.stack([served_ids(settings, bank, senders, i, roster, round_) for i in ids])
        return {
            "model": base.Rows.broadcast(bank.model, len(ids)),
            "gradients": base.Rows(bank.gradients, index),
            "offsets": base.Rows.broadcast(bank.offsets.squeeze(1), len(ids)),
            "sent": base.Rows.broadcast(senders, len(ids)),
            "available": base.Rows.broadcast(requestable(senders, ids), len(ids)),
        }

    def aggregate(
        bank: Bank, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Bank:
        return Bank(
            base.weighted_mean(uplink["model"], roster.weights(ids)),
            base.replace_rows(bank.gradients, ids, uplink["gradient"]),
            base.replace_rows(bank.offsets, ids, uplink["offset"]),
            bank.sent.index_fill(0, torch.tensor(ids), True),
            base.replace_rows(bank.requests, ids, uplink["request"]),
        )

    def add_clients(bank: Bank, ids: base.Ids, roster: base.Roster) -> tuple[Bank, Tensor]:
        return replace(bank, sent=bank.sent.index_fill(0, torch.tensor(ids), False)), bank.model

    def uplink_form(bank: Bank) -> base.Uplink:
        entries = {
            "gradient": bank.gradients[0],
            "offset": bank.offsets[0],
            "request": bank.requests[0],
        }
        return {"model": bank.model, **entries}

    relays = {"gradients": "gradient"}
    return base.Server(
        start, downlink, aggregate, add_clients, uplink_form, relays=relays, global_model=True
    )


def served_ids(
    settings: Risks,
    bank: Bank,
    senders: Tensor,
    client: int,
    roster: base.Roster,
    round_: base.Round,
) -> Tensor:
    """Return the ids (M,) that a client requested, among ``senders`` (N,), those that have sent a
    gradient; its own id in an empty place.

    Without a budget these are all. For a client that has never taken part the server draws at
    random, since it has met no risks and all are equal to it.
    """
    if not senders[client] or unlimited(settings.budget, len(roster)):
        unmet, round_key = torch.full((len(roster),), UNMET), (round_.seed, round_.number)
        return choose(settings, unmet, senders, client, roster, *round_key)
    return served(bank.requests[client], senders, client)


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

    def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> PrivateState:
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
        owners, filled, gradients = offered(received, state.gradient, training.ids)
        N = state.weights.shape[1]
        present = filled.new_zeros(len(owners), N + 1).scatter(1, owners, filled)[:, :N]
        weights = meeting(state.weights, present, training.roster.member_mask)
        mu, rate = settings.mu, settings.risk_lr * round_.decay
        limit = largest_coefficient(training.roster)
        a = padded(weights).gather(1, owners).where(filled, 0).clamp_max(limit)
        offsets = padded(received["offsets"]).gather(1, owners)

        W = received["model"].clone()
        rows = (W, a, filled, gradients, offsets, state.mixture, base.optimizer_state(W, round_))
        for batch, w_i, p, mask, g, o, previous, velocity in training.steps(round_.passes, *rows):
            slope = mu * (o + products(g, w_i))
            pull = with_momentum(mu * mixed(p, g), previous, beta)
            training.step(w_i, batch, velocity, round_, base.Pull(constant=pull))
            p.sub_(rate * slope).clamp_(0, limit).mul_(mask)
        training.observe("personal", W, "trained")

        weights = padded(weights).scatter(1, owners, a)[:, :N]
        mixture = (
            with_momentum(mu * mixed(a, gradients), state.mixture, beta) if beta else state.mixture
        )
        G, offset = risk(training, W, round_)
        requests = [
            choose(settings, row, available, i, training.roster, round_.seed, round_.number + 1)
            for row, available, i in zip(
                weights.cpu(), received["available"], training.clients, strict=True
            )
        ]
        uplink = {"model": W, "gradient": G, "offset": offset, "request": torch.stack(requests)}
        return PrivateState(weights, G, mixture), uplink, {"risk_weights": weights.clamp_min(0)}

    return base.Client(start, train, private=("weights",))


def offered(
    received: base.Received, gradient: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the owners of the available gradients (n, M + 1), N if empty; which are filled; and
    the gradients.

    Gradients are (n, M + 1, d); the last place is the client's own, ``gradient`` (n, d).
    """
    offer, senders = received["gradients"], received["sent"].to(gradient.device)
    index, own_ids = offer.index.to(gradient.device), ids.unsqueeze(1).to(gradient.device)
    filled = torch.cat([index != own_ids, senders.gather(1, own_ids)], 1)
    owners = torch.cat([index, own_ids], 1).masked_fill(~filled, senders.shape[1])
    return owners, filled, torch.cat([offer.bank[offer.index], gradient.unsqueeze(1)], 1)


def padded(rows: Tensor) -> Tensor:
    """Append a column of zeros to rows (n, N), for the indices of empty places."""
    return torch.nn.functional.pad(rows, (0, 1))


def mixed(p: Tensor, gradients: Tensor) -> Tensor:
    """Return sum_j p_ij g_j (n, d) of gradients (n, M, d) with weights (n, M)."""
    return torch.bmm(p.unsqueeze(1), gradients).squeeze(1)


def products(gradients: Tensor, w: Tensor) -> Tensor:
    """Return <g_j, w_i> (n, M) of gradients (n, M, d) with rows (n, d)."""
    return torch.bmm(gradients, w.unsqueeze(2)).squeeze(2)


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
