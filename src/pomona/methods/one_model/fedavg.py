"""FedAvg, and fine-tuning on top of it.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-efficient learning of deep networks
from decentralized data. AISTATS 2017 (arXiv 1602.05629). Fine-tuning: Wang et al. Federated
evaluation of on-device personalization. arXiv 1910.10252. In two phases, LP-FT: Kumar, Raghunathan,
Jones, Ma, Liang. Fine-tuning can distort pretrained features and underperform out-of-distribution.
ICLR 2022 (arXiv 2202.10054).

    objective        min_w  sum_i n_i / n F_i(w)
    client           w_i <- SGD(w; E epochs on D_i)                          (Algorithm 1, ClientUpdate)
    server           w   <- sum_i n_i / n w_i        over the cohort

Named models: ``global`` is w as received; ``local`` is w_i right after local training, which papers
print as FedAvg-local: a view of the same run. With fine-tuning, ``personal`` is a temporary copy of
the received w, trained for another ``finetune_epochs``; it never enters the average. It only serves
the evaluation, so its rate is the run's ``lr`` in every round, whatever the schedule: at the final
rate of a cosine it would hardly differ from w. LP-FT (``finetune_head_epochs``) first trains the
last layer alone, from the received one, then all layers for ``finetune_epochs``, each phase with a
fresh optimizer; the paper fits the head to convergence. ``local`` is the round's training, and does
come that close.

Differs from papers: papers with this baseline give neither the number of fine-tuning epochs nor
their rate; the default is the run's ``local_epochs``. The momentum starts at zero in every round,
as in the code published with APPLE.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor
from pomona.methods import base

HEAD_PHASE = "finetuning-head"
FinetuneEpochs = Annotated[
    int | None,
    Field(ge=0, le=10**6, description="epochs of fine-tuning; the run's local_epochs if not set"),
]


FinetuneHeadEpochs = Annotated[
    int,
    Field(
        ge=0,
        le=10**6,
        description="epochs of fine-tuning the last layer alone, before all layers (LP-FT)",
    ),
]


class FedAvg(base.MethodSettings):
    """One common model, averaged by sample counts."""

    name: Literal["fedavg"] = "fedavg"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(server(), client(mu=0.0), CARD)


class FedAvgLocal(base.MethodSettings):
    """FedAvg, evaluated by each client's copy right after local training."""

    name: Literal["fedavg-local"] = "fedavg-local"

    def method(self) -> base.Method:
        """Return FedAvg under its other name."""
        card = replace(
            CARD,
            presentation=base.Presentation("FedAvg-local"),
            summary="FedAvg's local copies right after training",
            headline=("local", "trained"),
        )
        return base.Method(server(), client(mu=0.0), card)


class FedAvgFT(base.MethodSettings):
    """FedAvg with local fine-tuning of the received model."""

    name: Literal["fedavg-ft"] = "fedavg-ft"
    finetune_epochs: FinetuneEpochs = None
    finetune_head_epochs: FinetuneHeadEpochs = 0

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        epochs = self.finetune_epochs, self.finetune_head_epochs
        return base.Method(
            server(),
            finetuned(client(mu=0.0), *epochs),
            finetuned_card(CARD, base.Presentation("FedAvg-FT"), *epochs),
        )


def server(shared: Callable[[base.Initial], Tensor] | None = None) -> base.Server:
    """Return FedAvg's server (McMahan et al. 2017): one common model w, w <- sum_i n_i / n w_i over
    the cohort.

    ``shared`` takes the averaged part (k,) from the initial model, if clients keep the rest;
    joining clients then start from the run's initial model.
    """

    def start(initial: base.Initial, roster: base.Roster, seed: int) -> Tensor:
        return shared(initial) if shared else initial()

    def downlink(
        w: Tensor, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> base.Downlink:
        return {"model": base.Rows.broadcast(w, len(ids))}

    def aggregate(
        w: Tensor, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Tensor:
        return base.weighted_mean(uplink["model"], roster.weights(ids))

    def uplink_form(w: Tensor) -> base.Uplink:
        return {"model": w}

    def add_clients(w: Tensor, ids: base.Ids, roster: base.Roster) -> tuple[Tensor, Tensor | None]:
        return w, None if shared else w

    return base.Server(
        start,
        downlink,
        aggregate,
        add_clients,
        uplink_form,
        global_model=shared is None,
        averages=True,
        sums=True,
    )


def client(mu: float) -> base.Client:
    """Run local SGD from the received model w with a pull mu (v - w) towards it: FedAvg for mu = 0,
    FedProx above.

    A method that prepares another start (fine-tuning, ALA) adds it as ``received["start"]``; the
    pull is still towards w.
    """

    def train(
        state: None, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[None]:
        w = received["model"]
        training.observe("global", w, "received")
        pull = base.Pull(mu, w) if mu else None
        local = base.sgd(training, received.get("start", w).clone(), round_, pull=pull)
        training.observe("local", local, "trained")
        return None, {"model": local}, {}

    return base.Client(base.stateless, train, sends_step=True)


def finetuned(inner: base.Client, epochs: int | None, head_epochs: int = 0) -> base.Client:
    """Add a personal model: a copy of the received one, fine-tuned by plain SGD before ``inner``
    trains; its last layer alone first if there are ``head_epochs``.

    It only serves the evaluation: no schedule lowers its rate, since late in a schedule the copy
    would hardly be tuned.
    """

    def train(
        state: object, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[object]:
        if training.watches("received"):
            tuned = received["model"].clone()
            full_rate = round_.unscheduled
            top = training.layers[-1]
            if head_epochs:
                base.sgd(training, tuned, full_rate, head_epochs, purpose=HEAD_PHASE, columns=top)
            base.sgd(training, tuned, full_rate, epochs, purpose="finetuning")
            training.observe("personal", tuned, "received")
        return inner.train(state, received, training, round_)

    return replace(inner, train=train)


CARD = base.Card(
    presentation=base.Presentation("FedAvg"),
    paper="McMahan et al., AISTATS 2017, Algorithm 1",
    summary="one global model, the mean of locally trained copies",
    exchange=base.Exchange(down="1", up="1", private="nothing but the data", keeps="nothing"),
    headline=("global", "received"),
    joining="newcomers and unseen clients start from the global model",
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)


def finetuned_card(
    card: base.Card, presentation: base.Presentation, epochs: int | None, head_epochs: int = 0
) -> base.Card:
    """Return the card of a method with ``epochs`` of additional fine-tuning, after ``head_epochs``
    of the last layer.
    """
    head = base.Gradients(purpose=HEAD_PHASE, epochs=head_epochs, evaluates=True)
    return replace(
        card,
        presentation=presentation,
        paper=f"{card.paper}; fine-tuning: Wang et al., arXiv 1910.10252",
        summary=f"{card.summary}; each client fine-tunes a copy",
        exchange=replace(card.exchange, private="the fine-tuned model"),
        headline=("personal", "received"),
        privacy=replace(
            card.privacy,
            gradients=(
                *card.privacy.gradients,
                base.Gradients(purpose="finetuning", epochs=epochs, evaluates=True),
                *((head,) if head_epochs else ()),
            ),
        ),
    )
