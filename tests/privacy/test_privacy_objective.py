"""The private objective: its releases, its refusals, and that methods compute from the noised
gradient alone.
"""

import numpy as np
import pytest
import torch
from private_problem import privacy, problem, rounds
from torch import nn
from torch.testing import assert_close

from pomona.core.errors import ConfigError
from pomona.core.rng import stream
from pomona.core.training_settings import Passes
from pomona.data.dataset import Dataset
from pomona.methods import METHODS
from pomona.models import ModelSettings, build
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.batches import Pass
from pomona.objective.dataset import DeviceDataset
from pomona.objective.private import PrivateObjective, _seeded, refuse_statistics
from pomona.objective.pytorch import TorchObjective
from pomona.partition.partition import ClientRows, Partition
from pomona.privacy.ledger import Draw
from pomona.tasks import TASKS
from pomona.tasks.criterion import criterion

pytestmark = pytest.mark.long


def test_without_noise_and_clipping_it_is_the_ordinary_gradient_over_the_public_batch_size(
    tmp_path,
):
    p = problem(tmp_path, privacy(noise_multiplier=0, max_grad_norm=1e6))
    for index in p.batch(size=4):
        _, G = p.objective.gradient(p.row.unsqueeze(0), [index])
        if len(index):
            _, mean = p.inner.gradient(p.row.unsqueeze(0), [index])
            assert_close(G, mean * len(index) / 4, atol=1e-6, rtol=1e-4)
    assert p.objective.epsilon(0) == float("inf")


def test_a_batch_size_above_n_takes_all_samples_and_divides_by_n(tmp_path):
    p = problem(tmp_path, privacy(noise_multiplier=0, max_grad_norm=1e6))
    (index,) = p.batch(size=100)
    assert index.tolist() == list(range(12))
    _, G = p.objective.gradient(p.row.unsqueeze(0), [index])
    assert_close(G, p.inner.gradient(p.row.unsqueeze(0), [index])[1], atol=1e-6, rtol=1e-4)


def test_an_empty_batch_is_noise_and_counts(tmp_path):
    p = problem(tmp_path, privacy())
    batches = p.batch(size=1, epochs=4)
    empty = [index for index in batches if not len(index)]
    assert len(batches) == 48
    assert 0 < len(empty) < 48  # each with chance (11 / 12)^12 = 0.35
    _, G = p.objective.gradient(p.row.unsqueeze(0), [empty[0]])
    assert float(G.std()) == pytest.approx(0.7, rel=0.5)  # sigma C / B, B = 1
    assert p.objective.position(0).entries == 1


def test_a_client_without_samples_takes_no_steps(tmp_path):
    p = problem(tmp_path, privacy(), (5, 0))
    assert p.batch(1) == []


def test_losses_are_zeros_unless_acknowledged(tmp_path):
    hidden = problem(tmp_path / "a", privacy())
    index = max(hidden.batch(), key=len)
    assert hidden.objective.gradient(hidden.row.unsqueeze(0), [index])[0].tolist() == [0]
    acknowledged = problem(tmp_path / "b", privacy(acknowledge=("training-loss",)))
    batch = max(acknowledged.batch(), key=len)
    losses, _ = acknowledged.objective.gradient(acknowledged.row.unsqueeze(0), [batch])
    expected, _ = acknowledged.inner.gradient(acknowledged.row.unsqueeze(0), [batch])
    assert_close(losses, expected)


def test_the_record_of_a_round_has_no_loss_where_it_is_hidden(tmp_path):
    for names, with_loss in ((("metrics",), False), (("metrics", "training-loss"), True)):
        p = problem(tmp_path / str(with_loss), privacy(acknowledge=names))
        _, _, replies = rounds(METHODS["fedavg"]().method(), p, 1)
        assert [r.loss is not None for r in replies] == [with_loss] * 2


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("apple", {"dr_lr": 0.5}),
        ("apple", {"dr_lr": 0.5, "budget": 1}),
        ("apple", {"core_step": "local"}),
        ("fedala", {}),
        ("fedala", {"round_epochs": 3}),
        ("fedala", {"round_epochs": 0}),
        ("apfl", {"adaptive": True}),
        ("ditto", {}),
        ("fed-rod", {"gamma": 0.0}),
        ("mr-mtl", {}),
        ("scaffold", {}),
        ("pgfed", {}),
        ("pgfedmo", {"mixing": "client", "budget": 1}),
    ],
)
def test_all_that_leaves_is_a_function_of_the_noised_gradients(
    tmp_path, monkeypatch, name, options
):
    """Other data, the same noised gradients: states, uplinks and info do not change by a bit;
    APPLE's DR row among them.
    """
    method, released = METHODS[name](**options).method(), []
    real = PrivateObjective.gradient

    def recording(self, W, indices, criterion=None, above=0, views=None, cache=None):
        losses, G = real(self, W, indices, criterion, above, views, cache)
        released.append((losses, G.clone()))
        return losses, G

    monkeypatch.setattr(PrivateObjective, "gradient", recording)
    first = problem(tmp_path / "a", privacy(acknowledge=("metrics",)))
    clients, server, replies = rounds(method, first, 3)

    replay = iter(released)
    monkeypatch.setattr(PrivateObjective, "gradient", lambda *_, **__: next(replay))
    second = problem(tmp_path / "b", privacy(acknowledge=("metrics",)), data_seed=2)
    assert not torch.equal(first.objective.data.x, second.objective.data.x)
    other_clients, other_server, other_replies = rounds(method, second, 3)
    assert next(replay, None) is None
    for reply, twin in zip(replies, other_replies, strict=True):
        assert all(torch.equal(reply.uplink[k], twin.uplink[k]) for k in reply.uplink)
        assert all(torch.equal(reply.info[k], twin.info[k]) for k in reply.info)
    assert repr(server) == repr(other_server)
    for client in (0, 1):
        assert repr(clients.store.state(client)) == repr(other_clients.store.state(client))


def test_the_gradients_themselves_do_depend_on_the_data(tmp_path):
    sums = [
        problem(tmp_path / str(s), privacy(), data_seed=s).objective.clipped_sum(
            problem(tmp_path / str(s), privacy()).row, torch.arange(5)
        )[1]
        for s in (1, 2)
    ]
    assert not torch.allclose(*sums)


def test_a_batch_of_the_methods_own_is_refused(tmp_path):
    p = problem(tmp_path, privacy())
    index = max(p.batch(), key=len)
    for indices in (index[1:], index.clone(), torch.arange(3)):
        with pytest.raises(ConfigError, match=r"training\.steps"):
            p.objective.gradient(p.row.unsqueeze(0), [indices])
    assert p.objective.position(0).entries == 0
    with pytest.raises(ConfigError, match=r"training\.steps"):
        rounds(METHODS["partialfed"](rule="adaptive").method(), p, 1)


def test_a_criterion_on_outputs_is_refused_or_costs_everything(tmp_path):
    p = problem(tmp_path / "a", privacy())
    with pytest.raises(ConfigError, match="output-criterion"):
        rounds(METHODS["fedphp"]().method(), p, 1)
    p = problem(tmp_path / "b", privacy(acknowledge=("metrics", "output-criterion")))
    rounds(METHODS["fedphp"]().method(), p, 1)
    assert p.objective.epsilon(0) == float("inf")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("metrics", lambda o, w: o.outputs(w, 0, "test")),
        ("validation-losses", lambda o, w: o.losses(w, 0, "validation")),
        ("training-loss", lambda o, w: o.losses(w, 0, "train")),
        ("output-criterion", lambda o, w: o.outputs(w, 0, "train")),
        ("output-criterion", lambda o, w: o.features(w, 0, "train")),
    ],
)
def test_reading_data_past_the_gradient_must_be_acknowledged(tmp_path, name, read):
    refused = problem(tmp_path, privacy(acknowledge=()))
    with pytest.raises(ConfigError, match=name):
        read(refused.objective, refused.row)
    accepted = problem(tmp_path, privacy(acknowledge=(name,)))
    read(accepted.objective, accepted.row)


def test_batch_normalisation_is_refused_by_the_name_of_the_layer():
    stem = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    with pytest.raises(ConfigError, match=r"layer 1\.1 \(BatchNorm1d\).*GroupNorm"):
        refuse_statistics(stem)
    with pytest.raises(ConfigError, match="BatchNorm1d"):
        refuse_statistics(nn.BatchNorm1d(4, track_running_stats=False, affine=False))
    refuse_statistics(nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.LayerNorm(4)))


def test_a_sample_that_depends_on_its_neighbours_is_refused(tmp_path):
    """A network that remembers how often it was asked."""
    p, passes = problem(tmp_path, privacy()), []
    original = p.module.forward

    def forward(x):
        passes.append(1)
        return original(x) * len(passes)

    p.module.forward = forward
    with pytest.raises(ConfigError, match="other samples of its batch"):
        PrivateObjective(p.inner, p.module, p.space, privacy(), tmp_path)


def test_dropout_masks_are_secret_and_the_same_for_the_same_release(tmp_path):
    sums = []
    for _ in range(2):
        p = problem(tmp_path, privacy())
        p.module.append(nn.Dropout(0.5)) if isinstance(p.module, nn.Sequential) else None
        index = max(p.batch(), key=len)
        torch.manual_seed(len(sums))  # the global generator has no say
        sums.append(p.objective.gradient(p.row.unsqueeze(0), [index])[1])
        assert p.objective.position(0).entries == 1
    assert torch.equal(*sums)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_masks_on_a_gpu_are_drawn_from_the_secret_seed_too(device, monkeypatch):
    state, seedings = torch.get_rng_state(), []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda gpu: f"of {gpu}")
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *restored: seedings.append(restored))
    monkeypatch.setattr(torch.cuda, "manual_seed", seedings.append)
    with _seeded(torch.device(device), 7):
        inside = torch.rand(2)
        assert seedings == [7] * (device == "cuda")
    assert torch.equal(inside, torch.rand(2, generator=torch.Generator().manual_seed(7)))
    assert torch.equal(torch.get_rng_state(), state)
    assert seedings[1:] == [("of cuda", torch.device("cuda"))] * (device == "cuda")


def test_sampling_follows_the_secret_key_and_not_the_runs_seed(tmp_path):
    a, b = problem(tmp_path / "a", privacy(seed=None)), problem(tmp_path / "b", privacy(seed=None))
    batches_a, batches_b = ([i.tolist() for i in p.batch(epochs=5)] for p in (a, b))
    assert batches_a != batches_b
    assert batches_a == [i.tolist() for i in a.batch(epochs=5)]
    assert a.objective.key_store(0).batch(Draw(1, "training", 0, 12, 4)).tolist() == batches_a[0]


def test_padding_tokens_stay_at_zero_under_noise(tmp_path):
    """No gradient reaches the vector of the padding token, so that noise there would protect
    nothing.
    """
    x = stream(3, "tokens").integers(0, 7, (6, 5)).astype(np.int32)
    dataset = Dataset("words", "text", x, np.arange(6) % 2, ("a", "b"), 6, vocabulary=7)
    clients = (ClientRows(np.arange(6), np.arange(0), np.arange(0)),)
    module = build(ModelSettings(name="fasttext", width=4), (5,), 2, 7, seed=3)
    space = ParameterSpace(module)
    data = DeviceDataset.build(dataset, Partition(clients, {}), "classes")
    inner = TorchObjective(module, space, data, criterion(ModelSettings(), TASKS["classes"]))
    objective = PrivateObjective(inner, module, space, privacy(), tmp_path)
    (index,) = objective.batches(data.rows["train"][0], Pass(0, "training", 1, 0, Passes(1), 6))
    _, G = objective.gradient(space.pack(module).unsqueeze(0), [index])
    assert space.padding == (slice(0, 4),)
    assert not G[0, :4].any()
    assert G[0, 4:].all()
