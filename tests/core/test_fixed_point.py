"""Sums in fixed point: their error, and that they never overflow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pomona.core.fixed_point import clipped, decoded, encoded, error, integer_dtype, scale
from pomona.core.round import Roster
from pomona.core.training_settings import SecureAggregation

TERMS = st.builds(SecureAggregation, max_norm=st.floats(1e-6, 1e6), bits=st.sampled_from([32, 64]))


def total(changes, weights, terms):
    """The sum modulo 2^b of all clients' integers."""
    integers = np.zeros(changes.shape[1], integer_dtype(terms))
    for change, weight in zip(changes, weights, strict=True):
        integers += encoded(change, float(weight), terms)
    return integers


@given(TERMS, st.integers(1, 60), st.integers(0, 40), st.integers(0, 2**32 - 1), st.floats(0.1, 1))
def test_a_decoded_sum_is_the_weighted_mean_within_the_stated_error(terms, n, d, seed, largest):
    rng = np.random.default_rng(seed)
    raw = rng.standard_normal((n, d)) * terms.max_norm * rng.choice([1e-6, 0.1, 3.0], (n, 1))
    changes = np.stack([clipped(row.astype(np.float32), terms.max_norm)[0] for row in raw])
    weights = Roster(tuple(rng.integers(1, 10**6, n).tolist()), largest).weights(tuple(range(n)))
    mean = np.einsum("n,nd->d", weights.numpy(), changes.astype(np.float64))
    slack = terms.max_norm * 2**-50  # of the mean in float64
    mean_decoded = decoded(total(changes, weights, terms), terms)
    assert np.abs(mean_decoded - mean).max(initial=0.0) <= error(terms, n) + slack


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("norm", [1e-6, 0.37, 1e6])
@pytest.mark.parametrize("sign", [-1, 1])
def test_no_sum_of_clipped_changes_overflows_with_the_most_clients(bits, norm, sign):
    """All 10,000 clients change the same number by the whole norm, each rounded away from 0."""
    terms, n = SecureAggregation(max_norm=norm, bits=bits), 10**4
    change, _ = clipped(np.array([sign * norm * 3], np.float32), norm)
    total_ = int(encoded(change, 1 / n, terms).view(f"<i{bits // 8}")[0]) * n  # exact in Python
    assert abs(total_) < 2 ** (bits - 1)
    assert total_ / scale(terms) == pytest.approx(sign * norm, rel=1e-4)


@given(
    TERMS,
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20),
    st.floats(1e-6, 1),
)
def test_a_change_out_of_range_wraps_and_never_saturates(terms, numbers, weight):
    """Whole numbers of any size modulo 2^b, in Python's exact integers."""
    change = np.array(numbers, np.float32)
    rounded = np.rint(change.astype(np.float64) * (weight * scale(terms)))
    assert encoded(change, weight, terms).tolist() == [int(x) % 2**terms.bits for x in rounded]


def test_a_change_is_clipped_to_the_norm_and_no_shorter_one_is_touched():
    change = np.array([3.0, 4.0], np.float32)
    unchanged, norm = clipped(change, 5.0)
    assert (unchanged is change, norm) == (True, 5.0)
    shorter, norm = clipped(change, 1.0)
    assert norm == 5.0
    assert shorter == pytest.approx([0.6, 0.8])
    assert shorter.dtype == np.float32


@pytest.mark.parametrize(
    "terms", [{"max_norm": 0.0}, {"max_norm": 1.0, "minimum": 1}, {"max_norm": 1.0, "bits": 16}, {}]
)
def test_terms_without_a_bound_or_with_a_sum_over_one_are_refused(terms):
    with pytest.raises(ValidationError):
        SecureAggregation(**terms)
