"""Class weights: the loss by its definition, on every engine, and weights from each client's own
counts.
"""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import nn
from torch.testing import assert_close

import pomona
from pomona.core.errors import ConfigError
from pomona.models import ModelSettings
from pomona.models.parameter_space import ParameterSpace
from pomona.objective import class_weights
from pomona.objective.batches import View
from pomona.objective.class_weights import masses, weights_of
from pomona.objective.dataset import DeviceDataset
from pomona.objective.private import PrivateObjective
from pomona.objective.pytorch import TorchObjective
from pomona.objective.stacked import StackedObjective
from pomona.privacy.settings import Privacy
from pomona.tasks import TASKS
from pomona.tasks.criterion import criterion
from problems import tiny

pytestmark = pytest.mark.long

K, ROWS = 4, ([0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11])
BALANCED = ModelSettings(class_weights="balanced")


def outputs(n, seed=0):
    return torch.randn(n, K, generator=torch.Generator().manual_seed(seed))


def view(client):
    return View(client, 0, 1, "training", 0)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_mass_of_a_target_multiplies_the_loss_of_its_sample(smoothing):
    y, w, z = torch.tensor([0, 1, 2, 3, 3]), torch.tensor([0.5, 1.0, 2.0, 4.0]), outputs(5)
    loss = criterion(ModelSettings(label_smoothing=smoothing), TASKS["classes"])
    assert_close(loss(z, masses(y, w)), loss(z, y) * w[y])


def test_masses_of_labels_are_positive_weights_of_pytorchs_loss():
    y, w, z = (outputs(6, 1) > 0).float(), torch.tensor([0.5, 1.0, 2.0, 4.0]), outputs(6)
    expected = nn.functional.binary_cross_entropy_with_logits(
        z, y, pos_weight=w, reduction="none"
    ).mean(1)
    assert_close(criterion(ModelSettings(), TASKS["multilabel"])(z, masses(y, w)), expected)


def test_balanced_weights_are_those_of_scikit_learn_on_the_clients_own_classes():
    y = torch.tensor([0, 0, 0, 1, 1, 3, 0, 2, 2, 2])
    rows = [torch.arange(7), torch.arange(7, 10), torch.arange(0)]
    weights = weights_of(BALANCED, y, rows, K)
    for ids, w in zip(rows[:2], weights, strict=False):
        labels = np.unique(y[ids])
        assert_close(
            w[labels].numpy(),
            compute_class_weight("balanced", classes=labels, y=y[ids].numpy()).astype(np.float32),
        )
        assert w[y[ids]].mean() == pytest.approx(1)
    assert weights[2].tolist() == [1, 1, 1, 1]
    assert weights[0][2] == 1


def test_balanced_weights_of_labels_are_no_over_yes():
    y = torch.tensor([[1, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1.0]])
    assert weights_of(BALANCED, y, [torch.arange(4)], 3).tolist() == [[3, 1, 1]]


@pytest.fixture
def engines(tmp_path):
    """Three engines on two clients with their own weights, one private without noise and
    clipping.
    """
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(12, 5, generator=generator)
    y = torch.randint(0, K, (12,), generator=generator)
    rows = [torch.tensor(indices) for indices in ROWS]
    weights = torch.tensor([[0.5, 1, 2, 4], [3, 1, 0.2, 1]])
    splits = dict.fromkeys(("train", "validation", "test"), rows)
    data = DeviceDataset(x, y, None, None, splits, "classes", weights=weights)
    module = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, K))
    space = ParameterSpace(module)
    loss = criterion(ModelSettings(), TASKS["classes"])
    loop = TorchObjective(module, space, data, loss)
    unclipped = Privacy(
        delta=1e-5, noise_multiplier=0, max_grad_norm=1e6, seed=1, acknowledge=("metrics",)
    )
    private = PrivateObjective(loop, module, space, unclipped, tmp_path)
    return (
        {"loop": loop, "stacked": StackedObjective(module, space, data, loss), "private": private},
        module,
        space,
    )


def by_hand(module, row, space, data, client):
    """Mean of weight times cross-entropy, by autograd on PyTorch's own loss."""
    index = data.rows["train"][client]
    parameters = {e.name: e.view(row).clone().requires_grad_() for e in space.parameters}
    z = torch.func.functional_call(module, parameters, (data.x[index],))
    losses = nn.functional.cross_entropy(z, data.y[index], reduction="none")
    loss = (losses * data.weights[client][data.y[index]]).mean()
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return loss.detach(), torch.cat([p.flatten() for p in gradients])


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_engines_take_each_clients_own_weights_in_training_alone(engines, engine):
    built, module, space = engines
    objective, row = built[engine], space.pack(module)
    data = objective.data
    W, indices = row.repeat(2, 1), data.rows["train"]
    losses, G = objective.gradient(W, indices, views=[view(0), view(1)])
    for client in (0, 1):
        loss, g = by_hand(module, row, space, data, client)
        assert_close(losses[client], loss)
        assert_close(G[client], g)
    expected = nn.functional.cross_entropy(
        module(data.x[indices[0]]), data.y[indices[0]], reduction="none"
    )
    assert_close(objective.losses(row, 0, "test"), expected)


def test_products_with_the_hessian_are_of_the_weighted_loss(engines):
    built, module, space = engines
    row, objective = space.pack(module), built["loop"]
    z = torch.randn(len(row), generator=torch.Generator().manual_seed(4))
    index, data = objective.data.rows["train"][1], objective.data
    h = objective.hessian(row[None], [index], z[None], [view(1)])[0]
    products = torch.cat([objective.hessian(row[None], [i[None]], z[None]) for i in index])
    assert_close(h, (data.weights[1][data.y[index], None] * products).mean(0))


@pytest.mark.parametrize(
    ("settings", "targets", "private", "message"),
    [
        ({"class_weights": "balanced"}, "regression", False, "needs classes or labels"),
        ({"class_weights": "balanced", "loss": "own:loss"}, "classes", False, "model.loss = auto"),
        ({"class_weights": "balanced"}, "classes", True, "counts of private samples"),
        ({"class_weights": (1.0, 2.0)}, "classes", False, "has 2 weights; give 4"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_line(settings, targets, private, message):
    with pytest.raises(ConfigError, match=message):
        class_weights.require(ModelSettings(**settings), targets, K, private)
    class_weights.require(ModelSettings(class_weights=(1.0, 2.0, 3.0, 4.0)), "classes", K, True)


@pytest.mark.parametrize("method", ["fedavg", "apple", "fedphp", "per-fedavg", "partialfed"])
def test_runs_of_methods_that_know_nothing_of_it_change(method):
    plain, weighted = (
        pomona.run(tiny(method, rounds=2, model={"name": "mlp", "hidden": [8], **options}))
        for options in ({}, {"class_weights": "balanced"})
    )
    assert plain.rounds[0].loss != weighted.rounds[0].loss
    untrained = [
        [(e.key, e.loss) for e in run.evaluations if e.round == 0 and e.model == "global"]
        for run in (plain, weighted)
    ]
    assert untrained[0] == untrained[1]


def test_equal_weights_are_no_weights():
    plain, weighted = (
        pomona.run(tiny("fedavg", rounds=2, model={"name": "mlp", "hidden": [8], **options}))
        for options in ({}, {"class_weights": [1.0] * 10})
    )
    assert plain.evaluations[-1].loss == pytest.approx(weighted.evaluations[-1].loss, rel=1e-5)
