from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.core.rng import stream
from pomona.partition.partition import deal, sample

labels_of = st.lists(st.integers(0, 4), max_size=80).map(
    lambda values: np.array(values, dtype=np.int64)
)
seeds = st.integers(0, 2**32)


@st.composite
def share_tables(draw, complete):
    """Tables for 1 to 9 clients and 5 classes with many zeros; a class's shares sum to 1, or to
    less unless complete.
    """
    clients = draw(st.integers(1, 9))
    weights = np.array(
        draw(st.lists(st.integers(0, 3), min_size=5 * clients, max_size=5 * clients)), dtype=float
    )
    weights = weights.reshape(clients, 5)
    weights[0, weights.sum(axis=0) == 0] = 1
    undealt = 0 if complete else np.array(draw(st.lists(st.integers(0, 5), min_size=5, max_size=5)))
    return weights / (weights.sum(axis=0) + undealt)


@given(labels_of, share_tables(complete=False), seeds)
def test_every_client_is_within_one_row_of_its_share(labels, shares, seed):
    dealt = deal(labels, shares, stream(seed, "t"))
    all_rows = np.concatenate(dealt)
    assert len(dealt) == len(shares)
    assert len(np.unique(all_rows)) == len(all_rows)
    for i, rows in enumerate(dealt):
        assert rows.dtype == np.int64
        assert np.all(np.diff(rows) > 0)
        for c in range(5):
            exact = shares[i, c] * np.sum(labels == c)
            assert np.floor(exact - 1e-6) <= np.sum(labels[rows] == c) <= np.ceil(exact + 1e-6)


@given(labels_of, share_tables(complete=True), seeds)
def test_shares_that_sum_to_one_use_every_row(labels, shares, seed):
    all_rows = np.concatenate(deal(labels, shares, stream(seed, "t")))
    assert np.array_equal(np.sort(all_rows), np.arange(len(labels)))


@given(labels_of, share_tables(complete=True), seeds)
def test_the_stream_decides(labels, shares, seed):
    first, second = (deal(labels, shares, stream(seed, "t")) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_other_streams_deal_other_rows():
    labels = np.zeros(50, dtype=np.int64)
    dealt = [deal(labels, np.full((2, 1), 0.5), stream(seed, "t"))[0].tolist() for seed in range(2)]
    assert dealt[0] != dealt[1]


def test_whole_shares_are_exact_for_every_offset():
    labels = np.repeat(np.arange(3), 100)
    shares = np.array([[0.8, 0.01, 0.1], [0.1, 0.8, 0.01], [0.01, 0.1, 0.8]])
    for seed in range(50):
        dealt = deal(labels, shares, stream(seed, "t"))
        counts = np.stack([np.bincount(labels[rows], minlength=3) for rows in dealt])
        assert np.array_equal(counts, [[80, 1, 10], [10, 80, 1], [1, 10, 80]])


def test_rounding_errors_of_the_shares_lose_no_row():
    """0.7 + 0.1 + 0.1 + 0.1 is 0.9999999999999999, but ten rows are ten rows even where the offset
    is 0.
    """
    shares = np.array([[0.7], [0.1], [0.1], [0.1]])
    assert np.cumsum(shares)[-1] < 1
    no_offset = SimpleNamespace(permutation=lambda rows: rows, random=lambda: 0.0)
    dealt = deal(np.zeros(10, dtype=np.int64), shares, no_offset)
    assert [rows.tolist() for rows in dealt] == [[0, 1, 2, 3, 4, 5, 6], [7], [8], [9]]


def test_rounding_favours_nobody():
    """One row, three equal shares: each client's number of wins in n deals is Binomial(n, 1/3),
    here within 5 sigma.
    """
    n = 900
    wins = sum(
        np.array(
            [
                len(rows)
                for rows in deal(np.zeros(1, np.int64), np.full((3, 1), 1 / 3), stream(seed, "t"))
            ]
        )
        for seed in range(n)
    )
    assert wins.sum() == n
    assert np.all(np.abs(wins - n / 3) < 5 * np.sqrt(n * (1 / 3) * (2 / 3)))


@pytest.mark.parametrize(
    "shares", [np.array([[0.7], [0.7]]), np.array([[1.5], [-0.5]]), np.array([[np.nan]])]
)
def test_what_is_no_table_of_shares_is_refused(shares):
    with pytest.raises(ValueError, match="shares"):
        deal(np.zeros(3, dtype=np.int64), shares, stream(0, "t"))


@given(labels_of, st.floats(0, 1), seeds)
def test_a_sample_is_stratified_and_of_exact_size(labels, share, seed):
    size = int(share * len(labels))
    rows = sample(labels, size, stream(seed, "t"))
    assert len(rows) == size
    assert np.all(np.diff(rows) > 0)
    assert not size or (rows[0] >= 0 and rows[-1] < len(labels))
    for c in range(5):
        count = int(np.sum(labels == c))
        floor, remainder = divmod(size * count, max(len(labels), 1))
        assert floor <= np.sum(labels[rows] == c) <= floor + (remainder > 0)


def test_every_row_is_sampled_equally_often():
    """Each of 7 rows is in a sample of 3 with probability 3/7."""
    n, labels = 1400, np.array([0, 0, 0, 0, 1, 1, 2])
    counts = np.bincount(
        np.concatenate([sample(labels, 3, stream(seed, "t")) for seed in range(n)]), minlength=7
    )
    assert np.all(np.abs(counts - n * 3 / 7) < 5 * np.sqrt(n * (3 / 7) * (4 / 7)))


def test_more_rows_than_there_are_cannot_be_drawn():
    with pytest.raises(ValueError, match="4 of 3 rows"):
        sample(np.zeros(3, dtype=np.int64), 4, stream(0, "t"))
