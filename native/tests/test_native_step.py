"""The native engine against float64 autograd, and the inputs that it refuses."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from native_checks import (
    KINDS,
    close,
    exactly,
    gradient,
    native,
    objective_of,
    outputs,
    refusal,
    samples,
    step_of,
)
from pomona.core.round import Round
from pomona.core.training_settings import Adam, Optimizer
from pomona.models import ModelSettings, build
from pomona.models.losses import cross_entropy
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.dataset import DeviceDataset
from pomona.objective.optimizer_step import optimizer_state, optimizer_step
from pomona.objective.pytorch import TorchObjective

HEAD = nn.Flatten(), nn.Linear(2, 2)


@pytest.mark.parametrize("variant", KINDS)
@pytest.mark.parametrize("batch", [1, 10, 33])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("mlp", (28, 28, 1)),
        ("mlp", (5, 7, 3)),
        ("logistic", (13,)),
        ("lenet", (28, 28, 1)),
        ("cnn", (28, 28, 1)),
        ("cnn", (32, 32, 3)),
        ("mcmahan-cnn", (28, 28, 1)),
        ("fomo-cnn", (32, 32, 3)),
        ("lenet5", (32, 32, 3)),
        ("small", (9, 11, 2)),
    ],
)
def test_gradients_are_those_of_float64(model, shape, batch, variant):
    channels_first = (shape[-1], *shape[:-1])
    module = build(ModelSettings(name=model), channels_first, 3, seed=1)
    data = samples(40, shape, seed=batch)
    close(
        module,
        data,
        torch.randperm(40, generator=torch.Generator().manual_seed(batch))[:batch],
        variant,
    )


sizes = st.tuples(st.integers(1, 4), st.integers(1, 4))


@pytest.mark.long
@given(
    st.integers(1, 3), st.integers(1, 20) | st.sampled_from([32, 64]), st.sampled_from([5, 33, 70]),
    *[sizes] * 2, st.tuples(*[st.integers(0, 2)] * 2), *[sizes] * 2, *[st.booleans()] * 2, st.integers(5, 12), st.sampled_from(KINDS),
)  # fmt: skip
@settings(max_examples=120)
def test_geometry_is_pytorchs(
    channels, width, outputs, kernel, stride, padding, window, hop, rectified, bias, side, variant
):
    """Two convolutions, so that one passes gradients on, with pooling that may overlap or leave
    gaps; of short runs, and of many vectors in several pieces and blocks of outputs.

    Of small whole numbers: both sides agree exactly on which is largest in a window, and which are
    above zero.
    """
    layers = [
        nn.Conv2d(channels, width, 2, bias=bias),
        *([nn.ReLU()] if rectified else []),
        nn.Conv2d(width, outputs, kernel, stride, padding, bias=bias),
        nn.MaxPool2d(window, hop),
        nn.ReLU(),
        nn.Flatten(),
    ]
    draw = torch.Generator().manual_seed(channels + 10 * width)
    if stride == (1, 1) and kernel in ((3, 3), (5, 5)):
        outputs = min(outputs, 15)  # few enough to be summed in order: Winograd's have thirds
        layers[-4] = nn.Conv2d(width, outputs, kernel, stride, padding, bias=bias)
    try:
        features = nn.Sequential(*layers)(torch.zeros(1, channels, side, side + 3)).shape[1]
    except RuntimeError:
        return  # larger than the image
    module = nn.Sequential(*layers, nn.Linear(features, 4, bias=bias))
    for parameter in module.parameters():
        parameter.data = torch.randint(-2, 3, parameter.shape, generator=draw).float()
    x = torch.randint(-2, 3, (6, side, side + 3, channels), generator=draw).float()
    data = DeviceDataset(x, torch.arange(6) % 3, torch.zeros(1), torch.ones(1), {}, "classes")
    index = torch.tensor([4, 0, 4])
    with torch.no_grad():  # by a power of two, so that no class is certain
        module[-1].weight /= (
            2 ** module(x[index].movedim(-1, 1)).abs().max().clamp_min(1).log2().ceil()
        )
    close(module, data, index, variant)


@given(
    st.sampled_from([3, 5]), st.integers(16, 40), st.integers(16, 40), st.integers(0, 2),
    st.integers(1, 2), st.integers(8, 20), st.integers(1, 3), st.sampled_from(KINDS),
)  # fmt: skip
@settings(max_examples=25)
def test_winograds_convolution_is_that_of_float64(
    kernel, inputs, channels, padding, window, side, batch, variant
):
    """Of tiles over the edge, and channels that fill no vector; an activation without kinks, so
    that rounding moves no gradient.
    """
    with torch.random.fork_rng():
        torch.manual_seed(inputs + 100 * channels)
        body = nn.Sequential(
            nn.Conv2d(2, inputs, 1), nn.Tanh(), nn.Conv2d(inputs, channels, kernel, 1, padding),
            nn.AvgPool2d(window), nn.Tanh(), nn.Flatten(),
        )  # fmt: skip
        features = body(torch.zeros(1, 2, side, side + 3)).shape[1]
        module = nn.Sequential(*body, nn.Linear(features, 3))
    data, index = samples(4, (side, side + 3, 2)), torch.arange(batch)
    close(module, data, index, variant)
    network, row = step_of(module, data, variant), ParameterSpace(module).pack(module)
    computed = outputs(network, row, index)
    # the same bits in any group of images
    assert torch.equal(outputs(network, row, index.flip(0)), computed.flip(0))
    assert torch.equal(outputs(network, row, index[:1]), computed[:1])
    expected = module.double()(data.gather(index)[0].double())
    assert_close(computed.double(), expected, atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("variant", KINDS)
def test_whole_numbers_are_computed_without_error(variant):
    """Sums of small whole numbers are exact in float32, so every output is."""
    draw = torch.Generator().manual_seed(3)
    module = build(ModelSettings(name="cnn"), (3, 18, 18), 7, seed=1)  # too small for Winograd's
    for parameter in module.parameters():
        parameter.data = torch.randint(-1, 2, parameter.shape, generator=draw).float()
    x = torch.randint(-1, 2, (9, 18, 18, 3), generator=draw).float()
    data = DeviceDataset(
        x, torch.arange(9) % 3, torch.zeros(1), torch.ones(1), {"train": []}, "classes"
    )
    index = torch.tensor([8, 1, 1, 5, 0])
    computed = outputs(step_of(module, data, variant), ParameterSpace(module).pack(module), index)
    assert torch.equal(computed.double(), module.double()(x[index].movedim(-1, 1).double()))


@pytest.mark.parametrize("variant", KINDS)
def test_bf16_rounds_the_factors_of_convolutions_and_linear_layers_and_nothing_else(variant):
    draw = torch.Generator().manual_seed(4)
    layers = (
        nn.Conv2d(4, 6, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 4 * 5, 5),
    )
    module = nn.Sequential(*layers)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw)
    data = samples(8, (8, 10, 4))
    x, y = data.gather(torch.arange(8))
    network, row = step_of(module, data, variant, bf16=True), ParameterSpace(module).pack(module)
    weight, bias = (p.detach().double() for p in layers[0].parameters())
    hidden = nn.functional.conv2d(
        x.bfloat16().double(), weight.bfloat16().double(), bias, padding=1
    )
    features = layers[3](nn.functional.max_pool2d(hidden, 2).relu())
    weight, bias = (p.detach().double() for p in layers[4].parameters())
    expected = nn.functional.linear(features.bfloat16().double(), weight.bfloat16().double(), bias)
    assert_close(outputs(network, row, torch.arange(8)).double(), expected, atol=1e-5, rtol=1e-5)
    g = torch.empty_like(row)
    loss = gradient(network, row, g, torch.arange(8))
    assert loss == pytest.approx(nn.functional.cross_entropy(expected, y).item(), abs=1e-5)
    exact = exactly(module, data, torch.arange(8))[1]
    # bf16 has 8 bits; a window's largest number may be another
    assert (g - exact).norm() <= 0.05 * exact.norm()


def sgd_round(momentum=0.0, decay=0.0):
    return Round(1, 1, 0.05, 0.05, 1.0, 1, 6, momentum, decay, 0, Optimizer())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_steps_are_those_of_pytorchs_sgd(momentum, decay):
    module = build(ModelSettings(name="small"), (3, 9, 9), 3, seed=2)
    data = samples(30, (9, 9, 3))
    space = ParameterSpace(module)
    loop = objective_of(module, data)
    W, moments = space.pack(module).unsqueeze(0), torch.zeros(1, space.size)
    round_ = sgd_round(momentum, decay)
    precise = nn.Sequential(
        *build(ModelSettings(name="small"), (3, 9, 9), 3, seed=2).double().children()
    )
    optimizer = torch.optim.SGD(
        precise.parameters(), lr=0.05, momentum=momentum, weight_decay=decay
    )
    for index in torch.arange(30).split(6):
        losses = loop.step(W, [index], moments if momentum else moments[:, :0], round_)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            precise(data.gather(index)[0].double()), data.target(index)
        )
        loss.backward()
        optimizer.step()
        assert losses[0].item() == pytest.approx(loss.item(), abs=1e-6)
    ours = torch.cat([e.view(W[0]).flatten() for e in space.parameters]).double()
    assert_close(
        ours, torch.cat([p.flatten() for p in precise.parameters()]).detach(), atol=2e-6, rtol=2e-6
    )


def test_a_step_of_another_optimizer_is_that_of_the_gradients():
    module, data = build(ModelSettings(name="small"), (3, 9, 9), 3, seed=2), samples(30, (9, 9, 3))
    space = ParameterSpace(module)
    W = space.pack(module).unsqueeze(0)
    objective = objective_of(module, data)
    batch, block = [torch.arange(6)], space.layers[-1]
    for optimizer in (Adam(name="adam"), Optimizer(max_grad_norm=1.0)):
        round_ = replace(sgd_round(), optimizer=optimizer)
        stepped, expected = W.clone(), W.clone()
        losses = objective.step(
            stepped, batch, optimizer_state(W[:, block], round_), round_, block=block
        )
        expected_losses, G = objective.gradient(W, batch, above=block.start)
        optimizer_step(
            expected[:, block], G[:, block], optimizer_state(W[:, block], round_), round_
        )
        assert torch.equal(losses, expected_losses)
        assert torch.equal(stepped, expected)
        assert not torch.equal(stepped, W)


def test_nothing_is_computed_below_what_is_asked_for():
    module, data = build(ModelSettings(name="cnn"), (3, 20, 20), 3, seed=1), samples(8, (20, 20, 3))
    loop = objective_of(module, data)
    W, batch = loop.space.pack(module).unsqueeze(0), [torch.arange(6)]
    loss, full_gradient = loop.gradient(W, batch)
    for layer in loop.layers:
        for above in (layer.start, layer.start + 1):
            partial_loss, upper_gradient = loop.gradient(W, batch, above=above)
            assert torch.equal(partial_loss, loss)
            assert torch.equal(upper_gradient[:, above:], full_gradient[:, above:])
            assert not upper_gradient[:, : layer.start].any()


@pytest.mark.parametrize("bf16", [False, True])
def test_a_sample_has_the_same_outputs_beside_any_others(bf16):
    module = build(ModelSettings(name="cnn"), (3, 20, 20), 3, seed=1)
    data = samples(40, (20, 20, 3))
    network, row = step_of(module, data, bf16=bf16), ParameterSpace(module).pack(module)
    batched = outputs(network, row, torch.arange(40))
    single = torch.cat([outputs(network, row, torch.tensor([i])) for i in range(40)])
    assert torch.equal(batched, single)
    assert outputs(network, row, torch.arange(0)).shape == (0, 3)


def test_outputs_are_those_of_any_number_of_samples():
    """Maps of 2^21 numbers: 64 samples are 2^27, what a call takes."""
    layers = (
        nn.Conv2d(1, 32, 1),
        nn.ReLU(),
        nn.Conv2d(32, 2, 8, 8),
        nn.Flatten(),
        nn.Linear(2 * 32 * 32, 3),
    )
    module, data = nn.Sequential(*layers), samples(2, (256, 256, 1))
    network = step_of(module, data)
    row = ParameterSpace(module).pack(module)
    index = torch.arange(65) % 2
    assert network.max_batch == 64
    assert torch.equal(outputs(network, row, index), outputs(network, row, torch.arange(2))[index])
    with pytest.raises(ValueError, match=r"2\^27"):
        network.measure(row, [index])
    with pytest.raises(ValueError, match=r"2\^27"):
        gradient(network, row, torch.empty_like(row), index)


def test_evaluation_and_features_are_pytorchs():
    module, data = build(ModelSettings(name="small"), (3, 9, 9), 3, seed=2), samples(30, (9, 9, 3))
    space = ParameterSpace(module)
    row = space.pack(module)
    by_torch = TorchObjective(module, space, data, cross_entropy)
    by_native = objective_of(module, data)
    assert_close(
        by_native.outputs(row, 0, "test")[0],
        by_torch.outputs(row, 0, "test")[0],
        atol=1e-5,
        rtol=1e-5,
    )
    assert_close(
        by_native.losses(row, 0, "test"), by_torch.losses(row, 0, "test"), atol=1e-5, rtol=1e-5
    )
    assert torch.equal(by_native.features(row, 0, "test"), by_torch.features(row, 0, "test"))
    doubled = lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none") * 2  # noqa: E731
    loss, G = by_native.gradient(row.unsqueeze(0), [torch.arange(5)], doubled)
    expected_loss, H = by_torch.gradient(row.unsqueeze(0), [torch.arange(5)], doubled)
    assert torch.equal(loss, expected_loss)
    assert torch.equal(G, H)


def test_a_diverged_model_has_no_finite_loss():
    module, data = build(ModelSettings(name="small"), (3, 9, 9), 3, seed=2), samples(8, (9, 9, 3))
    network, row = step_of(module, data), ParameterSpace(module).pack(module)
    row[7] = torch.nan
    assert not np.isfinite(gradient(network, row, torch.empty_like(row), torch.arange(4)))


@pytest.mark.parametrize(
    ("module", "shape", "reason"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.ELU(), nn.Linear(4, 2)), (4,), "ELU"),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (4,), "last layer"),
        (nn.Linear(4, 2), (4,), "get_attr"),
        (
            nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(8, 2)),
            (4, 4, 2),
            "Conv2d",
        ),
        (
            nn.Sequential(nn.Conv2d(2, 2, 3, dilation=2), nn.Flatten(), nn.Linear(2, 2)),
            (5, 5, 2),
            "Conv2d",
        ),
        (
            nn.Sequential(nn.Conv2d(2, 2, 1), nn.AvgPool2d(2, 2, ceil_mode=True), *HEAD),
            (2, 2, 2),
            "AvgPool",
        ),
        (nn.Sequential(nn.Linear(2, 2), nn.Flatten(), nn.Linear(8, 2)), (2, 2, 2), "Linear"),
    ],
)
def test_other_networks_are_left_to_pytorch(module, shape, reason):
    assert reason in refusal(module, samples(4, shape))


ALTERED = {
    "hook": lambda part: part.register_forward_hook(lambda *_: None),
    "hook before": lambda part: part.register_forward_pre_hook(lambda *_: None),
    "backward hook": lambda part: part.register_full_backward_hook(lambda *_: None),
    "forward": lambda part: setattr(part, "forward", lambda x: -x),
}


@pytest.mark.parametrize("alteration", ALTERED)
@pytest.mark.parametrize("position", ["the network", "layer 1"])
def test_a_network_that_computes_more_than_its_layers_say_is_left_to_pytorch(alteration, position):
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 12), nn.Linear(12, 3))
    data = samples(4, (2, 2, 3))
    step_of(module, data)
    ALTERED[alteration](module if position == "the network" else module[1])
    assert refusal(module, data) == f"{position} has a hook or overrides forward"


def test_other_losses_and_samples_are_left_to_pytorch():
    module, data = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), samples(4, (2, 2, 3))
    assert "cross-entropy" in refusal(module, data, criterion=nn.functional.cross_entropy)
    assert "float64" in refusal(module, samples(4, (2, 2, 3), dtype=np.float64))


class Door:
    """A small network with valid arguments, of which a test invalidates one."""

    def __init__(self):
        self.network = native.load(KINDS[0]).Network(4, 5, 2)
        self.network.convolution(3, (2, 2), (1, 1), (0, 0), (2, 2), (1, 2), True, 0, 24)
        self.network.linear(3, False, 27, 27 + 36)
        size = 27 + 36 + 3
        self.good = {
            "rows": torch.zeros(1, size), "gradients": torch.zeros(1, size),
            "x": torch.zeros(6, 4, 5, 2, dtype=torch.uint8), "index": torch.tensor([5, 0]), "counts": [2], "targets": torch.tensor([2, 0]), "shift": torch.zeros(2),
            "scale": torch.ones(1), "bf16": False, "skipped": 0,
        }  # fmt: skip

    def call(self, **spoilt):
        (loss,) = self.network.gradient(**(self.good | spoilt))
        return loss


@pytest.mark.parametrize(
    "spoilt",
    [
        {"rows": torch.zeros(1, 65)},
        {"gradients": torch.zeros(1, 65)},
        {"rows": torch.zeros(1, 66, dtype=torch.float64)},
        {"rows": torch.zeros(1, 132)[:, ::2]},
        {"gradients": torch.zeros(2, 66)},
        {"gradients": torch.zeros(66)},
        {"rows": torch.zeros(2, 66), "gradients": torch.zeros(2, 66)},
        {
            "rows": torch.zeros(1, 66).expand(2, -1),
            "gradients": torch.zeros(2, 66),
            "counts": [1, 1],
        },
        {"counts": [1]},
        {"counts": [3]},
        {"counts": [3, -1], "rows": torch.zeros(2, 66), "gradients": torch.zeros(2, 66)},
        {"counts": [2, 0], "rows": torch.zeros(2, 66), "gradients": torch.zeros(2, 66)},
        {"x": torch.zeros(6, 5, 4, 2, dtype=torch.uint8)},
        {"x": torch.zeros(6, 40, dtype=torch.uint8)},
        {"x": torch.zeros(6, 4, 5, 2, dtype=torch.int8)},
        {"x": torch.zeros(6, 2, 4, 5, dtype=torch.uint8).movedim(1, -1)},
        {"index": torch.tensor([6, 0])},
        {"index": torch.tensor([0, -1])},
        {"index": torch.tensor([0, 1], dtype=torch.int32)},
        {
            "index": torch.tensor([], dtype=torch.int64),
            "targets": torch.tensor([], dtype=torch.int64),
        },
        {"targets": torch.tensor([0])},
        {"targets": torch.tensor([0, 3])},
        {"targets": torch.tensor([-1, 0])},
        {"shift": torch.zeros(3)},
        {"scale": torch.ones(0)},
        {"skipped": 2},
        {"skipped": -1},
        {"rows": None},
    ],
)
def test_the_door_refuses(spoilt):
    door = Door()
    assert np.isfinite(door.call())
    with pytest.raises((ValueError, TypeError)):
        door.call(**spoilt)


ROOM = torch.zeros(100)  # for rows that share memory
as_row = partial(torch.unsqueeze, dim=0)


@pytest.mark.parametrize(
    ("shared", "names"),
    [
        ({"rows": as_row(ROOM[:66]), "gradients": as_row(ROOM[:66])}, "gradients.* rows"),
        ({"rows": as_row(ROOM[:66]), "gradients": as_row(ROOM[30:96])}, "gradients.* rows"),
        ({"gradients": as_row(ROOM[:66]), "shift": ROOM[64:66]}, "gradients.* shift"),
    ],
)
def test_the_door_refuses_to_write_over_what_it_reads(shared, names):
    with pytest.raises(ValueError, match=names):
        Door().call(**shared)
    assert np.isfinite(Door().call(rows=torch.zeros(1, 66), shift=ROOM[:2], scale=ROOM[:2] + 1))


small = st.integers(-3, 12) | st.sampled_from([2**15, 2**31, 2**40, 2**62])
pairs = st.tuples(small, small)


@given(st.tuples(small, small, small), small, pairs, pairs, pairs, pairs, pairs, small)
@settings(max_examples=300)
def test_sizes_are_taken_or_refused(shape, outputs, kernel, stride, padding, window, hop, weight):
    try:
        network = native.load(KINDS[0]).Network(*shape)
        network.convolution(outputs, kernel, stride, padding, window, hop, True, weight, -1)
        network.linear(3, False, weight + 2**20, -1)
    except (ValueError, TypeError):
        return
    height, width = (
        ((n + 2 * p - k) // s + 1 - w) // h + 1
        for n, p, k, s, w, h in zip(shape[:2], padding, kernel, stride, window, hop, strict=True)
    )
    assert height >= 1
    assert width >= 1


def test_layers_stand_in_order():
    network = native.load(KINDS[0]).Network(4, 5, 2)
    with pytest.raises(ValueError, match="last layer"):
        network.gradient(
            *[torch.zeros(1, 9)] * 2,
            torch.zeros(1, 4, 5, 2),
            torch.tensor([0]),
            [1],
            torch.tensor([0]),
            *[torch.ones(1)] * 2,
        )
    network.linear(3, True, 0, -1)
    with pytest.raises(ValueError, match="begin behind"):
        network.linear(3, True, 119, -1)
    with pytest.raises(ValueError, match="does not run here"):
        native.load("z80")


@pytest.mark.parametrize("variant", KINDS)
def test_a_layer_may_follow_after_a_call(variant):
    """Of whole numbers, so that outputs are exact; and wider than what was last, whose memory it
    must not use.
    """
    draw = torch.Generator().manual_seed(5)
    first, second, x = (
        torch.randint(-3, 4, shape, generator=draw).float() for shape in [(3, 4), (500, 3), (6, 4)]
    )
    row = as_row(torch.cat([first.flatten(), second.flatten()]))
    sides = (torch.zeros(1), torch.ones(1))
    network = native.load(variant).Network(1, 1, 4)
    network.linear(3, False, 0, -1)
    narrow, wider = torch.empty(6, 3), torch.empty(6, 500)
    network.outputs(row, narrow, x, torch.arange(6), [6], *sides)
    assert torch.equal(narrow, x @ first.T)
    network.linear(500, False, 12, -1)
    network.outputs(row, wider, x, torch.arange(6), [6], *sides)
    assert torch.equal(wider, x @ first.T @ second.T)
    g = torch.empty_like(row)
    index = torch.arange(6)
    assert np.isfinite(network.gradient(row, g, x, index, [6], index, *sides)).all()
    assert g.isfinite().all()
