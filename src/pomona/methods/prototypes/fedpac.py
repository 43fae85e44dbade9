"""FedPAC: lower layers shared and held to class means, and a mixture of all heads for each client.

Xu, Tong, Huang. Personalized federated learning with feature alignment and classifier
collaboration. ICLR 2023 (arXiv 2306.11867), Algorithm 1.

    client           h_i    <- SGD(h_i; head epochs on F_i),        phi fixed
                     phi_i  <- SGD(phi; E epochs on F_i + lambda R),    h_i fixed,   R = 1 / (b f) sum_j |z_j - C_y|^2
                     c_ik   = mean of the features of its samples of class k under phi_i
    server           phi    <- sum_i n_i / n phi_i
                     C_k    <- sum_i n_ik c_ik / sum_i n_ik
                     h_i    <- sum_j a_ij h_j
    head weights     a_i = argmin over the simplex of  sum_j a_j^2 V_j + sum_k |q_ik - sum_j a_j q_jk|^2
                     q_ik = n_ik / n_i m_ik,    V_i = 1 / n_i (s_i - sum_k |q_ik|^2)

Features z are the f numbers phi(x) that the head receives; m_ik is the mean of those of class k,
and s_i of |z|^2, both under the received phi. The first part is the variance of mixed heads, the
second their bias; together they are a quadratic form of a matrix Q without negative eigenvalues. If
A^T A = Q, the x >= 0 with the least |A x|^2 + (x_1 + ... + x_n - 1)^2 is a multiple of its minimum,
and non-negative least squares (Lawson and Hanson) finds it exactly. In the first round there is no
C, and no R.

Named models: ``personal`` is (phi, h_i), as received with the mixed head, and trained. Under full
participation lambda = 0 without mixing (``mix = false``) is FedRep, to the bit.

Differs from published code: that sets weights below 0.001 to 0, and eigenvalues below 0.01 if
rounding has made one of Q negative; takes 0.1 as the rate of the head, and pulls a class without a
mean to the client's own. PFLlib counts clients alike in C. It receives models in a random order and
gives each client the head of another one's statistics; and heads that were mixed already are mixed
into those of the next clients. Without these three differences it trains the same models. Here an
s_i is taken to be no less than the client's means allow.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.prototypes import class_means
from pomona.methods.prototypes.class_means import ClassMeans
from pomona.methods.row_algebra import TINY
from pomona.methods.shared_parts.partly_shared import drop_columns, insert_columns, select_columns


class FedPAC(base.MethodSettings):
    """FedPAC's settings; symbols of the paper in brackets.

    Attributes:
        lambda_: pull of features to the mean of their class (lambda)
        head_epochs: epochs of the head each round, before those of the rest
        mix: whether a client's head is a mixture of all
    """

    name: Literal["fedpac"] = "fedpac"
    lambda_: float = Field(1.0, ge=0, alias="lambda")
    head_epochs: int = Field(1, ge=0, le=10**6)
    mix: bool = True

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        noised = base.Gradients(noised=not self.lambda_)
        head = base.Gradients(purpose="head", epochs=self.head_epochs)
        privacy = replace(CARD.privacy, gradients=(noised, head))
        return base.Method(server(self.mix), client(self), replace(CARD, privacy=privacy))


@dataclass(frozen=True)
class BodyAndHeads:
    """The server's body (k,), each client's head (N, h), and the class means."""

    body: Tensor
    heads: Tensor
    means: ClassMeans


def server(mix: bool) -> base.Server:
    """Average bodies, mix heads, pool class means."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> BodyAndHeads:
        columns, w = base.linear_head(initial).columns, initial()
        heads = w[columns].expand(len(roster), -1)
        return BodyAndHeads(drop_columns(w, columns), heads, class_means.start(initial))

    def downlink(
        state: BodyAndHeads, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        return {
            "model": base.Rows.broadcast(state.body, len(ids)),
            "head": base.Rows(state.heads, torch.tensor(ids)),
            **class_means.downlink(state.means, len(ids)),
        }

    def aggregate(
        state: BodyAndHeads,
        uplink: base.Uplink,
        ids: base.Ids,
        roster: base.Roster,
        round_: base.Round,
    ) -> BodyAndHeads:
        heads = uplink["head"]
        if mix:
            heads = head_weights(uplink, ids, roster).to(heads) @ heads
        return BodyAndHeads(
            base.weighted_mean(uplink["model"], roster.weights(ids)),
            base.replace_rows(state.heads, ids, heads),
            class_means.pooled(state.means, uplink, ids, roster),
        )

    def add_clients(
        state: BodyAndHeads, ids: base.Ids, roster: base.Roster
    ) -> tuple[BodyAndHeads, None]:
        mean = base.members_mean(state.heads, roster)
        return replace(state, heads=base.replace_rows(state.heads, ids, mean)), None

    def uplink_form(state: BodyAndHeads) -> base.Uplink:
        return {
            "model": state.body,
            "head": state.heads[0],
            "start_means": state.means.means.flatten(),
            "mean_square": torch.zeros(1, dtype=torch.float64),
            **class_means.uplink_form(state.means),
        }

    return base.Server(
        start, downlink, aggregate, add_clients, uplink_form, invalid=class_means.invalid
    )


def head_weights(uplink: base.Uplink, ids: base.Ids, roster: base.Roster) -> Tensor:
    """Return the rows a_i (n, n) float64 of the cohort's uplinks."""
    counts, sizes = uplink["class_counts"].cpu(), [float(roster.sizes[i]) for i in ids]
    p = (counts / counts.sum(1, keepdim=True)).unsqueeze(2)
    M = uplink["start_means"].double().cpu().unflatten(1, (p.shape[1], -1))
    H = (p * M).flatten(1)
    lowest = (p * M.square()).sum((1, 2))
    square = torch.maximum(uplink["mean_square"].squeeze(1).cpu(), lowest)
    V = (square - H.square().sum(1)) / torch.tensor(sizes, dtype=torch.float64)
    return torch.stack([mixture(V, h - H) for h in H])


def mixture(V: Tensor, D: Tensor) -> Tensor:
    """Return the a (n,) of the simplex with the least sum_j a_j^2 V_j + |sum_j a_j D_j|^2, for V
    (n,) and rows D (n, m).
    """
    from scipy.optimize import nnls  # imported late, for silo processes

    Q = (V.diag() + D @ D.T).numpy()
    # in units of each client's own, so that a huge one leaves those of the others above rounding
    units = np.sqrt(Q.diagonal().clip(min=TINY))
    values, vectors = np.linalg.eigh(Q / np.outer(units, units))
    root = np.sqrt(values.clip(min=0))[:, None] * vectors.T
    sizes = units.min() / units
    x, _ = nnls(np.vstack([root, sizes]), np.append(np.zeros(len(Q)), 1.0))
    return torch.from_numpy(x * sizes / (x @ sizes))


def client(settings: FedPAC) -> base.Client:
    """Measure the features, fit the head, then train the body under it near the class means."""

    def train(
        state: None, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[None]:
        columns = base.linear_head(training).columns
        W = insert_columns(received["model"], received["head"], columns)
        training.observe("personal", W, "received")
        statistics = feature_statistics(training, W)
        losses = [
            class_means.attracted(training, *target, settings.lambda_)
            for target in zip(*class_means.received(received), strict=True)
            if settings.lambda_
        ]
        if training.trains:
            base.sgd(training, W, round_, settings.head_epochs, purpose="head", columns=columns)
        base.sgd(training, W, round_, losses=losses, columns=slice(0, columns.start))
        training.observe("personal", W, "trained")
        uplink = {
            "model": drop_columns(W, columns),
            "head": select_columns(W, columns),
            **statistics,
            **class_means.uplink(training, W),
        }
        return None, uplink, {}

    return base.Client(base.stateless, train)


def feature_statistics(training: base.LocalTraining, W: Tensor) -> base.Uplink:
    """Return the clients' class means and mean square of features under the received rows W (n,
    d).
    """
    features = training.features(W)
    means, _ = class_means.means_of(features, base.linear_head(training).outputs)
    squares = torch.stack([z.double().square().sum(1).mean() for z, _ in features])
    return {"start_means": means.flatten(1), "mean_square": squares.unsqueeze(1)}


CARD = base.Card(
    presentation=base.Presentation("FedPAC"),
    paper="Xu et al., ICLR 2023, Algorithm 1",
    summary="lower layers shared, held to class means; each client's head is its mixture of all",
    exchange=base.Exchange(
        down="1, and class means",
        up="1, and class means twice",
        private="nothing but the data",
        keeps="nothing",
        reveals={
            **class_means.REVEALS,
            "start_means": "these means under the received model",
            "mean_square": "the mean square of its features under the received model",
        },
    ),
    headline=("personal", "trained"),
    joining="newcomers and unseen clients start from the mean of the members' heads",
    privacy=base.PrivacyCost(
        gradients=(base.Gradients(noised=False),), releases=class_means.RELEASES
    ),
    tasks=("classes",),
)
