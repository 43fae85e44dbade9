"""Classification metrics against scikit-learn, closed forms, and data for which little is
defined.
"""

import json
from functools import partial
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit
from scipy.stats import binomtest, norm
from sklearn import metrics

from pomona.core.errors import DataError, DivergedError
from pomona.core.rng import stream
from pomona.metrics.intervals import intervals, stratified
from pomona.metrics.measures import auroc
from pomona.metrics.metric import DETAILS, METRICS
from pomona.tasks import TASKS, scores

TASK = TASKS["classes"]
evaluate = partial(scores.evaluate, TASK)


def weighted(p, labels, weights):
    """The bootstrapped metrics for sample weights (R, n)."""
    return {
        name: scores.measured(metric, TASK, p, labels, weights)
        for name, metric in {**METRICS, **DETAILS}.items()
        if name in TASK.measures and name not in {"accuracy", "loss"}
    }


def case(seed, n, classes, present=None, digits=2):
    """Probabilities with many ties, and labels among the ``present`` classes."""
    draw = stream(seed, "case")
    p = np.round(draw.dirichlet(np.full(classes, 0.7), n), digits) + 10.0**-digits
    return p / p.sum(1, keepdims=True), draw.integers(0, present or classes, n)


def calibration_error(p, labels):
    """The definition, bin by bin."""
    confidence, right = p.max(1), p.argmax(1) == labels
    total = 0.0
    for k in range(15):
        inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


def expected(p, labels):
    """The metrics by scikit-learn."""
    n, classes = p.shape
    predicted, among = p.argmax(1), np.unique(labels)
    mixed = [1] if classes == 2 else among
    areas = [
        metrics.roc_auc_score(labels == c, p[:, c]) for c in mixed if 0 < (labels == c).sum() < n
    ]
    precise = [
        metrics.average_precision_score(labels == c, p[:, c])
        for c in mixed
        if 0 < (labels == c).sum() < n
    ]
    confusion = metrics.confusion_matrix(labels, predicted, labels=np.arange(classes))
    recalls = metrics.recall_score(labels, predicted, labels=among, average=None, zero_division=0)
    return {
        "samples": n,
        "loss": metrics.log_loss(labels, p, labels=np.arange(classes)),
        "accuracy": metrics.accuracy_score(labels, predicted),
        "balanced_accuracy": recalls.mean() if len(among) > 1 else None,
        "macro_f1": metrics.f1_score(labels, predicted, average="macro", zero_division=0)
        if len(among) > 1
        else None,
        "auroc": np.mean(areas) if areas else None,
        "auprc": np.mean(precise) if areas else None,
        "brier": np.mean(((p - np.eye(classes)[labels]) ** 2).sum(1)) / (2 if classes == 2 else 1),
        "ece": calibration_error(p, labels),
        "sensitivity": [dict(zip(among, recalls, strict=True)).get(c) for c in range(classes)],
        "confusion": confusion.tolist(),
    }


@settings(max_examples=50)
@given(st.integers(0, 999), st.integers(1, 60), st.integers(2, 6), st.data())
def test_agrees_with_scikit_learn(seed, n, classes, data):
    p, labels = case(seed, n, classes, data.draw(st.integers(1, classes)))
    computed, reference = evaluate(p, labels), expected(p, labels)
    assert computed.keys() == {*reference, "intervals"}
    assert computed["confusion"] == reference.pop("confusion")
    for name, value in reference.items():
        assert computed[name] == pytest.approx(value, abs=1e-12), name


@given(st.integers(0, 999), st.integers(1, 30), st.integers(2, 4))
def test_weights_count_like_repeated_samples(seed, n, classes):
    p, labels = case(seed, n, classes)
    weights = stratified(labels, 4, stream(seed, "weights"))
    weighted_metrics = weighted(p, labels, weights)
    for row, times in enumerate(weights.astype(int)):
        repeated_metrics = evaluate(np.repeat(p, times, axis=0), np.repeat(labels, times))
        for name, values in weighted_metrics.items():
            assert (None if np.isnan(values[row]) else values[row]) == pytest.approx(
                repeated_metrics[name], abs=1e-12
            ), name


@pytest.mark.parametrize(
    ("scores", "positive", "area"),
    [
        ([0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1], 1.0),
        ([0.1, 0.2, 0.3, 0.4], [1, 1, 0, 0], 0.0),
        ([0.5, 0.5, 0.5], [0, 1, 1], 0.5),
        ([0.2, 0.5, 0.5, 0.9], [0, 0, 1, 1], 3.5 / 4),  # three pairs in order, one tied
        ([0.5, 0.6], [1, 1], None),
        ([], [], None),
    ],
)
def test_auroc_counts_pairs(scores, positive, area):
    area_found = auroc(np.array(scores), np.array(positive, dtype=bool), np.ones((1, len(scores))))
    assert area_found.shape == (1,)
    assert area_found[0] == pytest.approx(np.nan if area is None else area, nan_ok=True)


UNSURE = [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize(
    ("p", "labels", "values"),
    [
        (
            np.empty((0, 3)),
            [],
            {"samples": 0, "loss": None, "accuracy": None, "ece": None, "macro_f1": None},
        ),
        (
            UNSURE,
            [0],
            {
                "accuracy": 1.0,
                "sensitivity": [1.0, None, None],
                "auroc": None,
                "loss": log(2),
                "ece": 0.5,
            },
        ),
        (
            UNSURE,
            [1],
            {"accuracy": 0.0, "sensitivity": [None, 0.0, None], "macro_f1": None, "auprc": None},
        ),
        (UNSURE, [2], {"accuracy": 0.0, "loss": -log(np.finfo(float).tiny)}),
        # Class 1 is never predicted, class 2 neither occurs nor is predicted: F1 (2/3, 0), not
        # thirds.
        (
            [[0.9, 0.1, 0.0]] * 2,
            [0, 1],
            {"macro_f1": 1 / 3, "balanced_accuracy": 0.5, "auroc": 0.5, "ece": 0.4},
        ),
        # A client of one class alone is no best client: nothing can be said of balance (audit,
        # D15).
        (
            [[1.0, 0.0], [1.0, 0.0]],
            [0, 0],
            {"macro_f1": None, "balanced_accuracy": None, "auroc": None, "brier": 0.0},
        ),
        # A predicted class without samples costs F1, but has no sensitivity to average.
        (np.eye(3), [0, 1, 1], {"macro_f1": (1 + 2 / 3 + 0) / 3, "balanced_accuracy": 0.75}),
        # 0.6 = 9/15 closes its bin: apart from 0.65, together with 0.55.
        ([[0.6, 0.4], [0.65, 0.35]], [0, 1], {"ece": (0.4 + 0.65) / 2}),
        ([[0.6, 0.4], [0.55, 0.45]], [0, 1], {"ece": 0.575 - 0.5}),
        ([[1.0]] * 3, [0, 0, 0], {"accuracy": 1.0, "auroc": None, "ece": 0.0, "samples": 3}),
    ],
)
def test_what_little_data_defines(p, labels, values):
    computed = evaluate(np.array(p), np.array(labels, int), partial(stream, 0, "bootstrap"))
    for name, value in values.items():
        assert computed[name] == pytest.approx(value), name
    json.dumps(computed, allow_nan=False)
    for name, interval in computed["intervals"].items():
        assert interval is None or (computed[name] is not None and interval[0] < interval[1]), name
    assert (computed["intervals"]["accuracy"] is None) == (computed["samples"] == 0)


@pytest.mark.parametrize(("hits", "n"), [(0, 1), (1, 1), (7, 20), (500, 500)])
def test_accuracy_interval_is_wilsons(hits, n):
    """(p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)."""
    z, share = norm.ppf(0.975), hits / n
    margin = z * sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    centre, scale = share + z**2 / (2 * n), 1 + z**2 / n
    p = np.tile([0.8, 0.2], (n, 1))
    computed = evaluate(p, np.repeat([0, 1], [hits, n - hits]))
    assert computed["intervals"]["accuracy"] == pytest.approx(
        [(centre - margin) / scale, (centre + margin) / scale]
    )
    assert computed["intervals"]["macro_f1"] is None  # nothing to draw from
    assert "ece" not in computed["intervals"]  # resamples of a biased number lie above it


def test_balanced_accuracys_interval_combines_wilsons_of_the_classes():
    """Zou and Donner 2008, by SciPy's limits of each class; none for one class or groups."""
    labels = np.repeat([0, 1, 2], [40, 9, 6])
    right = np.concatenate([np.arange(n) < hits for n, hits in ((40, 37), (9, 4), (6, 6))])
    guesses = np.where(right, labels, (labels + 1) % 3)
    p = np.eye(3)[guesses] * 0.7 + 0.1
    low, high = np.transpose(
        [binomtest(h, n).proportion_ci(method="wilson") for h, n in ((37, 40), (4, 9), (6, 6))]
    )
    shares = np.array([37 / 40, 4 / 9, 1])
    expected = [
        shares.mean() - sqrt(((shares - low) ** 2).sum()) / 3,
        shares.mean() + sqrt(((high - shares) ** 2).sum()) / 3,
    ]
    assert evaluate(p, labels)["intervals"]["balanced_accuracy"] == pytest.approx(expected)
    assert evaluate(p[:40], labels[:40])["intervals"]["balanced_accuracy"] is None
    clustered = evaluate(p, labels, groups=np.arange(len(labels)) // 2)
    assert clustered["intervals"]["balanced_accuracy"] is None


@given(st.integers(0, 99), st.integers(0, 40), st.integers(1, 5))
def test_resamples_keep_the_size_of_every_class(seed, n, classes):
    labels = stream(seed, "labels").integers(0, classes, n)
    counts = stratified(labels, 7, stream(seed, "draws"))
    assert counts.shape == (7, n)
    for c in range(classes):
        assert (counts[:, labels == c].sum(1) == (labels == c).sum()).all()


def test_the_bootstrap_of_a_mean_has_its_known_spread():
    """Drawn with replacement, a mean varies by the population deviation over sqrt(n), and stays
    inside its strata.
    """
    n, values = 400, stream(1, "values").normal(size=400)
    means = stratified(np.zeros(n, int), 4000, stream(2, "draws")) @ values / n
    assert means.mean() == pytest.approx(values.mean(), abs=4 * values.std() / sqrt(n) / sqrt(4000))
    assert means.std() == pytest.approx(values.std() / sqrt(n), rel=0.05)

    def statistic(weights):
        return {"mean": weights @ values / n}

    low, high = intervals(statistic, np.zeros(n, int), 4000, stream(2, "draws"))["mean"]
    assert (high - low) / 2 == pytest.approx(norm.ppf(0.975) * values.std() / sqrt(n), rel=0.05)
    singletons = intervals(statistic, np.arange(n), 10, stream(2, "draws"))["mean"]
    assert singletons is None  # every resample is the sample: it tells nothing of others


@pytest.mark.parametrize("top", [1.0, 0.9])
def test_intervals_of_shares_join_percentiles_and_the_logit_scale(top):
    """Boyd, Eng and Page 2013; resamples of 1 are half a sample from it."""
    right = (np.arange(50) < 43).astype(float)
    strata, draws = np.zeros(50, int), partial(stream, 3, "draws")

    def statistics(weights):
        share = weights @ right / weights.sum(1)
        return {"share": np.where(share >= top, 1.0, share)}

    resamples = statistics(stratified(strata, 300, draws()))["share"]
    reach = norm.ppf(0.975) * logit(np.minimum(resamples, 0.99)).std(ddof=1)
    low, high = np.quantile(resamples, [0.025, 0.975])
    computed = intervals(statistics, strata, 300, draws(), shares={"share"})["share"]
    assert computed == pytest.approx(
        [min(low, expit(logit(0.86) - reach)), max(high, expit(logit(0.86) + reach))]
    )
    assert computed[0] < low  # nearer to 1/2 than the percentile


def test_intervals_follow_their_stream():
    p, labels = case(5, 80, 3)
    first, repeated, other_seed = (
        evaluate(p, labels, partial(stream, seed, "bootstrap"))["intervals"] for seed in (1, 1, 2)
    )
    assert first == repeated != other_seed
    assert all(low < high for low, high in first.values())
    analytic = evaluate(p, labels, partial(stream, 1, "bootstrap"), resamples=0)["intervals"]
    assert [name for name, interval in analytic.items() if interval] == [
        "accuracy",
        "balanced_accuracy",
    ]


def test_labels_of_any_integer_type():
    p, labels = case(6, 300, 40)
    assert evaluate(p, labels.astype(np.uint8)) == evaluate(p, labels)


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(DataError, match="labels run from 0 to 2"):
        evaluate(np.full((2, 2), 0.5), np.array([0, 2]))
    with pytest.raises(DivergedError, match="1 of 2 samples"):
        evaluate(np.array([[0.5, 0.5], [np.nan, 0.5]]), np.array([0, 1]))


@pytest.mark.parametrize(
    ("n", "classes", "resamples"),
    [(6, 1, 1000), (1_000, 1, 500), (10_000, 1, 200), (100, 20, 500), (200, 100, 200)],
)
@pytest.mark.parametrize(("undefined", "drawn"), [(0.005, True), (0.02, False)])
def test_resamples_are_many_and_few_may_be_undefined(n, classes, resamples, undefined, drawn):
    rows = []

    def statistics(weights):
        rows.append(len(weights))
        lost = stream(len(rows), "lost").permutation(len(weights)) < undefined * len(weights)
        return {"first": np.where(lost, np.nan, weights[:, 0])}

    computed = intervals(statistics, np.arange(n) % classes, None, stream(0, "draws"))
    assert sum(rows) == resamples
    assert (computed["first"] is not None) is drawn
