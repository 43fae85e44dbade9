"""The figures of an attack's scores, beside scikit-learn, SciPy and loops."""

from math import exp, log

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from pomona.audit import roc
from pomona.audit.roc import Pairs
from pomona.core.rng import stream


def normal(runs, records, shift, seed=0, share=0.5):
    """Scores of members are higher by ``shift`` deviations."""
    draw = stream(seed, "scores")
    member = draw.random((runs, records)) < share
    return draw.standard_normal((runs, records)) + shift * member, member


@pytest.mark.parametrize("hits", [0, 1, 7, 20])
def test_clopper_pearson_is_scipys(hits):
    low, high = roc.clopper_pearson(hits, 20)
    exact = stats.binomtest(hits, 20).proportion_ci(0.95, "exact")
    assert (float(low), float(high)) == pytest.approx((exact.low, exact.high))


@pytest.mark.parametrize("ties", [False, True])
def test_auc_is_scikit_learns_and_its_interval_delongs(ties):
    score, member = normal(1, 60, 0.8)
    score = np.round(score) if ties else score
    pairs = Pairs.flatten(score, member)
    auc = roc.auc(pairs)
    assert auc.value == pytest.approx(roc_auc_score(member[0], score[0]))
    ins, outs = score[0][member[0]], score[0][~member[0]]
    beats = (ins[:, None] > outs) + 0.5 * (ins[:, None] == outs)
    variance = beats.mean(1).var(ddof=1) / len(ins) + beats.mean(0).var(ddof=1) / len(outs)
    half_width = stats.norm.ppf(0.975) * variance**0.5
    assert auc.high - auc.value == pytest.approx(min(half_width, 1 - auc.value))


def test_the_same_records_twice_tell_no_more():
    score, member = normal(1, 80, 0.5)
    single, twice = (
        roc.auc(Pairs.flatten(np.tile(score, (k, 1)), np.tile(member, (k, 1)))) for k in (1, 2)
    )
    assert twice == pytest.approx(single)


def test_the_interval_covers_one_half_as_often_as_it_says():
    covered = 0
    for seed in range(300):
        score, member = normal(4, 40, 0.0, seed)
        score += stream(seed, "records").standard_normal(40)  # of one record, alike in all runs
        auc = roc.auc(Pairs.flatten(score, member))
        covered += auc.low <= 0.5 <= auc.high
    assert covered / 300 >= 0.91


def test_hits_are_those_of_the_best_threshold():
    score, member = normal(10, 100, 1.0)
    pairs = Pairs.flatten(score, member)
    hits = roc.hits_at(pairs, 0.05)
    best = max(
        (score[member] >= t).mean() for t in score.ravel() if (score[~member] >= t).mean() <= 0.05
    )
    assert hits == pytest.approx(best)


@pytest.mark.parametrize("runs", [1, 2])
def test_scores_without_an_error_are_no_certainty(runs):
    """Of four records two pairs have none in common: both right, which at 2.5 % happens to an AUC
    of sqrt(0.025). In the second run, where members are the others of the first, there are no more.
    """
    member = np.array([[True, True, False, False], [False, False, True, True]])[:runs]
    auc = roc.auc(Pairs.flatten(member * 1.0, member))
    assert auc == pytest.approx((1.0, 0.025**0.5, 1.0))
    alike = roc.auc(Pairs.flatten(member * 0.0, member))
    assert alike.low < 0.5 < alike.high


def test_too_few_records_show_no_small_share():
    """One in a hundred of 40 records is none, in however many runs."""
    assert roc.hits_at(Pairs.flatten(*normal(32, 40, 1.0)), 0.01) is None
    pairs = Pairs.flatten(*normal(1, 500, 1.0))
    assert roc.hits_at(pairs, 0.001) is None
    assert roc.hits_at(pairs, 0.05) is not None


def randomised_response(epsilon, delta, runs=40, records=200, seed=0):
    """A score that is (epsilon, delta) private and no better: a flipped bit, and the truth at times."""
    draw = stream(seed, "response")
    member = draw.random((runs, records)) < 0.5
    flips = draw.random(member.shape) < 1 / (1 + exp(epsilon))
    shows_truth = draw.random(member.shape) < delta
    return np.where(shows_truth, member * 4.0 - 1.5, member ^ flips), member


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_the_proven_epsilon_is_near_the_true_one_and_not_above(epsilon, delta):
    score, member = randomised_response(epsilon, delta)
    proven = roc.least_epsilon([score], member, delta)
    assert 0.6 * epsilon < proven <= epsilon  # a ledger that promised half would be caught


def test_the_attack_is_chosen_before_it_is_judged():
    """One that knows everything of the runs that judge, and another that led before: the better
    result is no proof, since one of many that know nothing may have it by chance.
    """
    draw = stream(0, "chosen")
    member = draw.random((8, 60)) < 0.5
    lots, nearly = draw.random(member.shape) < 0.5, member ^ (draw.random(member.shape) < 0.4)
    first = np.arange(8)[:, None] < 4
    early, late = np.where(first, member, lots) * 1.0, np.where(first, nearly, member) * 1.0
    assert roc.least_epsilon([late], member, 0.0) > log(10)
    assert roc.least_epsilon([late, early], member, 0.0) == 0.0
    assert roc.least_epsilon([early, late], member, 0.0) == 0.0


def test_both_sides_prove():
    """Half of all members are certain: nothing is proven of high scores alone if signs are turned."""
    draw = stream(0, "sides")
    member = draw.random((20, 200)) < 0.5
    score = np.where(member & (draw.random(member.shape) < 0.5), 1.0, 0.0)
    for turned in (score, -score):
        assert roc.least_epsilon([turned], member if turned is score else ~member, 0.0) > log(50)


def test_without_others_nothing_is_proven():
    assert roc.least_epsilon([np.zeros((4, 3))], np.ones((4, 3), bool), 0.0) == 0.0
