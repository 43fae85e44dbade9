"""FedBABU: the federation trains the body under a fixed initial head; clients fine-tune locally.

Oh, Kim, Yun. FedBABU: toward enhanced representation for federated image classification. ICLR 2022
(arXiv 2106.06042), Algorithm 1.

    objective        min_phi  sum_i n_i / n F_i(h0 o phi)                    h0 the initial head, the same for all
    client           phi_i <- SGD(phi; E epochs on D_i), h0 fixed
    server           phi <- sum_i n_i / n phi_i
    evaluation       m_i <- SGD((phi, h0); fine-tuning epochs on D_i)        of all layers, of the head, or of the body

Only phi travels, in both directions; h0 follows from the run's seed. Named models: ``global,
received`` is phi under h0, ``personal, received`` the fine-tuned m_i, a temporary copy that never
enters the mean; its steps use the run's ``lr``, whatever the federation's learning rate schedule.
With all layers shared (``shared`` = their number) this is FedAvg-FT to the bit, with 0 epochs of
fine-tuning the personal model is the global.

Differs from the paper: that fine-tunes for five epochs, once, after training; here for the run's
``local_epochs`` if ``finetune_epochs`` is not set, in every round that is evaluated. Differs from
published code: that averages uniformly, statistics of BatchNorm too; here clients count by samples,
and every model is evaluated with statistics of the client's own training data.
"""

from dataclasses import replace
from functools import partial
from typing import Literal

from pomona.methods import base
from pomona.methods.one_model.fedavg import FinetuneEpochs
from pomona.methods.shared_parts import partly_shared
from pomona.methods.shared_parts.partly_shared import KeptState, drop_columns, gaps, insert_columns


class FedBABU(base.MethodSettings):
    """FedBABU's settings.

    Attributes:
        finetune: what is fine-tuned
    """

    name: Literal["fedbabu"] = "fedbabu"
    shared: partly_shared.LowerLayers = None
    finetune_epochs: FinetuneEpochs = None
    finetune: Literal["all", "head", "body"] = "all"

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        tuning = base.Gradients(purpose="finetuning", epochs=self.finetune_epochs, evaluates=True)
        head = partial(partly_shared.head, shared=self.shared)
        body = partly_shared.server(head)
        server = replace(body, global_model=True)  # the head is also shared
        return base.Method(
            server,
            client(self, head),
            replace(CARD, privacy=replace(CARD.privacy, gradients=(base.Gradients(), tuning))),
        )


def client(settings: FedBABU, head: partly_shared.KeepRule) -> base.Client:
    """Fine-tune a copy if it is evaluated, then train the body."""

    def train(
        state: KeptState, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[KeptState]:
        top = head(training)
        W = insert_columns(received["model"], state.kept, *top)
        body, all_columns = gaps(top, W.shape[1]), (slice(0, W.shape[1]),)
        training.observe("global", W, "received")
        if training.watches("received"):
            columns = {"all": all_columns, "head": top, "body": body}[settings.finetune]
            tuned, epochs = W.clone(), settings.finetune_epochs
            partly_shared.sgd(training, tuned, round_.unscheduled, columns, epochs, "finetuning")
            training.observe("personal", tuned, "received")
        partly_shared.sgd(training, W, round_, body)
        training.observe("local", W, "trained")
        return state, {"model": drop_columns(W, *top)}, {}

    return base.Client(partly_shared.client(head).start, train, constant=True)


CARD = base.Card(
    presentation=base.Presentation("FedBABU"),
    paper="Oh et al., ICLR 2022, Algorithm 1",
    summary=(
        "one body, trained under a head that stays as it was drawn; each client fine-tunes a copy"
    ),
    exchange=base.Exchange(
        down="share of the body",
        up="share of the body",
        private="the fine-tuned model",
        keeps="the initial head",
    ),
    headline=("personal", "received"),
    joining="newcomers and unseen clients have the same head, and start from the global body",
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)
