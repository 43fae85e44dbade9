"""Per-FedAvg against its update rules."""

import pytest
import torch
from torch.testing import assert_close

from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.personal_regularisation.per_fedavg import PerFedAvg, curvature
from pomona.objective.batches import Batch
from pomona.objective.training import LocalTraining
from problems import PASSES, Federation, Quadratics, a_round, quadratics, trained


def one_number(a):
    return Quadratics(torch.tensor([[a]], dtype=torch.float64), [[0]])


@pytest.mark.parametrize(("order", "power"), [("first", 1), ("hf", 2)])
def test_a_step_by_hand(order, power):
    """F(v) = (v - 3)^2 / 2 has Hessian 1: u - 3 = (1 - alpha) (w - 3), and HF multiplies its
    gradient by 1 - alpha again.
    """
    run = Federation(PerFedAvg(alpha=0.2, beta=0.5, order=order).method(), one_number(3.0))
    w = run.initial().item()
    run.round(a_round())
    assert run.server.item() == pytest.approx(w - 0.5 * (1 - 0.2) ** power * (w - 3))
    assert run.model(0, "global", "received").item() == pytest.approx(w)
    assert run.model(0, "personal", "received").item() == pytest.approx(w - 0.2 * (w - 3))


@pytest.mark.parametrize("decay", [0.5, 1e-3])
def test_beta_decays_and_the_step_that_is_judged_stays(decay):
    """At the end of a cosine a decaying alpha would judge the model as it was sent."""
    run = Federation(PerFedAvg(alpha=0.2, beta=0.5).method(), one_number(3.0))
    w = run.initial().item()
    run.round(a_round(2, decay=decay))
    assert run.server.item() == pytest.approx(w - 0.5 * decay * 0.8 * (w - 3))
    assert run.model(0, "personal", "received").item() == pytest.approx(w - 0.2 * (w - 3))


@pytest.mark.parametrize("order", ["first", "hf"])
@pytest.mark.parametrize("beta", [None, 0.03])
def test_without_an_inner_step_it_is_fedavg_to_the_bit(order, beta):
    problem = quadratics(3, samples=5)
    meta = trained(PerFedAvg(alpha=0.0, beta=beta, order=order), problem)
    avg = trained(FedAvg(), problem, **{**PASSES, "lr": beta or PASSES["lr"]})
    assert torch.equal(meta.server, avg.server)


def test_an_inner_step_changes_the_outcome_and_its_batches_are_its_own():
    problem = quadratics(2, samples=6)
    batches = []

    class Watched(Quadratics):
        def gradient(self, W, indices, *args, **keywords):
            batches.append(indices[0].tolist())
            return super().gradient(W, indices, *args, **keywords)

    run = Federation(PerFedAvg(alpha=0.1).method(), Watched(problem.targets, problem.rows))
    run.round(a_round(batch_size=2), ids=(0,))
    adapting, (inner, outer) = batches[0], (batches[1::2], batches[2::2])
    assert len(adapting) == 2
    assert len(inner) == len(outer) == 3
    assert (
        sorted(i for b in inner for i in b) == sorted(i for b in outer for i in b) == list(range(6))
    )
    assert inner != outer


@pytest.mark.parametrize("order", ["first", "hf"])
def test_it_converges_to_the_optimum_of_its_objective(order):
    """With Hessian 1, F_i(w - alpha g_i) = (1 - alpha)^2 F_i + const: the optimum is the mean of
    all samples.
    """
    problem = quadratics(3, samples=4)
    run = trained(PerFedAvg(alpha=0.1, beta=0.3, order=order), problem, 119, lr=0.1)
    assert_close(run.server, problem.targets.mean(0), atol=1e-8, rtol=0)


def test_curvature_is_the_hessian_times_a_vector():
    """Quadratics have Hessian 1: the product is z itself, and 0 for z = 0."""
    problem = quadratics(2, samples=3)
    training = LocalTraining(problem, (0, 1), None, a_round())
    batch = Batch([torch.tensor([0, 1]), torch.tensor([3])], "curvature", 0)
    z = torch.tensor([[1.0, -2.0, 30.0, 0.0, 0.5], [0.0] * 5], dtype=torch.float64)
    assert_close(curvature(training, problem.targets[:2].clone(), z, batch), z)
