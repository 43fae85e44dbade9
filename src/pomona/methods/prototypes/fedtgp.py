"""FedTGP: FedProto with prototypes that the server trains, to keep classes as far apart as they are
at the clients.

Zhang, Liu, Hua, Cao. FedTGP: trainable global prototypes with adaptive-margin-enhanced contrastive
learning for data and model heterogeneity in federated learning. AAAI 2024 (arXiv 2401.03230).

    client           as in FedProto: w_i near the prototypes C; c_ik is the mean of the features of its class k
    server           C_k  = V relu(U e_k + u) + v                 e, U, u, V, v <- SGD(S epochs on L), batches of c_ik
                     L    = mean of -log softmax(-d_ik)_k,        d_ikl = |c_ik - C_l| + delta [k = l]
                     delta = min(max_k min_l |Q_k - Q_l|, tau),   Q_k = mean of c_ik over the cohort's clients with class k

Means of n samples or one count alike. e, U, u, V and v keep their values from round to round; e_k
and C_k are of f numbers, as features are. With one class in the cohort delta is tau.

Named models: as FedProto's, with these C. A class that nobody has had yet is never the answer.

Differs from published code: that answers with such classes too, takes the clients' rate and batch
size on the server, and 1,000 epochs by default. The paper was not at hand: delta is as in its
authors' slides and code.
"""

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.rng import stream
from pomona.methods import base
from pomona.methods.prototypes import class_means, fedproto
from pomona.methods.prototypes.class_means import ClassMeans


class FedTGP(base.MethodSettings):
    """FedTGP's settings; symbols of the paper in brackets.

    Attributes:
        lambda_: pull of features to the prototype of their class (lambda)
        margin: largest margin between classes, in the unit of features (tau)
        server_epochs: passes over the clients' class means in a round (S)
        server_lr: learning rate of the server
        server_batch_size: class means in a step of the server
    """

    name: Literal["fedtgp"] = "fedtgp"
    lambda_: float = Field(1.0, ge=0, alias="lambda")
    margin: float = Field(100.0, ge=0, le=1e6)
    server_epochs: int = Field(100, ge=1, le=10_000)
    server_lr: float = Field(0.01, gt=0, le=1e3)
    server_batch_size: int = Field(10, ge=1, le=1_000_000)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = replace(CARD, privacy=class_means.privacy(self.lambda_))
        client = replace(fedproto.client(self.lambda_), rate="method.server_lr")
        return base.Method(server(self), client, card)


PARAMETERS = ("e", "U", "u", "V", "v")


@dataclass(frozen=True)
class Prototypes:
    """What the server trains, and which classes have been trained on, (K,) bool.

    ``e`` is (K, f), ``U`` and ``V`` are (f, f), ``u`` and ``v`` (f,).
    """

    e: Tensor
    U: Tensor
    u: Tensor
    V: Tensor
    v: Tensor
    trained: Tensor

    @property
    def values(self) -> ClassMeans:
        """The prototypes C (K, f), to be sent in place of means."""
        C = prototypes(**{name: getattr(self, name) for name in PARAMETERS})
        return ClassMeans(C, self.trained)


def prototypes(e: Tensor, U: Tensor, u: Tensor, V: Tensor, v: Tensor) -> Tensor:
    """Return C (K, f)."""
    return (e @ U.T + u).relu() @ V.T + v


def server(settings: FedTGP) -> base.Server:
    """Train the prototypes on the clients' class means, and send them to all."""

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Prototypes:
        empty, draw = class_means.start(initial), stream(seed, "fedtgp")
        K, f = empty.means.shape
        # as PyTorch begins an embedding and two linear layers
        values = {"e": draw.normal(size=(K, f))}
        for name, size in (("U", (f, f)), ("u", f), ("V", (f, f)), ("v", f)):
            values[name] = draw.uniform(-(f**-0.5), f**-0.5, size)
        tensors = {name: torch.from_numpy(a).to(empty.means) for name, a in values.items()}
        return Prototypes(**tensors, trained=empty.known)

    def downlink(
        state: Prototypes, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        return class_means.downlink(state.values, len(ids))

    def aggregate(
        state: Prototypes,
        uplink: base.Uplink,
        ids: base.Ids,
        roster: base.Roster,
        round_: base.Round,
    ) -> Prototypes:
        present = uplink["class_counts"].to(state.e.device) > 0
        c = uplink["class_means"].unflatten(1, state.e.shape)[present]
        classes = present.nonzero()[:, 1]
        margin = min(largest_margin(c, classes), settings.margin)
        draw = stream(round_.seed, "fedtgp", round_.number)
        parameters = {name: getattr(state, name).clone().requires_grad_() for name in PARAMETERS}
        optimizer = torch.optim.SGD(parameters.values(), settings.server_lr)
        for _ in range(settings.server_epochs):
            order = torch.from_numpy(draw.permutation(len(c))).to(classes)
            for batch in order.split(settings.server_batch_size):
                optimizer.zero_grad()
                contrast(c[batch], classes[batch], prototypes(**parameters), margin).backward()
                optimizer.step()
        values = {name: parameter.detach() for name, parameter in parameters.items()}
        return Prototypes(**values, trained=state.trained | present.any(0))

    def uplink_form(state: Prototypes) -> base.Uplink:
        return class_means.uplink_form(state.values)

    return base.Server(
        start, downlink, aggregate, base.add_from_initial, uplink_form, invalid=class_means.invalid
    )


def largest_margin(c: Tensor, classes: Tensor) -> float:
    """Return max_k min_l |Q_k - Q_l| of means c (m, f) of ``classes`` (m,); infinity for one."""
    Q = torch.stack([c[classes == k].mean(0) for k in classes.unique()])
    distances = torch.linalg.vector_norm(Q.unsqueeze(1) - Q, dim=2)
    return float(distances.fill_diagonal_(torch.inf).amin(1).max())


def contrast(c: Tensor, classes: Tensor, C: Tensor, margin: float) -> Tensor:
    """Return L of means c (b, f) of ``classes`` (b,) and prototypes C (K, f)."""
    distances = torch.linalg.vector_norm(c.unsqueeze(1) - C, dim=2)
    margins = margin * torch.nn.functional.one_hot(classes, len(C))
    return torch.nn.functional.cross_entropy(-(distances + margins), classes)


CARD = replace(
    fedproto.CARD,
    presentation=base.Presentation("FedTGP"),
    paper="Zhang et al., AAAI 2024",
    summary="FedProto with prototypes that the server trains, so that classes stay apart",
    exchange=replace(fedproto.CARD.exchange, down="prototypes of the classes"),
    joining="newcomers and unseen clients start from the initial model, near the prototypes",
)
