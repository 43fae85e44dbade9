"""pFedFDA: shared lower layers under a head of class means and a covariance, of all and one's own.

McLaughlin, Su. Personalized federated learning via feature distribution adaptation. NeurIPS 2024
(arXiv 2411.00329).

    features         z of class k are taken as Gaussian N(mu_k, S), and classes by Bayes' rule
    head             h(mu, S): outputs  mu_k^T T^-1 z - 1/2 mu_k^T T^-1 mu_k + log pi_ik,    T = (1 - e) S + e tr(S) / f I
    client           phi_i <- SGD(phi; E epochs on F_i),    h(mu, S) fixed
                     m_ik  = mean of the features of its samples of class k under phi_i;    mu_k without samples
                     C_i   = 1 / (n_i - 1) sum_j (z_j - m_iy) (z_j - m_iy)^T + ridge I
                     b_i   = argmin of the loss of h(b m_i + (1 - b) mu, b C_i + (1 - b) S) by twofold cross-validation
    server           phi   <- sum_i n_i / n phi_i
                     mu    <- sum_i n_i / n (b_i m_i + (1 - b_i) mu)
                     S     <- sum_i n_i / n (b_i C_i + (1 - b_i) S)

Features z are the f numbers phi(x) that the head receives; pi_ik is the client's share of class k,
and e = 0.0001, which is also added to every share. Folds take every second sample of a class, and
none of a class with one; a client without folds has b_i = 0. With ``betas = 2`` there is one for
means and one for the covariance. At the start mu is the weight of the initial head, and S is I.

Named models: ``personal`` is (phi, h) under b_i, m_i and C_i, measured again: with the received
phi, and with phi_i. The f^2 numbers of a covariance go up and down.

Differs from published code: that adds I, and 1e-4 to every number, to C_i (``ridge = 1``), and
takes the nearest matrix without negative eigenvalues; here there are none. It minimises by ten
steps of ``L-BFGS`` from 1/2, draws folds, takes the features of C_i and m_i as they were while phi
moved, and starts mu at random numbers from 0 to 1; where it evaluates, a class of one or two
samples has mu_k. Without these differences it trains the same models, to rounding. The paper's
algorithm was not at hand.
"""

from dataclasses import dataclass
from functools import partial
from math import isqrt
from typing import Literal

import numpy as np
from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.shared_parts.partly_shared import drop_columns, insert_columns

SMALL = 1e-4
"""e."""


class PFedFDA(base.MethodSettings):
    """pFedFDA's settings; symbols of the paper in brackets.

    Attributes:
        betas: numbers by which own statistics count: one for all, or two (beta)
        ridge: added to the diagonal of a client's covariance (ridge)
    """

    name: Literal["pfedfda"] = "pfedfda"
    betas: Literal[1, 2] = 1
    ridge: float = Field(1.0, gt=0, le=1e6)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(server(), client(self), CARD)


@dataclass(frozen=True)
class Gaussians:
    """Class means (K, f) and a covariance (f, f)."""

    means: Tensor
    covariance: Tensor

    def between(self, common: "Gaussians", beta: Tensor) -> "Gaussians":
        """Return these statistics by beta (1 or 2,), and the other ones for the rest."""
        return Gaussians(
            torch.lerp(common.means, self.means, beta[0]),
            torch.lerp(common.covariance, self.covariance, beta[-1]),
        )

    def head(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Return weight (K, f) and bias (K,) of Bayes' rule, for classes with these shares (K,)."""
        S, f = self.covariance, len(self.covariance)
        T = (1 - SMALL) * S + SMALL * S.trace() / f * torch.eye(f).to(S)
        weight = torch.linalg.solve(T, self.means.T).T
        return weight, shares.log() - (self.means * weight).sum(1) / 2


@dataclass(frozen=True)
class BodyAndGaussians:
    """The server's body (k,), class means (K, f) and covariance (f, f)."""

    body: Tensor
    means: Tensor
    covariance: Tensor


def server() -> base.Server:
    """Average bodies and statistics."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> BodyAndGaussians:
        head, w = base.linear_head(initial), initial()
        means = head.view(w.unsqueeze(0))[0][0].clone()
        return BodyAndGaussians(
            drop_columns(w, head.columns), means, torch.eye(head.features).to(w)
        )

    def downlink(
        state: BodyAndGaussians, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        return {
            name: base.Rows.broadcast(row, len(ids)) for name, row in uplink_form(state).items()
        }

    def aggregate(
        state: BodyAndGaussians,
        uplink: base.Uplink,
        ids: base.Ids,
        roster: base.Roster,
        round_: base.Round,
    ) -> BodyAndGaussians:
        mean = partial(base.weighted_mean, p=roster.weights(ids))
        return BodyAndGaussians(
            mean(uplink["model"]),
            mean(uplink["class_means"]).view_as(state.means),
            mean(uplink["covariance"]).view_as(state.covariance),
        )

    def uplink_form(state: BodyAndGaussians) -> base.Uplink:
        return {
            "model": state.body,
            "class_means": state.means.flatten(),
            "covariance": state.covariance.flatten(),
        }

    return base.Server(
        start, downlink, aggregate, base.add_from_initial, uplink_form, invalid=invalid
    )


def invalid(uplink: base.Uplink) -> str | None:
    """Return why a covariance cannot be used, if so."""
    C = uplink["covariance"].double()
    C = C.view(isqrt(len(C)), -1)
    lowest = -SMALL * float(C.abs().max())
    if float((C - C.T).abs().max()) <= -lowest and float(torch.linalg.eigvalsh(C)[0]) >= lowest:
        return None
    return "tensor 'covariance' is not symmetric, or has a negative eigenvalue"


def client(settings: PFedFDA) -> base.Client:
    """Train the body under the head of all, and fit one's own statistics."""

    def train(
        state: None, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[None]:
        head, body = base.linear_head(training), received["model"]
        zeros = body.new_zeros(len(body), head.columns.stop - head.columns.start)
        W = insert_columns(body, zeros, head.columns)
        means = received["class_means"].double().unflatten(1, (head.outputs, head.features))
        covariances = received["covariance"].double().unflatten(1, (head.features, -1))
        common = [Gaussians(*pair) for pair in zip(means, covariances, strict=True)]
        if training.watches("received"):
            personal, _ = fitted(training, W, common, settings)
            training.observe("personal", with_heads(training, W, personal), "received")
        W = with_heads(training, W, common)
        base.sgd(training, W, round_, columns=slice(0, head.columns.start))
        personal, betas = fitted(training, W, common, settings)
        training.observe("personal", with_heads(training, W, personal), "trained")
        uplink = {
            "model": drop_columns(W, head.columns),
            "class_means": torch.stack([g.means.flatten() for g in personal]).to(W),
            "covariance": torch.stack([g.covariance.flatten() for g in personal]).to(W),
        }
        return None, uplink, {"beta": betas}

    return base.Client(base.stateless, train)


def with_heads(training: base.LocalTraining, W: Tensor, statistics: list[Gaussians]) -> Tensor:
    """Return rows W (n, d) under the heads of each client's statistics and shares of classes."""
    head, P = base.linear_head(training), W.clone()
    weight, bias = head.view(P)
    for k, i in enumerate(training.clients):
        counts = training.class_counts(i)
        assert counts is not None, "the card's tasks are classes"
        weight[k], bias[k] = statistics[k].head(shares(counts, head.outputs))
    return P


def shares(counts: Tensor, classes: int) -> Tensor:
    """Return pi_i (K,) float64 of a client's samples by class, which may end before the last."""
    padded = torch.nn.functional.pad(counts.double(), (0, classes - len(counts)))
    p = padded / padded.sum() + SMALL
    return p / p.sum()


def fitted(
    training: base.LocalTraining, W: Tensor, global_statistics: list[Gaussians], settings: PFedFDA
) -> tuple[list[Gaussians], Tensor]:
    """Return each client's statistics under rows W (n, d), drawn to those of all, and its b (n,) or
    (n, 2).
    """
    statistics, betas = [], []
    for (z, y), common in zip(training.features(W), global_statistics, strict=True):
        betas.append(beta(z.double(), y, common, settings))
        local = estimated(z.double(), y, common, settings.ridge)
        statistics.append(local.between(common, betas[-1]))
    return statistics, torch.stack(betas).squeeze(1)


def estimated(z: Tensor, y: Tensor, common: Gaussians, ridge: float) -> Gaussians:
    """Return m_i and C_i of features z (n, f) of classes y (n,)."""
    member = torch.nn.functional.one_hot(y, len(common.means)).to(z)
    counts = member.sum(0).unsqueeze(1)
    means = torch.where(counts > 0, member.T @ z / counts.clamp_min(1), common.means)
    deviations = z - means[y]
    spread = deviations.T @ deviations / max(len(z) - 1, 1)
    return Gaussians(means, spread + ridge * torch.eye(z.shape[1]).to(z))


def beta(z: Tensor, y: Tensor, common: Gaussians, settings: PFedFDA) -> Tensor:
    """Return b_i (1 or 2,) of a client's features z (n, f) and classes y (n,)."""
    from scipy.optimize import minimize  # imported late, for silo processes

    member = torch.nn.functional.one_hot(y, len(common.means))
    rank = (member.cumsum(0) * member).sum(1)  # of a sample among those of its class, from 1
    several, p = member.sum(0)[y] > 1, shares(member.sum(0), len(common.means))
    folds = [several & (rank % 2 == k) for k in (0, 1)]
    if not several.any():
        return z.new_zeros(settings.betas)
    fold_statistics = [estimated(z[fold], y[fold], common, settings.ridge) for fold in folds]

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        b = torch.from_numpy(x).to(z).requires_grad_()
        total = z.new_zeros(())
        for statistics, fold in zip(fold_statistics, reversed(folds), strict=True):
            weight, bias = statistics.between(common, b).head(p)
            total = total + torch.nn.functional.cross_entropy(z[fold] @ weight.T + bias, y[fold])
        (slope,) = torch.autograd.grad(total, b)
        return float(total.detach()), slope.cpu().numpy()

    m = settings.betas
    best = minimize(loss, np.full(m, 0.5), jac=True, method="L-BFGS-B", bounds=[(0, 1)] * m)
    return torch.from_numpy(best.x).to(z)


QUANTITIES = (
    base.Quantity(
        "beta",
        "values",
        "How far each client goes by its own statistics",
        "\N{GREEK SMALL LETTER BETA}",
        "\N{GREEK SMALL LETTER BETA}, the share of a client's own class means and covariance in "
        "those of its head.",
        entries="statistic",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("pFedFDA", QUANTITIES),
    paper="McLaughlin and Su, NeurIPS 2024",
    summary="lower layers shared; a client's head is made of class means and a covariance of its "
    "own and of all",
    exchange=base.Exchange(
        down="1, class means and a covariance",
        up="1, class means and a covariance",
        private="nothing but the data",
        keeps="nothing",
        reveals={
            "class_means": "the mean features of each of its classes, drawn to those of all",
            "covariance": "how its features vary around them, drawn likewise",
        },
    ),
    headline=("personal", "received"),
    joining="newcomers and unseen clients fit their own statistics in addition to those of all",
    privacy=base.PrivacyCost(
        gradients=(base.Gradients(),),
        not_private="gradients are taken under a head made of the classes and features of its "
        "samples, without noise; take fedrep",
    ),
    tasks=("classes",),
)
