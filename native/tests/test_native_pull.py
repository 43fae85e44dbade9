"""Steps of the native engine with a pull, on part of a row, and above frozen layers: against
float64.
"""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from native_checks import KINDS, native, objective_of
from pomona.core.round import Round
from pomona.core.training_settings import Optimizer
from pomona.models import ModelSettings, build
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.batches import View
from pomona.objective.dataset import DeviceDataset
from pomona.objective.objective import ConstantFeatures, Mixture, Pull

LR = 0.05


class Problem:
    """A small convolutional network and images; the gradient of a row in float64 by PyTorch."""

    def __init__(self, variant="", model="small", bf16=False):
        self.module = build(ModelSettings(name=model), (3, 20, 20), 3, seed=2)
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (30, 20, 20, 3), generator=draw, dtype=torch.uint8)
        shift, scale = torch.full((3,), 127.5), torch.full((3,), 70.0)
        self.data = DeviceDataset(
            x, torch.arange(30) % 3, shift, scale, {"train": [torch.arange(30)]}, "classes"
        )
        self.space = ParameterSpace(self.module)
        self.loop = objective_of(self.module, self.data, variant, bf16)
        self.W = torch.stack(
            [self.space.pack(self.module), torch.randn(self.space.size, generator=draw) / 20]
        )
        self.batch = [torch.arange(6), torch.arange(9, 20)]
        self.near, self.beside = (
            torch.randn(2, self.space.size, generator=draw) / 10 for _ in range(2)
        )

    def gradient(self, row, index):
        leaf = row.double().clone().requires_grad_()
        parameters = {e.name: e.view(leaf) for e in self.space.parameters}
        x, y = self.data.gather(index)
        outputs = torch.func.functional_call(self.module.double(), parameters, (x.double(),))
        loss = nn.functional.cross_entropy(outputs, y)
        (g,) = torch.autograd.grad(loss, leaf)
        self.module.float()
        return loss.item(), g

    def gradients(self, W):
        losses, G = zip(*map(self.gradient, W, self.batch), strict=True)
        return torch.tensor(losses), torch.stack(G)


def round_of(momentum=0.0, decay=0.0):
    return Round(1, 1, LR, LR, 1.0, 1, 6, momentum, decay, 0, Optimizer())


@pytest.mark.parametrize("variant", KINDS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("terms", [(0.3, True, False), (0.0, False, True), (0.3, True, True)])
def test_a_pull_is_part_of_the_gradient(variant, momentum, terms):
    problem, (weight, proximal, constant) = Problem(variant), terms
    pull = Pull(weight, problem.near if proximal else None, problem.beside if constant else None)
    W, v = problem.W.clone(), torch.zeros_like(problem.W) if momentum else problem.W[:, :0]
    expected, speed = problem.W.double(), torch.zeros_like(problem.W, dtype=torch.float64)
    for _ in range(2):
        losses = problem.loop.step(W, problem.batch, v, round_of(momentum, 0.01), pull=pull)
        expected_losses, g = problem.gradients(expected)
        assert_close(losses.double(), expected_losses.double(), atol=1e-5, rtol=1e-5)
        extra = (weight * (expected - problem.near) if proximal else 0) + (
            problem.beside.double() if constant else 0
        )
        speed = momentum * speed + g + extra + 0.01 * expected
        expected = expected - LR * speed
    assert_close(W.double(), expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("variant", KINDS)
def test_a_part_moves_alone(variant, momentum):
    problem = Problem(variant, "lenet")
    first, second, third, last = problem.loop.layers
    for block in (first, slice(second.start, third.stop), last):
        W = problem.W.clone()
        v = torch.full_like(W[:, block], 0.01) if momentum else W[:, :0]
        losses = problem.loop.step(W, problem.batch, v, round_of(momentum), block=block)
        expected_losses, g = problem.gradients(problem.W)
        assert_close(losses.double(), expected_losses.double(), atol=1e-5, rtol=1e-5)
        expected = problem.W.double()
        expected[:, block] -= LR * (g[:, block] + momentum * 0.01)
        assert_close(W.double(), expected, atol=2e-6, rtol=2e-6)
        lower, upper = slice(0, block.start), slice(block.stop, None)
        assert torch.equal(W[:, lower], problem.W[:, lower])
        assert torch.equal(W[:, upper], problem.W[:, upper])
        if momentum:
            assert_close(v.double(), g[:, block] + momentum * 0.01, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("model", ["lenet", "small"])
def test_features_that_stay_give_the_same_bits(model, bf16):
    problem = Problem(KINDS[0], model, bf16)
    for layer in problem.loop.layers:
        above, cache = layer.start, ConstantFeatures()
        views = [View(c, 0, 1, "ala", 0) for c in (0, 1)]
        for change in (0.0, 0.1):
            W = problem.W.clone()
            W[:, above:] += change
            uncached = problem.loop.gradient(W, problem.batch, above=above, views=views)
            cached = problem.loop.gradient(W, problem.batch, above=above, views=views, cache=cache)
            assert torch.equal(cached[0], uncached[0])
            assert torch.equal(cached[1], uncached[1])


def test_features_are_those_that_came_first():
    problem, cache, views = Problem(), ConstantFeatures(), [View(c, 0, 1, "ala", 0) for c in (0, 1)]
    above = problem.loop.layers[-1].start
    first = problem.loop.gradient(problem.W, problem.batch, above=above, views=views, cache=cache)
    changed = problem.W.clone()
    changed[:, :above] += 1
    assert torch.equal(
        problem.loop.gradient(changed, problem.batch, above=above, views=views, cache=cache)[1],
        first[1],
    )
    assert not torch.equal(
        problem.loop.gradient(changed, problem.batch, above=above, views=views)[1], first[1]
    )


@pytest.mark.parametrize("shared", [True, False])
def test_slopes_are_finite_differences_of_the_loss_in_the_weights(shared):
    """In float64, whose differences at 1e-5 are exact to some 1e-9."""
    problem, draw = Problem(), torch.Generator().manual_seed(4)
    N, d = 4, problem.space.size
    copies = torch.randn(N, d, generator=draw) / 20
    stored = copies if shared else torch.stack([copies, copies.flip(0)])
    p, cores = torch.rand(2, N, generator=draw), problem.W.clone()
    mask = nn.functional.one_hot(torch.tensor([1, 3]), N).bool()
    losses, slopes = problem.loop.mixed_step(
        Mixture(p, mask, stored, cores), problem.batch, cores[:, :0], round_of()
    )

    def value(weights, k):
        mixture = Mixture(weights, mask, stored.double(), problem.W.double())
        return problem.gradient(mixture.rows()[k], problem.batch[k])

    for k in range(2):
        loss, g = value(p.double(), k)
        assert losses[k].item() == pytest.approx(loss, abs=1e-5)
        assert_close(
            cores[k].double(), problem.W[k] - LR * p[k, mask[k]].double() * g, atol=2e-6, rtol=2e-6
        )
        for j in range(N):
            raised, lowered = p.double().clone(), p.double().clone()
            raised[k, j] += 1e-5
            lowered[k, j] -= 1e-5
            difference = (value(raised, k)[0] - value(lowered, k)[0]) / 2e-5
            assert slopes[k, j].item() == pytest.approx(difference, abs=1e-4)


def small_network():
    """A small network and valid arguments of a step."""
    network = native.load(KINDS[0]).Network(4, 5, 2)
    network.convolution(3, (2, 2), (1, 1), (0, 0), (2, 2), (1, 2), True, 0, 24)
    network.linear(3, False, 27, 27 + 36)
    return network, {
        "rows": torch.zeros(1, 66), "moments": torch.zeros(1, 66), "x": torch.zeros(6, 4, 5, 2, dtype=torch.uint8),
        "index": torch.tensor([5, 0]), "counts": [2], "targets": torch.tensor([2, 0]), "shift": torch.zeros(2), "scale": torch.ones(1),
        "bf16": False, "lr": 0.1, "momentum": 0.0, "decay": 0.0, "pull": 0.5, "centre": torch.zeros(1, 66),
        "constant": torch.zeros(1, 66), "part": (0, 66), "skipped": 0,
    }  # fmt: skip


def test_without_a_centre_and_a_constant_a_pull_is_nothing():
    w = torch.ones(2, 3)
    assert torch.equal(Pull()(w), torch.zeros(2, 3))
    assert torch.equal(Pull(2.0, torch.full((3, 3), 0.5), w)(w), torch.full((2, 3), 2 * 0.5 + 1))


@pytest.mark.parametrize(
    "spoilt",
    [
        {"centre": torch.zeros(1, 65)},
        {"centre": torch.zeros(0, 66)},
        {"constant": torch.zeros(1, 65)},
        {"constant": torch.zeros(1, 132)[:, ::2]},
        {"constant": torch.zeros(1, 66, dtype=torch.float64)},
        {"part": (-1, 5)},
        {"part": (7, 6)},
        {"part": (0, 67)},
        {"momentum": 0.5, "moments": torch.zeros(1, 65)},
        {"momentum": 0.5, "moments": torch.zeros(2, 66)},
        {"momentum": 0.5, "moments": torch.zeros(1, 9), "part": (50, 60)},
        {"skipped": 2},
    ],
)
def test_the_door_to_steps_refuses(spoilt):
    network, good = small_network()
    network.step(**good)
    network.step(**(good | {"momentum": 0.5, "moments": torch.zeros(1, 10), "part": (50, 60)}))
    with pytest.raises((ValueError, TypeError)):
        network.step(**(good | spoilt))


ROOM = torch.zeros(1, 100)  # for rows that share memory


@pytest.mark.parametrize(
    "shared",
    [
        {"rows": ROOM[:, :66], "centre": ROOM[:, :66]},
        {"rows": ROOM[:, :66], "constant": ROOM[:, 30:96]},
        {"rows": ROOM[:, :66], "momentum": 0.5, "moments": ROOM[:, :66]},
        {"moments": ROOM[:, :66], "momentum": 0.5, "centre": ROOM[:, :66]},
        {"rows": ROOM[:, :66], "x": ROOM[:, :40].view(1, 4, 5, 2), "index": torch.tensor([0, 0])},
    ],
)
def test_the_door_to_steps_refuses_to_write_over_what_it_reads(shared):
    network, good = small_network()
    with pytest.raises(ValueError, match="shares memory"):
        network.step(**(good | shared))
    # unused without momentum
    network.step(**(good | {"rows": ROOM[:, :66], "moments": ROOM[:, :66]}))
    network.step(**(good | {"centre": ROOM[:, :66], "constant": ROOM[:, :66]}))  # read alone
