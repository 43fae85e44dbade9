"""FedALA: each client learns the share of the global model in its starting point, element by
element.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedALA: adaptive local aggregation for personalized federated
learning. AAAI 2023 (arXiv 2212.01197), Algorithm 1.

    start            t_i = w_i + (w - w_i) * [1; W_i]                        (eq. 4; W_i on the p upper layers only)
    weights          W_i <- clip(W_i - eta dF_i(t_i)/dt * (w - w_i), 0, 1)   (eq. 5, the chain rule written out)
                     on a random share s of D_i: in the initial stage until converged, later for one
                     epoch a round (``round_epochs``; figure 3 has at least six)
    client           w_i <- SGD(t_i; E epochs on D_i)
    server           as FedAvg: w <- sum_i n_i / n w_i

w is the received model, w_i the client's own last trained one, W_i starts at 1. ``personal,
received`` is t_i.

ALA (``adaptive``) wraps any client half that starts local training from one received model: it
passes on what was received, unchanged, and adds received["start"]; a proximal centre stays the
received model.

The initial stage is the first participation in which the received model differs from the client's
own (the paper's second iteration); until then a client is evaluated with W_i = 1. It ends for a
client when the standard deviation of the last ten epochs' losses, each that of the epoch's last
batch, falls below 0.01, after eleven epochs at the least (published code), or at ``stage_epochs``;
the paper's time for the stage, 7 minutes at 0.34 an epoch, makes about 20 on average.

Differs from the paper: its gradient between eqs. 5 and 6 carries eta twice. Differs from published
code: that adapts absent clients too, counts tensors instead of layers, draws a window of
consecutive samples, has no cap on the stage, and a threshold of 0.1, at which the stage ends as
early as it may.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from pomona.core.bounds import FirstRound
from pomona.core.lazy_torch import Tensor, torch
from pomona.core.settings import Settings
from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.methods.shared_parts import partly_shared
from pomona.methods.shared_parts.partly_shared import put_columns, select_columns
from pomona.objective.objective import ConstantFeatures

WINDOW, THRESHOLD = 10, 0.01
WEIGHTS = "ALA's weights"


class ALA(Settings):
    """ALA's settings; symbols of the paper in brackets.

    Attributes:
        sample_share: share of the samples that the weights learn on (s)
        weight_lr: learning rate of the weights (eta)
        stage_epochs: most epochs of the initial stage
        start_round: first round in which the weights learn
        round_epochs: epochs on the weights in a round after the initial stage; 0 leaves them as
            then
    """

    sample_share: float = Field(0.8, gt=0, le=1)
    layers: partly_shared.Shared = Field(
        1,
        description="upper layers with weights (p)"
        + partly_shared.BY_NAME
        + "; all others are as received",
    )
    weight_lr: float = Field(1.0, ge=0)
    stage_epochs: int = Field(40, ge=1, le=10**6)
    start_round: FirstRound = 1
    round_epochs: int = Field(1, ge=0, le=10**6)


class FedALA(base.MethodSettings, ALA):
    """FedAvg with adaptive local aggregation."""

    name: Literal["fedala"] = "fedala"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        card = adaptive_card(fedavg.CARD, self)
        card = replace(
            card,
            presentation=base.Presentation("FedALA", QUANTITIES),
            paper="Zhang et al., AAAI 2023, Algorithm 1",
            summary=(
                "each client starts from its own element-wise mixture of the global model and "
                "its last one"
            ),
            exchange=replace(card.exchange, private="ALA's weights and the personal model"),
        )
        return base.Method(fedavg.server(), adaptive(fedavg.client(mu=0.0), self), card)


@dataclass(frozen=True)
class FedALAState:
    """ALA's state in addition to the inner method's.

    ``last`` (n, d) the client's own trained model; ``weights`` (n, k) W_i on the upper layers;
    ``started`` (n,) whether the client has completed the initial stage.
    """

    inner: Any
    last: Tensor
    weights: Tensor
    started: Tensor


def adaptive(
    inner: base.Client, settings: ALA, personal: bool = True, model: str = "model"
) -> base.Client:
    """Apply ALA before a client half that starts from received["start"] and uplinks its trained
    model as "model".

    ``personal``: whether the start is the personal model; False if the inner method names its own.
    ``model``: the name of the received model.
    """

    def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> FedALAState:
        last = initial().repeat(len(ids), 1)
        weights = torch.ones_like(select_columns(last, *weighted_columns(initial, settings)))
        never = torch.zeros(len(ids), dtype=torch.bool, device=last.device)
        return FedALAState(inner.start(initial, roster, ids, seed), last, weights, never)

    def train(
        state: FedALAState,
        received: base.Received,
        training: base.LocalTraining,
        round_: base.Round,
    ) -> base.Trained[FedALAState]:
        w, columns = received[model], weighted_columns(training, settings)
        in_initial_stage = (
            ~state.started & (w != state.last).any(1) & (round_.number >= settings.start_round)
        )
        # what an evaluation learns is dropped: each would begin anew
        in_initial_stage &= training.trains
        epochs, losses = learn(settings, state, in_initial_stage, w, columns, training, round_)
        mixture = mixed(w, state.last, state.weights, columns)
        if personal:
            training.observe("personal", mixture, "received")
        inner_state, uplink, info = inner.train(
            state.inner, {**received, "start": mixture}, training, round_
        )
        means = by_layer(state.weights, training.layers, columns)
        ala = {"ala_weight": means, "ala_epochs": epochs, "ala_losses": losses}
        return (
            FedALAState(
                inner_state, uplink["model"], state.weights, state.started | in_initial_stage
            ),
            uplink,
            {**info, **ala},
        )

    return replace(
        inner,
        start=start,
        train=train,
        private=(*inner.private, "weights"),
        adapt=None,
        constant=False,
        sends_step=False,
    )


def weighted_columns(row: partly_shared.RowLayout, settings: ALA) -> partly_shared.Columns:
    """Return the parts of a row with weights. Raises as ``partly_shared.top`` does."""
    return partly_shared.top(row, settings.layers, "method.layers")


def mixed(w: Tensor, last: Tensor, weights: Tensor, columns: partly_shared.Columns) -> Tensor:
    """Return eq. 4, rows (n, d): exactly w where a weight is 1, exactly the own model where it is
    0.
    """
    mixture, a, b = w.clone(), select_columns(last, *columns), select_columns(w, *columns)
    put_columns(mixture, torch.lerp(a, b, weights), *columns)
    return mixture


def learn(
    settings: ALA,
    state: FedALAState,
    in_initial_stage: Tensor,
    w: Tensor,
    columns: partly_shared.Columns,
    training: base.LocalTraining,
    round_: base.Round,
) -> tuple[Tensor, Tensor]:
    """Apply eq. 5 to the state's weights, in place: until converged at the beginning, later for
    ``round_epochs``.

    Returns the number of epochs of each client (n,), and the loss of each epoch's last batch, which
    ends the stage (n, the maximum epochs of a round): 0 after a client's last epoch.
    """
    max_epochs = torch.where(
        in_initial_stage, settings.stage_epochs, settings.round_epochs * state.started.long()
    )
    learning = max_epochs > 0
    epochs, losses = torch.zeros(len(w)), list[Tensor]()
    loss_curve = torch.zeros(
        len(w), max(settings.stage_epochs, settings.round_epochs), dtype=w.dtype
    )
    # All epochs have the same batches, and the layers below those with weights remain the received
    # ones.
    cache = ConstantFeatures() if int(max_epochs.max()) > 1 else None
    above = max(s.start for s in training.layers if s.start <= columns[0].start) if columns else 0
    while learning.any():
        mixture = mixed(w, state.last, state.weights, columns)
        rate = settings.weight_lr * round_.decay * learning.to(w).unsqueeze(1)
        loss = w.new_zeros(len(w))
        rows = (mixture, state.weights, state.last, w, rate, loss)
        for batch, t, W, own_model, global_, eta, latest in training.steps(
            1, *rows, purpose="ala", share=settings.sample_share
        ):
            latest[:], g = training.gradient(t, batch, above=above, cache=cache)
            a, b, slope = (select_columns(rows, *columns) for rows in (own_model, global_, g))
            W.sub_(eta * slope * (b - a)).clamp_(0, 1)
            put_columns(t, torch.lerp(a, b, W), *columns)
        epochs += learning.cpu()
        loss_curve[:, len(losses)] = (loss * learning).cpu()
        losses.append(loss)
        learning = learning & (len(losses) < max_epochs) & ~(in_initial_stage & converged(losses))
    return epochs, loss_curve


def converged(losses: list[Tensor]) -> Tensor:
    """Return (n,) whether the initial stage ends after these epochs, from their losses (n,)."""
    if len(losses) <= WINDOW:
        return torch.zeros_like(losses[0], dtype=torch.bool)
    return torch.stack(losses[-WINDOW:]).std(0, correction=0) < THRESHOLD


def by_layer(
    weights: Tensor, layers: partly_shared.Layers, columns: partly_shared.Columns
) -> Tensor:
    """Return the mean weight of each layer with weights, (n, p)."""
    inside = [
        sum(max(0, min(p.stop, s.stop) - max(p.start, s.start)) for p in columns) for s in layers
    ]
    means = [w.mean(1) for w in weights.split_with_sizes(inside, 1) if w.shape[1]]
    return torch.stack(means, 1) if means else weights


QUANTITIES = (
    base.Quantity(
        "ala_weight",
        "values",
        "How much of the global model local training starts from",
        "mean ALA weight",
        "the weights of adaptive local aggregation, averaged over each of the upper layers: at 1 a "
        "layer starts as received, at 0 from the client's own last one.",
        entries="upper layer",
    ),
    base.Quantity(
        "ala_epochs",
        "values",
        "How long the starting mixture was learned",
        "epochs on ALA weights",
        "epochs that a client spent on the weights of adaptive local aggregation in that round.",
    ),
    base.Quantity(
        "ala_losses",
        "epochs",
        "The loss while the starting mixture is learned",
        "training loss",
        "the client's training loss at the end of each epoch on the weights of adaptive local "
        "aggregation (its last batch), counted through: first those of the initial stage, then "
        "those of later rounds, each of which begins with a newly received model and a newly "
        "trained own one.",
    ),
)


def adaptive_card(card: base.Card, settings: ALA, personal: bool = True) -> base.Card:
    """Return the card of a method with ALA before its local training; ``personal`` as in
    ``adaptive``.
    """
    # The stage's epochs use one batch order: all of its gradients are on the same batches.
    stage = base.Gradients(
        per_batch=settings.stage_epochs, purpose="ala stage", epochs=1, once=True
    )
    later = []
    if settings.round_epochs:
        later = [base.Gradients(per_batch=settings.round_epochs, purpose="ala", epochs=1)]
    presentation = card.presentation
    return replace(
        card,
        presentation=base.Presentation(
            f"{presentation.title}+ALA", quantities=(*presentation.quantities, *QUANTITIES)
        ),
        privacy=replace(card.privacy, gradients=(*card.privacy.gradients, stage, *later)),
        paper=f"{card.paper}; ALA: Zhang et al., AAAI 2023, eqs. 4, 5",
        summary=(
            f"{card.summary}; clients start from mixtures of the received model and their last one"
        ),
        exchange=replace(
            card.exchange,
            private=WEIGHTS
            if card.exchange.private.startswith("nothing")
            else f"{card.exchange.private}; {WEIGHTS}",
            keeps=(
                f"{'' if card.exchange.keeps == 'nothing' else card.exchange.keeps + '; '}its "
                "last model and W"
            ),
        ),
        headline=("personal", "received") if personal else card.headline,
        joining=f"{card.joining}; W starts from 1",
    )
