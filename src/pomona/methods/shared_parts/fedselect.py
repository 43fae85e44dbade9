"""FedSelect: the parameters of a layer that local training changes most become the client's own.

Tamirisa, Xie, Bao, Zhou, Arel, Shamsian. FedSelect: personalized federated learning with customized
selection of parameters for fine-tuning. CVPR 2024 (arXiv 2404.02478).

    start            v_i = m_i * o_i + (1 - m_i) * w                         m_i a mask, of zeros in the first round
    own part         v_i <- SGD(v_i; personal epochs) where m_i is 1
    shared part      v_i <- SGD(v_i; E epochs) where m_i is 0
    growth           m_i is 1 too for the share p of each layer's zeros that this round changed most,
                     as long as the ones are no more than the share alpha of the layer;   o_i = v_i
    server           w   <- sum_i n_i (1 - m_i) * v_i / sum_i n_i (1 - m_i)    by element

Products and quotients of masks are by element. w stays where nobody in the cohort shares; a
parameter that has not changed is never chosen, one that is the client's own is never sent, nor
shared again; of equal changes the first are chosen. Named models: ``personal`` is v_i, as received
and trained. p = 0 or alpha = 0 is FedAvg-local, to the bit.

Differs from published code: that grows masks by p = 0.25 every third round (0.1 a round is about
that), by the change since the last growth, in weights alone, and shares a parameter again after
choosing it; there alpha is only looked at before growth, passes alternate by epoch, and clients
count alike. The paper's algorithm was not at hand: p, alpha and the order are those of its code.
"""

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.training_settings import Passes
from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.objective.training import TRAINING


class FedSelect(base.MethodSettings):
    """FedSelect's settings; symbols of the paper in brackets.

    Attributes:
        rate: share of a layer's shared parameters that a round picks (p)
        limit: largest share of a layer that is a client's own (alpha)
        personal_epochs: epochs of one's own parameters, before those of the rest
    """

    name: Literal["fedselect"] = "fedselect"
    rate: float = Field(0.1, ge=0, le=1)
    limit: float = Field(0.8, ge=0, le=1)
    personal_epochs: int = Field(1, ge=0, le=10**6)

    @property
    def grows(self) -> bool:
        """Whether masks ever have a one."""
        return min(self.rate, self.limit) > 0

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        epochs = self.personal_epochs * self.grows
        gradients = base.Gradients(), base.Gradients(purpose="personal", epochs=epochs)
        return base.Method(
            server(), client(self), replace(CARD, privacy=base.PrivacyCost(gradients=gradients))
        )


def server() -> base.Server:
    """Run FedAvg's server with each parameter averaged over those who share it."""
    average = fedavg.server()

    def aggregate(
        w: Tensor, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Tensor:
        p = roster.weights(ids).to(w.device)

        def mean(V: Tensor, mask: Tensor, w: Tensor) -> Tensor:
            changes = (V - w).masked_fill(mask, 0)
            sharing = (p @ (~mask).to(p)).clamp_min(torch.finfo(w.dtype).tiny).to(w)
            mean_of_some = w + p.to(w) @ changes / sharing
            return torch.where(mask.any(0), mean_of_some, base.weighted_mean(V, p))

        return base.chunked(uplink["model"]).apply(mean, uplink["personal"], w).compute()

    def uplink_form(w: Tensor) -> base.Uplink:
        return {"model": w, "personal": torch.zeros_like(w, dtype=torch.bool)}

    return base.Server(average.start, average.downlink, aggregate, average.add_clients, uplink_form)


@dataclass(frozen=True)
class FedSelectState:
    """A client's mask (n, d) bool, and its own parameters (n, d), 0 where they are shared."""

    mask: Tensor
    own: Tensor


def client(settings: FedSelect) -> base.Client:
    """Train one's own parameters, then the shared ones, and let the mask grow."""

    def start(
        initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int
    ) -> FedSelectState:
        zeros = torch.zeros_like(initial()).repeat(len(ids), 1)
        return FedSelectState(torch.zeros_like(zeros, dtype=torch.bool), zeros)

    def train(
        state: FedSelectState,
        received: base.Received,
        training: base.LocalTraining,
        round_: base.Round,
    ) -> base.Trained[FedSelectState]:
        mask, w = state.mask, received["model"]
        initial = torch.where(mask, state.own, w)
        training.observe("personal", initial, "received")
        V = initial.clone()
        if not settings.grows:
            base.sgd(training, V, round_)
        elif training.trains:
            masked_sgd(training, V, mask, round_, settings.personal_epochs, "personal")
            masked_sgd(training, V, ~mask, round_, round_.passes, TRAINING)
        training.observe("personal", V, "trained")
        mask = grow_masks(mask, (V - initial).abs(), training.layers, settings)
        uplink = {"model": torch.where(mask, w, V), "personal": mask}
        info = {"personal": mask.double().mean(1)}
        return FedSelectState(mask, V * mask), uplink, info

    return base.Client(start, train, private=("own",))


def masked_sgd(
    training: base.LocalTraining,
    W: Tensor,
    mask: Tensor,
    round_: base.Round,
    passes: Passes | int,
    purpose: str,
) -> None:
    """Take local steps on rows W (n, d), in place, where ``mask`` (n, d) bool."""
    rows = W, mask, base.optimizer_state(W, round_)
    for batch, w, row_mask, moments in training.steps(passes, *rows, purpose=purpose):
        _, g = training.gradient(w, batch)
        stepped = w.clone()
        base.optimizer_step(stepped, g * row_mask, moments, round_)
        w.copy_(stepped.where(row_mask, w))


def grow_masks(
    mask: Tensor, change: Tensor, layers: tuple[slice, ...], settings: FedSelect
) -> Tensor:
    """Return masks (n, d) with the parameters that changed most by ``change`` (n, d), of each
    layer.
    """
    mask = mask.clone()
    for layer in layers:
        for row, c in zip(
            mask[:, layer], change[:, layer].masked_fill(mask[:, layer], 0), strict=True
        ):
            size, selected = len(row), int(row.sum())
            count = min(
                round(settings.rate * (size - selected)),
                base.floored(settings.limit, size) - selected,
            )
            if count > 0:
                row.logical_or_((c > 0) & base.largest(c.unsqueeze(0), count).squeeze(0))
    return mask


QUANTITIES = (
    base.Quantity(
        "personal",
        "values",
        "How much of its model is each client's own",
        "share",
        "the share of a client's parameters that are its own; the rest is the mean of those who "
        "share them.",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("FedSelect", QUANTITIES),
    paper="Tamirisa et al., CVPR 2024",
    summary="parameters that local training changes most become a client's own, the rest is shared",
    exchange=base.Exchange(
        down="1",
        up="1, and a mask",
        private="the parameters that are its own",
        keeps="its own parameters",
        reveals={"personal": "which parameters of the model are its own"},
    ),
    headline=("personal", "trained"),
    joining="newcomers and unseen clients start from the global model with nothing of their own",
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)
