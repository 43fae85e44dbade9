"""The metrics of a run against closed forms and scikit-learn, down to no samples; selection of
one.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from pomona.core.errors import ConfigError
from pomona.core.rng import stream
from pomona.metrics.metric import METRICS, array
from pomona.tasks import TASKS, task_of
from pomona.tasks.scores import choose, compute, evaluate, measured


def task_of_outputs(task, outputs):
    """The task of outputs; for times, with intervals."""
    return task_of(task, (0.5, 1.0, 2.0)[: outputs.shape[1]])


def times(draw, n):
    """Times with ties, half of them censored; no time is that of an event and of a censoring."""
    time, event = draw.exponential(size=n).round(1) + 0.1, draw.integers(0, 2, n)
    event[time == time.max(initial=0)] = 0
    return np.column_stack([time + 0.03 * (1 - event), event]).astype(np.float32)


def random_case(task, n, seed=0, width=3):
    """Random outputs and targets of a kind."""
    draw = stream(seed, "test metrics")
    if task == "segmentation":
        return counted(*draw.integers(0, width, (2, n, 7)), width)
    outputs = draw.normal(size=(n, width)).round(1)  # with ties
    truth = {
        "classes": lambda: draw.integers(0, width, n),
        "multilabel": lambda: draw.integers(0, 2, (n, width)).astype(np.float32),
        "regression": lambda: draw.normal(size=(n, width)).astype(np.float32),
        "survival": lambda: times(draw, n),
    }[task]()
    return outputs.astype(np.float32), truth


def counted(claimed, true, width):
    """Counts (n, 3C) and true pixels (n, C) of masks (n, pixels)."""
    claims, truth = (
        masks[:, np.newaxis] == np.arange(width)[:, np.newaxis] for masks in (claimed, true)
    )
    areas = (claims & truth, claims & ~truth, ~claims & truth)
    return np.concatenate([mask.sum(2) for mask in areas], axis=1).astype(np.float32), truth.sum(2)


def overlap(score, counts):
    """Mean over samples of the mean over foreground classes present or predicted, with pixels
    enumerated.
    """
    scores = []
    for sample in counts.reshape(len(counts), 3, -1).astype(int):
        regions = [
            (np.repeat([1, 0, 1], c), np.repeat([1, 1, 0], c)) for c in sample.T[1:] if c.sum()
        ]
        scores += [np.mean([score(true, claimed) for true, claimed in regions])] if regions else []
    return np.mean(scores)


def of_times(name, p, y):
    """The same by scikit-survival."""
    sksurv, y = pytest.importorskip("sksurv.metrics"), y.astype(float)
    truth = np.array([(e > 0, t) for t, e in y], dtype=[("e", bool), ("t", float)])
    edges, risk = np.array([0.5, 1.0, 2.0]), -np.log(p).sum(1)
    padded, k = np.pad(p, ((0, 0), (1, 0)), constant_values=1), np.searchsorted(edges, y[:, 0])
    survived = np.searchsorted(edges, y[:, 0], "right")
    rows = np.arange(len(y))
    event_chance = padded[rows, k] - np.where(k < 3, padded[rows, np.minimum(k + 1, 3)], 0)
    return {
        "c_index": lambda: sksurv.concordance_index_censored(
            truth["e"], truth["t"], risk, tied_tol=0
        )[0],
        "uno_c": lambda: sksurv.concordance_index_ipcw(truth, truth, risk, tied_tol=0)[0],
        "dynamic_auroc": lambda: sksurv.cumulative_dynamic_auc(
            truth, truth, 1 - p, edges, tied_tol=0
        )[1],
        "integrated_brier": lambda: sksurv.integrated_brier_score(truth, truth, p, edges),
        "loss": lambda: -np.log(np.where(truth["e"], event_chance, padded[rows, survived])).mean(),
    }[name]()


def second_opinion(name, task, outputs, y):
    """The same by scikit-learn."""
    p = task_of_outputs(task, outputs).natural(outputs)
    if task == "segmentation":
        return overlap({"dice": sk.f1_score, "iou": sk.jaccard_score}[name], outputs)
    if task == "survival":
        return of_times(name, p, y)
    if task == "regression":
        score = {
            "mae": sk.mean_absolute_error,
            "mse": sk.mean_squared_error,
            "loss": sk.mean_squared_error,
        }
        return score.get(name, sk.r2_score)(y, p)
    if task == "multilabel":
        flags = p > 0.5
        return {
            "accuracy": (flags == (y > 0.5)).mean,
            "balanced_accuracy": lambda: np.mean(
                [sk.balanced_accuracy_score(y[:, k], flags[:, k]) for k in range(y.shape[1])]
            ),
            "macro_f1": lambda: sk.f1_score(y, flags, average="macro"),
            "auroc": lambda: sk.roc_auc_score(y, p),
            "auprc": lambda: sk.average_precision_score(y, p),
            "brier": lambda: np.mean((p - y) ** 2),
            "loss": lambda: np.mean(
                [sk.log_loss(y[:, k], p[:, k], labels=[0, 1]) for k in range(y.shape[1])]
            ),
        }[name]()
    truth = {c: y == c for c in range(p.shape[1])}
    return {
        "accuracy": lambda: sk.accuracy_score(y, p.argmax(1)),
        "balanced_accuracy": lambda: sk.balanced_accuracy_score(y, p.argmax(1)),
        "macro_f1": lambda: sk.f1_score(y, p.argmax(1), average="macro"),
        "auroc": lambda: np.mean([sk.roc_auc_score(truth[c], p[:, c]) for c in truth]),
        "auprc": lambda: np.mean([sk.average_precision_score(truth[c], p[:, c]) for c in truth]),
        "brier": lambda: np.mean(((p - np.eye(p.shape[1])[y]) ** 2).sum(1)),
        "loss": lambda: sk.log_loss(y, p),
    }[name]()


CASES = [(m, name) for m in METRICS for name, task in TASKS.items() if m in task.measures]


@pytest.mark.long
@pytest.mark.parametrize(("name", "task"), CASES)
@pytest.mark.parametrize("n", [40, 300])
def test_every_metric_agrees_with_scikit_learn(name, task, n):
    outputs, y = random_case(task, n)
    assert compute(name, outputs, y, task_of_outputs(task, outputs)) == pytest.approx(
        second_opinion(name, task, outputs, y), abs=1e-12
    )


@pytest.mark.parametrize(("name", "task"), CASES)
def test_a_sample_of_weight_two_is_a_sample_twice(name, task):
    outputs, y = random_case(task, 30)
    counts = stream(1, "counts").integers(1, 4, 30)
    repeated = np.repeat(np.arange(30), counts)
    weighted = measured(
        METRICS[name],
        task_of_outputs(task, outputs),
        task_of_outputs(task, outputs).natural(outputs),
        y,
        counts[np.newaxis].astype(float),
    )[0]
    assert weighted == pytest.approx(
        compute(name, outputs[repeated], y[repeated], task_of_outputs(task, outputs)), abs=1e-9
    )


@given(
    st.sampled_from(CASES),
    st.integers(0, 6),
    st.integers(0, 50),
    st.sampled_from([2, 3]),
    st.sampled_from([0.0, 9e3]),
)
@settings(max_examples=150)
def test_few_samples_give_a_possible_value_or_none(case, n, seed, width, scale):
    """Down to no sample and to one, with ties, one class only, or outputs that saturate."""
    (name, task), metric = case, METRICS[case[0]]
    outputs, y = random_case(task, n, seed, width)
    value = compute(name, outputs * np.float32(scale or 1), y, task_of_outputs(task, outputs))
    assert value is None or metric.low <= value <= metric.high + 1e-12
    if n == 0:
        assert value is None
    if n and metric.pools:
        assert value is not None
    if n and task == "classes" and len(set(y.tolist())) == 1 and not metric.pools:
        assert value is None  # one class alone ranks nothing, and says nothing of balance


@pytest.mark.parametrize("task_name", TASKS)
def test_resamples_of_fewer_than_six_samples_are_no_interval(task_name):
    """Shares of right answers have Wilson's, which holds for any number."""
    outputs, y = random_case(task_name, 40)
    task = task_of_outputs(task_name, outputs)
    small, large = (
        evaluate(task, task.natural(outputs[:n]), y[:n], lambda: stream(0, "bootstrap"))
        for n in (5, 40)
    )
    assert {name for name, bounds in small["intervals"].items() if bounds} == set(task.proportions)
    assert None not in large["intervals"].values()


def test_the_area_counts_pairs_in_order_and_half_of_ties():
    # Positives score 3 and 1, negatives 2, 1 and 0: 3 > all three, 1 > 0 and ties with 1: (3 + 1.5)
    # / 6.
    logits = np.array([[0, 3], [0, 1], [0, 2], [0, 1], [0, 0]], np.float32)
    assert compute("auroc", logits, np.array([1, 1, 0, 0, 0]), TASKS["classes"]) == pytest.approx(
        4.5 / 6
    )
    # By score: 3 (a hit), 2 (none), then 1 (a hit and a miss together): 1/2 * 1/1 + 1/2 * 2/4.
    assert compute("auprc", logits, np.array([1, 1, 0, 0, 0]), TASKS["classes"]) == pytest.approx(
        0.75
    )


def test_tensors_and_arrays_are_the_same():
    torch = pytest.importorskip("torch")
    outputs, y = random_case("classes", 20)
    assert compute("auroc", torch.tensor(outputs), torch.tensor(y), TASKS["classes"]) == compute(
        "auroc", outputs, y, TASKS["classes"]
    )
    assert array(torch.ones(2, requires_grad=True)).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "value", "number", "text", "gap"),
    [
        ("accuracy", 0.9547, "95.47", "95.47 %", "+95.47 percentage points"),
        ("auroc", 0.7314, "0.731", "0.731", "+0.731"),
        ("mae", 1234.567, "1235", "1235", "+1235"),
        ("loss", 0.0123456, "0.01235", "0.01235", "+0.01235"),
        ("accuracy", None, "-", "-", "-"),
    ],
)
def test_people_read_a_metric_in_its_own_way(name, value, number, text, gap):
    metric = METRICS[name]
    assert (metric.number(value), metric.text(value), metric.gap(value)) == (number, text, gap)


def test_better_and_worst_follow_the_direction():
    auroc, mae = METRICS["auroc"], METRICS["mae"]
    assert auroc.better(0.8, 0.7)
    assert not auroc.better(0.7, 0.7)
    assert mae.better(0.7, 0.8)
    assert auroc.better(0.1, None)
    assert not auroc.better(None, 0.1)
    assert not mae.better(None, None)
    assert (auroc.worst([0.4, None, 0.9]), mae.worst([0.4, None, 0.9])) == (0.4, 0.9)
    assert (auroc.best([0.4, 0.9]), mae.best([0.4, 0.9]), mae.best([None])) == (0.9, 0.4, None)


@pytest.mark.parametrize(
    ("task", "labels", "chosen", "reason"),
    [
        ("classes", [0, 1, 2, 0], "accuracy", ""),
        ("classes", [0] * 70 + [1] * 30, "accuracy", ""),
        (
            "classes",
            [0] * 71 + [1] * 29,
            "auroc",
            "71.0 % of the training samples are of class 'no'",
        ),
        ("classes", [], "accuracy", ""),
        ("multilabel", [[0.0, 1.0], [1.0, 0.0]], "accuracy", ""),
        ("multilabel", [[0.0, 0.0], [1.0, 0.0]], "auroc", "75.0 % of the training flags have"),
        # One label that 3 of 4 samples have and one that 1 of 4 has: half of the flags are 1, three
        # quarters usual.
        (
            "multilabel",
            [[1.0, 0.0]] * 2 + [[1.0, 1.0], [0.0, 0.0]],
            "auroc",
            "75.0 % of the training flags have",
        ),
        ("regression", [[2.5]], "mae", "numbers"),
    ],
)
def test_the_metric_follows_from_the_task_and_the_labels(task, labels, chosen, reason):
    choice = choose(
        None,
        TASKS[task],
        np.array(labels, int if task == "classes" else float),
        ("no", "yes", "maybe"),
    )
    assert choice.metric.name == chosen
    assert reason in choice.reason
    assert bool(reason) == bool(choice.reason)


@pytest.mark.parametrize(("name", "suggestion"), [("aurocc", "auroc"), ("mae", "accuracy")])
def test_a_metric_that_is_none_or_does_not_fit_is_refused(name, suggestion):
    with pytest.raises(ConfigError, match=suggestion):
        choose(name, TASKS["classes"], np.array([0, 1]))
