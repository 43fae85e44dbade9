"""PartialFed: each client takes some layers from the global model, and the others from its own last
model.

Sun, Huo, Yang, Bai. PartialFed: cross-domain personalized federated learning via partial
initialization. NeurIPS 2021 (https://openreview.net/forum?id=lgDP84byd5). Its authors published no
code; this is a reconstruction.

    start            t_i = z * w + (1 - z) * w_i, gates z in {0, 1} a layer; w received, w_i the client's last model
    rules (Fix)      lower-shared: all layers but the last are global;  head-shared: the last one only;
                     local-norm: all but normalisation layers;  then w_i <- SGD(t_i; E epochs)
    adaptive         both sources are trained: in each batch, with logistic noise e_l drawn anew,
                     z_l = 1[pi_l + e_l > 0],   t = z * a + (1 - z) * b     a starts at w, b at w_i
                     the chosen source takes the step:  a_l or b_l <- . - lr dF_i/dt_l        on 4/5 of the batch
                     pi_l <- pi_l - lr <dF_i/dt_l, a_l - b_l> p (1 - p) / T, p = sigmoid((pi_l + e_l) / T)  on the rest
                     at the end w_i = z * a + (1 - z) * b with z = 1[pi >= 0]
    server           as FedAvg: w <- sum_i n_i / n w_i

pi_l is the difference of the two logits of a straight-through Gumbel-softmax between the sources:
the difference of two Gumbel variables is logistic, the softmax of two a sigmoid. pi starts at 0 and
stays with the client. Gates go to info.

Not known from the paper, chosen here: the disjoint shares (4/5 and 1/5 of each batch; a batch too
small for that trains weights only), the logits' rate (the run's lr), a fixed temperature T, and the
source that a batch does not use (it is unchanged). Adam's bias correction counts a client's steps,
whichever source a layer was drawn from. The logits' steps are plain whatever the optimizer.
"""

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from pomona.core.errors import ConfigError
from pomona.core.lazy_torch import Tensor, torch
from pomona.core.rng import stream
from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.objective.batches import Batch
from pomona.objective.optimizer_step import state_mask

STRATEGY_SHARE = 0.2
SPLIT_BATCHES = (
    "partialfed's adaptive gates divide each batch by its size, so that one record moves others "
    "between the parts; set method.rule to lower-shared, head-shared or local-norm"
)


class PartialFed(base.MethodSettings):
    """PartialFed's settings.

    Attributes:
        rule: which layers are the global model's: learned gates, or a fixed rule
        temperature: of the sigmoid through which adaptive gates learn
    """

    name: Literal["partialfed"] = "partialfed"
    rule: Literal["adaptive", "lower-shared", "head-shared", "local-norm"] = "adaptive"
    temperature: float = Field(1.0, gt=0)

    def idle(self) -> dict[str, str]:
        """Only gates learn through a sigmoid."""
        return {} if self.rule == "adaptive" else {"temperature": "only for rule = adaptive"}

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        if self.rule == "adaptive":
            card = replace(
                CARD,
                exchange=replace(
                    CARD.exchange,
                    private="the gates' logits",
                    keeps="its last model and a logit a layer",
                ),
                privacy=replace(
                    CARD.privacy,
                    gradients=(base.Gradients(), base.Gradients(purpose="strategy")),
                    not_private=SPLIT_BATCHES,
                ),
            )
            return base.Method(server(), adaptive(self.temperature), card)
        return base.Method(server(), fixed(self.rule), CARD)


def server() -> base.Server:
    """Return FedAvg's server; its mean is not evaluated."""
    return replace(fedavg.server(), global_model=False)


# Fix: the gates follow from the network.


def fixed(rule: str) -> base.Client:
    """Initialise partially by a rule; the state is the client's last model (n, d)."""

    def train(
        last: Tensor, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[Tensor]:
        w = received["model"]
        from_global = global_part(rule, training, last)
        W = torch.where(from_global, w, last)
        training.observe("personal", W, "received")
        base.sgd(training, W, round_)
        training.observe("personal", W, "trained")
        gates = torch.stack([from_global[s].to(W).mean() for s in training.layers])
        return W, {"model": W}, {"gates": gates.repeat(len(W), 1)}

    return base.Client(base.model_state, train)


def global_part(rule: str, training: base.LocalTraining, rows: Tensor) -> Tensor:
    """Return the mask (d,) bool of the parameters that a rule takes from the global model.

    Raises ConfigError for local-norm in a network without normalisation layers.
    """
    mask = torch.full_like(rows[0], rule != "head-shared", dtype=torch.bool)
    if rule == "local-norm":
        if not training.norms:
            raise ConfigError(
                "method.rule = local-norm, but the network has no normalisation layers; take "
                "another rule"
            )
        for norm in training.norms:
            mask[norm] = False
    else:
        mask[training.layers[-1]] = rule == "head-shared"
    return mask


# Adaptive: the gates are learned.


@dataclass(frozen=True)
class PartialFedState:
    """A client's last model (n, d), and a logit per layer (n, L) in favour of the global one."""

    last: Tensor
    logits: Tensor


def adaptive(temperature: float) -> base.Client:
    """Learn two sources of weights, and gates between them."""

    def start(
        initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int
    ) -> PartialFedState:
        last = initial().repeat(len(ids), 1)
        return PartialFedState(last, last.new_zeros(len(ids), len(initial.layers)))

    def train(
        state: PartialFedState,
        received: base.Received,
        training: base.LocalTraining,
        round_: base.Round,
    ) -> base.Trained[PartialFedState]:
        A, B, pi = received["model"].clone(), state.last, state.logits
        layer = layer_of(training.layers).to(A.device)
        training.observe("personal", torch.where((pi >= 0)[:, layer], A, B), "received")

        noise = [stream(round_.seed, "gates", round_.number, c) for c in training.clients]
        sources = (A, B, base.optimizer_state(A, round_), base.optimizer_state(A, round_), pi)
        for batch, a, b, va, vb, logits in training.steps(round_.passes, *sources):
            samples = [torch.from_numpy(s.logistic(size=pi.shape[1])) for s in noise[: len(a)]]
            soft = logits + torch.stack(samples).to(logits)
            z = (soft > 0)[:, layer]
            weights, strategy, learns = halves(batch, training.objective.least_batch)

            W, moments = torch.where(z, a, b), torch.where(state_mask(z, va), va, vb)
            training.step(W, weights, moments, round_)
            for source, v, chosen in ((a, va, z), (b, vb, ~z)):
                source[chosen] = W[chosen]
                chosen_moments = state_mask(chosen, v)
                v[chosen_moments] = moments[chosen_moments]

            if any(learns):
                _, g = training.gradient(W, strategy)
                slope = gate_slope(g * (a - b), training.layers, soft / temperature) / temperature
                logits.sub_(slope * torch.tensor(learns).to(slope).unsqueeze(1), alpha=round_.lr)

        W = torch.where((pi >= 0)[:, layer], A, B)
        training.observe("personal", W, "trained")
        return PartialFedState(W, pi), {"model": W}, {"gates": pi.sigmoid()}

    return base.Client(start, train, private=("logits",))


def layer_of(layers: tuple[slice, ...]) -> Tensor:
    """Return the layer of each number of a row (d,)."""
    layer = torch.empty(layers[-1].stop, dtype=torch.long)
    for number, columns in enumerate(layers):
        layer[columns] = number
    return layer


def halves(batch: Batch, min_size: int) -> tuple[Batch, Batch, list[bool]]:
    """Split a batch into samples for weights and for logits; also return which clients have enough
    for both.
    """
    counts = [int(STRATEGY_SHARE * len(i)) for i in batch.indices]
    counts = [
        h if h >= min_size <= len(i) - h else 0 for h, i in zip(counts, batch.indices, strict=True)
    ]
    weights = [i[h:] for h, i in zip(counts, batch.indices, strict=True)]
    strategy = [i[: h or min_size] for h, i in zip(counts, batch.indices, strict=True)]
    return (
        replace(batch, indices=weights),
        replace(batch, indices=strategy, purpose="strategy"),
        [h > 0 for h in counts],
    )


def gate_slope(products: Tensor, layers: tuple[slice, ...], soft: Tensor) -> Tensor:
    """Return dF/d(soft) (n, L) through the sigmoid: layer sums of products (n, d) of gradient and
    source difference.
    """
    p = soft.sigmoid()
    return torch.stack([products[:, s].sum(1) for s in layers], 1) * p * (1 - p)


QUANTITIES = (
    base.Quantity(
        "gates",
        "values",
        "Which layers come from the global model",
        "gate",
        "the gate of each layer: at 1 it comes from the global model, at 0 from the client's own "
        "last one; in between it is the learned probability, or with a fixed rule the share of the "
        "layer's parameters.",
        entries="layer",
    ),
)

CARD = base.Card(
    presentation=base.Presentation("PartialFed", QUANTITIES),
    paper="Sun et al., NeurIPS 2021",
    summary="each client takes over some layers of the global model, and keeps its own elsewhere",
    exchange=base.Exchange(
        down="1", up="1", private="nothing but the data", keeps="its last model"
    ),
    headline=("personal", "trained"),
    joining=("newcomers and unseen clients start from the global model and even gates"),
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)
