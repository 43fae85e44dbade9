"""Ditto and MR-MTL with a discrepancy of features: rounds in plain PyTorch, with sums over pairs."""

from copy import deepcopy

import pytest
import torch
from torch.nn.functional import cross_entropy

from plain_pytorch import Plain, assert_same, averaged, step
from pomona.methods import METHODS

WEIGHTS = {"lambda": 0.5, "feature_weight": 0.2}


def kernels(a, b, width):
    """The sum over five Gaussians, of one pair."""
    return sum(torch.exp(-((a - b) ** 2).sum() / (width * s)) for s in (0.25, 0.5, 1.0, 2.0, 4.0))


def mmd(x, y, width):
    def mean(first, second):
        return sum(kernels(a, b, width) for a in first for b in second) / len(first) / len(second)

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def mean_distance(features):
    pairs = [((a - b) ** 2).sum() for i, a in enumerate(features) for b in features[:i]]
    return sum(pairs) / len(pairs)


def regularised_round(plain, model, common, client, number):
    """A round of one client's model, held to a fixed one by weights and by features."""
    steps = plain.sgd(model.parameters())
    width = mean_distance(common[:-1](plain.x[plain.own[client]]).detach())
    for x, y in plain.batches(client, number):
        pairs = zip(model.parameters(), common.parameters(), strict=True)
        distance = sum(((a - b.detach()) ** 2).sum() for a, b in pairs)
        z, fixed = model[:-1](x), common[:-1](x).detach()
        loss = cross_entropy(model[-1](z), y) + 0.5 / 2 * distance + 0.2 * mmd(z, fixed, width)
        step(steps, loss)


@pytest.mark.long
@pytest.mark.parametrize("name", ["ditto", "mr-mtl"])
def test_two_rounds_are_those_of_plain_pytorch(name):
    plain = Plain(name, WEIGHTS, lr=0.05, local_epochs=1)
    p = [n / sum(plain.n) for n in plain.n]
    models, shared = plain.networks(), plain.networks()
    for number in (1, 2):
        common = deepcopy(models[0])
        common.load_state_dict(averaged(shared, p))
        for i, model in enumerate(models):
            regularised_round(plain, model, common, i, number)
            if name == "mr-mtl":
                shared[i].load_state_dict(model.state_dict())
                continue
            shared[i].load_state_dict(common.state_dict())
            steps = plain.sgd(shared[i].parameters())
            for x, y in plain.batches(i, number):
                step(steps, cross_entropy(shared[i](x), y))
    result = plain.run()
    for i, model in enumerate(models):
        assert_same(result.models[i], model)


@pytest.mark.parametrize("name", ["ditto", "mr-mtl"])
def test_only_with_features_there_is_a_release(name):
    releases = [METHODS[name](**w).method().card.privacy.releases for w in ({}, WEIGHTS)]
    assert not releases[0]
    assert [release.name for release in releases[1]] == ["output-criterion"]
