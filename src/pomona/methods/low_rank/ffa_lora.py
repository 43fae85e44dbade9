"""FFA-LoRA: low-rank changes whose A stays as it was drawn, so that the mean of B A is that of B.

Sun, Li, Li, Ding. Improving LoRA in privacy-preserving federated learning. ICLR 2024 (arXiv
2403.12313).

    network          W + s B A of each changed layer; B starts at 0, A is drawn from the run's seed, the same for all
    client           B_i <- SGD(B; E epochs on D_i)                          A fixed
    server           B   <- sum_i n_i / n B_i,                               so that B A = sum_i n_i / n B_i A

Averages of both factors are not the average of their product, and noise on both is multiplied; with
A fixed the network is linear in what is averaged, clipped and noised. This is FedAvg on a network
of which A is frozen (``model.train.lora.trained = "B"``, which the method sets), to the bit: A is
in no row, costs no gradient, no traffic and no noise. Without low-rank changes it is FedAvg, and a
run reports it. What is trained in addition to the changes (``model.train.lora.beside``) is averaged
too.

Differs from the paper: clients count by samples. The authors published no code, and the paper's
text was not at hand: this follows its abstract, and the code of Guo et al. (ICLR 2025), who compare
with it and average the classifier in addition to B.
"""

from dataclasses import replace
from typing import Literal

from pomona.methods import base
from pomona.methods.one_model import fedavg


class FFALoRA(base.MethodSettings):
    """FFA-LoRA has no settings of its own."""

    name: Literal["ffa-lora"] = "ffa-lora"

    def method(self) -> base.Method:
        """Return FedAvg for a network of which A is frozen."""
        return base.Method(fedavg.server(), fedavg.client(mu=0.0), CARD)


CARD = replace(
    fedavg.CARD,
    presentation=base.Presentation("FFA-LoRA"),
    paper="Sun et al., ICLR 2024",
    summary="one global low-rank change, of which only the factor that starts at 0 is trained",
    needs=base.Needs(lora="B", without_lora="FedAvg"),
)
