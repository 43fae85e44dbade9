"""A partly trained network: the same gradients, in a shorter row, on every path."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from pomona.data.dataset import Dataset
from pomona.models import ModelSettings, build
from pomona.models.frozen_prefix import split_network
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.dataset import DeviceDataset, batches, cached
from pomona.objective.private import PrivateObjective
from pomona.objective.pytorch import TorchObjective
from pomona.objective.stacked import StackedObjective
from pomona.partition.partition import ClientRows, Partition
from pomona.privacy.settings import Privacy
from pomona.tasks import TASKS
from pomona.tasks.criterion import criterion

SHAPE = (1, 16, 16)
TRAINED = [
    {"train": "head"},
    {"train": ["conv2.*", "fc2.bias"]},
    {"train": {"lora": {"rank": 2, "on": ["conv2", "fc1"]}}},
]
LOSS = criterion(ModelSettings(), TASKS["classes"])


def resident(clients=2, n=40):
    images = np.random.Generator(np.random.Philox(1)).integers(
        0, 256, (n, 16, 16, 1), dtype=np.uint8
    )
    dataset = Dataset(
        "noise", "image", images, np.arange(n) % 5, tuple("abcde"), n, (127.5,), (127.5,)
    )
    client_rows = [
        ClientRows(rows[:-4], rows[-4:-2], rows[-2:])
        for rows in np.array_split(np.arange(n), clients)
    ]
    return DeviceDataset.build(dataset, Partition(tuple(client_rows), {}), "classes")


def network(name="small", **settings):
    return build(ModelSettings(name=name, **settings), SHAPE, 5, seed=3)


def autograd(module, data, index):
    """The gradient of the mean loss at the module's own values, by plain PyTorch: name ->
    tensor.
    """
    x, y = data.gather(index)
    module.train()
    LOSS(module(x), y).mean().backward()
    return {name: p.grad for name, p in module.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("settings", TRAINED)
@pytest.mark.parametrize("engine", [TorchObjective, StackedObjective])
@pytest.mark.parametrize("cache", [False, True])
def test_the_gradient_is_that_of_the_trained_part(settings, engine, cache):
    data, module = resident(), network(**settings)
    space, index = ParameterSpace(module), torch.arange(7)
    expected = autograd(network(**settings), data, index)
    row = space.pack(module)
    if cache:
        halves = split_network(module, torch.zeros(1, *SHAPE))
        module, data = halves.trained, cached(halves, data, "fp32")
    objective = engine(module, space, data, LOSS)
    _, G = objective.gradient(row.repeat(2, 1), [index, index])
    for entry in space.parameters:
        for g in G:
            torch.testing.assert_close(entry.view(g), expected[entry.name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("settings", TRAINED)
def test_what_is_kept_changes_no_output(settings):
    data, module = resident(), network(**settings)
    space, halves = ParameterSpace(module), split_network(module, torch.zeros(1, *SHAPE))
    row = space.pack(module)
    objective = TorchObjective(halves.trained, space, cached(halves, data, "fp32"), LOSS)
    for split in ("train", "test"):
        outputs, targets = objective.outputs(row, 1, split)
        expected, y = TorchObjective(network(**settings), space, data, LOSS).outputs(row, 1, split)
        torch.testing.assert_close(outputs, expected)
        assert torch.equal(targets, y)


@pytest.mark.parametrize("clients", [1, 3])
def test_features_are_the_same_for_any_number_of_workers(clients):
    data, halves = resident(clients), split_network(network(train="head"), torch.zeros(1, *SHAPE))
    serial, parallel = (cached(halves, data, "fp32", workers).x for workers in (1, 2))
    assert torch.equal(serial, parallel)


def test_a_clients_features_do_not_depend_on_the_others():
    """The client of rows 20 to 39 alone, as a silo has it, and among others."""
    among, halves = resident(2), split_network(network(train="head"), torch.zeros(1, *SHAPE))
    silo = DeviceDataset(
        among.x[20:], among.y[20:], among.shift, among.scale,
        {split: [rows[1] - 20] for split, rows in among.rows.items()}, "classes",
    )  # fmt: skip
    assert torch.equal(cached(halves, among, "fp32").x[20:], cached(halves, silo, "fp32").x)


def test_a_sample_of_two_clients_is_computed_once():
    data = resident(2)
    data.rows["train"][1] = torch.cat([data.rows["train"][1], data.rows["train"][0][:3]])
    assert sorted(torch.cat(list(batches(data))).tolist()) == list(range(40))


@pytest.mark.parametrize("settings", TRAINED)
@pytest.mark.parametrize("cache", [False, True])
def test_private_gradients_clip_the_trained_part_only(tmp_path, settings, cache):
    """sum_i g_i min(1, C / |g_i|) over the trained numbers of each sample's own gradient."""
    data, module = resident(), network(**settings)
    space, index, bound = ParameterSpace(module), torch.arange(5), 0.05
    gradients = []
    for i in index:
        by_name = autograd(network(**settings), data, i[None])
        row = torch.zeros(space.trained)
        for entry in space.parameters:
            entry.view(row).copy_(by_name[entry.name])
        gradients.append(row.double())
    expected = sum(g * min(1, bound / float(g.norm())) for g in gradients)
    assert any(float(g.norm()) > bound for g in gradients)
    row, trained_module = space.pack(module), module
    if cache:
        halves = split_network(module, torch.zeros(1, *SHAPE))
        trained_module, data = halves.trained, cached(halves, data, "fp32")
    inner = TorchObjective(trained_module, space, data, LOSS)
    privacy = Privacy(noise_multiplier=1.0, max_grad_norm=bound, delta=1e-5)
    objective = PrivateObjective(inner, trained_module, space, privacy, tmp_path)
    _, total = objective.clipped_sum(row, index)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-7)


def test_frozen_batch_normalisation_is_private(tmp_path):
    """Its statistics are those it came with: a sample's gradient does not depend on the others."""
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten()).requires_grad_(False)
    module, data = nn.Sequential(body, nn.Linear(2 * 14 * 14, 5)), resident()
    space = ParameterSpace(module)
    private = partial(PrivateObjective, TorchObjective(module, space, data, LOSS), module, space)
    private(Privacy(noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-5), tmp_path)
    assert float(body[1].running_mean.abs().sum()) == 0  # nothing has moved them


def test_frozen_statistics_are_used_as_they_came():
    """Outputs of a head on frozen BatchNorm are those of the module in evaluation mode; none are
    estimated.
    """
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten()).requires_grad_(False)
    body[1].running_mean += 0.3
    body[1].running_var *= 2
    module, data = nn.Sequential(body, nn.Linear(2 * 14 * 14, 5)), resident()
    space = ParameterSpace(module, "average")
    row = space.pack(module)
    assert space.size == space.trained == 5 * (2 * 14 * 14 + 1)
    objective = TorchObjective(module, space, data, LOSS)
    objective.gradient(row[None], [torch.arange(6)])
    outputs, _ = objective.outputs(row, 0, "test")
    with torch.no_grad():
        expected = module.eval()(data.gather(data.rows["test"][0])[0])
    assert torch.equal(outputs, expected)
    assert torch.equal(body[1].running_mean, torch.full((2,), 0.3))
