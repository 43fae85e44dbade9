"""MOCHA's deep surrogate: separate networks whose last layers are coupled.

Smith, Chiang, Sanjabi, Talwalkar. Federated multi-task learning. NeurIPS 2017 (arXiv 1705.10467).
Its dual solver is for linear models; for networks this is the surrogate of LG-FedAvg's code (Liang
et al., arXiv 2001.01523), which FedFomo compares with.

    objective        min_w  sum_i F_i(w_i) + penalty tr(H M H^T),   H = (h_1, ..., h_N), h_i the last layer of w_i
    client           local SGD with g_i(w_i), on the last layer + 2 penalty sum_j M_ij h_j; the others' h_j are as
                     received, the own one is current
    server           keeps the last h_i of each client, sends each client all others'
    omega            centring   M = I - 1 1^T / N:  tr(H M H^T) = sum_i ||h_i - mean_j h_j||^2
                     published  M = I + (1 - 1 / N)^2 1 1^T:  sum_i ||h_i||^2 + (1 - 1 / N)^2
                     ||sum_i h_i||^2

Differs from the paper: Omega is fixed, not learned from the models, and there is no ridge term (the
run's ``weight_decay`` is one). Differs from published code: its Omega is a constant matrix, which
pulls the *sum* of the models to zero where a centring one pulls them together
(``omega="published"`` has it, with the ridge term of that code). Its penalty is 10^-f, f = floor(1
+ log10 of the length of h_i) + 1; it also drops entries of h_i beyond a multiple of 4000.

Absent clients count with the last layer they sent last, before that with the initial one.
"""

from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base


class MOCHA(base.MethodSettings):
    """The surrogate's settings.

    Attributes:
        penalty: weight of the coupling of last layers; 0 is separate training
        omega: coupling: towards the mean, or the constant matrix of the published code
    """

    name: Literal["mocha"] = "mocha"
    penalty: float = Field(0.1, ge=0)
    omega: Literal["centring", "published"] = "centring"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(server(), client(self), CARD)


def coupling(settings: MOCHA, N: int) -> tuple[float, float]:
    """Return the diagonal and the other entries of M (N, N)."""
    if settings.omega == "centring":
        return 1 - 1 / N, -1 / N
    constant = (1 - 1 / N) ** 2
    return 1 + constant, constant


def server() -> base.Server:
    """Keep a bank of last layers (N, h)."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Tensor:
        return initial()[initial.layers[-1]].repeat(len(roster), 1)

    def downlink(
        heads: Tensor, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        members = torch.tensor(roster.members)
        other_ids = torch.stack([members[members != i] for i in ids])
        return {"heads": base.Rows(heads, other_ids)}

    def aggregate(
        heads: Tensor, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Tensor:
        return base.replace_rows(heads, ids, uplink["head"])

    def add_clients(heads: Tensor, ids: base.Ids, roster: base.Roster) -> tuple[Tensor, None]:
        return base.replace_rows(heads, ids, base.members_mean(heads, roster)), None

    return base.Server(
        start,
        downlink,
        aggregate,
        add_clients,
        uplink_form=lambda heads: {"head": heads[0]},
        separable=True,
        relays={"heads": "head"},
    )


def client(settings: MOCHA) -> base.Client:
    """Run local SGD with the pull of all heads on the own one."""

    def train(
        W: Tensor, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[Tensor]:
        head, N = training.layers[-1], len(training.roster.members)
        diagonal, off_diagonal = coupling(settings, N)
        heads, index = received["heads"].bank, received["heads"].index
        other_sum = torch.stack([heads[others].sum(0) for others in index])

        def coupled(w: Tensor) -> Tensor:
            g = torch.zeros_like(w)
            g[:, head] = (
                2 * settings.penalty * (diagonal * w[:, head] + off_diagonal * other_sum[: len(w)])
            )
            return g

        W = base.sgd(training, W, round_, term=coupled if settings.penalty else None)
        training.observe("personal", W, "trained")
        mean = (W[:, head] + other_sum) / N
        return W, {"head": W[:, head]}, {"head_distance": (W[:, head] - mean).norm(dim=1)}

    return base.Client(base.model_state, train, private=("state",))


QUANTITIES = (
    base.Quantity(
        "head_distance",
        "values",
        "How far each client's last layer is from the others'",
        "distance to the mean",
        "the Euclidean distance of a client's last layer from the mean of all last layers.",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("MOCHA", QUANTITIES),
    paper="Smith et al., NeurIPS 2017; for networks as in FedFomo's comparison",
    summary="separate models whose last layers are drawn to their mean",
    exchange=base.Exchange(
        down="the last layers of all others",
        up="its last layer",
        private="all layers but the last",
        keeps="its model",
    ),
    headline=("personal", "trained"),
    joining=(
        "sums run over the members; a newcomer starts from the initial model, its place at the "
        "server from the mean last layer; an unseen client is like a newcomer, but sends its "
        "layer to no one"
    ),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)
