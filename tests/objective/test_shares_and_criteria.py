"""Shares of the samples, criteria per row, features and normalisation layers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from pomona.core.errors import ConfigError
from pomona.core.rng import stream
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.batches import subsample
from pomona.objective.pytorch import TorchObjective
from pomona.objective.training import LocalTraining
from pomona.scenario import Scenario
from problems import a_round, quadratics, tiny


@pytest.fixture(scope="module")
def scenario():
    return Scenario.prepare(tiny("fedavg"))


@given(st.integers(0, 30), st.floats(0.01, 1), st.integers(1, 2))
def test_a_share_is_that_many_different_samples(n, share, minimum):
    rows = torch.arange(100, 100 + n)
    subset = subsample(rows, share, stream(0, "ala", 1, 2), minimum).tolist()
    assert len(set(subset)) == len(subset)
    assert set(subset) <= set(rows.tolist())
    assert len(subset) == (n if share == 1 else min(n, max(minimum, round(share * n))))


def test_the_whole_share_draws_nothing():
    rows, generator = torch.arange(9), stream(0, "ala", 1, 2)
    assert subsample(rows, 1.0, generator) is rows
    assert generator.random() == stream(0, "ala", 1, 2).random()


def test_passes_over_a_share_keep_to_one_part_and_see_it_once_an_epoch():
    problem = quadratics(3, samples=10)
    training = LocalTraining(problem, (0, 1, 2), None, a_round(batch_size=4))
    steps = [
        [i.tolist() for i in batch.indices]
        for (batch,) in training.steps(2, purpose="ala", share=0.5)
    ]
    assert [len(indices[0]) for indices in steps] == [4, 1, 4, 1]
    for k in range(3):
        first, second = (sorted(steps[t][k] + steps[t + 1][k]) for t in (0, 2))
        assert first == second
        assert len(set(first)) == 5
        assert set(first) <= set(problem.rows[k])
    repeated = [
        [i.tolist() for i in batch.indices]
        for (batch,) in training.steps(2, purpose="ala", share=0.5)
    ]
    assert repeated == steps


def test_a_criterion_a_row_is_called_with_its_own_samples(scenario):
    """Row k's own function, here (k + 1) times the run's loss: losses and gradients scale by k +
    1.
    """
    objective = scenario.objective()
    W = torch.stack([scenario.initial(), scenario.initial(5)])
    indices = [objective.data.rows["train"][c][:6] for c in (0, 1)]
    losses, G = objective.gradient(W, indices)
    widths = []

    def scaled(factor):
        def loss(outputs, targets, features):
            widths.append(tuple(features.shape))
            return factor * objective.criterion(outputs, targets).mean()

        return loss

    scaled_losses, H = objective.gradient(W, indices, [scaled(1.0), scaled(2.0)])
    scale = torch.tensor([1.0, 2.0])
    assert_close(scaled_losses, scale * losses)
    assert_close(H, scale.unsqueeze(1) * G)
    assert widths == [(6, 8), (6, 8)]
    with pytest.raises(ConfigError, match=r"shape \(6,\) for a batch of 6 samples; .* loss.mean"):
        objective.gradient(W, indices, [lambda outputs, *_: outputs.sum(1)] * 2)


def test_features_are_what_the_last_layer_receives(scenario):
    objective = scenario.objective()
    row = scenario.initial(3)
    outputs, _ = objective.outputs(row, 2, "test")
    features = objective.features(row, 2, "test")
    values = objective.space.unpack(row)
    assert_close(features @ values["fc2.weight"].T + values["fc2.bias"], outputs)
    assert not features.requires_grad


def test_features_under_estimated_statistics_are_those_of_the_split(scenario):
    data = scenario.objective().data

    class Normed(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))

    module = Normed()
    objective = TorchObjective(module, ParameterSpace(module), data, nn.functional.cross_entropy)
    row = objective.space.pack(module)
    values = objective.space.unpack(row)
    features, (outputs, _) = objective.features(row, 1, "test"), objective.outputs(row, 1, "test")
    assert len(features) == len(data.rows["test"][1])
    assert_close(features @ values["3.weight"].T + values["3.bias"], outputs, atol=1e-5, rtol=1e-4)


def test_features_of_an_empty_split_are_empty(scenario):
    objective = scenario.objective()
    objective.data.rows["test"][0] = objective.data.rows["test"][0][:0]
    assert len(objective.features(scenario.initial(), 0, "test")) == 0


@pytest.mark.parametrize("buffers", ["local", "average"])
def test_norms_are_the_parameters_of_normalisation_layers(scenario, buffers):
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 3), nn.BatchNorm1d(3), nn.LayerNorm(3), nn.Linear(3, 10)
    )
    space = ParameterSpace(module, buffers)
    objective = TorchObjective(
        module, space, scenario.objective().data, nn.functional.cross_entropy
    )
    marked = torch.zeros(space.trained)
    for span in objective.norms:
        marked[span] = 1
    expected = ["2.weight", "2.bias", "3.weight", "3.bias"]
    assert [e.name for e in space.parameters if marked[e.start : e.stop].all()] == expected
    assert marked.sum() == 3 * len(expected)
