"""Hand-written backpropagation against autograd on the same module."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from pomona.models import ModelSettings, build
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.device_dataset import DeviceDataset
from pomona.objective.row_gradients import LoopObjective
from pomona.objective.sequential_backward import Chain

DRAW = torch.Generator().manual_seed(5)


def cross_entropy(y):
    return lambda outputs, _: nn.functional.cross_entropy(outputs, y)


def both(module, x, loss):
    """(loss, gradient) by hand, and (loss, gradient) by autograd with the features seen by a hook."""
    space = ParameterSpace(module)
    chain = Chain.of(module, space, x.dim())
    assert chain is not None
    row, g = space.pack(module), torch.full((space.size,), torch.nan)
    kept = row.clone()
    value = chain.gradient(x.clone(), row, g, loss)
    assert torch.equal(row, kept)
    seen = []
    with module[-1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
        outputs = module(x)
    expected = loss(outputs, seen[0])
    expected.backward()
    wanted = torch.empty_like(g)
    for entry, parameter in zip(space.parameters, module.parameters(), strict=True):
        entry.view(wanted).copy_(parameter.grad)
    return (value, g), (expected.detach(), wanted)


@pytest.mark.parametrize("model", ["cnn", "lenet", "mcmahan-cnn", "fomo-cnn", "small", "mlp", "logistic"])
def test_gradients_are_autograds(model):
    module = build(ModelSettings(name=model), (3, 20, 20), 7, seed=1)
    x, y = torch.randn(6, 3, 20, 20, generator=DRAW), torch.arange(6)
    (loss, g), (expected, wanted) = both(module, x, cross_entropy(y))
    assert_close(loss, expected, atol=0, rtol=1e-6)
    assert (g - wanted).norm() <= 1e-6 * wanted.norm()


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), st.booleans(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_geometry_is_pytorchs(batch, stride, padding, dilation, bias, ceil):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(batch + 10 * stride)
        convolution = nn.Conv2d(4, 6, 3, stride, padding, dilation, groups=2, bias=bias)
        layers = convolution, nn.ReLU(), nn.MaxPool2d(2, 1, ceil_mode=ceil), nn.Flatten()
        x = torch.randn(batch, 4, 11, 9, generator=DRAW)
        module = nn.Sequential(*layers, nn.Linear(nn.Sequential(*layers)(x).shape[1], 5, bias=bias))
    (loss, g), (expected, wanted) = both(module, x, cross_entropy(torch.arange(batch)))
    assert_close(loss, expected, atol=0, rtol=1e-6)
    assert (g - wanted).norm() <= 1e-6 * wanted.norm()


def test_a_loss_on_features_reaches_what_lies_before_them():
    """Without the outputs in the loss, the last layer's gradient is zero and the others' are not."""
    module = build(ModelSettings(name="mlp", hidden=(9, 8)), (12,), 4, seed=2)
    x = torch.randn(5, 12, generator=DRAW)
    (_, g), (_, wanted) = both_on_features(module, x)
    last = sum(p.numel() for p in module[-1].parameters())
    assert not g[-last:].any()
    assert g[:-last].any()
    assert (g - wanted).norm() <= 1e-6 * wanted.norm()


def both_on_features(module, x):
    return both(module, x, lambda outputs, features: features.square().mean() + 0 * outputs.sum())


def test_outputs_and_features_together_add_up():
    module = build(ModelSettings(name="small"), (1, 16, 16), 5, seed=3)
    x, y = torch.randn(4, 1, 16, 16, generator=DRAW), torch.arange(4)
    (loss, g), (expected, wanted) = both(
        module, x, lambda outputs, features: nn.functional.cross_entropy(outputs, y) + features.std(0).sum()
    )
    assert_close(loss, expected, atol=0, rtol=1e-6)
    assert (g - wanted).norm() <= 1e-5 * wanted.norm()  # the standard deviation of four numbers amplifies rounding


class Twice(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def tied():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, second)


def repeated():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        nn.Sequential(Twice(4, 4)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(8, 2)),
        nn.Linear(4, 2),
        tied(),
        repeated(),
        nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(16, 2)),
    ],
    ids=["norm", "dropout", "end", "subclass", "padding", "single", "tied", "repeated", "on images"],
)
def test_what_is_no_plain_chain_is_left_to_autograd(module):
    assert Chain.of(module, ParameterSpace(module), 4) is None
    if "Flatten" not in str(module):
        assert Chain.of(module, ParameterSpace(module), 2) is None


def objective(module, x, precision="fp32"):
    rows = [torch.arange(len(x))]
    data = DeviceDataset(x, torch.arange(len(x)) % 3, torch.zeros(1), torch.ones(1), {"train": rows}, "classes")
    loss = lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none")  # noqa: E731
    return LoopObjective(module, ParameterSpace(module), data, loss, precision)


@pytest.mark.parametrize(
    "module",
    [
        build(ModelSettings(name="cnn"), (3, 20, 20), 7, seed=1),
        build(ModelSettings(name="mlp", hidden=(9, 8)), (3, 20, 20), 7, seed=1),
        nn.Sequential(nn.Flatten(), nn.Linear(1200, 9), nn.BatchNorm1d(9), nn.Linear(9, 7)),  # left to autograd
    ],
    ids=["cnn", "mlp", "autograd"],
)
def test_backpropagation_stops_above_what_nobody_asks_for(module):
    loop = objective(module, torch.randn(8, 20, 20, 3, generator=DRAW))
    W, batch = loop.space.pack(module).unsqueeze(0), [torch.arange(6)]
    loss, whole = loop.gradient(W, batch)
    assert whole.all(0).float().mean() > 0.5
    for layer in loop.layers:
        for above in (layer.start, layer.start + 1):
            same, part = loop.gradient(W, batch, above=above)
            assert torch.equal(same, loss)
            assert torch.equal(part[:, above:], whole[:, above:])
            assert not part[:, : layer.start].any()


@pytest.mark.parametrize("name", ["tied", "repeated"])
def test_shared_parameters_get_the_sum_of_their_gradients(name):
    module = {"tied": tied, "repeated": repeated}[name]()
    x = torch.randn(6, 4, generator=DRAW)
    loop = objective(module, x)
    _, G = loop.gradient(loop.space.pack(module).unsqueeze(0), [torch.arange(6)])
    fresh = {"tied": tied, "repeated": repeated}[name]()
    for parameter, entry in zip(fresh.parameters(), loop.space.parameters, strict=True):
        parameter.data.copy_(entry.view(loop.space.pack(module)))
    nn.functional.cross_entropy(fresh(x), torch.arange(6) % 3).backward()
    for parameter, entry in zip(fresh.parameters(), loop.space.parameters, strict=True):
        assert_close(entry.view(G[0]), parameter.grad)


def test_the_data_stay_as_they_are():
    """A first layer that works in place changes the batch, not the resident data."""
    module = nn.Sequential(nn.ReLU(), nn.Linear(4, 3))
    x = torch.randn(6, 4, generator=DRAW)
    kept = x.clone()
    loop = objective(module, x)
    loop.gradient(loop.space.pack(module).unsqueeze(0), [torch.arange(6)])
    assert torch.equal(x, kept)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_gathered_inputs_are_normalised_in_float32(kind):
    draw = np.random.Generator(np.random.Philox(2))
    values = draw.integers(0, 256, (9, 5, 4, 3)).astype(kind)
    shift, scale = torch.tensor([10.0, 20.0, 30.5]), torch.tensor([2.0, 3.0, 4.0])
    data = DeviceDataset(torch.from_numpy(values), torch.arange(9), shift, scale, {}, "classes")
    x, y = data.gather(torch.tensor([7, 0, 7]))
    wanted = (values[[7, 0, 7]].astype(np.float32) - shift.numpy()) / scale.numpy()
    assert x.dtype == torch.float32
    assert torch.equal(x, torch.from_numpy(wanted).movedim(-1, 1))
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert y.tolist() == [7, 0, 7]
    assert data.gather(torch.arange(0))[0].shape == (0, 3, 5, 4)
