"""Gradients of the native engine next to those of autograd in float64."""

import numpy as np
import pytest
import torch
from torch import nn

from pomona.models.losses import cross_entropy
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.dataset import DeviceDataset
from pomona.objective.engine import Computation, EngineError

native = pytest.importorskip("pomona_native", reason="pomona-native is not installed (make native)")
from pomona_native.network import NativeNetwork  # noqa: E402
from pomona_native.objective import NativeObjective  # noqa: E402

KINDS = native.kinds()
# relative error of a gradient's norm; float32 rounds to 6e-8, and sums have up to some thousand
# terms
BOUND = 5e-6


def samples(n, shape, seed=0, dtype=np.uint8, classes=3):
    draw = np.random.Generator(np.random.Philox(seed))
    x = draw.integers(0, 256, (n, *shape)).astype(dtype)
    channels = shape[-1]
    shift = torch.tensor(draw.uniform(100, 150, channels), dtype=torch.float32)
    scale = torch.tensor(draw.uniform(40, 80, channels), dtype=torch.float32)
    rows = {"train": [torch.arange(n)], "test": [torch.arange(n)]}
    return DeviceDataset(
        torch.from_numpy(x), torch.arange(n) % classes, shift, scale, rows, "classes"
    )


def computation(module, data, bf16=False, criterion=cross_entropy, buffers="local"):
    space = ParameterSpace(module, buffers)
    return Computation(module, space, data, criterion, "bf16" if bf16 else "fp32", 1)


def step_of(module, data, variant="", bf16=False):
    return NativeNetwork.build(native.load(variant or KINDS[0]), computation(module, data, bf16))


def objective_of(module, data, variant="", bf16=False, buffers="local"):
    task = computation(module, data, bf16, buffers=buffers)
    return NativeObjective(task, NativeNetwork.build(native.load(variant or KINDS[0]), task))


def refusal(module, data, bf16=False, criterion=cross_entropy):
    """Why the engine does not compute it."""
    with pytest.raises(EngineError) as refused:
        NativeNetwork.build(native.load(KINDS[0]), computation(module, data, bf16, criterion))
    return str(refused.value)


def gradient(network, row, g, index):
    """The loss of one row on one batch; its gradient is written into g."""
    (loss,) = network.gradient(row.unsqueeze(0), g.unsqueeze(0), network.resident([index])).tolist()
    return loss


def outputs(network, row, index):
    """The outputs of one row on one batch."""
    return network.outputs(row.unsqueeze(0), network.resident([index]))


def exactly(module, data, index):
    """(mean loss, gradient row) in float64."""
    space = ParameterSpace(module)
    x, y = data.gather(index)
    module.double().train()
    for parameter in module.parameters():
        parameter.grad = None
    loss = nn.functional.cross_entropy(module(x.double() if x.is_floating_point() else x), y)
    loss.backward()
    row = torch.empty(space.size, dtype=torch.float64)
    for entry, parameter in zip(space.parameters, module.parameters(), strict=True):
        entry.view(row).copy_(parameter.grad)
    module.float()
    return loss.item(), row


def close(module, data, index, variant="", bound=BOUND):
    """Compare loss and gradient; both draw dropout from the same seed. Return the network."""
    space = ParameterSpace(module)
    row, g = space.pack(module), torch.full((space.size,), torch.nan)
    copy = row.clone()
    network = step_of(module, data, variant)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        loss = gradient(network, row, g, index)
        assert torch.equal(row, copy)
        torch.manual_seed(1)
        expected, expected_gradient = exactly(module, data, index)
    assert abs(loss - expected) <= 1e-6 * max(1, expected)
    assert (g - expected_gradient).norm() <= bound * expected_gradient.norm()
    return network
