"""Ranks, Holm's procedure, critical differences and bars, against arithmetic, tables and SciPy."""

from math import comb, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from pomona.results.significance import cliques, critical_difference, holm, ranking, ranks
from pomona.results.text.discussion import _ordinal


def test_places_are_written_as_in_sentences():
    places = {1: "first", 3: "third", 4: "4th", 11: "11th", 13: "13th", 21: "21st", 112: "112th"}
    assert {place: _ordinal(place) for place in places} == places


def test_the_highest_is_first_and_equal_values_share_their_ranks():
    # 0.8 twice: places 2 and 3, (2 + 3) / 2.
    assert ranks(np.array([[0.9, 0.8, 0.8], [0.7, 0.9, 0.6]])).tolist() == [
        [1, 2.5, 2.5],
        [2, 1, 3],
    ]


@given(
    arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.floats(0, 1))
)
def test_ranks_of_a_block_sum_to_k_k_plus_1_over_2(values):
    k = values.shape[1]
    assert ranks(values).sum(axis=1) == pytest.approx(k * (k + 1) / 2)


# q at 5 %, Demšar 2006, table 5 (a).
@pytest.mark.parametrize(("k", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)])
def test_critical_differences_are_those_of_demsars_table(k, q):
    assert critical_difference(k, 14) == pytest.approx(q * sqrt(k * (k + 1) / (6 * 14)), rel=5e-4)


def test_holms_steps():
    # Sorted: 0.005 x 4 = 0.02, 0.01 x 3 = 0.03, 0.03 x 2 = 0.06, 0.04 x 1 = 0.04, which may not
    # fall below 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_the_raw_values_and_bonferronis(p):
    for raw, corrected in zip(p, holm(p), strict=True):
        assert raw <= corrected <= min(1, len(p) * raw) + 1e-12


def test_bars_join_the_longest_runs_that_do_not_differ():
    # Order 2, 0, 1, 3; only (2, 1), (2, 3) and (0, 3) differ: runs 2-0, 0-1, 1-3.
    different = {
        (0, 1): False,
        (0, 2): False,
        (0, 3): True,
        (1, 2): True,
        (1, 3): False,
        (2, 3): True,
    }
    assert cliques([2, 0, 1, 3], different) == [(0, 1), (1, 2), (2, 3)]
    assert cliques([0, 1, 2, 3], dict.fromkeys(different, False)) == [(0, 3)]
    assert cliques([0, 1, 2, 3], dict.fromkeys(different, True)) == []


@pytest.mark.parametrize("blocks", [5, 6])
def test_two_methods_differ_once_wilcoxons_exact_p_is_below_5_percent(blocks):
    values = np.array([[0.9 + i / 100, 0.5] for i in range(blocks)])
    ranks = ranking(["a", "b"], values)
    p = 2 / 2**blocks  # all differences have one sign: the two extreme of 2^B equally likely sums
    assert ranks.pairs == {(0, 1): pytest.approx(p)}
    assert ranks.cliques == (((0, 1),) if p >= 0.05 else ())
    assert (ranks.mean_ranks, ranks.friedman) == ((1.0, 2.0), None)


def test_friedmans_statistic_is_that_of_the_mean_ranks():
    values = np.array([[0.9, 0.5, 0.4], [0.8, 0.7, 0.3], [0.7, 0.95, 0.1], [0.6, 0.4, 0.2]])
    ranks = ranking(["a", "b", "c"], values)
    # Ranks 1 1 2 1, 2 2 1 2, 3 3 3 3: means 1.25, 1.75, 3.
    assert ranks.mean_ranks == (1.25, 1.75, 3.0)
    chi = 12 * 4 / (3 * 4) * sum((r - 2) ** 2 for r in ranks.mean_ranks)
    assert ranks.friedman == pytest.approx(stats.chi2.sf(chi, 2))
    assert ranks.order == [0, 1, 2]
    raw = [stats.wilcoxon(values[:, a], values[:, b]).pvalue for a, b in ranks.pairs]
    assert list(ranks.pairs.values()) == pytest.approx(holm(raw))
    assert len(ranks.pairs) == comb(3, 2)


def test_equal_methods_and_a_single_block_say_nothing():
    equal = ranking(["a", "b", "c"], np.ones((3, 3)))
    assert (equal.friedman, set(equal.pairs.values()), equal.cliques) == (None, {1.0}, ((0, 2),))
    single = ranking(["a", "b"], np.array([[0.2, 0.1]]))
    assert (single.mean_ranks, single.friedman, single.pairs) == ((1.0, 2.0), None, {(0, 1): 1.0})
    assert ranking(["a"], np.array([[0.2]])).cliques == ()
