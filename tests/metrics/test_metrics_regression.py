"""Metrics of regression and of independent labels, against scikit-learn and where little is
defined.
"""

import json
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from pomona.core.errors import DivergedError
from pomona.core.rng import stream
from pomona.metrics.intervals import wilson
from pomona.tasks import TASKS
from pomona.tasks.scores import confidence, evaluate

pytestmark = pytest.mark.long

evaluate_regression = partial(evaluate, TASKS["regression"])
evaluate_multilabel = partial(evaluate, TASKS["multilabel"])


@given(st.integers(0, 99), st.integers(2, 30), st.integers(1, 3))
def test_regression_is_the_closed_form(seed, n, targets):
    draw = stream(seed, "case")
    truth, predicted = draw.normal(size=(n, targets)), draw.normal(size=(n, targets))
    error = predicted - truth
    explained = 1 - (error**2).sum(0) / ((truth - truth.mean(0)) ** 2).sum(0)
    computed = evaluate_regression(predicted, truth)
    by_target = computed.pop("targets")
    assert computed.pop("intervals") == dict.fromkeys(by_target)  # nothing to draw from
    assert computed == pytest.approx(
        {"samples": n, "mse": (error**2).mean(), "mae": abs(error).mean(), "r2": explained.mean()}
    )
    assert by_target["r2"] == pytest.approx(list(explained))
    assert by_target["mae"] == pytest.approx(list(abs(error).mean(0)))


@pytest.mark.parametrize(
    ("predicted", "truth", "values"),
    [
        (np.empty((0, 2)), np.empty((0, 2)), {"samples": 0, "mse": None, "mae": None, "r2": None}),
        ([[3.0, 1.0]], [[1.0, 1.0]], {"samples": 1, "mse": 2.0, "mae": 1.0, "r2": None}),
        ([[1.0], [2.0]], [[5.0], [5.0]], {"samples": 2, "mse": 12.5, "mae": 3.5, "r2": None}),
        # The second target does not vary, and counts in the errors only.
        (
            [[0.0, 1.0], [1.0, 1.0]],
            [[0.0, 0.0], [1.0, 0.0]],
            {"samples": 2, "mse": 0.5, "mae": 0.5, "r2": 1.0},
        ),
    ],
)
def test_regression_of_little_data(predicted, truth, values):
    computed = evaluate_regression(np.array(predicted), np.array(truth))
    assert {name: computed[name] for name in values} == pytest.approx(values)


def test_intervals_of_errors_are_those_of_a_mean_and_need_six_samples():
    """The bootstrap of 400 samples' mean is near mean +- 1.96 s / sqrt(n); R2 is that of new noise,
    1 - 0.25 / 1.25.
    """
    draw = stream(0, "case")
    predicted = draw.normal(size=(400, 1))
    truth = predicted + draw.normal(scale=0.5, size=(400, 1))
    error = abs(predicted - truth)
    result = evaluate_regression(predicted, truth, partial(stream, 0, "bootstrap"), resamples=2000)
    delta = 1.96 * error.std(ddof=1) / 20
    assert result["intervals"]["mae"] == pytest.approx(
        [error.mean() - delta, error.mean() + delta], abs=0.1 * delta
    )
    delta = 1.96 * (error**2).std(ddof=1) / 20
    mse = (error**2).mean()
    assert result["intervals"]["mse"] == pytest.approx([mse - delta, mse + delta], abs=0.1 * delta)
    low, high = result["intervals"]["r2"]
    assert low < 0.8 < high
    assert low < result["r2"] < high
    of_five = evaluate_regression(predicted[:5], truth[:5], partial(stream, 0, "bootstrap"))
    assert of_five["intervals"] == {"mse": None, "mae": None, "r2": None}
    assert (
        None
        not in evaluate_regression(predicted[:6], truth[:6], partial(stream, 0, "bootstrap"))[
            "intervals"
        ].values()
    )


def test_a_score_of_an_evaluation_has_an_interval_where_its_task_defines_one():
    draw = torch.Generator().manual_seed(0)
    numbers = torch.randn(40, 1, generator=draw), torch.randn(40, 1, generator=draw)
    low, high = confidence("mae", numbers, TASKS["regression"], seed=0, client=0)
    assert low < abs(numbers[0] - numbers[1]).mean() < high
    flags = numbers[0], (numbers[1] > 0).float()
    low, high = confidence("auroc", flags, TASKS["multilabel"], seed=0, client=0)
    assert low < metrics.roc_auc_score(flags[1][:, 0], flags[0][:, 0]) < high
    assert confidence("loss", flags, TASKS["multilabel"], seed=0, client=0) is None


def test_flags_have_intervals_of_means_and_wilsons():
    """The bootstrap of 400 samples' mean is near mean +- 1.96 s / sqrt(n)."""
    draw = stream(0, "case")
    p = draw.uniform(size=(400, 3))
    flags = (draw.uniform(size=(400, 3)) < p).astype(np.float32)
    computed = evaluate_multilabel(p, flags, partial(stream, 0, "bootstrap"), resamples=2000)
    right = (p > 0.5) == (flags > 0.5)
    for name, by_sample in {"accuracy": right.mean(1), "brier": ((p - flags) ** 2).mean(1)}.items():
        margin = 1.96 * by_sample.std(ddof=1) / 20
        expected = [by_sample.mean() - margin, by_sample.mean() + margin]
        assert computed["intervals"][name] == pytest.approx(expected, abs=0.1 * margin)
    all_right = int(right.all(1).sum())
    assert computed["subset_accuracy"] == all_right / 400
    assert computed["intervals"]["subset_accuracy"] == wilson(all_right, 400)
    assert computed["intervals"].keys() == TASKS["multilabel"].measures.keys() - {"loss"}
    assert all(low < computed[name] < high for name, (low, high) in computed["intervals"].items())


@given(st.integers(0, 99), st.integers(2, 40), st.integers(1, 4))
def test_multilabel_agrees_with_scikit_learn(seed, n, labels):
    draw = stream(seed, "case")
    p, truth = np.round(draw.uniform(0.01, 0.99, (n, labels)), 1), draw.integers(0, 2, (n, labels))
    p[p == 0.5] = 0.6
    p = np.clip(p, 0.01, 0.99)
    truth[0], truth[1] = 0, 1  # every label has both values
    guess = (p > 0.5).astype(int)
    expected = {
        "samples": n,
        "loss": np.mean(
            [metrics.log_loss(truth[:, k], p[:, k], labels=[0, 1]) for k in range(labels)]
        ),
        "auroc": np.mean([metrics.roc_auc_score(truth[:, k], p[:, k]) for k in range(labels)]),
        "subset_accuracy": (guess == truth).all(1).mean(),
        "macro_f1": np.mean([metrics.f1_score(truth[:, k], guess[:, k]) for k in range(labels)]),
    }
    computed = evaluate_multilabel(p, truth.astype(np.float32))
    assert {name: computed[name] for name in expected} == pytest.approx(expected)
    for k in range(labels):
        flags, scores, predicted = truth[:, k], p[:, k], guess[:, k]
        assert {name: column[k] for name, column in computed["labels"].items()} == pytest.approx(
            {
                "positives": flags.sum(),
                "accuracy": (flags == predicted).mean(),
                "auroc": metrics.roc_auc_score(flags, scores),
                "auprc": metrics.average_precision_score(flags, scores),
                "sensitivity": metrics.recall_score(flags, predicted),
                "specificity": metrics.recall_score(1 - flags, 1 - predicted),
                "f1": metrics.f1_score(flags, predicted),
            }
        )


@pytest.mark.parametrize(
    ("p", "truth", "values"),
    [
        (
            np.empty((0, 2)),
            np.empty((0, 2)),
            {"loss": None, "auroc": None, "subset_accuracy": None, "macro_f1": None},
        ),
        ([[0.1, 0.2]], [[0, 0]], {"auroc": None, "subset_accuracy": 1.0, "macro_f1": None}),
        # Label 0 never occurs and is never predicted: F1 and the area are those of label 1.
        (
            [[0.1, 0.9], [0.1, 0.8]],
            [[0, 1], [0, 0]],
            {"auroc": 1.0, "subset_accuracy": 0.5, "macro_f1": 2 / 3},
        ),
        ([[0.45, 0.55]], [[0, 1]], {"auroc": None, "subset_accuracy": 1.0, "macro_f1": 1.0}),
        ([[1.0]], [[0]], {"loss": -np.log(np.finfo(float).tiny), "macro_f1": 0.0}),
    ],
)
def test_multilabel_of_little_data(p, truth, values):
    computed = evaluate_multilabel(np.array(p), np.array(truth))
    for name, value in values.items():
        assert computed[name] == pytest.approx(value), name
    json.dumps(computed, allow_nan=False)


@pytest.mark.parametrize("judge", [evaluate_regression, evaluate_multilabel])
def test_diverged_outputs_are_refused(judge):
    with pytest.raises(DivergedError, match="2 of 3 samples"):
        judge(np.array([[np.inf], [0.5], [np.nan]]), np.zeros((3, 1)))
