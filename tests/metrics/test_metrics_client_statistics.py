"""Statistics over clients, rounds and methods: against SciPy, enumeration and closed forms."""

import json
from itertools import product
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from pomona.metrics.client_statistics import (
    BestRounds,
    RoundScore,
    best_rounds,
    summarize,
    wilcoxon,
)
from pomona.metrics.metric import METRICS

accuracies = st.floats(0, 1, allow_subnormal=False)


@given(st.lists(st.tuples(accuracies, st.integers(1, 500)), min_size=2, max_size=20))
def test_summary_of_many_clients(rows):
    values, samples = map(list, zip(*rows, strict=True))
    summary = summarize(values, samples)
    n, mean = len(values), sum(values) / len(values)
    assert summary["clients"] == n
    assert summary["mean"] == pytest.approx(mean)
    assert summary["pooled"] == pytest.approx(
        sum(v * s for v, s in zip(values, samples, strict=True)) / sum(samples)
    )
    assert summary["std"] == pytest.approx(
        sqrt(sum((v - mean) ** 2 for v in values) / (n - 1)), abs=1e-12
    )
    assert summary["worst"] == min(values)
    rank = 0.1 * (n - 1)
    low, high = sorted(values)[int(rank)], sorted(values)[min(int(rank) + 1, n - 1)]
    assert summary["percentile_10"] == pytest.approx(low + (rank - int(rank)) * (high - low))


def test_interval_is_students():
    values = [0.91, 0.85, 0.97, 0.80, 0.88]
    interval = ttest_1samp(values, 0).confidence_interval(0.95)
    assert summarize(values, [1] * 5)["interval"] == pytest.approx(list(interval))


@given(st.lists(accuracies, min_size=5, max_size=8))
def test_an_interval_stays_among_the_values_that_there_are(values):
    """Cutting Student's interval loses no coverage: no mean of shares lies outside [0, 1]."""
    low, high = summarize(values, [1] * len(values))["interval"]
    assert 0 <= low <= sum(values) / len(values) + 1e-12
    assert sum(values) / len(values) - 1e-12 <= high <= 1
    # -0.93 uncut
    assert summarize([0.1, 0.1, 0.1, 0.1, 3.0], [1] * 5, metric=METRICS["mae"])["interval"][0] == 0


def test_four_clients_have_no_interval_over_clients():
    """Two clients of one value would have an interval without width: 8.33 to 8.33."""
    assert summarize([8.33, 8.33], [9, 9])["interval"] is None
    assert summarize([0.91, 0.85, 0.97, 0.80], [1] * 4)["interval"] is None


def test_where_less_is_better_the_worst_is_the_largest():
    values = [64.0, 80.0, 120.0]
    summary = summarize(values, [1, 1, 2], metric=METRICS["mae"])
    assert (summary["worst"], summary["pooled"]) == (120.0, 96.0)
    # the 90th: a tenth of the clients err more
    assert summary["percentile_10"] == pytest.approx(120 - 0.2 * 40)
    assert summarize(values, [1, 1, 2], metric=METRICS["auroc"])["pooled"] is None


def test_the_best_round_follows_the_direction_of_the_metric():
    errors, validation = [[3.0, 5.0], [1.0, 2.0], [2.0, 2.0]], [[2.0, 2.0], [4.0, 4.0], [1.0, 2.0]]
    best = best_rounds([1, 2, 3], errors, [1, 3], validation, METRICS["mae"])
    assert best == BestRounds(
        RoundScore(2.0, 3, 1.5),
        RoundScore(2.0, 3, 1.5),
        RoundScore(1.5, 2, 4.0),
        RoundScore(1.75, 2),
        "mae",
    )


def test_the_loss_chooses_where_validation_defines_no_metric():
    """No events among the validation samples of any client: their areas are undefined in every
    round.
    """
    areas, undefined = [[0.6, 0.7], [0.8, 0.8], [0.5, 0.5]], [[None, None]] * 3
    losses = [[0.3, 0.4], [0.2, 0.6], [0.1, 0.3]]
    best = best_rounds([1, 2, 3], areas, [9, 9], undefined, METRICS["auroc"], losses)
    assert (best.best_validation, best.chosen_by) == (RoundScore(0.5, 3), "loss")
    assert best.best_test_pooled is None
    mixed = best_rounds(
        [1, 2, 3], areas, [9, 9], [[None, None], [0.9, None], [0.4, 0.4]], METRICS["auroc"], losses
    )
    assert (mixed.best_validation, mixed.chosen_by) == (RoundScore(0.8, 2, 0.9), "auroc")


@pytest.mark.parametrize(
    ("values", "samples", "expected"),
    [
        ([], [], {"clients": 0, "mean": None, "pooled": None, "worst": None, "std": None}),
        ([None, None], [0, 0], {"clients": 0, "mean": None, "percentile_10": None}),
        ([0.7], [9], {"mean": 0.7, "pooled": 0.7, "std": None, "interval": None}),
        ([0.5, 0.5], [1, 3], {"std": 0.0, "interval": None}),
        # the client without samples counts nowhere
        ([1.0, None, 0.5], [30, 0, 10], {"clients": 2, "mean": 0.75, "pooled": 0.875}),
    ],
)
def test_summary_of_few_clients(values, samples, expected):
    summary = summarize(values, samples)
    for name, value in expected.items():
        assert summary[name] == pytest.approx(value), name
    json.dumps(summary, allow_nan=False)


def enumerated(differences):
    """The two-sided p-value by all assignments of signs to the ranks of the absolute differences
    (no ties).
    """
    ranks = np.argsort(np.argsort(np.abs(differences))) + 1
    total = ranks.sum()
    observed = min(ranks[np.array(differences) > 0].sum(), ranks[np.array(differences) < 0].sum())
    sums = [np.dot(signs, ranks) for signs in product((0, 1), repeat=len(ranks))]
    return observed, sum(min(s, total - s) <= observed for s in sums) / len(sums)


@pytest.mark.parametrize(
    "signs", [(1, 1, 1, 1, 1), (1, -1, 1, 1, 1), (-1, -1, 1, 1, -1), (1,), (-1, 1)]
)
def test_wilcoxon_is_exact_for_few_clients(signs):
    differences = [0.01 * sign * (k + 1) for k, sign in enumerate(signs)]
    reference = [0.5] * len(signs)
    statistic, p = enumerated(differences)
    computed = wilcoxon([r + d for r, d in zip(reference, differences, strict=True)], reference)
    assert computed == pytest.approx((statistic, p, len(signs)))


def test_wilcoxon_drops_pairs_that_are_equal_or_undefined():
    first = [0.9, 0.8, 0.7, 0.6, None, 0.5]
    second = [0.9, 0.7, 0.4, 0.8, 0.1, None]
    assert wilcoxon(first, second) == wilcoxon([0.8, 0.7, 0.6], [0.7, 0.4, 0.8])
    assert wilcoxon(first, second).pairs == 3
    assert wilcoxon(first, second) == wilcoxon(second, first)


@pytest.mark.parametrize("values", [[], [0.5], [0.1, 0.2, None]])
def test_wilcoxon_of_equal_methods_is_undefined(values):
    assert wilcoxon(values, values) is None
    assert wilcoxon([0.1 + 0.2], [0.3]) is None  # equal but for the last bit


def test_wilcoxon_ties_do_not_hang_on_last_bits():
    """Differences of 0.1 each, some of them off by a last bit: as the same numbers in tenths."""
    first, second = [0.3, 0.4, 0.9, 0.2], [0.2, 0.3, 0.8, 0.3]
    assert len({abs(a - b) for a, b in zip(first, second, strict=True)}) > 1
    tenths = wilcoxon([3, 4, 9, 2], [2, 3, 8, 3])
    assert wilcoxon(first, second) == pytest.approx(tenths)
    assert tenths.statistic == 2.5  # the mean rank of four ties


def test_wilcoxon_for_many_clients_is_normal_with_tie_correction():
    """z = (T - n(n+1)/4) / sqrt(n(n+1)(2n+1)/24 - sum(t³ - t)/48), when ties rule the exact
    distribution out.
    """
    from scipy.stats import norm

    draw = np.tile([1, 2, 3, -1], 15)
    n, (sizes) = len(draw), [30, 15, 15]
    ranks = np.select([np.abs(draw) == 1, np.abs(draw) == 2], [15.5, 38.0], 53.0)
    statistic = min(ranks[draw > 0].sum(), ranks[draw < 0].sum())
    variance = n * (n + 1) * (2 * n + 1) / 24 - sum(t**3 - t for t in sizes) / 48
    p = 2 * norm.cdf((statistic - n * (n + 1) / 4) / sqrt(variance))
    assert wilcoxon(0.5 + draw / 100, np.full(n, 0.5)) == pytest.approx((statistic, p, n))


def test_best_rounds_are_named_apart():
    # Client means: 0.50, 0.60, 0.55; pooled with 30 and 10 samples: 0.60, 0.50, 0.575.
    test = [[0.7, 0.3], [0.4, 0.8], [0.6, 0.5]]
    validation = [[0.2, 0.2], [0.5, 0.3], [0.1, 0.8]]
    assert best_rounds([5, 10, 15], test, [30, 10], validation) == BestRounds(
        last=RoundScore(pytest.approx(0.55), 15, pytest.approx(0.45)),
        best_validation=RoundScore(pytest.approx(0.55), 15, pytest.approx(0.45)),
        best_test=RoundScore(pytest.approx(0.6), 10, pytest.approx(0.4)),
        best_test_pooled=RoundScore(pytest.approx(0.6), 5),
        chosen_by="accuracy",
    )


@pytest.mark.parametrize(
    ("rounds", "test", "samples", "validation"),
    [
        ([], [], [3, 4], None),
        ([], [], [], []),
        ([1, 2], [[], []], [], None),
        ([1], [[None, None]], [0, 0], [[0.5, 1.0]]),
    ],
)
def test_best_rounds_of_nothing(rounds, test, samples, validation):
    assert best_rounds(rounds, test, samples, validation) == BestRounds(None, None, None, None)


def test_best_rounds_pass_over_what_is_undefined_and_take_the_first_of_equals():
    test = [[0.5, None], [0.5, None], [None, None]]
    validation = [[None, None], [0.1, None], [0.9, 0.9]]
    best = best_rounds([1, 2, 3], test, [4, 0], validation)
    assert best == BestRounds(
        RoundScore(0.5, 2, 0.1),
        best_validation=RoundScore(0.5, 2, 0.1),
        best_test=RoundScore(0.5, 1),
        best_test_pooled=RoundScore(0.5, 1),
        chosen_by="accuracy",
    )


def test_the_model_before_any_training_is_best_only_where_there_is_no_other():
    """Validation and test data would choose round 0; round 1 is the better of the trained ones."""
    test, validation = [[0.9, 0.9], [0.6, 0.6], [0.5, 0.5]], [[0.8, 0.8], [0.7, 0.7], [0.4, 0.4]]
    best = best_rounds([0, 1, 2], test, [1, 1], validation)
    assert (best.best_validation, best.best_test, best.chosen_by) == (
        RoundScore(0.6, 1, 0.7),
        RoundScore(0.6, 1, 0.7),
        "accuracy",
    )
    unknown = [validation[0], [None, None], [None, None]]
    for rounds in (
        best_rounds([0], test[:1], [1, 1], validation[:1]),
        best_rounds([0, 1, 2], test, [1, 1], unknown),
    ):
        assert rounds.best_validation == RoundScore(0.9, 0, 0.8)


@given(st.lists(st.lists(accuracies, min_size=3, max_size=3), min_size=1, max_size=8))
def test_selection_on_test_is_never_below_the_honest_numbers(test):
    rounds, samples = list(range(1, len(test) + 1)), [1, 2, 3]
    best = best_rounds(rounds, test, samples, validation=test[::-1])
    assert best.best_test.test >= max(best.last.test, best.best_validation.test)
    assert best.best_test_pooled.test == max(np.average(test, axis=1, weights=samples))
    two_clients = [row[:2] for row in test]  # of three, one that is best alone can be outvoted
    best = best_rounds(rounds, two_clients, samples[:2], validation=two_clients)
    assert best.best_validation[:2] == best.best_test[:2]


def test_round_0_counts_where_no_later_round_is_defined():
    test, validation = [[0.9, 0.9], [0.5, 0.7], [0.6, 0.5]], [[0.8, 0.8], [0.4, 0.4], [0.5, 0.5]]
    best = best_rounds([0, 1, 2], test, [1, 3], validation)
    rounds = (best.last, best.best_validation, best.best_test, best.best_test_pooled)
    assert [score.round for score in rounds] == [2, 2, 1, 1]
    only_round_0 = best_rounds([0], test[:1], [1, 3], validation[:1])
    assert (only_round_0.best_test.round, only_round_0.best_validation.round) == (0, 0)
    undefined = best_rounds([0, 1], [[0.9, 0.9], [None, None]], [1, 3], validation[:2])
    assert undefined.best_test.round == 0
