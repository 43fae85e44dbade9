"""Inputs rebuilt from gradients, beside the inputs."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn

from pomona.audit import first_uplink
from pomona.models.parameter_space import ParameterSpace


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 3))


def stepped(module, x, y, steps, lr=0.1):
    """The change of a network's row by plain steps on one record."""
    space = ParameterSpace(module)
    row = space.pack(module)
    for _ in range(steps):
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.sub_(lr * parameter.grad)
    return space, row, space.pack(module) - row


@pytest.mark.parametrize("steps", [1, 5])
def test_one_record_follows_from_the_first_layer(steps):
    module, x = network(), torch.randn(1, 12)
    space, _, change = stepped(module, x, torch.tensor([1]), steps)
    weight, bias = first_uplink.first_linear(module, space, 12)
    record = first_uplink.closed_form(change[weight].view(7, 12), change[bias])
    assert torch.allclose(record, x[0], atol=1e-3)


def test_only_a_first_linear_layer_on_the_input_is_one():
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    assert first_uplink.first_linear(conv, ParameterSpace(conv), 16) is None
    bare = nn.Sequential(nn.Linear(12, 2, bias=False), nn.Linear(2, 2))
    assert first_uplink.first_linear(bare, ParameterSpace(bare), 12) is None


def test_the_gradient_is_that_of_the_loss_at_the_known_places():
    module, x, y = network(), torch.randn(3, 12), torch.tensor([0, 2, 1])
    space = ParameterSpace(module)
    row = space.pack(module)
    nn.functional.cross_entropy(module(x), y).backward()
    numbers = torch.arange(91, space.trained)  # the last layer
    loss = lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none")  # noqa: E731
    gradient = first_uplink.gradient_of(module, space, row, loss, y, numbers)(x)
    exact = torch.cat([p.grad.flatten() for p in module[3].parameters()])
    assert torch.allclose(gradient, exact, atol=1e-6)
    gradients = torch.cat([p.grad.flatten() for p in module.parameters()])
    assert torch.allclose(first_uplink.ordered(space, gradients[numbers], numbers), exact)


@pytest.mark.long
def test_a_search_finds_the_record():
    module, x, y = network(), torch.randn(1, 12).clamp(-2, 2), torch.tensor([1])
    space, start_row, change = stepped(module, x, y, 1)
    loss = lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none")  # noqa: E731
    gradient = first_uplink.gradient_of(
        module, space, start_row, loss, y, torch.arange(space.trained)
    )
    limits = -2 * torch.ones(12), 2 * torch.ones(12)
    draw = torch.Generator().manual_seed(0)
    record = first_uplink.by_cosine(gradient, -change, x.shape, limits, draw, steps=200)
    match = first_uplink.matched(record, x, torch.cat([x, torch.randn(30, 12)]))
    assert match.likeness[0] > 0.9
    assert match.recognised[0]
    # and noise is no record
    noise = first_uplink.by_cosine(
        gradient, torch.randn(space.trained), x.shape, limits, draw, steps=50
    )
    assert not first_uplink.matched(noise, x, torch.cat([x, record, noise + 0.1])).recognised[0]


def test_the_matching_is_the_best_of_all():
    draw = torch.Generator().manual_seed(1)
    truth, guesses = torch.randn(4, 5, generator=draw), torch.randn(4, 5, generator=draw)
    match = first_uplink.matched(guesses, truth, truth)
    cost = lambda order: sum(float((truth[i] - guesses[k]).norm()) for i, k in enumerate(order))  # noqa: E731
    assert cost(match.order) == pytest.approx(min(map(cost, permutations(range(4)))))
    first = match.order[0]
    assert match.likeness[0] == pytest.approx(np.corrcoef(truth[0], guesses[first])[0, 1], abs=1e-5)
    nearest = int((truth - guesses[first]).norm(dim=1).argmin())
    assert match.recognised[0] == (nearest == 0)


def test_total_variation_is_the_mean_step_between_neighbours():
    x = torch.arange(6.0).view(1, 1, 2, 3)
    assert float(first_uplink.total_variation(x)) == pytest.approx(3 + 1)
    assert float(first_uplink.total_variation(torch.ones(2, 3))) == 0
