"""Custom networks of all kinds: every path gives plain PyTorch's gradient, or the network is
refused in one line.
"""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import pomona
from pomona.core.errors import ConfigError
from pomona.core.rng import stream
from pomona.data.dataset import Dataset
from pomona.models.losses import cross_entropy
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.dataset import DeviceDataset
from pomona.objective.private import PrivateObjective
from pomona.objective.pytorch import TorchObjective
from pomona.objective.stacked import StackedObjective
from pomona.partition.partition import ClientRows, Partition
from pomona.privacy.settings import Privacy
from problems import tiny

SIDE, CLASSES, SAMPLES = 8, 3, 6


class Unused(nn.Module):
    """A network with a layer that the forward pass does not use."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(4, 4)
        self.end = nn.Linear(SIDE * SIDE * 2, CLASSES)

    def forward(self, x):
        return self.end(x.flatten(1))


class Residual(nn.Module):
    """The sum of two branches."""

    def __init__(self):
        super().__init__()
        self.way = nn.Conv2d(2, 2, 3, padding=1)
        self.end = nn.Linear(SIDE * SIDE * 2, CLASSES)

    def forward(self, x):
        return self.end((x + self.way(x).relu()).flatten(1))


def chain(*layers, width):
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, CLASSES))


NETWORKS = {
    "linear on images": lambda: chain(nn.Linear(SIDE, 5), nn.ReLU(), width=2 * SIDE * 5),
    "unused": Unused,
    "residual": Residual,
    "group norm": lambda: chain(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), width=4 * 36),
    "group norms": lambda: chain(
        nn.Conv2d(2, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3), nn.GroupNorm(4, 8), width=8 * 16
    ),
    "group norm first": lambda: chain(nn.GroupNorm(1, 2), nn.Conv2d(2, 4, 3), width=4 * 36),
    "layer norm": lambda: chain(nn.Conv2d(2, 4, 3), nn.LayerNorm([4, 6, 6]), width=4 * 36),
    "instance norm": lambda: chain(
        nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), width=4 * 36
    ),
    "pooled": lambda: chain(
        nn.Conv2d(2, 4, 3), nn.PReLU(4), nn.GELU(), nn.AdaptiveAvgPool2d(2), width=16
    ),
    "depthwise": lambda: chain(
        nn.Conv2d(2, 4, 3, groups=2), nn.Tanh(), nn.AvgPool2d(2), width=4 * 9
    ),
}


def resident():
    draw = stream(1, "layers")
    x = draw.integers(0, 256, (SAMPLES, SIDE, SIDE, 2)).astype(np.uint8)
    dataset = Dataset(
        "noise",
        "image",
        x,
        draw.integers(0, CLASSES, SAMPLES),
        tuple("abc"),
        SAMPLES,
        (127.5,),
        (127.5,),
    )
    rows = ClientRows(np.arange(SAMPLES), np.arange(0), np.arange(2))
    return DeviceDataset.build(dataset, Partition((rows,), {}), "classes")


@pytest.mark.parametrize("name", list(NETWORKS))
def test_every_path_gives_plain_pytorchs_gradient(tmp_path, name):
    """Loop, stacked and private (without noise, nothing clipped), against a backward pass through
    the module itself.
    """
    with torch.random.fork_rng():
        torch.manual_seed(4)
        plain, module = NETWORKS[name](), NETWORKS[name]()
    space, data, index = ParameterSpace(plain), resident(), torch.arange(SAMPLES)
    row = space.pack(plain)
    x, y = data.gather(index)
    cross_entropy(plain(x.contiguous().requires_grad_()), y).mean().backward()
    expected = torch.zeros(space.size)
    for entry, parameter in zip(space.parameters, plain.parameters(), strict=True):
        if parameter.grad is not None:
            entry.view(expected).copy_(parameter.grad)

    loop = TorchObjective(module, space, data, cross_entropy)
    settings = Privacy(noise_multiplier=0.0, max_grad_norm=1e6, delta=1e-5, seed=1)
    private = PrivateObjective(loop, NETWORKS[name](), space, settings, tmp_path)
    gradients = {
        "loop": loop.gradient(row.repeat(2, 1), [index, index])[1][0],
        "stacked": StackedObjective(NETWORKS[name](), space, data, cross_entropy).gradient(
            row.repeat(2, 1), [index, index[:3]]
        )[1][0],
        "private": (private.clipped_sum(row, index)[1] / SAMPLES).float(),
    }
    for path, G in gradients.items():
        assert_close(
            G, expected, atol=2e-6, rtol=1e-4, msg=lambda message, path=path: f"{path}: {message}"
        )


@pytest.mark.parametrize("engine", [TorchObjective, StackedObjective])
def test_products_with_the_hessian_are_the_gradients_differences(engine):
    """On a smooth network in float64: (g(w + t z) - g(w - t z)) / 2 t, off by t^2 and by rounding
    over t.
    """
    module = chain(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.AvgPool2d(2), width=27).double()
    space = ParameterSpace(module)
    data = resident()
    index = [torch.arange(SAMPLES), torch.arange(3)]
    double = replace(data, shift=data.shift.double(), scale=data.scale.double())
    objective = engine(
        module,
        space,
        double,
        lambda o, y: nn.functional.cross_entropy(o.double(), y, reduction="none"),
    )
    draw = torch.Generator().manual_seed(3)
    W = space.pack(module).double().repeat(2, 1)
    Z = torch.randn(2, space.size, generator=draw, dtype=torch.float64)
    above, below = (objective.gradient(W + t * Z, index)[1] for t in (1e-3, -1e-3))
    assert_close(objective.hessian(W, index, Z), (above - below) / 2e-3, atol=1e-4, rtol=1e-3)


def test_products_with_the_hessian_are_refused_under_privacy():
    privacy = {
        "noise_multiplier": 1,
        "max_grad_norm": 1,
        "delta": 1e-5,
        "acknowledge": ["sample-counts", "metrics"],
    }
    with pytest.raises(ConfigError, match="products with a Hessian"):
        pomona.run(
            tiny("per-fedavg", {"order": "exact"}, privacy={**privacy, "epsilon_budget": 1e6})
        )


# What is refused; the functions below are named as a user names them.


def frozen(settings, input_shape, n_outputs, vocabulary):
    """A frozen backbone under a head."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, n_outputs))
    net[1].requires_grad_(False)
    return net


class Net(nn.Module):
    """A class instead of a function."""

    def __init__(self, width):
        super().__init__()


instance = nn.Linear(64, 10)


def scalar(outputs, targets):
    """A mean instead of one loss per sample."""
    return nn.functional.cross_entropy(outputs, targets)


@pytest.fixture(autouse=True)
def registered_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "tests_layers", sys.modules[__name__])


@pytest.mark.parametrize("private", [False, True], ids=["plain", "private"])
@pytest.mark.parametrize("rows", [1, 4])
def test_frozen_parameters_are_in_no_model_on_every_path(rows, private):
    privacy = {
        "noise_multiplier": 1,
        "max_grad_norm": 1,
        "delta": 1e-5,
        "acknowledge": ["sample-counts", "metrics"],
    }
    options = {"privacy": {**privacy, "epsilon_budget": 1e6}} if private else {}
    run = pomona.run(
        tiny("fedavg", model={"name": "tests_layers:frozen"}, rows_per_call=rows, **options)
    )
    assert all(not any(name.startswith("1.") for name in model) for model in run.models.values())


@pytest.mark.parametrize(
    "name", ["os:getcwd", "tests_layers:Net", "tests_layers:instance", "os:sep", "..above:Net"]
)
def test_what_is_no_family_is_refused_in_one_line(name):
    with pytest.raises(ConfigError) as fault:
        pomona.run(tiny("fedavg", model={"name": name}))
    assert "\n" not in str(fault.value)
    assert name in str(fault.value)


@pytest.mark.parametrize("loss", ["tests_layers:scalar", "os:getcwd", "os:sep"])
def test_a_loss_that_is_not_per_sample_is_refused_by_name(loss):
    with pytest.raises(ConfigError, match=loss):
        pomona.run(tiny("fedavg", model={"name": "mlp", "loss": loss}))
