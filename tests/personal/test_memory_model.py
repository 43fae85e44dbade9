"""kNN-Per: answers against the paper's equations by loops, the choice of the weight, and edges."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_moons

import pomona
from pomona.core.errors import ConfigError, DataError
from pomona.data import from_arrays
from pomona.personal import PersonalModel
from pomona.personal.memory import GRID, MemoryModel

X, Y = make_moons(240, noise=0.2, random_state=1)
NAMES = np.array(["north", "south"])[Y]
STORED, VALID, TEST = slice(0, 120), slice(120, 180), slice(180, 240)


@pytest.fixture(scope="module")
def model():
    """A network of one client, hardly trained."""
    run = pomona.run(
        method="separate",
        data=from_arrays(X[STORED], NAMES[STORED], ["s"] * 120),
        model={"name": "mlp", "hidden": [6]},
        rounds=2,
        lr=0.1,
        workers=1,
    )
    return PersonalModel.of(run, "s")


def hidden(model, x):
    """The features, by the network's own tensors."""
    tensors = {k: t.double().numpy() for k, t in model.module.state_dict().items()}
    z = (x - np.array(model.about.shift)) / np.array(model.about.scale)
    return np.maximum(z @ tensors["fc1.weight"].T + tensors["fc1.bias"], 0)


def by_loops(model, rows, labels, x, neighbours, scale, weight):
    """The paper's equations, sample by sample."""
    answers = []
    for z, p in zip(hidden(model, x), torch.softmax(model.outputs(x).double(), 1), strict=True):
        distances = [float(np.sqrt(((z - r) ** 2).sum())) for r in hidden(model, rows)]
        nearest = sorted(range(len(rows)), key=distances.__getitem__)[:neighbours]
        similar = {j: np.exp(-distances[j] / scale) for j in nearest}
        shares = [
            sum(s for j, s in similar.items() if labels[j] == name) / sum(similar.values())
            for name in model.about.classes
        ]
        answers.append(weight * np.array(shares) + (1 - weight) * p.numpy())
    return np.array(answers)


@pytest.mark.parametrize(("neighbours", "scale"), [(10, 1.0), (3, 0.05), (500, 2.0)])
def test_answers_are_those_of_the_equations(model, neighbours, scale):
    memory = MemoryModel.from_rows(model, X[STORED], NAMES[STORED], neighbours, scale)
    expected = by_loops(model, X[STORED], NAMES[STORED], X[TEST], neighbours, scale, memory.weight)
    answers = memory.probabilities(X[TEST])
    np.testing.assert_allclose(answers, expected, atol=2e-6)
    first = memory.predict(X[TEST])[0]
    assert first["class"] == model.about.classes[int(answers[0].argmax())]
    assert first["probability"] == pytest.approx(float(answers[0].max()))


def test_the_weight_has_the_least_log_loss_and_helps_on_other_rows(model):
    memory = MemoryModel.from_rows(model, X[STORED], NAMES[STORED])
    memory = memory.weighed(X[VALID], NAMES[VALID])

    def loss(weight, rows):
        answers = by_loops(model, X[STORED], NAMES[STORED], X[rows], 10, 1.0, weight)
        with np.errstate(divide="ignore"):  # the neighbours alone may be certain, and not right
            return -np.log(answers[np.arange(len(answers)), Y[rows]]).mean()

    losses = [loss(weight, VALID) for weight in GRID]
    assert memory.weight == GRID[int(np.argmin(losses))] > 0
    right = (memory.probabilities(X[TEST]).argmax(1).numpy() == Y[TEST]).mean()
    assert right > (model.outputs(X[TEST]).argmax(1).numpy() == Y[TEST]).mean()


def test_far_from_all_rows_the_nearest_decide(model):
    memory = MemoryModel.from_rows(model, X[STORED], NAMES[STORED], scale=1e-6)
    answers = memory.probabilities(X[TEST])
    assert answers.isfinite().all()
    torch.testing.assert_close(answers.sum(1), torch.ones(60).double())


def test_a_class_that_the_client_lacks_has_the_models_part_alone(model):
    south = NAMES[STORED] == "south"
    memory = MemoryModel.from_rows(model, X[STORED][south], NAMES[STORED][south])
    of_model = torch.softmax(model.outputs(X[TEST]).double(), 1)
    torch.testing.assert_close(memory.probabilities(X[TEST])[:, 0], of_model[:, 0] / 2)
    assert memory.probabilities(X[:0]).shape == (0, 2)


@pytest.mark.parametrize(
    ("rows", "labels", "settings", "messages"),
    [
        (X[:2], ["north", "nort"], {}, ["'nort'", "north"]),
        (X[:2], ["north"], {}, ["2 rows", "1 classes"]),
        (X[:0], [], {}, ["0 rows"]),
        (X[:1], ["north"], {"neighbours": 0}, ["neighbours=0"]),
        (X[:1], ["north"], {"scale": float("nan")}, ["scale=nan"]),
    ],
)
def test_what_is_no_memory_is_refused(model, rows, labels, settings, messages):
    with pytest.raises((ConfigError, DataError)) as refused:
        MemoryModel.from_rows(model, rows, labels, **settings)
    assert all(message in str(refused.value) for message in messages)
