"""FedDPA: two low-rank changes at each client, one averaged over all and one its own.

Yang, Long, Shen, Jiang, Blumenstein. Dual-personalizing adapter for federated foundation models.
NeurIPS 2024 (arXiv 2403.19211), FedDPA-T.

    network          W + s (1 - c) B_g A_g + s c B_l A_l                     g the global change, l the client's own
    own change       (A_l, B_l) <- SGD((A_l, B_l); E epochs on D_i)          on the sum above, g as received
    global change    (A_g, B_g) <- SGD((A_g, B_g); E epochs on D_i)          on W + s B_g A_g alone
    server           (A_g, B_g) <- sum_i n_i / n (A_g, B_g)_i                (A_l, B_l) never leave the client

A change of rank 2 k is a sum of two of rank k: the first k rows of A and columns of B are the
global change, the others the own one. So the sum is a model like any other, with B's columns times
1 - c and c, and ``model.train.lora.rank`` is even, twice the paper's r. What else is trained
(``model.train.lora.beside``) belongs to the global change.

Named models: ``global`` has the received global change alone, ``personal, received`` both as
received and kept, ``personal, trained`` the received global change with the own one just trained.
With c = 0 both models have the same outputs, and the global change is FedAvg's of rank k. Without
low-rank changes it is FedAvg, to the bit, and a run reports it.

Differs from the paper: that mixes the two for each test sample, c being proportional to the mean
cosine of its representation with those of some training samples, since a client may also meet tasks
of others. Such a mixture is not a row of parameters, and no model file could store it: here c is
one number, in training as in published code, whose default is 0.5 too. FedDPA-F, which trains the
own change after the last round, is left out. The paper's text was not at hand beyond its abstract:
this follows its authors' code, which differs in three things: it trains the own change from the
second round on, and each client draws the A of its own; clients count alike in the mean.
"""

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from pomona.core.errors import ConfigError
from pomona.core.lazy_torch import Tensor, torch
from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.methods.shared_parts.partly_shared import KeptState, RowLayout
from pomona.models.settings import is_lora_factor
from pomona.objective.training import TRAINING

OWN_CHANGE = "own"  # the random stream of the batches of the own change


class FedDPA(base.MethodSettings):
    """FedDPA's settings; the equations' symbols in brackets.

    Attributes:
        share: weight of a client's own change in its model (c)
        own_epochs: epochs of a client's own change a round; the run's local_epochs if not set
    """

    name: Literal["feddpa"] = "feddpa"
    share: float = Field(0.5, ge=0, le=1)
    own_epochs: int | None = Field(None, ge=0, le=10**6)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        own_gradients = base.Gradients(purpose=OWN_CHANGE, epochs=self.own_epochs)
        cost = replace(CARD.privacy, gradients=(base.Gradients(), own_gradients))
        server = fedavg.server(lambda initial: initial()[~Changes.from_layout(initial).local])
        return base.Method(server, client(self), replace(CARD, privacy=cost))


@dataclass(frozen=True)
class Changes:
    """Masks (d,) bool of a row: what a client keeps, and both B."""

    local: Tensor
    scaled: Tensor

    @classmethod
    def from_layout(cls, row: RowLayout) -> "Changes":
        """Return them for a network. Raises ConfigError if a change has an odd rank."""
        local, scaled = torch.zeros(2, row.layers[-1].stop, dtype=torch.bool)
        for entry in row.parameters:
            of_b = is_lora_factor(entry.name, "B")
            if of_b or is_lora_factor(entry.name, "A"):
                size = _half_rank(entry.shape[int(of_b)])
                entry.view(local).narrow(int(of_b), size, size).fill_(True)
                scaled[entry.start : entry.stop] = of_b
        return cls(local, scaled)

    def sum(self, share: float, W: Tensor) -> Tensor:
        """Return the factors (d,) of rows of the sum with this weight of the own change."""
        weights = torch.where(self.local, share, 1 - share)
        return torch.where(self.scaled, weights, 1.0).to(W)

    def without_local(self, W: Tensor) -> Tensor:
        """Return the factors (d,) of rows without the own change."""
        return (~self.local).to(W)


def _half_rank(rank: int) -> int:
    if rank % 2:
        raise ConfigError(
            f"model.train.lora.rank is {rank}; feddpa divides it between two changes: make it even"
        )
    return rank // 2


def client(settings: FedDPA) -> base.Client:
    """Train the own change on top of the global one, then the global change alone."""

    def start(initial: base.Initial, roster: base.Roster, ids: base.Ids, seed: int) -> KeptState:
        return KeptState(initial()[Changes.from_layout(initial).local].repeat(len(ids), 1))

    def train(
        state: KeptState, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[KeptState]:
        changes, g = Changes.from_layout(training), received["model"]
        W = g.new_empty(len(g), len(changes.local))
        W[:, changes.local], W[:, ~changes.local] = state.kept, g
        combined, global_only = changes.sum(settings.share, W), changes.without_local(W)
        training.observe("global", W * global_only, "received")
        training.observe("personal", W * combined, "received")
        if training.trains:
            move(training, W, round_, combined, changes.local, settings.own_epochs, OWN_CHANGE)
        training.observe("personal", W * combined, "trained")
        local = W[:, changes.local]
        move(training, W, round_, global_only, ~changes.local)
        return KeptState(local), {"model": W[:, ~changes.local]}, {}

    return base.Client(start, train, private=("kept",))


def move(
    training: base.LocalTraining,
    W: Tensor,
    round_: base.Round,
    weights: Tensor,
    mask: Tensor,
    epochs: int | None = None,
    purpose: str = TRAINING,
) -> None:
    """Take local steps on the numbers ``mask`` (d,) of rows W (n, d), in place, with the loss at W
    times the weights (d,).
    """
    passes = round_.passes if epochs is None else epochs
    state = base.optimizer_state(W[:, mask], round_)
    for batch, w, moments in training.steps(passes, W, state, purpose=purpose):
        _, slope = training.gradient(w * weights, batch)
        trained = w[:, mask]
        base.optimizer_step(trained, (slope * weights)[:, mask], moments, round_)
        w[:, mask] = trained


CARD = base.Card(
    presentation=base.Presentation("FedDPA"),
    paper="Yang et al., NeurIPS 2024, FedDPA-T",
    summary="a low-rank change averaged over all, and another of each client's own",
    exchange=base.Exchange(
        down="share of the global change",
        up="share of the global change",
        private="the own change",
        keeps="its own change",
    ),
    headline=("personal", "received"),
    joining="a newcomer's own change starts from the initial one; an unseen client trains it",
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
    needs=base.Needs(without_lora="FedAvg"),
)
