"""The stacked objective against the loop: same losses, same gradients, whatever the padding and the
chunks.
"""

from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from pomona.core.round import Roster
from pomona.federation.exchange import ClientRequest, downlink_part
from pomona.federation.stale_models import StaleModels
from pomona.methods import METHODS
from pomona.models import ModelSettings, build
from pomona.models.parameter_space import ParameterSpace
from pomona.objective import stacked
from pomona.objective.dataset import DeviceDataset
from pomona.objective.pytorch import TorchObjective
from pomona.objective.stacked import StackedObjective, padded
from pomona.objective.training import LocalTraining
from pomona.scenario import Scenario
from pomona.tasks import TASKS
from pomona.tasks.criterion import criterion
from problems import a_round, tiny

pytestmark = pytest.mark.long

SAMPLES, CLASSES, TOKENS = 40, 5, 30
RAGGED = (7, 7, 4, 10, 5)


class Double(DeviceDataset):
    """Inputs in double precision: only the losses are then rounded to single."""

    def gather(self, index):
        x, y = super().gather(index)
        return (x.double() if x.is_floating_point() else x), y


def resident(side, data_class=Double):
    generator = torch.Generator().manual_seed(5)
    image = torch.randint(0, 256, (SAMPLES, side, side, 1), generator=generator, dtype=torch.uint8)
    mid = 127.5
    rows = [torch.arange(k, SAMPLES, len(RAGGED)) for k in range(len(RAGGED))]
    splits = dict.fromkeys(("train", "validation", "test"), rows)
    return data_class(
        image,
        torch.arange(SAMPLES) % CLASSES,
        torch.tensor([mid]),
        torch.tensor([mid]),
        splits,
        "classes",
    )


def texts():
    tokens = torch.randint(
        0, TOKENS, (SAMPLES, 9), generator=torch.Generator().manual_seed(6), dtype=torch.int32
    )
    images = resident(1)
    return Double(tokens, images.y, None, None, images.rows, "classes")


def engines(module, data, buffers="local", dtype=torch.float64, rows=5, **settings):
    """Both objectives, and rows W around the module's values."""
    space = ParameterSpace(module, buffers)
    noise = torch.randn(rows, space.trained, generator=torch.Generator().manual_seed(7)) * 0.05
    W = space.pack(module).repeat(rows, 1)
    W[:, : space.trained] += noise
    loss = criterion(ModelSettings(), TASKS["classes"])
    module = module.to(dtype)
    loop = TorchObjective(module, space, data, loss, settings.get("precision", "fp32"))
    return loop, StackedObjective(module, space, data, loss, **settings), W.to(dtype)


def network(name, side=16):
    shape = (9,) if name == "fasttext" else (1, side, side)
    return build(
        ModelSettings(name=name), shape, CLASSES, TOKENS if name == "fasttext" else 0, seed=3
    )


def batches(lengths=RAGGED):
    return [torch.arange(length) * (k + 3) % SAMPLES for k, length in enumerate(lengths)]


def assert_agree(loop, stack, W, indices, criteria=None, **close):
    """Check that both engines' losses and gradients agree, and that they leave the same rows."""
    V = W.clone()
    losses, G = loop.gradient(W, indices, criteria)
    stacked_losses, H = stack.gradient(V, indices, criteria)
    assert (H.shape, H.dtype, stacked_losses.shape, stacked_losses.dtype) == (
        G.shape,
        G.dtype,
        losses.shape,
        losses.dtype,
    )
    assert_close(stacked_losses, losses, atol=1e-6, rtol=1e-6)
    assert_close(H, G, **({"atol": 1e-10, "rtol": 1e-7} | close))
    assert_close(V, W)
    return H


@pytest.mark.parametrize("name", ["mlp", "logistic", "small", "lenet", "cnn"])
def test_gradients_are_the_loops(name):
    G = assert_agree(*engines(network(name), resident(16)), batches())
    assert (G.abs().amax(1) > 1e-3).all()


def test_backpropagation_stops_where_the_loops_does():
    loop, stack, W = engines(network("cnn"), resident(16))
    above = loop.layers[-1].start
    G, H = (engine.gradient(W, batches(), above=above)[1] for engine in (loop, stack))
    assert_close(H, G, atol=1e-10, rtol=1e-7)
    assert not H[:, :above].any()
    assert H[:, above:].any(1).all()


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_gradients_are_the_loops_in_single_precision(name):
    assert_agree(
        *engines(network(name), resident(16, DeviceDataset), dtype=torch.float32),
        batches(),
        atol=2e-6,
        rtol=1e-4,
    )


def test_gradients_of_texts_are_the_loops_and_padding_tokens_stay():
    loop, stack, W = engines(network("fasttext"), texts())
    G = assert_agree(loop, stack, W, batches())
    embedding = loop.space.parameters[0].view(G)
    assert not embedding[:, 0].any()
    assert embedding[:, 1:].any(2).any(1).all()


@pytest.mark.parametrize("buffers", ["local", "average"])
@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(3), nn.InstanceNorm2d(3, affine=True, track_running_stats=True)]
)
def test_batch_statistics_are_each_rows_own(buffers, norm):
    """Rows of unequal batches are normalised by their true samples, and statistics in a row move as
    in the loop.
    """
    steps = (
        nn.Conv2d(1, 3, 5, stride=3),
        deepcopy(norm),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, CLASSES),
    )
    loop, stack, W = engines(nn.Sequential(*steps), resident(16), buffers)
    original = W.clone()
    assert_agree(loop, stack, W, batches(), atol=1e-8)
    assert torch.equal(W, original) == (buffers == "local")


def test_a_resnet_is_the_loops():
    loop, stack, W = engines(network("resnet18", 32), resident(32), "average", rows=2)
    assert_agree(loop, stack, W, batches((5, 4)), atol=1e-7, rtol=1e-6)


def test_normalising_networks_are_never_padded(monkeypatch):
    module = nn.Sequential(
        nn.Flatten(), nn.BatchNorm1d(256, track_running_stats=False), nn.Linear(256, CLASSES)
    )
    loop, stack, W = engines(module, resident(16))
    shapes = []
    monkeypatch.setattr(
        stacked, "padded", lambda i: shapes.append([len(x) for x in i]) or padded(i)
    )
    assert_agree(loop, stack, W, batches())
    assert shapes == [[7, 7], [4], [10], [5]]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_padding_repeats_a_rows_own_first_sample(lengths):
    indices = [torch.arange(length) + 10 * k for k, length in enumerate(lengths)]
    index, real = padded(indices)
    assert index.shape == real.shape == (len(lengths), max(lengths))
    assert [row[r].tolist() for row, r in zip(index, real, strict=True)] == [
        i.tolist() for i in indices
    ]
    assert all(
        (row[~r] == 10 * k).all() for k, (row, r) in enumerate(zip(index, real, strict=True))
    )


@pytest.mark.parametrize("name", ["mlp", "small"])
def test_what_is_padded_counts_for_exactly_nothing(name, monkeypatch):
    _, stack, W = engines(network(name), resident(16))
    losses, G = stack.gradient(W, batches())

    def elsewhere(indices):
        index, real = padded(indices)
        return torch.where(real, index, (index + 17) % SAMPLES), real

    monkeypatch.setattr(stacked, "padded", elsewhere)
    other_losses, H = stack.gradient(W, batches())
    assert torch.equal(losses, other_losses)
    assert torch.equal(G, H)


@pytest.mark.parametrize("rows", [0, 1])
def test_one_row_and_none(rows):
    loop, stack, W = engines(network("small"), resident(16), rows=rows)
    assert_agree(loop, stack, W, batches(RAGGED[:rows]))


@given(lengths=st.lists(st.integers(1, 9), max_size=6), memory=st.integers(1, 2**20))
def test_any_cohort_in_any_memory(lengths, memory):
    loop, stack, W = engines(network("mlp"), resident(16), rows=len(lengths), memory=memory)
    assert_agree(loop, stack, W, batches(lengths))


def test_memory_bounds_the_rows_of_a_chunk(monkeypatch):
    """Logistic regression keeps its inputs, its log-probabilities and the targets; the backward
    pass counts as much.
    """
    a_sample = 4 * 256 + 4 * CLASSES + 8
    module, data = network("logistic"), resident(16, DeviceDataset)
    _, unchunked, W = engines(module, data, dtype=torch.float32)
    expected = unchunked.gradient(W, batches())
    for rows, chunks in ((1, [1, 1, 1, 1, 1]), (2, [2, 2, 1]), (3, [3, 2]), (5, [5])):
        _, stack, W = engines(
            module, data, dtype=torch.float32, memory=int((rows + 0.5) * 2 * 10 * a_sample)
        )
        assert stack.rows_at_once(W, 10) == rows
        assert stack.rows_at_once(W, 5) > rows
        sizes = []
        with monkeypatch.context() as patch:
            patch.setattr(
                stacked, "padded", lambda i, sizes=sizes: sizes.append(len(i)) or padded(i)
            )
            assert_close(stack.gradient(W, batches()), expected)
        assert sizes == chunks


@pytest.mark.parametrize("name", ["cnn", "fasttext"])
def test_what_a_pass_keeps_grows_linearly_with_the_batch(name):
    _, stack, W = engines(network(name), texts() if name == "fasttext" else resident(16))
    size_2, size_3, size_10 = (stack._activation_bytes(W, length) for length in (2, 3, 10))
    assert size_10 == size_2 + 8 * (size_3 - size_2)


def test_another_loss_a_sample_or_a_row():
    """A criterion of the call replaces the run's own; one of its own a row also sees features, of
    true samples only.
    """
    loop, stack, W = engines(network("small"), resident(16))
    assert_agree(
        loop,
        stack,
        W,
        batches(),
        lambda outputs, y: 3 * loop.criterion(outputs, y) + outputs.square().sum(1),
    )

    def of_row(k):
        def loss(outputs, targets, features):
            assert len(outputs) == len(targets) == len(features) == RAGGED[k]
            return k * loop.criterion(outputs, targets).mean() + features.std(0).sum()

        return loss

    criteria = [of_row(k) for k in range(len(RAGGED))]
    assert_agree(loop, stack, W, batches(), criteria, atol=1e-7)
    _, narrow, _ = engines(network("small"), resident(16), memory=1)
    assert_agree(loop, narrow, W, batches(), criteria, atol=1e-7)


def test_evaluation_is_the_loops():
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(256, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)
    )
    loop, stack, W = engines(module, resident(16))
    for attribute in ("outputs", "features", "losses"):
        assert_close(
            getattr(stack, attribute)(W[0], 1, "test"),
            getattr(loop, attribute)(W[0], 1, "test"),
            atol=0,
            rtol=0,
        )
    assert_close(stack.tensors(W[0], 1), loop.tensors(W[0], 1), atol=0, rtol=0)
    for attribute in ("least_batch", "layers", "norms"):
        assert getattr(stack, attribute) == getattr(loop, attribute)


def test_bf16_is_close_and_leaves_rows_in_float32():
    _, stack, W = engines(
        network("mlp"), resident(16, DeviceDataset), dtype=torch.float32, precision="bf16"
    )
    exact, _, _ = engines(network("mlp"), resident(16, DeviceDataset), dtype=torch.float32)
    (losses, G), (bf16_losses, H) = exact.gradient(W, batches()), stack.gradient(W, batches())
    assert H.dtype == torch.float32
    assert not torch.equal(H, G)
    assert_close(bf16_losses, losses, atol=2e-2, rtol=2e-2)
    assert torch.cosine_similarity(G, H).min() > 0.99


def test_dropout_draws_for_each_row_apart_and_repeats_with_the_generator():
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(256, CLASSES))
    _, stack, W = engines(module, resident(16))
    W[:] = W[0]
    runs = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1)  # the second run has measured its memory already
            runs.append(stack.gradient(W, [torch.arange(6)] * len(W))[0])
    assert torch.equal(*runs)
    assert len(set(runs[0].tolist())) == len(W)


METHOD_TABLE = [
    ("fedavg", {}),
    ("apple", {}),
    ("apple", {"budget": 2}),
    ("fedphp", {}),
    ("fed-rod", {}),
    ("gpfl", {}),
    ("fednova", {}),
    ("ifca", {}),
    ("pfedgraph", {}),
    ("pgfed", {}),
]


@pytest.mark.parametrize(("name", "settings"), METHOD_TABLE)
def test_a_round_of_many_clients_in_one_call_is_close_on_both_engines(name, settings):
    """Ragged clients, longest first, as an active prefix; one call on either engine, and on the
    loop one row a call.
    """
    scenario = Scenario.prepare(tiny(name, settings, model={"name": "small"}))
    method, loop = METHODS[name](**settings).method(), scenario.objective()
    stack = StackedObjective(scenario.module(), loop.space, loop.data, loop.criterion)
    roster = Roster(tuple(loop.data.sizes("train")))
    longest_first = tuple(sorted(range(len(roster)), key=lambda i: -roster.sizes[i]))
    assert len(set(roster.sizes)) > 1
    round_ = a_round(batch_size=16, lr=0.05, epochs=2, momentum=0.9)
    server = method.server.start(scenario.initial, roster, 0)

    def trained(objective, ids):
        state = method.client.start(scenario.initial, roster, ids, 0)
        # what is there depends on who takes part
        downlink = method.server.downlink(server, longest_first, roster, round_)
        copies = StaleModels.in_memory(method.client.keeps, scenario.initial)
        copies.add_clients(longest_first, roster, None)
        positions = [longest_first.index(i) for i in ids]
        received = downlink_part(
            copies.received(ClientRequest(round_, roster, longest_first), downlink), positions
        )
        training = LocalTraining(objective, ids, roster, round_)
        _, uplink, info = method.client.train(state, received, training, round_)
        return uplink | info | {"loss": torch.tensor(training.training_losses())}

    loop_output, stacked_output = trained(loop, longest_first), trained(stack, longest_first)
    by_row = [trained(loop, (i,)) for i in longest_first]
    start_model = server if name == "gpfl" else scenario.initial()  # without the head
    change = stacked_output.get("model", stacked_output.get("core")) - start_model
    assert (change.norm(dim=1) > 0.05).all()
    for key, value in stacked_output.items():
        assert_close(value, loop_output[key], atol=2e-5, rtol=1e-4)
        assert_close(value, torch.cat([a[key] for a in by_row]), atol=2e-5, rtol=1e-4)
