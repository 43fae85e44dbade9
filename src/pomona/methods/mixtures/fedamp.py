"""FedAMP and HeurFedAMP: a cloud model per client, weighted towards the models closest to its own.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. Personalized cross-silo federated learning on non-IID data.
AAAI 2021 (arXiv 2007.03797).

    objective        min_W  sum_i F_i(w_i) + lambda sum_{i<j} A(||w_i - w_j||^2)                           (eq. 1)
    server           u_i = sum_j xi_ij w_j                                                                 (eq. 5)
                     xi_ij = alpha_k A'(||w_i - w_j||^2) for j != i,  xi_ii = 1 - sum_{j != i} xi_ij
    client           w_i = argmin_w F_i(w) + lambda / (2 alpha_k) ||w - u_i||^2                            (eq. 7)
                     by local SGD with the gradient g_i(w) + lambda / alpha_k (w - u_i)
    attention        exponential  A' = exp(-t / sigma) / sigma
    (t >= 0)         scad         A' = l for t <= l;  (a l - t) / (a - 1) for l < t <= a l;  0 beyond
                     mcp          A' = max(l - t / g, 0)                                             (definition 1)
    step size        constant alpha, lambda / sqrt(K), or diminishing alpha / k          (theorems 1 and 2; K rounds)
    HeurFedAMP       xi_ij = (1 - xi_ii) exp(sigma cos(w_i, w_j)) / sum_{h != i} exp(sigma cos(w_i, w_h))    (eq. 8)

The server keeps the last model of each client. It sends client i its cloud model u_i and, for the
record, the row xi_i. Local SGD is stable while lr lambda / alpha_k < 2 (1 + momentum). Theorem 1's
step makes it lr sqrt(K), a diminishing one lets it grow to lr lambda K / alpha, so that lr has to
fall as fast; from 1 on a run is warned.

``gradient`` selects the multiple of A' that weights a message. "printed" (the default) is eq. 5:
its fixed point is a stationary point of eq. 1 with lambda / 2 for lambda, because the gradient of
A(||w_i - w_j||^2) has the factor 2, which is not in eq. 5. "exact" has xi_ij = 2 alpha_k A', whose
fixed point is a stationary point of eq. 1 itself.

Convexity: u_i is a convex combination while sum_{j != i} xi_ij <= 1, which alpha_k (N - 1) A'(0) <=
1 ensures. So the default alpha is 1, or 1 / (N A'(0)) if that is less (half of it with ``gradient =
"exact"``): the own model then weighs at least 1 / N. If your own alpha makes the sum larger, xi_ii
is 0, and the other weights are divided by their sum, which has another fixed point. ``coupling`` in
info is the sum before that; a run reports if it exceeds 1 for more than half of its clients at the
end.

Differs from the paper: it does not print its hyper-parameters, nor where the local solve starts
(``start``); with few steps and a small lambda / alpha, starting from the own model leaves hardly
any coupling. All clients join each round there; here absent ones count with the last model they
sent (before the first, with the initial one). Differs from published code: there is none by the
authors; in some others' the proximal term has no gradient, which makes the method separate
training.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.row_algebra import cosine_similarity


class CloudModels(base.MethodSettings):
    """Settings of both variants; symbols of the paper in brackets.

    Attributes:
        lambda_: weight of the attention term (lambda)
        alpha_schedule: alpha_k over the rounds: alpha, lambda / sqrt(rounds), or alpha / k
        start: where local SGD starts: own last model or cloud model
    """

    lambda_: float = Field(1.0, ge=0, alias="lambda")
    alpha_schedule: Literal["constant", "sqrt", "diminishing"] = "constant"
    start: Literal["own", "cloud"] = "own"

    def idle(self) -> dict[str, str]:
        """The step may follow from the rounds alone."""
        by_rounds = self.alpha_schedule == "sqrt"
        return {"alpha": "alpha_schedule = sqrt has lambda / sqrt(rounds)"} if by_rounds else {}


SHAPES = {"exponential": "sigma", "scad": "scad_", "mcp": "mcp_"}
"""What settings of each attention begin with."""


class FedAMP(CloudModels):
    """FedAMP's settings; symbols of the paper in brackets.

    Attributes:
        alpha: step size of the cloud models (alpha), the pull is lambda / alpha; if not set 1, or 1
            / (clients A'(0)) where that is less, so that cloud models are convex combinations
        attention: attention-inducing function A
        sigma: scale of the exponential attention (sigma)
        scad_lambda: slope and knee of the scad attention (l)
        scad_a: squared distance, in units of l, where scad is flat (a)
        mcp_lambda: slope of the mcp attention at 0 (l)
        mcp_gamma: squared distance, in units of l, where mcp is flat (g)
        gradient: message weights alpha A' as printed, or 2 alpha A', the exact gradient of eq. 1
    """

    name: Literal["fedamp"] = "fedamp"
    alpha: float | None = Field(None, gt=0)
    attention: Literal["exponential", "scad", "mcp"] = "exponential"
    sigma: float = Field(25.0, gt=0)
    scad_lambda: float = Field(0.04, gt=0)
    scad_a: float = Field(3.7, gt=1)
    mcp_lambda: float = Field(0.04, gt=0)
    mcp_gamma: float = Field(250.0, gt=0)
    gradient: Literal["printed", "exact"] = "printed"

    def idle(self) -> dict[str, str]:
        """Each attention has its own settings."""
        unused = tuple(prefix for name, prefix in SHAPES.items() if name != self.attention)
        keys = [key for key in FedAMP.model_fields if key.startswith(unused)]
        return super().idle() | dict.fromkeys(keys, f"not for attention = {self.attention}")

    @property
    def factor(self) -> float:
        """Multiple of A' in a message's weight, besides alpha."""
        return 2.0 if self.gradient == "exact" else 1.0

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""

        def messages(W: Tensor, round_: base.Round) -> Tensor:
            return self.factor * step(self, round_, len(W)) * slope(self, distances(W))

        card = replace(CARD, needs=replace(CARD.needs, total_rounds=self.alpha_schedule == "sqrt"))
        return base.Method(
            server(messages, self.alpha_schedule), client(self), card, partial(caution, self)
        )


class HeurFedAMP(CloudModels):
    """FedAMP with message weights by cosine similarity; symbols of the paper in brackets.

    Attributes:
        self_weight: a client's own weight (xi_ii); 1 / clients if not set
        sigma: scale of the cosine similarity (sigma)
        alpha: step size of the cloud models (alpha); the pull is lambda / alpha
    """

    name: Literal["heurfedamp"] = "heurfedamp"
    self_weight: float | None = Field(None, ge=0, le=1)
    sigma: float = Field(25.0, ge=0)
    alpha: float = Field(1.0, gt=0)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""

        def messages(W: Tensor, round_: base.Round) -> Tensor:
            self_weight = 1 / len(W) if self.self_weight is None else self.self_weight
            return (1 - self_weight) * cosine_shares(W, self.sigma)

        card = replace(HEURISTIC, needs=base.Needs(total_rounds=self.alpha_schedule == "sqrt"))
        return base.Method(
            server(messages, self.alpha_schedule), client(self), card, partial(caution, self)
        )


def step(settings: FedAMP | HeurFedAMP, round_: base.Round, members: int) -> float:
    """Return alpha_k: by schedule alpha, lambda / sqrt(K), or alpha / k."""
    alpha = settings.alpha
    if alpha is None:
        assert isinstance(settings, FedAMP)
        alpha = convex_step(settings, members)
    match settings.alpha_schedule:
        case "sqrt":
            return settings.lambda_ / math.sqrt(round_.total)
        case "diminishing":
            return alpha / round_.number
        case _:
            return alpha


def pull(settings: FedAMP | HeurFedAMP, round_: base.Round, members: int) -> float:
    """Return the weight lambda / alpha_k of the pull towards a client's cloud model."""
    return settings.lambda_ / step(settings, round_, members) if settings.lambda_ else 0.0


def caution(settings: FedAMP | HeurFedAMP, round_: base.Round, members: int) -> str | None:
    """Warn of a pull that is not small against a step."""
    pulled = round_.lr * pull(settings, round_, members)
    if pulled < 1:
        return None
    return (
        f"{settings.name}: lr x lambda / alpha = {pulled:.3g} in round {round_.number}; from 1 on "
        "the pull alone "
        f"overshoots, and from {2 * (1 + round_.momentum):.3g} on it diverges; {_remedy(settings)}"
    )


def _remedy(settings: FedAMP | HeurFedAMP) -> str:
    """Return a remedy for too strong a pull, by what determines alpha_k: rounds, number of clients,
    or a setting.
    """
    match settings.alpha_schedule:
        case "sqrt":
            return "set a smaller lr, fewer rounds, or method.alpha_schedule=constant"
        case "diminishing":
            return "set a smaller lr, one that falls (lr_decay), or method.alpha_schedule=constant"
        case _ if settings.alpha is None:
            return "set a smaller lr or method.lambda; with more clients alpha is smaller"
        case _:
            return "set a smaller lr, or method.alpha well above lr x lambda"


def convex_step(settings: FedAMP, members: int) -> float:
    """Return the largest alpha, at most 1, at which each of N messages weighs at most 1 / N (A' is
    largest at 0).
    """
    steepest = float(slope(settings, torch.zeros(1, dtype=torch.float64)))
    return min(1.0, 1 / (members * settings.factor * steepest))


def slope(settings: FedAMP, t: Tensor) -> Tensor:
    """Return A'(t) for squared distances t >= 0."""
    match settings.attention:
        case "scad":
            knee, a = settings.scad_lambda, settings.scad_a
            return ((a * knee - t) / (a - 1)).clamp(0, knee)
        case "mcp":
            return (settings.mcp_lambda - t / settings.mcp_gamma).clamp_min(0)
        case _:
            return torch.exp(-t / settings.sigma) / settings.sigma


def distances(W: Tensor) -> Tensor:
    """Return squared Euclidean distances (N, N) of rows W (N, d), by one product of the rows with
    themselves.
    """
    G = (base.chunked(W) - W[0]).gram()  # relative to one row: avoids cancellation
    squares = G.diagonal()
    return (squares.unsqueeze(1) + squares - 2 * G).clamp_min(0)


def cosine_shares(W: Tensor, sigma: float) -> Tensor:
    """Return the softmax of sigma cos(w_i, w_j) over j != i (N, N), with a zero diagonal; eq. 8
    without 1 - xi_ii.
    """
    scores = cosine_similarity(W, scale=sigma).fill_diagonal_(-torch.inf)
    return torch.softmax(scores, dim=1).nan_to_num(0)  # a single client has no others


def convex_weights(messages: Tensor) -> tuple[Tensor, Tensor]:
    """Return convex weights xi (N, N), and each row's coupling (N, 1), its total weight on others
    before normalisation.

    The diagonal of ``messages`` is ignored; the self weight is the remainder to 1.
    """
    other_weights = messages.clone().fill_diagonal_(0)
    coupling = other_weights.sum(1, keepdim=True)
    xi = other_weights / coupling.clamp_min(1)
    return xi + torch.diag_embed((1 - coupling.squeeze(1)).clamp_min(0)), coupling


def server(messages: Callable[[Tensor, base.Round], Tensor], schedule: str) -> base.Server:
    """Keep each client's last model (N, d) and mix them for the participants; ``schedule`` is of
    alpha.
    """

    def downlink(
        models: Tensor, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        members = torch.tensor(roster.members)
        W = models if len(members) == len(models) else base.chunked(models)[members].compute()
        positions = torch.searchsorted(members, torch.tensor(ids))
        xi, coupling = convex_weights(messages(W, round_))
        cloud = base.weighted_mean(W, xi[positions])
        attention = xi.new_zeros(len(members), len(models)).index_copy(1, members.to(xi.device), xi)
        return {
            "cloud": base.Rows(cloud, torch.arange(len(ids))),
            "attention": base.Rows(attention, positions),
            "coupling": base.Rows(coupling, positions),
        }

    def aggregate(
        models: Tensor, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Tensor:
        return base.replace_rows(models, ids, uplink["model"])

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Tensor:
        return initial().expand(len(roster), -1)

    def add_clients(models: Tensor, ids: base.Ids, roster: base.Roster) -> tuple[Tensor, Tensor]:
        row = base.members_mean(models, roster)
        return base.replace_rows(models, ids, row), row

    def closing(models: Tensor, roster: base.Roster, round_: base.Round) -> str | None:
        W = base.chunked(models)[torch.tensor(roster.members)].compute()
        return coupling_warning(convex_weights(messages(W, round_))[1].squeeze(1), schedule)

    return base.Server(
        start,
        downlink,
        aggregate,
        add_clients,
        lambda models: {"model": models[0]},
        separable=True,
        closing=closing,
    )


def coupling_warning(coupling: Tensor, schedule: str = "constant") -> str | None:
    """Return a warning if most clients' couplings (N,) exceed 1, so that weights differ from the
    method's.

    ``schedule``: of alpha, which determines the remedy.
    """
    exceeding = int((coupling > 1 + 1e-6).sum())  # rounding of a sum that is 1
    if exceeding <= len(coupling) / 2:
        return None
    by_rounds = "lower method.lambda, or set method.alpha_schedule=constant"
    remedy = by_rounds if schedule == "sqrt" else "leave method.alpha unset, or lower it"
    return (
        f"fedamp: {exceeding} of {len(coupling)} clients give all weight to others (alpha x the sum of "
        f"A' is {float(coupling.median()):.3g} in the middle, above 1), so that their own models "
        f"are left out of their cloud models, which is not the method; {remedy}"
    )


def client(settings: FedAMP | HeurFedAMP) -> base.Client:
    """Run local SGD with a pull towards the cloud model."""

    def train(
        last: Tensor, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[Tensor]:
        cloud = received["cloud"]
        weight = pull(settings, round_, len(training.roster.members))
        W = received.get("start", last if settings.start == "own" else cloud.clone())
        W = base.sgd(training, W, round_, pull=base.Pull(weight, cloud) if weight else None)
        training.observe("personal", W, "trained")
        info = {"attention": received["attention"], "coupling": received["coupling"].squeeze(1)}
        return W, {"model": W}, info

    return base.Client(base.model_state, train)


QUANTITIES = (
    base.Quantity(
        "attention",
        "matrix",
        "Whose models make up each client's cloud model",
        "ξ(i, j)",
        "the attention ξ(i, j), the share of the model of client j (column) in the cloud model "
        "that the server makes for client i (row).",
        history="How the attention of each client moved",
    ),
    base.Quantity(
        "coupling",
        "values",
        "How much weight each client puts on the others",
        "weight on all others",
        "the attention that a client's cloud model gives to all other clients together, before it "
        "is limited to 1; above 1 nothing of the client's own model is left in it.",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("FedAMP", QUANTITIES),
    paper="Huang et al., AAAI 2021, eqs. 1-7",
    summary="each client is held near its own mixture of the models that are close to its own",
    exchange=base.Exchange(down="1", up="1", private="nothing but the data", keeps="its model"),
    headline=("personal", "trained"),
    joining=(
        "xi runs over the members; a newcomer starts from their mean model; an unseen client "
        "gets cloud models of its own, and sends its model to no one"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)
HEURISTIC = replace(
    CARD,
    presentation=base.Presentation("HeurFedAMP", CARD.presentation.quantities),
    paper="Huang et al., AAAI 2021, eq. 8",
    summary="FedAMP with messages weighed by the cosine similarity of models",
)
