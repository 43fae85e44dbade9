"""Metrics of each class or label at a threshold, and calibration, against scikit-learn and closed
forms.
"""

import json
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binomtest
from sklearn import metrics
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression

from pomona.core.rng import stream
from pomona.metrics.intervals import proportion
from pomona.metrics.outcomes import (
    MAX_OUTCOMES,
    ThresholdTarget,
    at_sensitivity,
    at_specificity,
    calibration_in_the_large,
    evaluate_outcomes,
    recalibration,
    reliability_curve,
    youden,
)
from pomona.tasks import TASKS
from pomona.tasks.scores import evaluate

DRAWS = partial(stream, 3, "bootstrap", 0)
SHARES = ("sensitivity", "specificity", "ppv", "npv")
LINE = ("calibration_in_the_large", "calibration_intercept", "calibration_slope")


def case(seed, n, levels=20):
    """(n,) probabilities with ties, and outcomes with both values if n > 1."""
    draw = stream(seed, "case")
    p = draw.integers(1, levels, n) / levels
    truth = draw.random(n) < p
    truth[:2] = np.array([True, False])[: min(n, 2)]
    return p, truth


def pair(p):
    return np.stack([1 - p, p], axis=1)


@given(st.integers(0, 99), st.integers(2, 60))
@settings(max_examples=30)
def test_figures_at_a_threshold_agree_with_scikit_learn(seed, n):
    p, truth = case(seed, n)
    [outcome] = evaluate_outcomes((pair(p), truth.astype(int)), None, DRAWS, resamples=20)
    predicted = p >= 0.5
    tn, fp, fn, tp = metrics.confusion_matrix(truth, predicted, labels=[False, True]).ravel()
    counts = {
        "sensitivity": (tp, tp + fn),
        "specificity": (tn, tn + fp),
        "ppv": (tp, tp + fp),
        "npv": (tn, tn + fn),
    }
    for name, (hits, total) in counts.items():
        assert outcome[name] == (pytest.approx(hits / total) if total else None)
        wilson = binomtest(int(hits), int(total)).proportion_ci(method="wilson") if total else None
        assert outcome["intervals"][name] == (
            pytest.approx([wilson.low, wilson.high]) if wilson else None
        )
    assert (outcome["outcome"], outcome["samples"], outcome["positives"]) == (1, n, truth.sum())
    assert (outcome["threshold"], outcome["chosen"]) == (0.5, False)
    assert outcome["auprc"] == pytest.approx(metrics.average_precision_score(truth, p))
    assert outcome["brier"] == pytest.approx(metrics.brier_score_loss(truth, p))


@given(st.integers(0, 99), st.integers(2, 60))
@example(28, 28)  # two thresholds whose indices differ by rounding alone
@settings(max_examples=30)
def test_the_threshold_is_the_best_of_all_on_validation(seed, n):
    """No probability as a threshold has a larger J, and of those with the same J none is higher."""
    p, truth = case(seed, n)
    J = {float(t): metrics.balanced_accuracy_score(truth, p >= t) * 2 - 1 for t in np.unique(p)}
    top = max(J.values())
    best = max(t for t, j in J.items() if j > top - 1e-12)
    assert youden(p, truth) == (best if top > 1e-12 else None)


def test_the_threshold_comes_from_validation_and_is_used_on_test():
    validation = (pair(np.array([0.1, 0.2, 0.3, 0.4])), np.array([0, 0, 1, 1]))
    tested = (pair(np.array([0.25, 0.35, 0.3, 0.9])), np.array([0, 0, 1, 1]))
    [outcome] = evaluate_outcomes(tested, validation, DRAWS)
    assert (outcome["threshold"], outcome["chosen"]) == (0.3, True)
    assert [outcome[name] for name in SHARES] == pytest.approx([1, 1 / 2, 2 / 3, 1])


@given(st.integers(0, 99), st.integers(0, 60), st.sampled_from([0.05, 0.5, 0.9, 0.95]))
@settings(max_examples=30)
def test_a_wanted_specificity_is_reached_by_the_lowest_threshold(seed, n, target):
    p, truth = case(seed, n)
    reached = [
        float(t) for t in np.unique(p) if (~truth).any() and (p[~truth] < t).mean() >= target
    ]
    assert at_specificity(p, truth, target) == (min(reached) if reached else None)


@given(st.integers(0, 99), st.integers(0, 60), st.sampled_from([0.05, 0.5, 0.9, 0.95]))
@settings(max_examples=30)
def test_a_wanted_sensitivity_is_reached_by_the_highest_threshold(seed, n, target):
    p, truth = case(seed, n)
    reached = [float(t) for t in np.unique(p) if truth.any() and (p[truth] >= t).mean() >= target]
    assert at_sensitivity(p, truth, target) == (max(reached) if reached else None)


def test_a_wanted_sensitivity_is_that_of_validation():
    validation = (pair(np.array([0.1, 0.2, 0.3, 0.4])), np.array([0, 1, 1, 1]))
    tested = (pair(np.array([0.15, 0.25, 0.35, 0.9])), np.array([0, 0, 1, 1]))
    target = ThresholdTarget("sensitivity", 2 / 3)  # 0.3 has it: two of three are above
    [outcome] = evaluate_outcomes(tested, validation, DRAWS, target=target)
    assert (outcome["threshold"], outcome["chosen"]) == (0.3, True)
    assert (outcome["sensitivity"], outcome["specificity"]) == (1, 1)


def test_a_wanted_specificity_is_that_of_validation():
    validation = (pair(np.array([0.1, 0.2, 0.3, 0.4])), np.array([0, 0, 0, 1]))
    tested = (pair(np.array([0.25, 0.35, 0.3, 0.9])), np.array([0, 0, 1, 1]))
    for target, threshold, shares in ((2 / 3, 0.3, (1, 1 / 2)), (0.9, 0.4, (1 / 2, 1))):
        [outcome] = evaluate_outcomes(
            tested, validation, DRAWS, target=ThresholdTarget("specificity", target)
        )
        assert (outcome["threshold"], outcome["chosen"]) == (threshold, True)
        assert (outcome["sensitivity"], outcome["specificity"]) == shares


@pytest.mark.parametrize(
    ("p", "truth"),
    [
        ([], []),
        ([0.7], [1]),
        ([0.2, 0.4], [1, 1]),
        ([0.2, 0.4], [0, 0]),
        ([0.4, 0.4], [0, 1]),  # no threshold tells them apart
        ([0.2, 0.4], [1, 0]),  # every threshold is worse than none
    ],
)
def test_without_a_threshold_that_helps_it_is_one_half(p, truth):
    assert youden(np.array(p), np.array(truth, dtype=bool)) is None
    validation = (pair(np.array(p)), np.array(truth, dtype=int))
    [outcome] = evaluate_outcomes((pair(np.array([0.4, 0.5])), np.array([0, 1])), validation, DRAWS)
    assert (outcome["threshold"], outcome["chosen"]) == (0.5, False)
    assert [outcome[name] for name in SHARES] == [1, 1, 1, 1]


@given(st.integers(0, 99), st.integers(0, 80))
@settings(max_examples=30)
def test_the_curve_is_that_of_scikit_learn(seed, n):
    p, truth = case(seed, n)
    points = reliability_curve(p, truth)
    assert sum(samples for *_, samples in points) == n
    if n:
        share, mean = calibration_curve(truth, p, n_bins=10, strategy="quantile")
        assert [a for a, _, _ in points] == pytest.approx(list(mean))
        assert [hits / samples for _, hits, samples in points] == pytest.approx(list(share))


def test_recalibration_of_two_probabilities_is_closed_form():
    """With two distinct logits the line goes through the observed log odds; its variance follows
    from counts alone.
    """
    counts = {0.2: (10, 30), 0.8: (45, 15)}  # probability: (with the outcome, without)
    p = np.concatenate([np.full(sum(c), v) for v, c in counts.items()])
    truth = np.concatenate([np.repeat([True, False], c) for c in counts.values()])
    odds = [np.log(yes / no) for yes, no in counts.values()]
    x = np.log(0.8 / 0.2)
    slope, intercept = (odds[1] - odds[0]) / (2 * x), (odds[0] + odds[1]) / 2
    variance = sum(1 / yes + 1 / no for yes, no in counts.values())
    fitted = recalibration(p, truth)
    for name, value, error in (
        ("intercept", intercept, variance**0.5 / 2),
        ("slope", slope, variance**0.5 / (2 * x)),
    ):
        assert fitted[name][0] == pytest.approx(value)
        assert fitted[name][1] == pytest.approx(
            [value - 1.959964 * error, value + 1.959964 * error], rel=1e-5
        )


@given(st.integers(0, 30), st.floats(0.3, 3), st.floats(-1, 1))
@settings(max_examples=20)
def test_recalibration_undoes_a_distortion(seed, slope, intercept):
    """Distorting the probabilities by a line of logits changes the fitted line by its inverse."""
    p, truth = case(seed, 200)
    x = np.log(p / (1 - p))
    plain = recalibration(p, truth)
    distorted = recalibration(1 / (1 + np.exp(-(intercept + slope * x))), truth)
    assert distorted["slope"][0] == pytest.approx(plain["slope"][0] / slope, rel=1e-5, abs=1e-6)
    shifted = plain["intercept"][0] - plain["slope"][0] * intercept / slope
    assert distorted["intercept"][0] == pytest.approx(shifted, rel=1e-5, abs=1e-6)


def test_calibration_in_the_large_of_one_probability_is_closed_form():
    p, truth = np.full(50, 0.3), np.arange(50) < 20
    value = np.log(20 / 30) - np.log(0.3 / 0.7)
    margin = 1.959964 * (1 / 20 + 1 / 30) ** 0.5
    offset, interval = calibration_in_the_large(p, truth)
    assert offset == pytest.approx(value)
    assert interval == pytest.approx([value - margin, value + margin], rel=1e-5)


@given(st.integers(0, 99), st.integers(0, 60))
@settings(max_examples=30)
def test_in_the_large_as_many_cases_are_expected_as_there_are(seed, n):
    """The root of the score, by another method; none without both answers."""
    p, truth = case(seed, n)
    offset, interval = calibration_in_the_large(p, truth)
    if truth.all() or not truth.any():
        assert (offset, interval) == (None, None)
        return
    x = np.log(p / (1 - p))
    root = brentq(lambda a: (expit(a + x) - truth).sum(), -20, 20, xtol=1e-12)
    assert offset == pytest.approx(root, abs=1e-8)
    assert interval[0] < offset < interval[1]


def test_intervals_of_a_line_count_patients_rather_than_rows():
    """Liang and Zeger's variance, summed patient by patient."""
    p, truth = case(4, 90)
    groups = np.arange(90) // 3
    fitted = recalibration(p, truth, groups)
    w = np.array([fitted[name][0] for name in ("intercept", "slope")])
    bread, meat = np.zeros((2, 2)), np.zeros((2, 2))
    for patient in range(30):
        total = np.zeros(2)
        for row in np.flatnonzero(groups == patient):
            z = np.array([1.0, np.log(p[row] / (1 - p[row]))])
            chance = expit(w @ z)
            bread += chance * (1 - chance) * np.outer(z, z)
            total += (truth[row] - chance) * z
        meat += np.outer(total, total)
    inverse = np.linalg.inv(bread)
    errors = np.sqrt(np.diag(inverse @ meat @ inverse) * 30 / 29)
    for name, value, error in zip(("intercept", "slope"), w, errors, strict=True):
        margin = stats.t.ppf(0.975, 29) * error
        assert fitted[name][1] == pytest.approx([value - margin, value + margin])
    assert recalibration(p[:15], truth[:15], groups[:15])["slope"][1] is None  # five patients


def test_shares_of_grouped_samples_have_the_interval_of_proportions():
    p, truth = case(2, 80)
    groups = np.arange(80) // 2
    (outcome,) = evaluate_outcomes((pair(p), truth.astype(int)), None, DRAWS, groups=groups)
    _, of_cases = np.unique(groups[truth], return_inverse=True)
    assert outcome["units"] == 40
    assert outcome["intervals"]["sensitivity"] == proportion(
        (p >= 0.5)[truth].astype(float), of_cases
    )
    assert outcome["intervals"]["brier"]
    (tiny,) = evaluate_outcomes(
        (pair(p[:8]), truth[:8].astype(int)), None, DRAWS, groups=groups[:8]
    )
    assert set(map(str, tiny["intervals"].values())) == {"None"}  # four patients


@pytest.mark.parametrize(
    ("p", "truth"),
    [
        ([], []),
        ([0.3], [1]),
        ([0.3, 0.6], [1, 1]),
        ([0.5, 0.5, 0.5], [0, 1, 1]),
        ([0.1, 0.2, 0.8], [0, 0, 1]),
        ([0.1, 0.2, 0.8], [1, 1, 0]),
        ([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1]),  # apart but for one probability
        ([0.0, 1.0], [0, 1]),
    ],
)
def test_recalibration_is_undefined_without_overlap(p, truth):
    assert recalibration(np.array(p), np.array(truth, dtype=bool)) is None


def test_certain_probabilities_that_are_wrong_have_a_finite_line():
    p, truth = np.array([0.0, 1.0, 0.0, 1.0, 1.0]), np.array([0, 1, 1, 0, 1], dtype=bool)
    fitted = recalibration(p, truth)
    assert all(np.isfinite([value, *interval]).all() for value, interval in fitted.values())


@given(
    st.integers(0, 60), st.integers(0, 3), st.sampled_from(["two", "many", "flags"]), st.booleans()
)
@settings(max_examples=60)
def test_anything_down_to_nothing_is_ready_for_json(seed, n, answers, validated):
    """Empty, one sample, one class: what is undefined is None, and every value lies within its
    interval.
    """
    draw = stream(seed, "case")
    columns = 2 if answers == "two" else 3

    def judged(size):
        p = draw.dirichlet(np.ones(columns), size)
        return p, draw.integers(0, 2, (size, 3)) if answers == "flags" else draw.integers(
            0, columns, size
        )

    tested = judged(n)
    outcomes = evaluate_outcomes(
        tested, judged(int(draw.integers(0, 4))) if validated else None, DRAWS, resamples=10
    )
    assert [each["outcome"] for each in outcomes] == ([1] if answers == "two" else [0, 1, 2])
    for outcome in outcomes:
        json.dumps(outcome, allow_nan=False)
        positives, negatives = outcome["positives"], n - outcome["positives"]
        assert (outcome["sensitivity"] is None) == (positives == 0)
        assert (outcome["specificity"] is None) == (negatives == 0)
        assert (outcome["auprc"] is None) == (not (positives and negatives))
        assert (outcome["brier"] is None) == (n == 0)
        for name in (*SHARES, *LINE):
            value, interval = outcome[name], outcome["intervals"][name]
            assert (value is None) == (interval is None)
            assert value is None or interval[0] - 1e-12 <= value <= interval[1] + 1e-12


@pytest.mark.parametrize(("n", "defined"), [(5, False), (6, True)])
def test_fewer_than_six_samples_have_no_bootstrap_as_in_the_table_of_final_metrics(n, defined):
    p, truth = np.linspace(0.2, 0.7, n), np.arange(n) % 2
    [outcome] = evaluate_outcomes((pair(p), truth), None, DRAWS)
    whole = evaluate(TASKS["classes"], pair(p), truth, DRAWS)
    for intervals in (outcome["intervals"], whole["intervals"]):
        assert [intervals[name] is not None for name in ("auprc", "brier")] == [defined] * 2


def test_two_classes_have_the_intervals_of_the_whole():
    """The same draws: AUPRC and Brier score stand once in each table of a report, and never
    differ.
    """
    p, truth = case(5, 40)
    [outcome] = evaluate_outcomes((pair(p), truth.astype(int)), None, DRAWS)
    class_metrics = evaluate(TASKS["classes"], pair(p), truth.astype(int), DRAWS)
    for name in ("auprc", "brier"):
        assert outcome[name] == pytest.approx(class_metrics[name])
        assert outcome["intervals"][name] == pytest.approx(class_metrics["intervals"][name])


def test_with_more_outcomes_than_are_read_there_are_none():
    p = np.full((2, MAX_OUTCOMES + 1), 1 / (MAX_OUTCOMES + 1))
    assert evaluate_outcomes((p, np.array([0, 1])), None, DRAWS) == []
    assert (
        len(evaluate_outcomes((p[:, :MAX_OUTCOMES], np.array([0, 1])), None, DRAWS, resamples=2))
        == MAX_OUTCOMES
    )


def test_recalibration_is_the_unpenalised_logistic_regression_and_needs_no_optimiser_of_scipy(
    monkeypatch,
):
    """Also of extreme logits, where Newton's whole steps overshoot."""
    # half a second of importing in each short run
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    draw = stream(5, "fit")
    for scale in (0.3, 2.0, 12.0):
        x = draw.normal(0, scale, 80)
        truth = draw.random(80) < 1 / (1 + np.exp(-(0.5 + 0.4 * x)))
        fit = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000, solver="newton-cholesky").fit(
            x[:, None], truth
        )
        fitted = recalibration(1 / (1 + np.exp(-x)), truth)
        assert [fitted[name][0] for name in ("intercept", "slope")] == pytest.approx(
            [fit.intercept_[0], fit.coef_[0, 0]], rel=1e-4
        )
