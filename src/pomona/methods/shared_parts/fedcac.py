"""FedCAC: clients share insensitive parameters with all, and critical ones with clients whose
critical ones overlap.

Wu, Liu, Niu, Zhu, Tang. Bold but cautious: unlocking the potential of personalized federated
learning through cautiously aggressive collaboration. ICCV 2023 (arXiv 2309.11103).

    client           w_i <- SGD(v_i; E epochs);  sensitivity  c_i = |(w_i - v_i) w_i|, by element
                     critical: the share tau of a layer's parameters with the largest c_i, a mask m_i
    server           global model  w = sum_i n_i / n w_i over the cohort
                     overlap       o_ij = 1 - |m_i - m_j|_1 / (2 |m_i|_1)
                     threshold     t_r = mean + r / beta (max - mean)     of all o_ij, i != j;  r counts rounds from 1
                     neighbours    C_i = {i} and all j with o_ij >= t_r
                     v_i = m_i * mean of w_j over C_i + (1 - m_i) * w

C_i runs over the members who have sent a model. One model goes down and one up, with a mask of one
bit a parameter. ``personal, received`` is v_i, ``personal, trained`` is w_i. After round beta each
client's critical parameters are its own: the threshold exceeds the largest overlap. If all overlaps
are equal it never does; then nothing is shared either. tau = 0 is FedAvg-local, to the bit.

A parameter of sensitivity 0 is never critical: where more than 1 - tau of a layer's are 0 (words
that a client does not have, dead units), those that are not 0 are critical, as in published code.
Of other equal sensitivities the first are critical.

Differs from published code (by one of the authors, in Fling and in PFLlib): that takes each tensor
for a layer, here weights and bias of a layer are one; it takes a threshold of up to 1e-10 for 0,
and more than the share tau where sensitivities are equal: a layer without others as a whole. In
PFLlib C_i is of the round's cohort, and in its first exchange critical parameters come back as they
were initially.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base


class FedCAC(base.MethodSettings):
    """FedCAC's settings; symbols of the paper in brackets.

    Attributes:
        tau: share of a layer's parameters that is critical (tau)
        beta: round after which no client shares critical parameters any more (beta)
    """

    name: Literal["fedcac"] = "fedcac"
    tau: float = Field(0.5, ge=0, le=1)
    beta: int = Field(100, ge=1, le=10**6)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(server(self.beta), client(self.tau), CARD)


@dataclass(frozen=True)
class Bank:
    """The global model (d,), each client's last model (N, d) and mask (N, d) bool, and who has sent
    one (N,) bool.
    """

    model: Tensor
    models: Tensor
    masks: Tensor
    sent: Tensor


def server(beta: int) -> base.Server:
    """Keep models and masks, and compose a model for each client."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Bank:
        w, N = initial(), len(roster)
        uncritical = torch.zeros_like(w, dtype=torch.bool).expand(N, -1)
        return Bank(w, w.expand(N, -1), uncritical, torch.zeros(N, dtype=torch.bool))

    def downlink(
        bank: Bank, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        shared = overlaps(bank.masks)
        C = neighbours(shared, bank.sent & roster.member_mask, (round_.number - 1) / beta)[
            list(ids)
        ].to(bank.model)
        mean = C / C.sum(1, keepdim=True)
        receivers = torch.tensor(ids, device=bank.model.device)

        def mix(models: Tensor, masks: Tensor, model: Tensor) -> Tensor:
            return torch.where(masks[receivers], model + mean @ (models - model), model)

        mixed = base.chunked(bank.models).apply(mix, bank.masks, bank.model).compute()
        index = torch.arange(len(ids))
        return {
            "model": base.Rows(mixed, index),
            "neighbours": base.Rows(C, index),
            "overlap": base.Rows(shared, torch.tensor(ids)),
        }

    def aggregate(
        bank: Bank, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Bank:
        return Bank(
            base.weighted_mean(uplink["model"], roster.weights(ids)),
            base.replace_rows(bank.models, ids, uplink["model"]),
            base.replace_rows(bank.masks, ids, uplink["critical"]),
            bank.sent.index_fill(0, torch.tensor(ids), True),
        )

    def add_clients(bank: Bank, ids: base.Ids, roster: base.Roster) -> tuple[Bank, Tensor]:
        uncritical = base.replace_rows(bank.masks, ids, torch.zeros_like(bank.masks[0]))
        senders = bank.sent.index_fill(0, torch.tensor(ids), False)
        return Bank(
            bank.model, base.replace_rows(bank.models, ids, bank.model), uncritical, senders
        ), bank.model

    def uplink_form(bank: Bank) -> base.Uplink:
        return {"model": bank.model, "critical": bank.masks[0]}

    return base.Server(start, downlink, aggregate, add_clients, uplink_form)


def overlaps(masks: Tensor) -> Tensor:
    """Return o_ij (N, N) of masks (N, d): 1 less half of what differs between both masks, relative
    to i's; 0 if i has no critical parameters.

    It is the share of them that j has too where counts are equal, and negative if j's is much
    larger.
    """
    common = base.chunked(masks).apply(torch.Tensor.double).gram()
    count = common.diagonal().unsqueeze(1)
    differing = count + count.T - 2 * common
    return torch.where(count > 0, 1 - differing / (2 * count.clamp_min(1)), 0.0)


def neighbours(shared: Tensor, senders: Tensor, progress: float) -> Tensor:
    """Return C_i as rows (N, N) bool: the client itself, and senders above the threshold;
    ``progress`` is r / beta.
    """
    oneself = torch.eye(len(senders), dtype=torch.bool, device=shared.device)
    mask = senders.to(shared.device)
    pairs = mask & mask.unsqueeze(1) & ~oneself
    if progress > 1 or not pairs.any():
        return oneself
    mean, largest = shared[pairs].mean(), shared[pairs].max()
    return oneself | (pairs & (shared >= mean + progress * (largest - mean)))


def client(tau: float) -> base.Client:
    """Run local SGD from the received model, and find the critical parameters."""

    def train(
        state: None, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[None]:
        v = received["model"]
        training.observe("personal", v, "received")
        W = base.sgd(training, v.clone(), round_)
        training.observe("personal", W, "trained")
        uplink = {"model": W, "critical": critical(((W - v) * W).abs(), training.layers, tau)}
        info = {"neighbours": received["neighbours"], "overlap": received["overlap"]}
        return None, uplink, info

    return base.Client(base.stateless, train)


def critical(sensitivity: Tensor, layers: tuple[slice, ...], tau: float) -> Tensor:
    """Return the mask (n, d) of each layer's share tau, rounded down, of largest sensitivity, no
    zeros.
    """
    mask = torch.zeros_like(sensitivity, dtype=torch.bool)
    for layer in layers:
        c = sensitivity[:, layer]
        if count := base.floored(tau, c.shape[1]):
            mask[:, layer] = (c > 0) & base.largest(c, count)
    return mask


QUANTITIES = (
    base.Quantity(
        "neighbours",
        "matrix",
        "Who shares critical parameters with whom",
        "neighbour",
        (
            "1 where client i (row) takes the mean of its critical parameters over client j "
            "(column) too."
        ),
        history="How each client's neighbours changed",
    ),
    base.Quantity(
        "overlap",
        "matrix",
        "How much of what is critical two clients have in common",
        "o(i, j)",
        (
            "o(i, j): 1 less half of what differs between the masks of clients i (row) and j "
            "(column), relative to client i's: the share of critical parameters that both have "
            "where counts are equal, negative if client j's is much larger."
        ),
        history="How the overlaps moved",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("FedCAC", quantities=QUANTITIES),
    paper="Wu et al., ICCV 2023",
    summary=(
        "uncritical parameters are averaged over all, critical ones over clients for whom the "
        "same are critical"
    ),
    exchange=base.Exchange(
        down="1",
        up="1, and a mask",
        private="nothing but the data",
        keeps="nothing",
        reveals={"critical": "which parameters of the model matter to it"},
    ),
    headline=("personal", "received"),
    joining=(
        "neighbours are members; newcomers and unseen clients start from the global model with "
        "nothing critical"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)
