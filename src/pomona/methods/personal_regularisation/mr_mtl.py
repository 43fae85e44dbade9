"""MR-MTL: every client trains its own model with a pull towards the mean of all.

Liu, Hu, Wu, Smith. On privacy and personalization in cross-silo federated learning. NeurIPS 2022
(arXiv 2206.07902): mean-regularized multi-task learning (Evgeniou and Pontil, KDD 2004), their
baseline for silos with differential privacy.

    objective        min_{w_1..w_n}  sum_i n_i / n (F_i(w_i) + lambda / 2 ||w_i - m||^2),   m = sum_i n_i / n w_i
    client           w_i <- w_i - lr (g_i(w_i) + lambda (w_i - m))           w_i its own last model, m as received
    server           m <- sum_i n_i / n w_i

w_i is never replaced; m only attracts it. ``personal, trained`` is w_i. lambda = 0 is Separate, to
the bit; for one client the pull is towards the round's start, which is FedProx, to the bit. The
larger lambda, the nearer all w_i to one model; but lr lambda = 1 forgets w_i in every step, so keep
it well below. In private training the more noise, the larger the best lambda: with it the mean of
the clients averages their noise. With ``feature_weight`` = mu F_i gets mu R besides, the
discrepancy (``discrepancy.py``) of the batch's features under w_i from those under m.

Differs from published code: under privacy its pull is part of each sample's gradient, and clipped
with it; here it is added to the private gradient, as it reads models alone. Its clients start from
initial models of their own, here from the common one; its mean then moves by the mean of the
clients' moves.
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from pomona.core.lazy_torch import Tensor
from pomona.methods import base
from pomona.methods.one_model import fedavg
from pomona.methods.personal_regularisation.discrepancy import discrepancy_losses
from pomona.methods.personal_regularisation.ditto import strong_pull_warning


class MRMTL(base.MethodSettings):
    """MR-MTL's settings; symbols of the paper in brackets.

    Attributes:
        lambda_: pull of every client's model towards the mean of all (lambda); lr x lambda well
            below 1
        feature_weight: pull of the features' distribution to that under the mean of all (MMD)
    """

    name: Literal["mr-mtl"] = "mr-mtl"
    lambda_: float = Field(1.0, ge=0, alias="lambda")
    feature_weight: float = Field(0.0, ge=0)

    def method(self) -> base.Method:
        """Return the method: both halves and its card."""
        server = replace(fedavg.server(), global_model=False)  # the mean is not used as a model
        card = base.reads_outputs(CARD, "feature_weight") if self.feature_weight else CARD
        return base.Method(server, client(self), card, self.caution)

    def caution(self, round_: base.Round, _members: int) -> str | None:
        """Warn of a pull that is not small against a step."""
        return strong_pull_warning(self.name, self.lambda_, round_)


def client(settings: MRMTL) -> base.Client:
    """Train the own model (n, d) with a pull towards the mean."""

    def train(
        W: Tensor, received: base.Received, training: base.LocalTraining, round_: base.Round
    ) -> base.Trained[Tensor]:
        mean, weight = received["model"], settings.lambda_
        losses = discrepancy_losses(training, mean, settings.feature_weight)
        pull = base.Pull(weight, mean) if weight else None
        base.sgd(training, W, round_, pull=pull, losses=losses)
        training.observe("personal", W, "trained")
        return W, {"model": W}, {}

    return base.Client(base.model_state, train)


CARD = base.Card(
    presentation=base.Presentation("MR-MTL"),
    paper="Liu et al., NeurIPS 2022",
    summary="a model of each client, held near the mean of all",
    exchange=base.Exchange(down="1", up="1", private="nothing but the data", keeps="its model"),
    headline=("personal", "trained"),
    joining="newcomers and unseen clients start from the mean",
    privacy=base.PrivacyCost(gradients=(base.Gradients(),)),
)
