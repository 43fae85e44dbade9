"""Intervals of AUROCs: their definitions, written out here, and their limits."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pomona.metrics.auroc_intervals import Components, difference_margins
from pomona.metrics.influence import over_seeds
from pomona.metrics.intervals import mean_difference
from pomona.metrics.metric import METRICS
from pomona.record.paired_gain import evidence
from pomona.tasks import TASKS
from pomona.tasks.scores import evaluate

Z = stats.norm.ppf(0.975)
LEVELS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def components(events, non_events):
    scores, positive = np.array([*events, *non_events], float), np.arange(len(events + non_events))
    return Components.of(scores, positive < len(events))


@given(LEVELS, LEVELS)
def test_components_are_delong_s_and_intervals_contain_the_area(events, non_events):
    result = components(events, non_events)
    wins = np.array([[(e > o) + (e == o) / 2 for o in non_events] for e in events])
    assert result.events == pytest.approx(wins.mean(1))
    assert result.non_events == pytest.approx(wins.mean(0))
    low, high = result.interval()
    assert 0 <= low <= wins.mean() <= high <= 1
    assert low < high
    if len(events) > 1 and len(non_events) > 1:
        variances = [means.var(ddof=1) / len(means) for means in (wins.mean(1), wins.mean(0))]
        assert result.covariance(result) == pytest.approx(sum(variances))


@given(LEVELS, LEVELS)
def test_limits_are_roots_of_newcombe_s_equation(events, non_events):
    result, m, n = components(events, non_events), len(events), len(non_events)
    centre = (m + n) / 2
    for t in result.newcombe():
        variance = t * (1 - t) / (m * n)
        variance *= 2 * centre - 1 - (3 * centre - 3) / ((2 - t) * (1 + t))
        assert (result.area - t) ** 2 == pytest.approx(Z**2 * variance, abs=1e-9)


def test_the_logit_has_the_error_of_the_delta_method():
    result = components([1, 3, 4, 5, 5], [0, 1, 2, 2, 4])
    error = np.sqrt(result.covariance(result)) / (result.area * (1 - result.area))
    assert result.on_logit_scale() == pytest.approx((stats.logistic.ppf(result.area), error))


@given(LEVELS)
def test_swapped_answers_mirror_the_interval_and_perfect_ones_reach_1(levels):
    result, mirrored = components(levels, [2, 3, 4]), components([2, 3, 4], levels)
    assert result.interval() == pytest.approx([1 - bound for bound in mirrored.interval()[::-1]])
    low, high = components([9] * len(levels), levels).interval()
    assert low < high == 1


def two_models(seed, events=15, non_events=60):
    draw = np.random.default_rng(seed)
    y = np.arange(events + non_events) < events
    common = draw.normal(size=len(y))
    return y, [3 * y + common + draw.normal(size=len(y)) for _ in range(2)]


def test_margins_are_the_range_over_the_ellipse_of_both_logits():
    y, scores = two_models(0)
    a, b = (Components.of(s, y) for s in scores)
    logits = stats.logistic.ppf([a.area, b.area])
    slopes = [1 / c.area / (1 - c.area) for c in (a, b)]
    covariance = np.array([[p.covariance(q) for q in (a, b)] for p in (a, b)])
    root = np.linalg.cholesky(covariance * np.outer(slopes, slopes))
    angles = np.linspace(0, 2 * np.pi, 10**4)
    points = logits[:, None] + Z * root @ [np.cos(angles), np.sin(angles)]
    difference = np.subtract(*stats.logistic.cdf(points)) - (a.area - b.area)
    expected = [-difference.min(), difference.max()]
    assert difference_margins(a, b) == pytest.approx(expected, rel=1e-3)
    assert difference_margins(a, a) == pytest.approx([0, 0], abs=1e-9)


def test_margins_of_two_perfect_models_are_newcombe_s():
    a, b = (components([5, 6, 7, step], [0, 1, 2, 3, 3]) for step in (8, 9))
    low, _ = a.newcombe()
    for margin in difference_margins(a, b):
        assert 0.9 * (1 - low) < margin < 1.5 * (1 - low)


def gain(seeds):
    """The mean gain over clients, and the margins of each."""
    answers = [two_models(seed) for seed in seeds]
    every = [
        evidence(METRICS["auroc"], TASKS["classes"], *(np.stack([-s, s], 1) for s in scores), 1 * y)
        for y, scores in answers
    ]
    return mean_difference(every), [e.margins for e in every]


def test_seeds_without_differences_have_margins():
    y, (scores, _) = two_models(0)
    answers = np.stack([-scores, scores], 1)
    equal = evidence(METRICS["auroc"], TASKS["classes"], answers, answers, 1 * y)
    assert over_seeds([equal, equal]).margins == pytest.approx((0, 0), abs=1e-9)


@pytest.mark.parametrize("seeds", [(1,), (2,), (3, 4, 5)])
def test_a_gain_s_interval_reaches_its_margins_and_agrees_with_p(seeds):
    estimate, margins = gain(seeds)
    low, high = estimate.interval
    reach = [np.hypot.reduce([m[k] for m in margins]) / len(seeds) for k in (0, 1)]
    assert low <= estimate.value - reach[0]
    assert high >= estimate.value + reach[1]
    assert (low > 0 or high < 0) == (estimate.p <= 0.05)


def test_a_client_s_score_has_this_interval_but_groups_and_means_of_areas_have_not():
    y, (scores, _) = two_models(6)
    shares = stats.logistic.cdf(np.stack([-scores, scores], 1))

    def interval(predictions, targets, groups=None):
        task = TASKS["classes" if targets.ndim == 1 else "multilabel"]
        draws = partial(np.random.default_rng, 0)
        return evaluate(task, predictions, targets, draws, groups=groups)["intervals"]["auroc"]

    expected = list(Components.of(scores, y).interval())
    assert interval(shares, 1 * y) == interval(shares[:, 1:], 1.0 * y[:, None]) == expected
    assert interval(shares, 1 * y, np.arange(len(y)) // 2) != expected
    several = interval(np.stack([shares[:, 1]] * 2, 1), 1.0 * np.stack([y, y], 1))
    assert several not in (None, expected)
