"""Metrics of censored times: against scikit-survival, against explicit definitions, and in edge
cases.
"""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from pomona.core.rng import stream
from pomona.metrics import survival as s
from pomona.metrics.intervals import stratified
from pomona.tasks import scores, task_of

TIMES = np.array([1.0, 2.5, 4.0, 6.0])
FIGURES = ("c_index", "uno_c", "dynamic_auroc", "integrated_brier")
evaluate = partial(scores.evaluate, task_of("survival", tuple(TIMES)))


def samples(n=60, seed=0, rounded=False):
    """Survival probabilities (n, 4) correlated with the times (n,), about half of them censored."""
    draw = stream(seed, "survival")
    score = draw.normal(size=n)
    event_at, censored_at = draw.exponential(4 * np.exp(-score)), draw.exponential(6.0, size=n)
    time = np.minimum(event_at, censored_at)
    time = np.maximum(np.ceil(time), 1.0) if rounded else time
    hazard = np.exp(score + draw.normal(size=n))[:, None] * np.array([0.1, 0.12, 0.2, 0.3])
    if rounded:
        hazard = np.round(hazard, 1)  # some risks are the same
    targets = np.column_stack([time, (event_at <= censored_at)])
    return np.exp(-np.cumsum(hazard, axis=1)), targets


def unit(targets):
    return np.ones((1, len(targets)))


def structured(targets):
    return np.array(
        list(zip(targets[:, 1] > 0, targets[:, 0], strict=True)), dtype=[("e", bool), ("t", float)]
    )


def parted(targets):
    """Ties among events and among censorings, but no time that both have: censored a little later."""
    return targets + np.column_stack([np.where(targets[:, 1] > 0, 0, 0.25), np.zeros(len(targets))])


@pytest.mark.parametrize("rounded", [False, True], ids=["no ties", "ties of times and risks"])
@pytest.mark.parametrize("seed", range(4))
def test_all_four_are_those_of_scikit_survival(seed, rounded):
    sksurv = pytest.importorskip("sksurv.metrics")
    survival, targets = samples(seed=seed, rounded=rounded)
    if rounded:
        targets = parted(targets)
    risk, truth = s.risk(survival), structured(targets)
    inside = (targets[:, 0].min() <= TIMES) & (targets[:, 0].max() > TIMES)
    expected = {
        "c_index": sksurv.concordance_index_censored(truth["e"], truth["t"], risk, tied_tol=0)[0],
        "uno_c": sksurv.concordance_index_ipcw(truth, truth, risk, tied_tol=0)[0],
        "dynamic_auroc": sksurv.cumulative_dynamic_auc(
            truth, truth, 1 - survival[:, inside], TIMES[inside], tied_tol=0
        )[1],
        "integrated_brier": sksurv.integrated_brier_score(
            truth, truth, survival[:, inside], TIMES[inside]
        ),
    }
    computed = evaluate(survival, targets)
    assert {name: computed[name] for name in expected} == pytest.approx(expected, rel=1e-10)
    assert inside.sum() >= 2


def test_kaplan_meier_is_that_of_scikit_survival_and_of_the_book():
    nonparametric = pytest.importorskip("sksurv.nonparametric")
    _, targets = samples(rounded=True)
    for censoring in (False, True):
        time, expected = nonparametric.kaplan_meier_estimator(
            targets[:, 1] > 0, targets[:, 0], reverse=censoring
        )
        assert s.kaplan_meier(targets, unit(targets), time, censoring)[0] == pytest.approx(expected)
    # 5 at risk, one event: 4/5; one censored; 3 at risk, two events: 4/5 * 1/3
    five_targets = np.array([[1.0, 1], [2, 0], [3, 1], [3, 1], [4, 0]])
    curve = s.kaplan_meier(five_targets, unit(five_targets), np.array([0.5, 1, 2, 3, 9]))
    assert curve[0] == pytest.approx([1, 4 / 5, 4 / 5, 4 / 15, 4 / 15])


def yearly(seed, n=3000):
    """Yearly visits for at most eight years: S at years 1 to 7, targets, and all times of events.

    The eighth year is the end of the study: events are seen in it, and all others are censored.
    """
    draw = np.random.default_rng(seed)
    score = draw.normal(size=n)
    hazard = 1 - np.exp(-0.18 * np.exp(0.7 * score))
    event_at = draw.geometric(hazard).astype(float)
    censored_at = draw.integers(1, 9, n).astype(float)
    targets = np.column_stack([np.minimum(event_at, censored_at), event_at <= censored_at])
    return (1 - hazard)[:, np.newaxis] ** np.arange(1.0, 8.0), targets, event_at


def without_censoring(survival, event_at, tau):
    """Integrated Brier score, concordance and mean AUROC of the same times if none is censored."""
    times = np.arange(1.0, 8.0)
    brier = [((survival[:, k] - (event_at > t)) ** 2).mean() for k, t in enumerate(times)]
    risk = s.risk(survival)
    first, second = np.triu_indices(len(risk), 1)
    gap, excess = event_at[second] - event_at[first], risk[first] - risk[second]
    pairs = (gap != 0) & (np.minimum(event_at[first], event_at[second]) < tau)
    right = np.where(excess == 0, 0.5, np.sign(gap) == np.sign(excess))
    areas = [roc_auc_score(event_at <= t, 1 - survival[:, k]) for k, t in enumerate(times)]
    fallen = -np.diff([1.0, *((event_at > t).mean() for t in times)])
    return np.trapezoid(brier, times) / 6, right[pairs].mean(), np.average(areas, weights=fallen)


@pytest.mark.long
def test_tied_times_are_as_without_censoring():
    """Years of events and of censorings are the same: 1 / G(T) instead of 1 / G(T-) gives 0.2095."""
    times, censored, truth = np.arange(1.0, 8.0), [], []
    for seed in range(6):
        survival, targets, event_at = yearly(seed)
        censored.append(
            [
                s.integrated_brier(survival, targets, unit(targets), times)[0],
                s.uno_c(survival, targets, unit(targets))[0],
                s.dynamic_auroc(survival, targets, unit(targets), times)[0],
            ]
        )
        truth.append(without_censoring(survival, event_at, tau=9))
    assert np.mean(censored, axis=0) == pytest.approx(np.mean(truth, axis=0), abs=0.004)
    assert np.mean(censored, axis=0)[0] == pytest.approx(0.1907, abs=0.002)


@given(st.integers(0, 2**32 - 1), st.integers(2, 12))
@settings(max_examples=60)
def test_weights_of_censoring_are_those_of_all_samples(seed, n):
    """Whatever is tied, the weights at each time sum to n: a constant S loses what it loses once."""
    draw = np.random.default_rng(seed)
    targets = np.column_stack([draw.integers(1, 5, n), draw.integers(0, 2, n)]).astype(float)
    times = np.array([1.0, 2.0, 3.0])
    value = s.integrated_brier(np.full((n, 3), 0.5), targets, unit(targets), times)[0]
    assert np.isnan(value) or value == pytest.approx(0.25)


def test_events_at_the_end_of_the_study_count():
    """At time 3 one event and one censoring: G(3) = 0, and G(3-) = 2/3."""
    targets = np.array([[1.0, 1], [2, 0], [3, 1], [3, 0]])
    # pairs: (1, all later) right with weight 1, (3, censored at 3) wrong with weight (3/2)^2
    survival = np.array([[0.1], [0.5], [0.9], [0.8]])
    value = s.uno_c(survival, targets, unit(targets))[0]
    assert value == pytest.approx(3 / (3 + 9 / 4))
    assert s.uno_c(survival, targets, unit(targets), tau=3.0)[0] == 1


@pytest.mark.parametrize("tau", [2.0, 4.5])
def test_pairs_from_tau_on_do_not_count_as_in_scikit_survival(tau):
    sksurv = pytest.importorskip("sksurv.metrics")
    survival, targets = samples(seed=3)
    truth = structured(targets)
    expected = sksurv.concordance_index_ipcw(truth, truth, s.risk(survival), tau, tied_tol=0)[0]
    assert s.uno_c(survival, targets, unit(targets), tau)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("measure", [s.c_index, s.uno_c])
def test_a_whole_weight_is_a_sample_that_is_there_so_often(measure):
    """Copies of a sample make no comparable pair among themselves: their times are one, and both
    have the event.
    """
    survival, targets = samples(25, rounded=True)
    weights = stratified(targets[:, 1].astype(int), 3, stream(1, "draw"))
    for row, value in zip(weights, measure(survival, targets, weights), strict=True):
        copies = np.repeat(np.arange(25), row.astype(int))
        repeated = measure(survival[copies], targets[copies], np.ones((1, len(copies))))
        assert value == pytest.approx(repeated[0])


@pytest.mark.parametrize("measure", [s.dynamic_auroc, s.integrated_brier])
def test_so_it_is_for_figures_over_times(measure):
    survival, targets = samples(40)
    weights = stratified(targets[:, 1].astype(int), 3, stream(1, "draw"))
    # the same times are within
    weights[:, targets[:, 0].argmin()] = weights[:, targets[:, 0].argmax()] = 1
    for row, value in zip(weights, measure(survival, targets, weights, TIMES), strict=True):
        copies = np.repeat(np.arange(40), row.astype(int))
        repeated = measure(survival[copies], targets[copies], np.ones((1, len(copies))), TIMES)
        assert value == pytest.approx(repeated[0])


def test_weights_that_are_not_whole_do_not_blow_up_where_nobody_is_left():
    survival, targets = samples(40)
    targets[targets[:, 0].argmax(), 1] = 1
    weights = 40 / 39 * stratified(targets[:, 1].astype(int), 500, stream(2, "draw"))
    for name, values in {
        "uno_c": s.uno_c(survival, targets, weights),
        "auroc": s.dynamic_auroc(survival, targets, weights, TIMES),
        "brier": s.integrated_brier(survival, targets, weights, TIMES),
    }.items():
        assert ((values >= 0) & (values <= 1)).all(), name


def test_pairs_by_hand():
    """Three samples: (1, event), (2, censored), (3, event): pairs (1, 2) and (1, 3); a tie counts
    half.
    """
    targets = np.array([[1.0, 1], [2, 0], [3, 1]])
    high, low, middle = [0.1], [0.9], [0.5]
    assert s.c_index(np.array([high, middle, low]), targets, unit(targets))[0] == 1
    assert s.c_index(np.array([low, middle, high]), targets, unit(targets))[0] == 0
    assert s.c_index(np.array([middle, middle, low]), targets, unit(targets))[0] == 0.75
    # pairs weigh w_1 w_2 = 2 and w_1 w_3 = 3, times 1 / G(1)^2, which is 1
    weights = np.array([[1.0, 2, 3]])
    for measure in (s.c_index, s.uno_c):
        assert measure(np.array([middle, middle, low]), targets, weights)[0] == pytest.approx(
            (2 * 0.5 + 3) / 5
        )


@pytest.mark.parametrize(
    "targets",
    [
        np.empty((0, 2)),
        [[2.0, 1]],
        [[2.0, 0]],
        [[2.0, 1], [2.0, 1]],
        [[1.0, 0], [2.0, 0], [9.0, 0]],
    ],
    ids=["none", "one event", "one censored", "one time", "all censored"],
)
def test_what_the_samples_do_not_define_is_none(targets):
    targets = np.asarray(targets, dtype=float).reshape(-1, 2)
    computed = evaluate(np.full((len(targets), 4), 0.5), targets, partial(stream, 0, "bootstrap"))
    assert [computed[name] for name in FIGURES] == [None] * 4
    assert computed["intervals"] == dict.fromkeys(FIGURES)
    assert (computed["samples"], computed["events"]) == (len(targets), int(targets[:, 1].sum()))
    assert (computed["loss"] is None) is (not len(targets))


def test_intervals_hold_their_figures():
    survival, targets = samples(120)
    computed = evaluate(survival, targets, partial(stream, 0, "bootstrap"))
    for name in FIGURES:
        low, high = computed["intervals"][name]
        assert low < computed[name] < high


def test_a_perfect_and_a_constant_prediction():
    targets = np.array([[1.0, 1], [2, 1], [3, 1], [5, 0]])
    times = np.array([1.5, 2.5])
    perfect = (targets[:, :1] > times).astype(float)
    assert s.integrated_brier(perfect, targets, unit(targets), times)[0] == 0
    assert s.dynamic_auroc(perfect, targets, unit(targets), times)[0] == 1
    constant = np.full((4, 2), 0.5)
    assert s.integrated_brier(constant, targets, unit(targets), times)[0] == pytest.approx(0.25)
    assert s.dynamic_auroc(constant, targets, unit(targets), times)[0] == 0.5
    assert s.c_index(constant, targets, unit(targets))[0] == 0.5


def test_an_integrated_brier_score_is_one_at_most():
    """Two events and two censored at time 2, and S = 1 of the events, S = 0 of the one who
    survives: with 1 / G(T) each lost 3, 9 of 5 samples.
    """
    targets = np.array([[2.0, 1], [2, 1], [2, 0], [2, 0], [3, 0]])
    times = np.array([2.0, 2.5])
    survival = np.array([[1.0], [1], [0], [0], [0]]).repeat(2, axis=1)
    assert s.integrated_brier(survival, targets, unit(targets), times)[0] == pytest.approx(1)


def test_surprise_is_the_logarithm_of_what_was_seen():
    """S = 0.9, 0.6: an event at the end of the first interval, one in the second, one beyond, and
    two censored.
    """
    targets = np.array([[1.0, 1], [1.5, 1], [3.0, 1], [1.0, 0], [0.5, 0], [2.0, 0]])
    surprises = s.surprise(np.tile([0.9, 0.6], (6, 1)), targets, np.array([1.0, 2.0]))
    assert np.exp(-surprises) == pytest.approx([0.1, 0.3, 0.6, 0.9, 1.0, 0.6])
