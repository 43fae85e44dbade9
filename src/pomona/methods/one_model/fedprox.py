"""FedProx: FedAvg with a proximal term towards the received model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks. MLSys
2020 (arXiv 1812.06127).

    objective        min_v  F_i(v) + mu / 2 ||v - w||^2                      (eq. 2; w is the received model)
    client           v <- v - lr (g_i(v) + mu (v - w))
    server           as FedAvg: weights n_i / n

Fine-tuning is FedAvg-FT's: without the proximal term, and at the run's ``lr`` whatever the schedule
of rates.

At the default mu = 0.01 results differ little from FedAvg's, by a few tenths of a point in our
experiments: the paper searches 0.001 to 1 for each data set.

Differs from published code: clients drop in and out there, sampled by size with a uniform mean;
here the cohort is the run's, weighted by sample counts, so that mu = 0 is FedAvg to the bit.
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.methods.one_model.fedavg import FinetuneEpochs, FinetuneHeadEpochs


class FedProx(base.MethodSettings):
    """FedAvg with a proximal term.

    Attributes:
        mu: weight of the proximal term (mu); 0 is FedAvg
    """

    name: Literal["fedprox"] = "fedprox"
    mu: float = Field(0.01, ge=0)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        return base.Method(fedavg.server(), fedavg.client(self.mu), CARD)


class FedProxFT(base.MethodSettings):
    """FedProx with local fine-tuning (without the proximal term) of the received model.

    Attributes:
        mu: weight of the proximal term (mu); 0 is FedAvg-FT
    """

    name: Literal["fedprox-ft"] = "fedprox-ft"
    mu: float = Field(0.01, ge=0)
    finetune_epochs: FinetuneEpochs = None
    finetune_head_epochs: FinetuneHeadEpochs = 0

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        epochs = self.finetune_epochs, self.finetune_head_epochs
        return base.Method(
            fedavg.server(),
            fedavg.finetuned(fedavg.client(self.mu), *epochs),
            fedavg.finetuned_card(CARD, base.Presentation("FedProx-FT"), *epochs),
        )


CARD = replace(
    fedavg.CARD,
    presentation=base.Presentation("FedProx"),
    paper="Li et al., MLSys 2020, eq. 2",
    summary="FedAvg with clients held near the received model",
)
