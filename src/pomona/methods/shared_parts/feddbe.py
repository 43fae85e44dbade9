"""FedDBE: FedAvg with each client's bias before the head, and a mean feature held to that of all.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan. Eliminating domain bias for federated learning in
representation space. NeurIPS 2023 (arXiv 2311.14975).

    client           (phi_i, h_i, b_i) <- SGD((phi, h, b_i); E epochs on  F_i(h o (phi + b_i)) + kappa / (2 f) |s_i - s|^2)
                     s_i <- (1 - mu) s_i + mu m_i             m_i the mean feature over a batch; s_i = 0 at the start
    server           (phi, h) <- sum_i n_i / n (phi_i, h_i)
                     s <- sum_i n_i / n s_i                   in the first round, and fixed from then on

Features are the f numbers phi(x) that the head h receives. b_i, the representation bias, starts at
0 and never leaves the client. In the first round there is no s: clients train as FedAvg, without
bias or pull, and send their s_i; later they send zeros in its place. The pull's gradient goes
through mu m_i.

A linear head of weight U and bias u sees b_i as a shift U b_i of u, so the personal model is a row
too. With the gradients g(U) and g(u) at this row, the parts step along

    head             g(U) + g(u) b_i^T for U, and g(u) for u
    bias             U^T g(u) for b_i

Named models: ``global`` is (phi, h), ``personal`` has the bias; trained, these are ``local`` and
``personal``. kappa = 0 without bias (``bias = false``) is FedAvg, to the bit.

Differs from published code: that has a warm-up round before the first, in which all clients train,
send s_i and forget their models (PFLlib likewise: with these kept, it trains the same models). Its
bias takes plain steps, here the run's. kappa and mu are 50 and 1 in its command; large kappa needs
a small lr.
"""

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.methods.prototypes import class_means


class FedDBE(base.MethodSettings):
    """FedDBE's settings; symbols of the paper in brackets.

    Attributes:
        kappa: pull of the mean feature to that of all clients (kappa); 0: none
        mu: share of the newest batch in the mean feature (mu)
        bias: whether clients have a bias before the head
    """

    name: Literal["feddbe"] = "feddbe"
    kappa: float = Field(1.0, ge=0)
    mu: float = Field(1.0, gt=0, le=1)
    bias: bool = True

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        if not self.kappa:
            exchange = replace(CARD.exchange, down="1", up="1", reveals={})
            card = replace(CARD, exchange=exchange, privacy=base.PrivacyCost((base.Gradients(),)))
            return base.Method(fedavg.server(), client(self), card)
        return base.Method(server(), client(self), CARD)


@dataclass(frozen=True)
class MeanFeature:
    """The server's model (d,), the mean feature of all (f,), and whether there is one (1,) bool."""

    model: Tensor
    mean: Tensor
    known: Tensor


def server() -> base.Server:
    """Run FedAvg's server with the mean feature of the first round in addition to the model."""
    average = fedavg.server()

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> MeanFeature:
        w = initial()
        has_mean = torch.zeros(1, dtype=torch.bool, device=w.device)
        return MeanFeature(w, w.new_zeros(base.linear_head(initial).features), has_mean)

    def downlink(
        state: MeanFeature, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        n = len(ids)
        return {
            **average.downlink(state.model, ids, roster, round_),
            "mean_feature": base.Rows.broadcast(state.mean, n),
            "known": base.Rows.broadcast(state.known.to(state.mean), n),
        }

    def aggregate(
        state: MeanFeature,
        uplink: base.Uplink,
        ids: base.Ids,
        roster: base.Roster,
        round_: base.Round,
    ) -> MeanFeature:
        w = average.aggregate(state.model, uplink, ids, roster, round_)
        mean = base.weighted_mean(uplink["mean_feature"], roster.weights(ids))
        return MeanFeature(w, state.mean.where(state.known, mean), torch.ones_like(state.known))

    def uplink_form(state: MeanFeature) -> base.Uplink:
        return {"model": state.model, "mean_feature": state.mean}

    return base.Server(
        start, downlink, aggregate, base.add_from_model, uplink_form, global_model=True
    )


@dataclass(frozen=True)
class FedDBEState:
    """A client's bias before the head (n, f)."""

    bias: Tensor


def client(settings: FedDBE) -> base.Client:
    """Train model and bias on the same batches, and measure the mean feature."""

    def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> FedDBEState:
        return FedDBEState(initial().new_zeros(len(ids), base.linear_head(initial).features))

    def train(
        state: FedDBEState,
        received: base.Received,
        training: base.LocalTraining,
        round_: base.Round,
    ) -> base.Trained[FedDBEState]:
        head, W, B = base.linear_head(training), received["model"].clone(), state.bias
        has_mean = received["known"] if settings.kappa else torch.ones_like(B[:, :1])
        running, learns_bias = torch.zeros_like(B), has_mean * settings.bias
        training.observe("global", W, "received")
        training.observe("personal", with_bias(W, B, head), "received")
        losses = [
            pulled_loss(
                settings, training, running[k], received["mean_feature"][k], bool(has_mean[k])
            )
            for k in range(len(W))
            if settings.kappa
        ]
        rows = (W, B, learns_bias, base.optimizer_state(W, round_), base.optimizer_state(B, round_))
        for batch, w, b, mask, velocity_w, velocity_b in training.steps(round_.passes, *rows):
            _, g = training.gradient(with_bias(w, b, head), batch, losses[: len(w)] or None)
            at_bias = split_gradient(g, w, b, head) * mask
            base.optimizer_step(w, g, velocity_w, round_)
            base.optimizer_step(b, at_bias, velocity_b, round_)
        training.observe("local", W, "trained")
        training.observe("personal", with_bias(W, B, head), "trained")
        extra = {"mean_feature": running * (1 - has_mean)} if settings.kappa else {}
        return FedDBEState(B), {"model": W, **extra}, {}

    return base.Client(start, train, private=("bias",))


def pulled_loss(
    settings: FedDBE, training: base.LocalTraining, running: Tensor, mean: Tensor, pulled: bool
) -> base.RowCriterion:
    """Return a client's loss, which also moves its running mean (f,), in place, once a batch.

    ``pulled``: whether there is a ``mean`` (f,) to be held to.
    """
    plain = training.objective.criterion

    def loss(outputs: Tensor, targets: Tensor, features: Tensor) -> Tensor:
        updated = (1 - settings.mu) * running + settings.mu * features.mean(0)
        running.copy_(updated.detach())
        task_loss = plain(outputs, targets).mean()
        if pulled:
            return task_loss + settings.kappa / 2 * (updated - mean).square().mean()
        return task_loss

    return loss


def with_bias(W: Tensor, B: Tensor, head: base.Head) -> Tensor:
    """Return rows W (n, d) whose heads answer z + b, for biases B (n, f)."""
    P = W.clone()
    weight, shift = head.view(P)
    shift += torch.bmm(weight, B.unsqueeze(2)).squeeze(2)
    return P


def split_gradient(G: Tensor, W: Tensor, B: Tensor, head: base.Head) -> Tensor:
    """Turn gradients at ``with_bias``, G (n, d), into those in W, in place; return those in B (n,
    f).
    """
    at_weight, at_shift = head.view(G)
    at_weight += at_shift.unsqueeze(2) * B.unsqueeze(1)
    return torch.bmm(at_shift.unsqueeze(1), head.view(W)[0]).squeeze(1)


CARD = base.Card(
    presentation=base.Presentation("FedDBE"),
    paper="Zhang et al., NeurIPS 2023",
    summary="one global model whose mean feature is held, and a bias of each client before its head",
    exchange=base.Exchange(
        down="1, and a mean feature",
        up="1, and a mean feature",
        private="the bias before the head",
        keeps="its bias",
        reveals={"mean_feature": "the mean feature of its samples, in the first round alone"},
    ),
    headline=("personal", "received"),
    joining="newcomers and unseen clients start with the global model and no bias",
    privacy=base.PrivacyCost(
        gradients=(base.Gradients(noised=False),), releases=class_means.RELEASES
    ),
    tasks=("classes", "multilabel", "regression", "survival"),
)
