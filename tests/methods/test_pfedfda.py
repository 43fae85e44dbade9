"""pFedFDA: two rounds in plain PyTorch, Bayes' rule, folds, and what a covariance must be."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch.distributions import MultivariateNormal
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from plain_pytorch import Plain, averaged, step
from pomona.methods.prototypes.pfedfda import Gaussians, PFedFDA, beta, estimated, invalid, shares
from pomona.testing import Federation, class_points
from problems import a_round

SMALL = 1e-4


def posterior(z, means, covariance, p):
    """log p(class | z) of Gaussian features, up to what all classes share."""
    f = len(covariance)
    T = (1 - SMALL) * covariance + SMALL * covariance.trace() / f * torch.eye(f).double()
    terms = [MultivariateNormal(m, T).log_prob(z) + q.log() for m, q in zip(means, p, strict=True)]
    return torch.stack(terms, 1).log_softmax(1)


def own_statistics(z, y, means, ridge):
    """A client's means, those of all without samples, and its covariance around them."""
    centres = torch.stack([z[y == k].mean(0) if (y == k).any() else m for k, m in enumerate(means)])
    return centres, torch.cov((z - centres[y]).T) + ridge * torch.eye(z.shape[1]).double()


def fold(y):
    """Each sample's fold, by its place among those of its class; -1 for a class of one."""
    count, turns = {}, []
    for k in y.tolist():
        count[k] = count.get(k, 0) + 1
        turns.append(count[k] % 2)
    return torch.tensor([p if count[int(k)] > 1 else -1 for p, k in zip(turns, y, strict=True)])


def mixed(b, statistics, common):
    return [b * a + (1 - b) * c for a, c in zip(statistics, common, strict=True)]


def adapted(z, y, common, p, ridge):
    """b and the statistics drawn to those of all."""
    folds = fold(y)
    halves = [own_statistics(z[folds == k], y[folds == k], common[0], ridge) for k in (0, 1)]

    def loss(b):
        return sum(
            -posterior(z[folds == 1 - k], *mixed(b, halves[k], common), p)
            .gather(1, y[folds == 1 - k].unsqueeze(1))
            .mean()
            for k in (0, 1)
        ).item()

    nearest = min(np.linspace(0, 1, 11), key=loss)
    span = max(nearest - 0.1, 0), min(nearest + 0.1, 1)
    b = minimize_scalar(loss, bounds=span, method="bounded", options={"xatol": 1e-9}).x
    b = min((0.0, 1.0, b), key=loss)
    return b, mixed(b, own_statistics(z, y, common[0], ridge), common)


@pytest.mark.long
def test_two_rounds_are_those_of_plain_pytorch():
    plain = Plain("pfedfda", {"ridge": 0.1}, lr=0.1)
    models, share = plain.networks(), [size / sum(plain.n) for size in plain.n]
    shared, f = deepcopy(models[0][:-1].state_dict()), plain.f
    common = [models[0][-1].weight.detach().double().clone(), torch.eye(f).double()]
    betas = []
    for number in (1, 2):
        uplinks = []
        for i, model in enumerate(models):
            model[:-1].load_state_dict(shared)
            p = torch.tensor([plain.counts(i).get(k, 0) / plain.n[i] + SMALL for k in range(10)])
            p = (p / p.sum()).double()
            rows, steps = plain.own[i], plain.sgd(model[:-1].parameters())
            for x, y in plain.batches(i, number):
                logits = posterior(model[:-1](x).double(), *common, p)
                step(steps, cross_entropy(logits, y))
            with torch.no_grad():
                z = model[:-1](plain.x[rows]).double()
                b, statistics = adapted(z, plain.y[rows], common, p, 0.1)
                betas.append(b)
                uplinks.append(statistics)
                test = plain.tests[i]
                answers = posterior(model[:-1](plain.x[test]).double(), *statistics, p)
                model.loss = float(cross_entropy(answers, plain.y[test]))
        shared = averaged([m[:-1] for m in models], share)
        common = [sum(s * u[k] for s, u in zip(share, uplinks, strict=True)) for k in (0, 1)]
    assert any(0.01 < b < 0.99 for b in betas), betas
    result = plain.run()
    losses = result.curve("personal", "trained")[-1].loss
    assert losses == pytest.approx([model.loss for model in models], rel=1e-5)
    trained = result.rounds[-1].info["beta"]
    assert np.ravel(trained) == pytest.approx(betas[-len(models) :], abs=1e-4)


def points(n, K, f, seed=0):
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(K, (n,), generator=draw)
    z = torch.randn(n, f, generator=draw, dtype=torch.float64) + 2 * torch.eye(K, f).double()[y]
    return z, y


def test_the_head_is_bayes_rule():
    z, y = points(40, 3, 4)
    common = Gaussians(torch.zeros(3, 4).double(), torch.eye(4).double())
    fitted = estimated(z, y, common, 0.1)
    p = shares(torch.bincount(y), 3)
    weight, bias = fitted.head(p)
    ours = (z @ weight.T + bias).log_softmax(1)
    assert_close(ours, posterior(z, fitted.means, fitted.covariance, p))


@pytest.mark.parametrize("count", [1, 2])
def test_own_statistics_count_where_they_answer_better(count):
    """Many samples far from the means of all: b is 1, or near; without a pair of samples it is 0."""
    z, y = points(400, 3, 4)
    distant = Gaussians(torch.zeros(3, 4).double() - 5, 9 * torch.eye(4).double())
    settings = PFedFDA(betas=count, ridge=0.1)
    b = beta(z, y, distant, settings)
    assert b.shape == (count,)
    assert b[0] > 0.9
    classes = torch.tensor([0, 1, 2])
    assert not beta(z[:3], classes, distant, settings).any()


def test_statistics_of_all_are_used_where_they_are_the_truth():
    z, y = points(12, 3, 4)
    truth = Gaussians(2 * torch.eye(3, 4).double(), torch.eye(4).double())
    assert beta(z, y, truth, PFedFDA(ridge=5.0))[0] < 0.3


def test_a_class_without_samples_keeps_the_mean_of_all():
    z, y = points(20, 2, 4)
    common = Gaussians(torch.ones(3, 4).double(), torch.eye(4).double())
    fitted = estimated(z, y, common, 1.0)
    assert torch.equal(fitted.means[2], common.means[2])
    assert_close(fitted.means[0], z[y == 0].mean(0))
    single_sample = estimated(z[:1], y[:1], common, 1.0)
    assert torch.equal(single_sample.covariance, torch.eye(4).double())


def test_what_is_no_covariance_is_refused():
    good = torch.tensor([[2.0, 1], [1, 2]])
    assert invalid({"covariance": good.flatten()}) is None
    for bad in ([[1.0, 2], [2, 1]], [[2.0, 1], [-1, 2]], [[-1.0, 0], [0, -1]]):
        assert "covariance" in invalid({"covariance": torch.tensor(bad).flatten()})


def test_the_server_takes_means_by_samples():
    run = Federation(PFedFDA().method(), class_points(6, 3, 3))
    run.round(a_round())
    p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    for name, state in (
        ("model", run.server.body),
        ("class_means", run.server.means.flatten()),
        ("covariance", run.server.covariance.flatten()),
    ):
        assert_close(p @ torch.stack([r.uplink[name] for r in run.replies]), state)
