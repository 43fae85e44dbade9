"""FedDBE: three rounds in plain PyTorch with a bias of its own, the chain rule, and its reductions to
FedAvg.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import pomona
from plain_pytorch import Plain, assert_same, averaged, step
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.shared_parts.feddbe import FedDBE, split_gradient, with_bias
from pomona.testing import Federation, class_points
from problems import PASSES, a_round, tiny

pytestmark = pytest.mark.long


@pytest.mark.parametrize("mu", [1.0, 0.3])
def test_three_rounds_are_those_of_plain_pytorch(mu):
    """The bias is a parameter before the head; the model that is evaluated has it in the head's."""
    plain = Plain("feddbe", {"kappa": 2.0, "mu": mu}, rounds=3)
    n, p = len(plain.own), [size / sum(plain.n) for size in plain.n]
    models, mean = plain.networks(), None
    biases = [torch.zeros(plain.f, requires_grad=True) for _ in range(n)]
    for number in (1, 2, 3):
        common, client_means = averaged(models, p), []
        for i, model in enumerate(models):
            model.load_state_dict(common)
            trained = [*model.parameters(), *([biases[i]] if mean is not None else [])]
            steps, running = plain.sgd(trained), torch.zeros(plain.f)
            for x, y in plain.batches(i, number):
                z = model[:-1](x)
                running = (1 - mu) * running.detach() + mu * z.mean(0)
                if mean is None:
                    loss = cross_entropy(model[-1](z), y)
                else:
                    distance = ((running - mean) ** 2).sum() / plain.f
                    loss = cross_entropy(model[-1](z + biases[i]), y) + 2.0 / 2 * distance
                step(steps, loss)
            client_means.append(running.detach())
        if mean is None:
            mean = sum(w * m for w, m in zip(p, client_means, strict=True))
    result = plain.run()
    for i, b in enumerate(biases):  # the headline model is what comes after the last round
        personal = plain.networks()[0]
        personal.load_state_dict(averaged(models, p))
        with torch.no_grad():
            personal[-1].bias += personal[-1].weight @ b
        assert b.abs().max() > 1e-3
        assert_same(result.models[i], personal)


def test_without_pull_and_bias_it_is_fedavg_to_the_bit():
    settings = {"kappa": 0.0, "bias": False}
    runs = [pomona.run(tiny(*case)) for case in (("feddbe", settings), ("fedavg",))]
    curves = [[e.loss for e in run.curve("global", "received")] for run in runs]
    assert curves[0] == curves[1]
    problem = class_points(4, 2, 5)
    dbe, avg = (Federation(s.method(), problem) for s in (FedDBE(**settings), FedAvg()))
    for number in (1, 2, 3):
        dbe.round(a_round(number, **PASSES))
        avg.round(a_round(number, **PASSES))
        for model, when in (("global", "received"), ("local", "trained")):
            assert torch.equal(dbe.model(1, model, when), avg.model(1, model, when))
        assert torch.equal(dbe.model(1, "personal", "trained"), avg.model(1, "local", "trained"))
    assert torch.equal(dbe.server, avg.server)


def test_the_first_round_is_fedavgs_and_measures_the_mean_that_stays():
    problem = class_points(4, 6)
    dbe, avg = (Federation(s.method(), problem) for s in (FedDBE(kappa=5.0), FedAvg()))
    for run in (dbe, avg):
        run.round(a_round(1, **PASSES))
    assert torch.equal(dbe.server.model, avg.server)
    assert not any(dbe.state(i).bias.any() for i in (0, 1))
    means = [reply.uplink["mean_feature"] for reply in dbe.replies]
    assert_close(dbe.server.mean, 0.4 * means[0] + 0.6 * means[1])
    mean = dbe.server.mean.clone()
    dbe.round(a_round(2, **PASSES))
    assert torch.equal(dbe.server.mean, mean)
    assert not any(reply.uplink["mean_feature"].any() for reply in dbe.replies)
    assert all(dbe.state(i).bias.any() for i in (0, 1))


def test_the_slopes_at_model_and_bias_are_those_of_the_network_with_a_bias():
    problem = class_points(6)
    draw = torch.Generator().manual_seed(4)
    W = torch.randn(1, problem.size, generator=draw, dtype=torch.float64)
    B = torch.randn(1, 4, generator=draw, dtype=torch.float64)
    index = [torch.tensor(problem.rows[0])]
    _, G = problem.gradient(with_bias(W, B, problem.head), index)
    at_bias = split_gradient(G, W, B, problem.head)

    def value(w, b):
        weight, bias = (t[0] for t in problem.head.view(w.unsqueeze(0)))
        z = problem._forward(w, index[0])[1] + b
        return problem.criterion(z @ weight.T + bias, problem.y[index[0]]).mean()

    w, b = W[0].clone().requires_grad_(), B[0].clone().requires_grad_()
    at_w, at_b = torch.autograd.grad(value(w, b), (w, b))
    assert_close(G[0], at_w)
    assert_close(at_bias[0], at_b)


def test_kappa_needs_no_release_where_it_is_none():
    assert FedDBE(kappa=0.0).method().card.privacy.releases == ()
    assert {r.name for r in FedDBE().method().card.privacy.releases} == {
        "class-means",
        "output-criterion",
    }
