"""Survival: the likelihood of interval sequences, preprocessing of times, and readable outputs."""

import itertools

import numpy as np
import pytest
import torch

from pomona.core.rng import stream
from pomona.models.losses import hazard_surprise
from pomona.tasks import TASKS, task_of
from pomona.tasks.survival import curves, hazards, sequences

EDGES = (1.0, 2.0, 4.0)
LOGITS = torch.tensor([[0.3, -1.2, 2.0]])


def coded(time, event):
    return torch.from_numpy(sequences(np.array([[time, event]], np.float32), EDGES))


@pytest.mark.parametrize(
    ("time", "event", "reached", "events"),
    [
        (0.5, 1, [1, 0, 0], [1, 0, 0]),
        (1.0, 1, [1, 0, 0], [1, 0, 0]),  # an interval holds its end
        (1.5, 1, [1, 1, 0], [0, 1, 0]),
        (4.0, 1, [1, 1, 1], [0, 0, 1]),
        (9.0, 1, [1, 1, 1], [0, 0, 0]),  # after the last edge: it survived all
        (0.5, 0, [0, 0, 0], [0, 0, 0]),  # broken off: nothing is said
        (1.0, 0, [1, 0, 0], [0, 0, 0]),
        (3.9, 0, [1, 1, 0], [0, 0, 0]),
        (4.0, 0, [1, 1, 1], [0, 0, 0]),
    ],
)
def test_a_time_is_a_sequence_of_intervals(time, event, reached, events):
    assert coded(time, event).tolist() == [[reached, events]]
    # -log of h_1, (1 - h_1) h_2, ... or of (1 - h_1) (1 - h_2) ..., written out
    h = LOGITS[0].double().sigmoid()
    factors = [h[k] if events[k] else 1 - h[k] for k in range(3) if reached[k]]
    expected = -sum(torch.log(f) for f in factors)
    assert float(hazard_surprise(LOGITS, coded(time, event))) == pytest.approx(
        float(expected), rel=1e-6
    )


def test_the_probabilities_of_all_that_can_happen_sum_to_one():
    cases = [(0.5, 1), (1.5, 1), (3.0, 1), (4.0, 0)]  # an event in one of three intervals, or none
    chances = [
        float(torch.exp(-hazard_surprise(LOGITS.double(), coded(*case).double()))) for case in cases
    ]
    assert sum(chances) == pytest.approx(1)


def test_hazards_near_0_and_1_have_finite_losses_and_gradients():
    logits = torch.tensor([[200.0, -200.0, 0.0]], requires_grad=True)
    loss = hazard_surprise(logits, coded(1.5, 1))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(400)
    assert logits.grad.tolist() == [[1.0, -1.0, 0.0]]


def test_the_loss_takes_answers_of_a_model_and_is_least_for_their_own():
    """Distillation: the mean surprise over what the model expects; Gibbs: no other model has
    less.
    """
    task = task_of("survival", EDGES)
    soft = task.soften(LOGITS.double(), 1.0)
    h = LOGITS[0].double().sigmoid()
    chances = [h[0], (1 - h[0]) * h[1], (1 - h[0]) * (1 - h[1]) * h[2], (1 - h).prod()]
    cases = [(0.5, 1), (1.5, 1), (3.0, 1), (4.0, 0)]
    logits = torch.tensor([[-0.5, 0.4, 1.0]]).double()
    mean = sum(
        p * hazard_surprise(logits, coded(*case).double())
        for p, case in zip(chances, cases, strict=True)
    )
    assert float(hazard_surprise(logits, soft)) == pytest.approx(float(mean))
    assert float(hazard_surprise(LOGITS.double(), soft)) < float(mean)


def test_survival_is_the_product_of_what_is_left():
    h = LOGITS[0].double().sigmoid().numpy()
    assert curves(LOGITS.numpy())[0] == pytest.approx(np.cumprod(1 - h), rel=1e-6)
    assert curves(np.array([[800.0, -800.0, 800.0]]))[0].tolist() == [0, 0, 0]
    assert curves(np.empty((0, 3))).shape == (0, 3)


def test_the_loss_on_record_is_the_loss_of_training():
    task, draw = task_of("survival", EDGES), stream(0, "check")
    targets = np.column_stack([draw.uniform(0.1, 6, 50), draw.integers(0, 2, 50)]).astype(
        np.float32
    )
    logits = draw.normal(size=(50, 3))
    learnt = hazard_surprise(torch.from_numpy(logits), torch.from_numpy(sequences(targets, EDGES)))
    assert task.measures["loss"](task.natural(logits), targets.astype(float)) == pytest.approx(
        learnt.numpy(), rel=1e-5
    )


def test_constant_hazards_are_the_life_table_with_one_sample_more_of_either_kind():
    targets = np.array([[0.5, 1], [0.6, 0], [1.5, 1], [1.0, 0], [3.0, 1], [9.0, 0]], np.float32)
    # at risk and seen: 5, 3, 2 with 1 event each (0.6 censored says nothing of interval 1)
    expected = [(1 + 1) / (5 + 2), 2 / (3 + 2), 2 / (2 + 2)]
    assert 1 / (1 + np.exp(-hazards(targets, EDGES))) == pytest.approx(expected)
    assert hazards(np.empty((0, 2), np.float32), EDGES).tolist() == [0, 0, 0]


def test_answers_name_edges_median_and_risk():
    task = task_of("survival", EDGES)
    hazard = torch.tensor([[0.2, 0.5, 0.5], [0.1, 0.1, 0.1], [0.5, 0.5, 0.5]])
    rows = task.predict(torch.logit(hazard), ())
    assert rows[0]["survival"] == pytest.approx({"1": 0.8, "2": 0.4, "4": 0.2})
    assert [row["median"] for row in rows] == [2.0, None, 1.0]
    assert rows[0]["risk"] == pytest.approx(-np.log(0.8) - np.log(0.4) - np.log(0.2))
    assert rows[1]["risk"] < rows[0]["risk"] < rows[2]["risk"]


def test_close_edges_are_named_apart():
    edges = tuple(1_234_570 + k / 8 for k in range(9))
    [row] = task_of("survival", edges).predict(torch.zeros(1, 9), ())
    assert [float(name) for name in row["survival"]] == list(edges)
    assert list(row["survival"].values()) == pytest.approx([0.5**k for k in range(1, 10)])


def test_every_kind_has_a_task_of_its_own_name():
    assert all(task.targets == name for name, task in TASKS.items())
    assert task_of("classes", (1.0,)) is TASKS["classes"]


def test_only_events_bear_on_the_gain_and_resamples_keep_them():
    task = TASKS["survival"]
    targets = np.array([[1.0, 1], [2.0, 0], [3.0, 1]])
    assert task.informative(targets) == 2
    assert task.strata(targets).tolist() == [1, 0, 1]


@pytest.mark.parametrize(("width", "batch"), list(itertools.product([1, 2, 5], [0, 1, 3])))
def test_any_width_and_batch(width, batch):
    edges = tuple(float(k + 1) for k in range(width))
    targets = np.column_stack([np.full(batch, 1.5), np.ones(batch)]).astype(np.float32)
    learnt = torch.from_numpy(sequences(targets, edges))
    assert learnt.shape == (batch, 2, width)
    assert hazard_surprise(torch.zeros(batch, width), learnt).shape == (batch,)
    assert task_of("survival", edges).no_target(width, ()).shape == (2, width)


def test_learned_edges_are_named_by_the_times_of_the_data():
    """Times are kept as float32; 1.55 there is 1.5499999523162842 as float64."""
    edges = tuple(float(np.float32(edge)) for edge in (0.1, 1.55, 2.0, 123456792.0))
    rows = task_of("survival", edges).predict(torch.full((1, 4), 1.0), ())
    assert list(rows[0]["survival"]) == ["0.1", "1.55", "2", "123456792"]
    assert rows[0]["median"] == 0.1
    close_edges = (1.55, 1.5500000001)
    assert [*task_of("survival", close_edges).predict(torch.zeros(1, 2), ())[0]["survival"]] == [
        "1.55",
        "1.5500000001",
    ]
