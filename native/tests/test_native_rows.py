"""Rows of one call: the same bits as each row by itself, down to none."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from native_checks import native, objective_of, samples
from pomona.core.round import Round
from pomona.core.training_settings import Optimizer
from pomona.models import ModelSettings, build
from pomona.models.losses import cross_entropy
from pomona.objective.objective import Pull
from pomona.objective.pytorch import TorchObjective
from pomona_native import layers

N = 30
batch_sizes = st.lists(st.integers(1, 7), max_size=5)


@pytest.fixture(scope="module")
def problem():
    """An objective, and five rows near its network's parameters."""
    module = build(ModelSettings(name="small"), (3, 9, 9), 3, seed=2)
    objective = objective_of(module, samples(N, (9, 9, 3)))
    row = objective.space.pack(module)
    draw = torch.Generator().manual_seed(1)
    return objective, row + torch.randn(5, len(row), generator=draw) / 20


def batches(sizes):
    draw = torch.Generator().manual_seed(sum(sizes))
    return [torch.randperm(N, generator=draw)[:size] for size in sizes]


def rows_of(*tensors):
    """Each of some tensors (n, ...) one row at a time."""
    return [[tensor[k : k + 1] for tensor in tensors] for k in range(len(tensors[0]))]


@given(batch_sizes, st.sampled_from([0.0, 0.9]), st.booleans(), st.booleans())
@settings(max_examples=40)
def test_a_step_of_many_rows_is_that_of_each(problem, sizes, momentum, pulled, in_block):
    objective, rows = problem
    round_ = Round(1, 1, 0.05, 0.05, 1.0, 1, 6, momentum, 0.01, 0, Optimizer())
    block = objective.layers[-1] if in_block else None
    W, indices = rows[: len(sizes)].clone(), batches(sizes)
    moments = torch.zeros_like(W[:, block] if block else W)
    pull = Pull(0.3, rows.flip(0), rows[:1].expand(5, -1)) if pulled else None
    single_rows, losses = rows_of(W.clone(), moments.clone()), []
    for k, (w, v) in enumerate(single_rows):
        row_pull = Pull(0.3, pull.centre[k : k + 1], pull.constant[k : k + 1]) if pull else None
        losses += objective.step(w, [indices[k]], v, round_, pull=row_pull, block=block).tolist()
    assert objective.step(W, indices, moments, round_, pull=pull, block=block).tolist() == losses
    for (w, v), (expected, velocity) in zip(rows_of(W, moments), single_rows, strict=True):
        assert torch.equal(w, expected)
        assert torch.equal(v, velocity)


@given(batch_sizes)
@settings(max_examples=20)
def test_gradients_of_many_rows_are_those_of_each(problem, sizes):
    objective, rows = problem
    W, indices = rows[: len(sizes)], batches(sizes)
    losses, G = objective.gradient(W, indices)
    for k, index in enumerate(indices):
        loss, g = objective.gradient(W[k : k + 1], [index])
        assert torch.equal(losses[k : k + 1], loss)
        assert torch.equal(G[k : k + 1], g)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=5))
@settings(max_examples=40)
def test_evaluations_of_many_clients_are_those_of_each(problem, sizes):
    objective, rows = problem
    for split, counts in zip(("test", "validation"), zip(*sizes, strict=True), strict=False):
        objective.data.rows[split] = batches(counts)
    W, clients, splits = rows[: len(sizes)], range(len(sizes)), ("test", "validation")

    def judged(outputs, targets):
        return cross_entropy(outputs, targets), outputs, targets

    results_of_all = objective.batchwise_each(W, clients, splits, judged)
    assert len(results_of_all) == len(sizes)
    for row, client, results in zip(W, clients, results_of_all, strict=True):
        for split, result in zip(splits, results, strict=True):
            index = objective.data.rows[split][client]
            assert bool(result) == (len(index) > 0)
            for k, sample in enumerate(index):  # each sample in a call of its own
                objective.data.rows["one"] = {client: sample.unsqueeze(0)}
                lone = objective.batchwise(row, client, "one", judged)
                assert all(torch.equal(t[k : k + 1], a) for t, a in zip(result, lone, strict=True))


@pytest.mark.parametrize("norms", [[], [nn.BatchNorm2d(4)]])
def test_evaluations_with_large_convolutions_are_those_of_pytorch(norms, monkeypatch):
    monkeypatch.setattr(layers, "LARGE", 0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), *norms, nn.ReLU(), nn.Flatten(), nn.Linear(196, 3))
    objective = objective_of(module, samples(N, (9, 9, 3)))
    row = objective.space.pack(module)

    def judged(outputs, targets):
        return outputs, targets

    expected = TorchObjective.batchwise(objective, row, 0, "test", judged)
    assert len(expected[0]) == N
    ((result_of_each,),) = objective.batchwise_each(row.unsqueeze(0), [0], ["test"], judged)
    for result in (objective.batchwise(row, 0, "test", judged), result_of_each):
        assert all(torch.equal(t, e) for t, e in zip(result, expected, strict=True))


def test_rows_that_overlap_are_not_written(problem):
    objective, rows = problem
    W = rows[0].expand(2, -1)
    round_ = Round(1, 1, 0.05, 0.05, 1.0, 1, 6, 0.0, 0.0, 0, Optimizer())
    assert native.kinds()
    with pytest.raises(ValueError, match="row"):
        objective.step(W, batches([2, 3]), W[:, :0], round_)
