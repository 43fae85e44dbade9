"""Gains and their intervals: against SciPy and DeLong by hand; sites that are too small, ties,
groups, many clients.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pomona.core.errors import ConfigError, DataError
from pomona.core.rng import stream
from pomona.metrics.auroc_intervals import Components, difference_margins
from pomona.metrics.influence import FEW, Evidence, of_function, of_mean, over_seeds
from pomona.metrics.intervals import mean_difference
from pomona.metrics.metric import METRICS
from pomona.record.paired_gain import UNDECIDED, ExcludedClient, Gain, evidence, gains, jointly
from pomona.record.result import Result
from pomona.tasks import TASKS, task_of
from pomona.tasks.scores import compute

LEVEL = "cannot tell"
CASES = [(m, name) for m in METRICS for name, task in TASKS.items() if m in task.measures]


def record(metric, task, answers, **metadata):
    """A run of which only the headline models' answers are known."""
    required = {
        "clients": [f"site {i}" for i in range(len(answers))],
        "targets": task,
        "metric": metric,
    }
    return Result({}, required | metadata, [], [], [], {}, answers=dict(enumerate(answers)))


def gains_of(metric, task, clients, **metadata):
    """Gains of outputs ``a`` over ``b`` for clients (a, b, targets)."""
    a, b = ([(np.asarray(c[k], np.float32), c[2]) for c in clients] for k in (0, 1))
    return gains(record(metric, task, a, **metadata), record(metric, task, b, **metadata))


def votes(right):
    """Outputs of two classes, correct where specified, for labels of 0."""
    return np.where(np.array(right, bool)[:, np.newaxis], [1.0, 0.0], [0.0, 1.0])


def answered(a, b):
    """A client of class 0 whose models are correct where specified."""
    return votes(a), votes(b), np.zeros(len(a), np.int64)


def spread(task, n, seed):
    """Answers of two models, and targets, of any kind."""
    draw = stream(seed, "gains")
    if task == "segmentation":
        a, b = draw.integers(0, 9, (2, n, 9))
        return a, b, draw.integers(0, 9, (n, 3))
    truth = {
        "classes": lambda: draw.integers(0, 3, n),
        "multilabel": lambda: draw.integers(0, 2, (n, 3)).astype(np.float32),
        "regression": lambda: draw.normal(size=(n, 3)).astype(np.float32),
        "survival": lambda: np.stack(
            [draw.exponential(size=n) + 0.1, draw.integers(0, 2, n)], 1
        ).astype(np.float32),
    }[task]()
    return *draw.normal(size=(2, n, 3)).round(1), truth


@pytest.mark.parametrize("metric", ["accuracy", "brier", "mae", "mse"])
def test_of_one_client_a_mean_is_judged_by_students_paired_t(metric):
    draw = stream(1, metric)
    if metric in ("mae", "mse"):
        truth = draw.normal(size=(200, 1)).astype(np.float32)
        outputs = [np.float32(truth + draw.normal(size=(200, 1)) * size) for size in (0.6, 1.0)]
        (gain,), mean = gains_of(metric, "regression", [(*outputs, truth)])
        errors = [
            np.abs(x.astype(float) - truth).ravel() ** (2 if metric == "mse" else 1)
            for x in outputs
        ]
        ttest = stats.ttest_rel(*reversed(errors))
    else:
        truth = draw.integers(0, 2, 200)
        outputs = [
            np.float32(draw.normal(size=(200, 2)) + np.eye(2)[truth] * size) for size in (3, 0.5)
        ]
        (gain,), mean = gains_of(metric, "classes", [(*outputs, truth)])
        chances = [np.exp(x[:, 1].astype(float)) / np.exp(x.astype(float)).sum(1) for x in outputs]
        right = [((c > 0.5) == truth).astype(float) for c in chances]
        ttest = stats.ttest_rel(
            *(right if metric == "accuracy" else [-((c - truth) ** 2) for c in chances])
        )
    assert (gain.low, gain.high) == pytest.approx(tuple(ttest.confidence_interval(0.95)), rel=1e-6)
    assert gain.p == pytest.approx(ttest.pvalue, rel=1e-6)
    assert (gain.client, mean.client) == ("site 0", "")
    assert replace(gain, client="") == mean
    assert (gain.pairs, gain.rows, gain.excluded) == (200, 200, ())


def test_an_area_is_judged_by_delongs_variance_with_degrees_of_freedom():
    """DeLong's structural components by their definition, ties counting half."""
    draw = stream(2, "areas")
    truth = (np.arange(90) < 35).astype(np.int64)
    scores = (truth * [[1.5], [0.4]] + draw.normal(size=(2, 90))).round(1)
    outputs = [np.stack([-s / 2, s / 2], 1) for s in scores]
    (gain,), _ = gains_of("auroc", "classes", [(*outputs, truth)])
    first, second = ((s[:35, None] > s[35:]) + (s[:35, None] == s[35:]) / 2 for s in scores)
    components = [(first - second).mean(axis) for axis in (1, 0)]
    variances = [component.var(ddof=1) / len(component) for component in components]
    df = sum(variances) ** 2 / sum(
        v**2 / (len(component) - 1) for v, component in zip(variances, components, strict=True)
    )
    margin = stats.t.ppf(0.975, df) * np.sqrt(sum(variances))
    assert gain.value == pytest.approx(components[0].mean())
    low, high = difference_margins(*(Components.of(s, truth == 1) for s in scores))
    expected = (gain.value - max(margin, low), gain.value + max(margin, high))
    assert (gain.low, gain.high) == pytest.approx(expected, abs=1e-9)
    assert (gain.events, gain.verdict) == (35, "better")


def test_the_mean_of_clients_is_judged_with_clients_as_strata():
    """Welch and Satterthwaite by hand, of two clients of 40 and 80 samples."""
    draw = stream(3, "strata")
    clients = [
        (draw.normal(size=(n, 1)), 1.4 * draw.normal(size=(n, 1)), np.zeros((n, 1)))
        for n in (40, 80)
    ]
    (first, second), mean = gains_of("mae", "regression", clients)
    differences = [
        (np.abs(np.float32(b)) - np.abs(np.float32(a))).ravel().astype(float) for a, b, _ in clients
    ]
    variances = [d.var(ddof=1) / len(d) / 4 for d in differences]
    df = sum(variances) ** 2 / (variances[0] ** 2 / 39 + variances[1] ** 2 / 79)
    assert mean.value == pytest.approx((first.value + second.value) / 2)
    assert mean.high - mean.value == pytest.approx(
        stats.t.ppf(0.975, df) * np.sqrt(sum(variances)), rel=1e-6
    )
    assert (mean.rows, mean.clients) == (120, 2)


@pytest.mark.parametrize("agree", [1, 5, 6])
def test_five_pairs_that_agree_decide_nothing(agree):
    """By a sign test five do so by chance in 2 of 32 cases; among 50 samples, and where there are
    no others.
    """
    (gain,), _ = gains_of(
        "accuracy", "classes", [answered([1] * 50, [0] * agree + [1] * (50 - agree))]
    )
    assert gain.value == pytest.approx(agree / 50)
    assert (gain.low > 0) == (agree >= 6)
    assert (gain.p <= 0.05) == (agree >= 6)
    (without_ties,), _ = gains_of("accuracy", "classes", [answered([1] * agree, [0] * agree)])
    assert (without_ties.verdict == "better") == (agree >= 6)
    assert (without_ties.interval is None) == (agree < 6)


@pytest.mark.parametrize("differ", [4, 5, 6, 7, 8])
def test_of_30_pairs_students_t_is_right_from_six_that_differ_on(differ):
    """All 2^differ signs of equal models: t claims in 2 of 16 where four differ, 2 of 32 where five
    do. From six on the claims are the same.
    """
    claims, students = 0, 0
    for positives in range(differ + 1):
        d = np.repeat([1.0, -1.0, 0.0], [positives, differ - positives, 30 - differ])
        students += math.comb(differ, positives) * bool(stats.ttest_1samp(d, 0).pvalue < 0.05)
        low, high = mean_difference([of_mean(d, np.zeros(30), step=1.0)]).interval
        claims += math.comb(differ, positives) * bool(low > 0 or high < 0)
    assert students == {4: 2, 5: 2, 6: 2, 7: 2, 8: 18}[differ]
    assert claims == (students if differ >= 6 else 0)


def test_a_site_of_one_sample_is_no_certainty():
    """20 sites of one row, of which 5 are better and none is worse: no claim; of 9 there is one."""
    gains, mean = gains_of("accuracy", "classes", [answered([1], [int(i >= 5)]) for i in range(20)])
    assert {gain.interval for gain in gains} == {None}
    assert (mean.value, mean.verdict, mean.excluded) == (0.25, "not worse", ())
    assert mean.low <= 0 < mean.high
    _, sure = gains_of("accuracy", "classes", [answered([1], [int(i >= 9)]) for i in range(20)])
    assert sure.verdict == "better"


def test_a_few_small_sites_are_left_out_by_name():
    """Three sites, one of 2 rows: the mean is over the others, exactly."""
    draw = stream(4, "small")
    large = [answered(draw.random(60) < 0.9, draw.random(60) < 0.6) for _ in range(2)]
    gains, mean = gains_of("accuracy", "classes", [large[0], answered([1, 1], [0, 0]), large[1]])
    _, of_large = gains_of("accuracy", "classes", large)
    assert mean.excluded == (ExcludedClient(1, 2, 0),)
    assert (mean.value, mean.interval, mean.clients) == (of_large.value, of_large.interval, 2)
    assert (gains[1].value, gains[1].interval, gains[1].verdict) == (1, None, LEVEL)
    _, lone = gains_of("accuracy", "classes", [answered([1, 1], [0, 0])] * 3)
    assert (lone.value, lone.interval, lone.excluded, lone.verdict) == (1, None, (), LEVEL)


def test_an_r2_of_a_few_rows_is_left_out_at_any_number_of_sites():
    """Two rows may have an R2 of minus a million: no spread of such sites bounds their mean.

    Of an error it does.
    """

    def r2(a, y):
        return np.mean(1 - ((a - y) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0))

    clients = [spread("regression", n, seed) for seed, n in enumerate([2] * 7 + [30, 40])]
    _, mean = gains_of("r2", "regression", clients)
    large_gains = [r2(a, y) - r2(b, y) for a, b, y in clients[7:]]
    assert mean.clients == 2
    assert {client.client for client in mean.excluded} == set(range(7))
    assert mean.value == pytest.approx(np.mean(large_gains), rel=1e-6)
    _, error = gains_of("mae", "regression", clients)
    assert error.clients == 9
    assert error.excluded == ()


def test_one_event_at_a_site_is_no_certainty():
    """Five sites with 20 events and a gain of about 0, and one with a single event, which a ranks
    first and b last.
    """
    draw = stream(5, "events")
    clients = []
    for events in (20, 20, 20, 20, 20, 1):
        y = (np.arange(60) < events).astype(np.int64)
        s = y + draw.normal(size=(2, 60))
        if events == 1:
            s[:, 0] = 9, -9
        clients.append((*(np.stack([-x, x], 1) for x in s), y))
    gains, mean = gains_of("auroc", "classes", clients)
    assert (gains[5].value, gains[5].interval, gains[5].events) == (1, None, 1)
    assert (mean.verdict, mean.excluded) == (LEVEL, ())
    # The six are units of one stratum: the t interval of their gains.
    gained = [gain.value for gain in gains]
    margin = stats.t.ppf(0.975, 5) * stats.sem(gained)
    assert mean.interval == pytest.approx((mean.value - margin, mean.value + margin))
    _, five = gains_of("auroc", "classes", clients[1:])
    assert five.excluded == (ExcludedClient(4, 60, 1),)


@pytest.mark.parametrize("metric", ["c_index", "r2"])
def test_a_site_that_defines_little_does_not_void_the_others(metric):
    """Five sites of 60 rows and one of 2, of noise: of 2 rows no resample defined the metric, and
    the interval of all had no width.
    """
    task = {"c_index": "survival", "r2": "regression"}[metric]
    edges = {"edges": (0.5, 1.0, 2.0)} if task == "survival" else {}
    clients, pair = [spread(task, 60, seed) for seed in range(5)], spread(task, 2, 9)
    if task == "survival":
        pair[2][:] = [[1.0, 1.0], [2.0, 0.0]]
    gains, mean = gains_of(metric, task, [*clients, pair], **edges)
    assert gains[5].interval is None
    bounded = gains if METRICS[metric].low > -math.inf else gains[:5]
    assert mean.value == pytest.approx(np.mean([gain.value for gain in bounded]))
    assert mean.high - mean.low > 0.1
    assert mean.verdict == LEVEL
    _, five = gains_of(metric, task, [*clients[1:], pair], **edges)
    assert [client.client for client in five.excluded] == [4]
    _, emptied = gains_of(metric, task, [*clients, tuple(array[:0] for array in pair)], **edges)
    assert (emptied.clients, emptied.excluded) == (5, (ExcludedClient(5, 0, None),))


def test_rounding_decides_nothing():
    """0.1 + 0.2 is not 0.3 in floats; and an end of an interval that is 0 but for rounding is 0."""
    assert of_mean(np.array([0.1 + 0.2] * 40), np.array([0.3] * 40)).value == 0
    truth = np.zeros((40, 1), np.float32)
    (gain,), _ = gains_of("mae", "regression", [(truth + 0.3, truth + 0.3, truth)])
    assert (gain.value, gain.interval, gain.verdict) == (0, None, LEVEL)
    d = np.repeat([0.0, 1.0], 20)
    margin = stats.t.ppf(0.975, 39) * stats.sem(d)
    for sign in (1, -1):
        bounds = mean_difference([of_mean(sign * (d - d.mean() + margin), np.zeros(40))]).interval
        assert bounds[0 if sign > 0 else 1] == 0


def test_no_sample_that_differs_is_no_proof_of_equality():
    """An accuracy of equal answers: as if one of the 30 differed."""
    (gain,), _ = gains_of("accuracy", "classes", [answered([1] * 30, [1] * 30)])
    margin = stats.t.ppf(0.975, 29) / 30
    assert (gain.value, gain.low, gain.high) == pytest.approx((0, -margin, margin))


def test_rows_of_one_patient_are_one_unit():
    """Ten patients of five rows, all rows of a patient alike: the variance is that of ten values,
    not of fifty.
    """
    values, patients = stream(6, "patients").normal(0.3, 1, 10), np.repeat(np.arange(10), 5)
    mean = of_mean(values[patients], np.zeros(50), groups=patients)
    margin = stats.t.ppf(0.975, 9) * stats.sem(values)
    assert mean_difference([mean]).interval == pytest.approx(
        (values.mean() - margin, values.mean() + margin)
    )
    assert (mean.rows, mean.units) == (50, 10)
    # The jackknife over patients of the same mean, as of a function that is none, is the same.
    function = of_function(
        lambda w: w @ values[patients] / w.sum(1), np.zeros(50, np.int64), groups=patients
    )
    assert mean_difference([function]).interval == pytest.approx(mean_difference([mean]).interval)
    assert of_mean(values[patients], np.zeros(50), groups=patients // 2).strata == ()


def test_a_record_says_which_rows_are_of_one_patient():
    """Four patients of ten rows each are too few; with forty of one row the ten that are better
    decide.
    """
    a, b = ((votes(right), np.zeros(40, np.int64)) for right in ([1] * 40, [0] * 10 + [1] * 30))
    runs = [record("accuracy", "classes", [answers]) for answers in (a, b)]
    (gain,), _ = gains(*runs)
    assert (gain.verdict, gain.pairs, gain.rows) == ("better", 40, 40)
    (gain,), _ = gains(
        *(replace(run, test_groups={0: np.repeat(np.arange(4), 10)}) for run in runs)
    )
    assert (gain.interval, gain.pairs, gain.rows) == (None, 4, 40)
    with pytest.raises(DataError, match="groups of client site 0"):
        gains(*(replace(run, test_groups={0: np.arange(4)}) for run in runs))


def test_patients_with_other_numbers_of_rows_share_as_a_ratio_does():
    """Sum over sum: Cochran's (6.4.2), sqrt(sum (y - r x)^2 / (G (G - 1))) / mean x, of 8 patients
    by hand.
    """
    draw = stream(7, "ratio")
    patients = np.repeat(np.arange(8), [1, 2, 3, 4, 1, 2, 3, 4])
    d = draw.normal(size=20) + draw.normal(size=8)[patients]
    y, x = np.bincount(patients, d), np.bincount(patients)
    error = np.sqrt(((y - d.mean() * x) ** 2).sum() / (8 * 7)) / x.mean()
    margin = stats.t.ppf(0.975, 7) * error
    low, high = mean_difference([of_mean(d, np.zeros(20), groups=patients)]).interval
    assert (high - low) / 2 == pytest.approx(margin)
    assert (high + low) / 2 == pytest.approx(d.mean())


def seeds_of(metric, task, seeds, **metadata):
    """Runs and bases of several seeds, each a list of clients (a, b, targets)."""
    return [
        [
            record(
                metric, task, [(np.asarray(c[k], np.float32), c[2]) for c in clients], **metadata
            )
            for clients in seeds
        ]
        for k in (0, 1)
    ]


def test_one_seed_has_the_numbers_of_one_run():
    clients = [spread("classes", n, n) for n in (40, 60, 5)]
    for metric in ("accuracy", "auroc"):
        runs, bases = seeds_of(metric, "classes", [clients])
        assert gains(runs, bases) == gains(runs[0], bases[0])


def test_the_spread_between_seeds_widens_the_interval():
    """Two clients, three seeds, by hand: half^2 = t_cases^2 V_cases + t_2^2 V_seeds, and p is where
    the half ends at 0.
    """
    draw = stream(10, "seeds")
    d = (
        draw.normal(0.4, 1, (2, 50))
        + draw.normal(0, 0.1, (3, 2, 50))
        + np.array([0.2, 0.0, -0.3])[:, None, None]
    )
    zero = np.zeros((50, 1))
    seeds = [[(zero, np.float32(client)[:, None], zero) for client in np.abs(seed)] for seed in d]
    _, mean = gains(*seeds_of("mae", "regression", seeds))
    d = np.abs(d)
    cases = d.mean(0)
    terms = cases.var(axis=1, ddof=1) / 50 / 4
    df = terms.sum() ** 2 / (terms**2 / 49).sum()
    between = d.mean((1, 2)).var(ddof=1) / 3

    def margin(level):
        return np.sqrt(
            stats.t.isf(level / 2, df) ** 2 * terms.sum() + stats.t.isf(level / 2, 2) ** 2 * between
        )

    assert mean.value == pytest.approx(d.mean(), rel=1e-6)
    assert mean.high - mean.value == pytest.approx(margin(0.05), rel=1e-6)
    assert margin(mean.p) == pytest.approx(mean.value, rel=1e-5)
    assert (mean.seeds, mean.clients, mean.rows) == (3, 2, 100)


@pytest.mark.parametrize("groups", [None, np.arange(60) // 2])
def test_pseudo_values_over_seeds_are_those_of_the_mean_difference(groups):
    """Of an AUROC, left out sample by sample, and patient by patient."""
    draw = stream(11, "mean function")
    y = (np.arange(60) < 20).astype(np.int64)
    scores = y + draw.normal(size=(3, 2, 60))

    def area(s, w):
        above = np.sign(s[:20, None] - s[20:]) / 2 + 0.5
        return np.einsum("ri,ij,rj->r", w[:, :20], above, w[:, 20:]) / (
            w[:, :20].sum(1) * w[:, 20:].sum(1)
        )

    estimates = [
        of_function(lambda w, s=s: area(s[0], w) - area(s[1], w), y, 20, groups) for s in scores
    ]
    mean = of_function(
        lambda w: np.mean([area(a, w) - area(b, w) for a, b in scores], axis=0), y, 20, groups
    )
    pooled = over_seeds(estimates)
    assert pooled.value == pytest.approx(mean.value)
    for stratum, expected in zip(pooled.strata, mean.strata, strict=True):
        assert stratum == pytest.approx(expected)


def test_seeds_of_other_samples_have_no_gain_together():
    """Other targets, or other rows of the same data whose targets are alike by chance."""
    forty, fewer = answered([1] * 40, [0] * 9 + [1] * 31), answered([1] * 39, [0] * 9 + [1] * 30)
    with pytest.raises(ConfigError, match="client site 0 has different test samples for each seed"):
        gains(*seeds_of("accuracy", "classes", [[forty], [fewer]]))
    with pytest.raises(ConfigError, match="1 runs against 2"):
        gains(
            *(
                group[: 1 + k]
                for k, group in enumerate(seeds_of("accuracy", "classes", [[forty], [forty]]))
            )
        )
    runs, bases = seeds_of(
        "accuracy", "classes", [[forty]], data={"fingerprint": "f"}, test_rows=["ab"]
    )
    (gain,), _ = gains(*runs, *bases)
    assert gain.verdict == "better"
    (other_rows,) = (replace(run, about=run.about | {"test_rows": ["cd"]}) for run in bases)
    assert gains(*runs, other_rows)[0] == [None]
    with pytest.raises(ConfigError, match="different test samples"):
        gains([*runs, *runs], [*bases, other_rows])
    elsewhere = replace(other_rows, about=other_rows.about | {"data": {"fingerprint": "g"}})
    assert gains(*runs, elsewhere)[0] == [gain]


def test_many_clients_say_something_by_chance_and_jointly_less():
    """Of p 0.001, 0.03 and 0.04 Holm keeps the first alone: 2 x 0.03 is more than 0.05, and stops
    before 0.04.
    """
    gains = [Gain(0.1, 0.01, 0.2, 50, p=p) for p in (0.04, 0.001, 0.03)]
    assert jointly([*gains, None, Gain(1, None, None, 2)]) == [LEVEL, "better", LEVEL, None, LEVEL]
    # chosen from 50 comparisons: 50 x 0.001 is not more than 0.05; from 51
    assert jointly(gains, 50)[1] == "better"
    assert jointly(gains, 51)[1] == LEVEL


@given(st.sampled_from(CASES), st.integers(0, 14), st.integers(1, 9), st.integers(0, 30))
@settings(max_examples=100)
def test_gains_of_few_samples_stay_possible(case, n, sites, seed):
    (name, task_name), metric = case, METRICS[case[0]]
    edges = (0.5, 1.0, 2.0) if task_name == "survival" else ()
    task = task_of(task_name, edges)
    clients = [spread(task_name, max(0, n - k % 3), seed + k) for k in range(sites)]
    gains, mean = gains_of(name, task_name, clients, edges=edges)
    if metric.name == "loss" and task.standardised:
        assert mean is None
        return
    for gain, (a, b, y) in zip(gains, clients, strict=True):
        score, base_score = (compute(name, np.float32(x), y, task) for x in (a, b))
        assert (gain is None) == (score is None or base_score is None)
        if gain:
            assert gain.value == pytest.approx(
                metric.goodness(score) - metric.goodness(base_score), abs=1e-9
            )
            assert gain.interval is None or gain.pairs >= FEW
    for gain in filter(None, [*gains, mean]):
        if gain.interval:
            assert gain.low <= gain.value <= gain.high
            assert (gain.verdict in UNDECIDED) == (gain.p > 0.05)
    if mean:
        left = {client.client for client in mean.excluded}
        assert mean.clients + len(left) == sites
        assert mean.value == pytest.approx(
            np.mean([g.value for i, g in enumerate(gains) if i not in left])
        )


def test_many_samples_are_left_out_in_parts():
    """1,200 samples of an R2 in 500 parts, against its influence values: of 1 - E e^2 / E s^2 by
    the delta method.
    """
    draw = stream(8, "parts")
    truth = draw.normal(size=(1200, 1))
    a, b = (truth + draw.normal(size=(1200, 1)) * size for size in (0.5, 0.8))
    estimate = evidence(METRICS["r2"], TASKS["regression"], a, b, truth)
    assert len(estimate.strata[0]) == 500
    e, s = (b - truth) ** 2 - (a - truth) ** 2, (truth - truth.mean()) ** 2
    influence = (e - estimate.value * s) / s.mean()
    low, high = mean_difference([estimate]).interval
    assert (high - low) / 2 == pytest.approx(1.96 * influence.std(ddof=1) / np.sqrt(1200), rel=0.1)


def test_small_strata_of_a_client_are_taken_together():
    """Classes of 20, 3 and 2 samples: the rarer ones are one stratum of 5 and need the other, so
    that 25 are one.
    """
    values = stream(9, "merged").normal(size=25)
    classes = np.repeat([0, 1, 2], [20, 3, 2])
    (stratum,) = of_function(lambda w: w @ values / w.sum(1), classes).strata
    assert len(stratum) == 25
    first, second = of_function(
        lambda w: w @ values / w.sum(1), np.repeat([0, 1, 2], [15, 4, 6])
    ).strata
    assert (len(first), len(second)) == (10, 15)


def test_evidence_of_one_unit_is_none():
    assert mean_difference([Evidence(1.0, (), 1, 1)]).interval is None


def test_an_interval_stays_within_the_range_of_the_metric():
    """Six right answers against six wrong ones but one: the t interval alone passes 1."""
    gains, mean = gains_of("accuracy", "classes", [answered([1] * 7, [0] * 6 + [1])])
    assert mean.value == pytest.approx(-6 / 7) or mean.value == pytest.approx(6 / 7)
    assert max(map(abs, gains[0].interval)) == 1
    assert max(map(abs, mean.interval)) == 1
