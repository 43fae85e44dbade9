"""Limit on one client's weight: ``core.round`` checked against its definition."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pomona.core.round import Roster, limited, weights

SIZES = st.lists(st.integers(0, 2**53 - 1), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("sizes", "largest", "expected"),
    [
        ((100, 100, 10**15), 0.5, (0.25, 0.25, 0.5)),  # c = 0.5 / 0.5 * (100 + 100) = 200
        ((30, 20, 10), 0.5, (1 / 2, 1 / 3, 1 / 6)),  # exactly half: nobody is cut
        ((60, 20, 10), 0.5, (1 / 2, 1 / 3, 1 / 6)),  # 60 counts as 30
        ((1000, 900, 50, 50), 0.3, (0.3, 0.3, 0.2, 0.2)),  # two are cut: c = 0.3 / 0.4 * 100 = 75
        ((7, 1), 0.5, (0.5, 0.5)),  # of two one has more than half: the same for both
        ((7, 0, 1), 0.2, (0.5, 0, 0.5)),  # two members cannot weigh a fifth each
        ((7,), 0.5, (1.0,)),
        ((0, 0), 0.5, (0, 0)),
        ((1, 10**15), 1.0, (1 / (10**15 + 1), 10**15 / (10**15 + 1))),
    ],
)
def test_shares_worked_out_by_hand(sizes, largest, expected):
    assert weights(sizes, largest) == pytest.approx(expected, rel=1e-15)


@given(SIZES, st.floats(0.01, 1.0))
def test_nobody_weighs_more_than_the_share_and_the_others_keep_their_ratios(sizes, largest):
    capped, m = weights(sizes, largest), sum(n > 0 for n in sizes)
    if not m:
        assert capped == [0.0] * len(sizes)
        return
    assert sum(capped) == pytest.approx(1)
    assert max(capped) <= max(largest, 1 / m) * (1 + 1e-12)
    assert all((w > 0) == (n > 0) for w, n in zip(capped, sizes, strict=True))
    order = np.argsort(sizes)
    assert (np.diff(np.array(capped)[order]) >= -1e-15).all(), "more samples never weigh less"
    top = max(capped) * (1 - 1e-9)
    free = [(w, n) for w, n in zip(capped, sizes, strict=True) if n and w < top]
    assert all(w / n == pytest.approx(free[0][0] / free[0][1], rel=1e-9) for w, n in free)


@given(SIZES, st.floats(0.01, 1.0))
def test_where_nobody_is_cut_the_numbers_are_the_same_to_the_bit(sizes, largest):
    if sum(sizes) and max(sizes) <= largest * sum(sizes):
        assert limited(sizes, largest) == tuple(sizes)
        assert torch.equal(Roster(tuple(sizes), largest).shares, Roster(tuple(sizes)).shares)


def test_a_roster_limits_whoever_is_averaged():
    """Of all three, 60 counts as 30; of the first two alone, as 20."""
    roster = Roster((60, 20, 10), 0.5)
    assert roster.shares.tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 6])
    assert roster.weights((0, 1)).tolist() == [0.5, 0.5]
    assert roster.weights((1, 2)).tolist() == [0.5, 0.5]
    assert roster.only((0, 1)).shares.tolist() == [0.5, 0.5, 0.0]
    assert roster.sizes == (60, 20, 10), "what each has said is kept"
