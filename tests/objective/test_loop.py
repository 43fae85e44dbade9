"""The loop objective against plain PyTorch, and its parameter space."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from pomona.core.rng import stream
from pomona.core.training_settings import Passes
from pomona.data.dataset import Dataset
from pomona.models import ModelSettings, build
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.batches import in_step, shuffled
from pomona.objective.dataset import DeviceDataset, statistics_batches
from pomona.objective.pytorch import TorchObjective
from pomona.partition.partition import ClientRows, Partition
from pomona.tasks import TASKS
from pomona.tasks.criterion import criterion

pytestmark = pytest.mark.long

IMAGES = np.random.Generator(np.random.Philox(1)).integers(0, 256, (40, 16, 16, 1), dtype=np.uint8)
LABELS = np.arange(40) % 5


def rows(*numbers):
    return np.asarray(numbers, dtype=np.int64)


def problem(model="small", buffers="local", precision="fp32"):
    dataset = Dataset(
        "noise", "image", IMAGES, LABELS.astype(np.int64), tuple("abcde"), 40, (127.5,), (127.5,)
    )
    clients = (
        ClientRows(np.arange(0, 15), np.arange(15, 18), np.arange(18, 20)),
        ClientRows(np.arange(20, 35), rows(), np.arange(35, 40)),
    )
    module = build(ModelSettings(name=model), (1, 16, 16), 5, seed=3)
    space = ParameterSpace(module, buffers)
    data = DeviceDataset.build(dataset, Partition(clients, {}), "classes")
    return TorchObjective(
        module, space, data, criterion(ModelSettings(), TASKS["classes"]), precision
    ), space


def reference(model, indices):
    """Loss and gradient by plain PyTorch on contiguous tensors."""
    module = build(ModelSettings(name=model), (1, 16, 16), 5, seed=3)
    x = (torch.from_numpy(IMAGES[indices]).float().permute(0, 3, 1, 2).contiguous() - 127.5) / 127.5
    loss = nn.functional.cross_entropy(module(x), torch.from_numpy(LABELS[indices]).long())
    loss.backward()
    return module, loss.detach()


@pytest.mark.parametrize("model", ["small", "lenet", "mlp", "logistic"])
def test_gradients_are_pytorchs(model):
    objective, space = problem(model)
    index = [1, 4, 7, 22]
    module, loss = reference(model, index)
    row = space.pack(build(ModelSettings(name=model), (1, 16, 16), 5, seed=3))
    losses, G = objective.gradient(row.repeat(2, 1), [torch.tensor(index), torch.tensor([0, 1])])
    assert_close(losses[0], loss)
    for entry in space.parameters:
        assert_close(
            entry.view(G[0]), dict(module.named_parameters())[entry.name].grad, atol=1e-6, rtol=1e-4
        )
    assert not torch.equal(G[0], G[1])


def test_the_row_is_all_that_matters_and_is_left_alone():
    objective, space = problem()
    row = space.pack(build(ModelSettings(name="small"), (1, 16, 16), 5, seed=8))
    original = row.clone()
    objective.outputs(torch.zeros_like(row), 0, "test")
    outputs, targets = objective.outputs(row, 0, "test")
    assert torch.equal(row, original)
    assert outputs.shape == (2, 5)
    assert targets.tolist() == LABELS[18:20].tolist()


def test_evaluation_does_not_depend_on_its_batches(monkeypatch):
    objective, space = problem()
    row = space.pack(build(ModelSettings(name="small"), (1, 16, 16), 5, seed=8))
    outputs, _ = objective.outputs(row, 0, "train")
    monkeypatch.setattr("pomona.objective.pytorch.EVALUATION_BATCH", 4)
    assert_close(objective.outputs(row, 0, "train")[0], outputs)


def test_an_empty_split_has_no_outputs():
    objective, space = problem()
    outputs, targets = objective.outputs(torch.zeros(space.size), 1, "validation")
    assert len(outputs) == len(targets) == 0


def test_bf16_is_close_and_leaves_rows_in_float32():
    (exact, space), (rough, _) = problem("lenet"), problem("lenet", precision="bf16")
    row = space.pack(build(ModelSettings(name="lenet"), (1, 16, 16), 5, seed=3)).unsqueeze(0)
    index = [torch.arange(15)]
    losses = [objective.gradient(row, index) for objective in (exact, rough)]
    assert_close(losses[0][0], losses[1][0], atol=2e-2, rtol=2e-2)
    assert losses[1][1].dtype == torch.float32
    cosine = torch.nn.functional.cosine_similarity(losses[0][1], losses[1][1])
    assert cosine > 0.97


class Normed(nn.Module):
    """BatchNorm of the pixels, and a linear head."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(256, affine=True)
        self.head = nn.Linear(256, 5)

    def forward(self, x):
        return self.head(self.norm(x.flatten(1)))


@pytest.mark.parametrize(
    ("limit", "batches"), [(512, [slice(0, 15)]), (12, [slice(0, 8), slice(8, 15)])]
)
def test_local_statistics_belong_to_the_model_and_the_clients_own_data(monkeypatch, limit, batches):
    """BatchNorm before any layer sees, in evaluation, exactly the mean and variance of the client's
    training samples, or of nearly equal parts of them if they are more than one batch.
    """
    monkeypatch.setattr("pomona.objective.pytorch.EVALUATION_BATCH", limit)
    objective, _ = problem()
    module = Normed()
    space = ParameterSpace(module)
    local = TorchObjective(module, space, objective.data, objective.criterion)
    row = space.pack(module)
    assert space.size == space.trained == 2 * 256 + 256 * 5 + 5
    outputs, _ = local.outputs(row, 0, "test")
    x = (torch.from_numpy(IMAGES[:20]).float().flatten(1) - 127.5) / 127.5
    mean = torch.stack([x[batch].mean(0) for batch in batches]).mean(0)
    variance = torch.stack([x[batch].var(0) for batch in batches]).mean(0)
    normal = (x[18:] - mean) / torch.sqrt(variance + 1e-5)
    assert_close(outputs, normal @ space.parameters[2].view(row).T + space.parameters[3].view(row))


@given(st.integers(0, 40), st.integers(2, 20))
def test_batches_of_statistics_are_nearly_equal_and_none_has_one_sample(count, limit):
    batches = statistics_batches(torch.arange(count), limit)
    lengths = [len(batch) for batch in batches]
    assert all(1 < length <= limit for length in lengths)
    assert not lengths or max(lengths) - min(lengths) <= 1
    assert count - sum(lengths) <= (limit == 2 or count == 1)


def test_averaged_statistics_travel_in_the_row():
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(256), nn.Linear(256, 5))
    space = ParameterSpace(module, "average")
    assert space.size == space.trained + 2 * 256
    objective, _ = problem()
    average = TorchObjective(module, space, objective.data, objective.criterion)
    W = space.pack(module).unsqueeze(0)
    x = (torch.from_numpy(IMAGES[:15]).float().flatten(1) - 127.5) / 127.5
    _, G = average.gradient(W, [torch.arange(15)])
    assert_close(W[0, space.trained : space.trained + 256], 0.1 * x.mean(0))
    assert not G[0, space.trained :].any()


@given(st.sampled_from(["small", "lenet", "resnet18", "mlp", "vgg11"]), st.integers(0, 3))
@settings(max_examples=8)
def test_packing_and_unpacking_are_inverse(model, seed):
    module = build(ModelSettings(name=model), (1, 32, 32), 5, seed=seed)
    space = ParameterSpace(module, "average")
    row = space.pack(module)
    tensors = space.unpack(row)
    state = module.state_dict()
    assert all(torch.equal(tensors[name], state[name]) for name in tensors)
    assert torch.equal(space.row(tensors), row)


def test_layers_are_contiguous_and_in_order():
    space = ParameterSpace(build(ModelSettings(name="lenet"), (1, 28, 28), 10))
    assert space.size == 431_080
    assert [e.start for e in space.entries[1:]] == [e.stop for e in space.entries[:-1]]
    assert space.entries[-1].stop == space.size
    assert [s.stop - s.start for s in space.layers] == [
        20 * 26,
        50 * (20 * 25 + 1),
        500 * (50 * 16 + 1),
        10 * 501,
    ]
    assert len(ParameterSpace(build(ModelSettings(name="resnet18"), (3, 32, 32), 10)).layers) == 6


@given(st.integers(0, 30), st.integers(1, 40), st.integers(1, 3))
def test_every_epoch_sees_each_sample_once(n, size, epochs):
    index = torch.arange(100, 100 + n)
    batches = list(shuffled(index, Passes(epochs), size, stream(0, "training", 1, 2)))
    visited = torch.cat(batches).tolist() if batches else []
    assert sorted(visited) == sorted(index.tolist() * epochs)
    assert all(len(b) <= size for b in batches)
    repeated = list(shuffled(index, Passes(epochs), size, stream(0, "training", 1, 2)))
    assert all(torch.equal(a, b) for a, b in zip(batches, repeated, strict=True))


@given(st.integers(1, 12), st.integers(1, 15), st.integers(1, 40))
def test_steps_are_the_first_batches_of_as_many_epochs_as_they_take(n, size, steps):
    index = torch.arange(100, 100 + n)
    batches = list(shuffled(index, Passes(steps=steps), size, stream(0, "training", 1, 2)))
    epochs = list(shuffled(index, Passes(steps), size, stream(0, "training", 1, 2)))
    assert len(batches) == steps <= len(epochs)
    assert all(torch.equal(a, b) for a, b in zip(batches, epochs, strict=False))


def test_a_lone_last_sample_joins_the_batch_before_it_where_a_step_needs_two():
    sizes = [
        len(b) for b in shuffled(torch.arange(9), Passes(1), 4, stream(0, "training"), min_batch=2)
    ]
    assert sizes == [4, 5]
    assert [
        len(b) for b in shuffled(torch.arange(1), Passes(1), 4, stream(0, "training"), min_batch=2)
    ] == [1]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_ragged_clients_are_an_active_prefix(lengths):
    lengths = sorted(lengths, reverse=True)
    streams = [iter([torch.tensor([k])] * n) for k, n in enumerate(lengths)]
    steps = list(in_step(streams, "training"))
    assert [len(s.indices) for s in steps] == [
        sum(n > t for n in lengths) for t in range(max(lengths))
    ]
    assert [s.step for s in steps] == list(range(len(steps)))
