"""FedTGP: two rounds in plain PyTorch modules, its margin, and classes that nobody has."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.testing import assert_close

from plain_pytorch import Plain, assert_same, pull, step
from pomona.core.rng import stream
from pomona.methods.base import Initial
from pomona.methods.prototypes.fedtgp import FedTGP, contrast, largest_margin
from pomona.testing import Federation, class_points
from problems import PASSES, a_round

pytestmark = pytest.mark.long

SERVER = {"server_epochs": 7, "server_lr": 0.2, "server_batch_size": 3}


class Generator(nn.Module):
    """The trainable prototypes as modules, with a state's values."""

    def __init__(self, state):
        super().__init__()
        K, f = state.e.shape
        self.embedding, self.hidden, self.out = nn.Embedding(K, f), nn.Linear(f, f), nn.Linear(f, f)
        parameters = self.embedding.weight, *self.hidden.parameters(), *self.out.parameters()
        for parameter, value in zip(
            parameters, (state.e, state.U, state.u, state.V, state.v), strict=True
        ):
            parameter.data.copy_(value)

    def forward(self):
        return self.out(self.hidden(self.embedding.weight).relu())


def margin_of(client_means, tau):
    """max_k min_l |Q_k - Q_l|, in loops over dictionaries."""
    Q = {}
    for k in {k for means in client_means for k in means}:
        of_class = [means[k] for means in client_means if k in means]
        Q[k] = sum(of_class) / len(of_class)
    nearest = [min(math.dist(Q[k].tolist(), Q[j].tolist()) for j in Q if j != k) for k in Q]
    return min(max(nearest), tau)


@pytest.mark.parametrize("tau", [100.0, 0.1])
def test_two_rounds_are_those_of_plain_pytorch(tau):
    plain = Plain("fedtgp", {"lambda": 3.0, "margin": tau, **SERVER})
    half = FedTGP(**SERVER).method().server
    space = plain.scenario.objective().space
    initial = Initial(lambda _: torch.zeros(space.size), (), head=space.head)
    generator = Generator(half.start(initial, None, plain.config.seed))
    models, C = plain.networks(), {}
    for number in (1, 2):
        for i, model in enumerate(models):
            steps = plain.sgd(model.parameters())
            for x, y in plain.batches(i, number):
                z = model[:-1](x)
                step(steps, cross_entropy(model[-1](z), y) + (3.0 * pull(z, y, C) if C else 0))
        means = [plain.means(model[:-1], i) for i, model in enumerate(models)]
        pairs = [(c, k) for by_class in means for k, c in by_class.items()]
        delta = margin_of(means, tau)
        steps = torch.optim.SGD(generator.parameters(), SERVER["server_lr"])
        draw = stream(plain.config.seed, "fedtgp", number)
        for _ in range(SERVER["server_epochs"]):
            order = draw.permutation(len(pairs))
            for start in range(0, len(order), 3):
                batch = [pairs[j] for j in order[start : start + 3]]
                c, y = torch.stack([pair[0] for pair in batch]), torch.tensor([k for _, k in batch])
                C = generator()
                squares = (c**2).sum(1, keepdim=True) - 2 * c @ C.T + (C**2).sum(1)
                step(steps, cross_entropy(-(squares.sqrt() + delta * one_hot(y, plain.K)), y))
        C = dict(enumerate(generator().detach()))
    result = plain.run()
    for i, model in enumerate(models):
        assert_same(result.models[i], model)


def test_the_margin_is_the_largest_of_the_distances_to_the_nearest_class():
    # Class 0 at 0 (the mean of -1 and 1), class 1 at 3, class 2 at 10: nearest 3, 3 and 7.
    c = torch.tensor([[-1.0], [1.0], [3.0], [10.0]])
    assert largest_margin(c, torch.tensor([0, 0, 1, 2])) == 7.0
    assert largest_margin(c[:2], torch.tensor([4, 4])) == math.inf


def test_a_class_mean_on_its_prototype_has_a_finite_gradient():
    C = torch.eye(2, requires_grad=True)
    loss = contrast(torch.eye(2)[:1], torch.tensor([0]), C, 1.0)
    assert_close(loss, torch.tensor(math.log(1 + math.exp(1 - math.sqrt(2)))))
    loss.backward()
    assert C.grad.isfinite().all()


def test_only_classes_of_the_cohorts_are_trained():
    problem = class_points(4, 2, 5)
    run = Federation(FedTGP(server_epochs=1).method(), problem)
    assert not run.server.trained.any()
    run.round(a_round(1, **PASSES))
    labels = torch.cat([problem.y[rows] for rows in problem.rows]).unique()
    assert run.server.trained.nonzero().flatten().tolist() == labels.tolist()
