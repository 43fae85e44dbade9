"""Masks of secure aggregation: they cancel in a whole sum, in no other, and hide what they cover."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.core.errors import ProtocolError
from pomona_federation.messages.masks import masked, new_secret, public

CONTEXT = "ab" * 32
LENGTH = 300


def secrets(n):
    """Private keys from a fixed seed, by place; places are not consecutive."""
    rng = np.random.default_rng(n)
    return {3 * i + 1: rng.bytes(32).hex() for i in range(n)}


def shown(known):
    return {place: public(secret) for place, secret in known.items()}


def parts(known, values, context=CONTEXT):
    """Every silo's masked vector, by place."""
    keys = shown(known)
    return {i: masked(values[i], secret, i, keys, context) for i, secret in known.items()}


def drawn(known, dtype, seed=0):
    rng = np.random.default_rng(seed)
    top = np.iinfo(dtype).max
    return {i: rng.integers(0, top, LENGTH, dtype, endpoint=True) for i in known}


def summed(vectors):
    return np.sum([*vectors], axis=0, dtype=next(iter(vectors)).dtype)


@pytest.mark.parametrize("n", [2, 3, 4, 12, 50])
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_masks_cancel_exactly_in_the_sum_over_all(n, dtype):
    known = secrets(n)
    values = drawn(known, dtype)
    made = parts(known, values)
    assert np.array_equal(summed(made.values()), summed(values.values()))
    assert all((made[i] != values[i]).mean() > 0.99 for i in known)


@given(st.sets(st.integers(0, 9), min_size=2), st.integers(0, 2**32 - 1))
def test_they_cancel_for_every_roster_of_any_places(places, seed):
    rng = np.random.default_rng(seed)
    known = {i: rng.bytes(32).hex() for i in places}
    values = drawn(known, np.uint32, seed)
    assert np.array_equal(summed(parts(known, values).values()), summed(values.values()))


def test_no_smaller_sum_tells_anything():
    """Every proper subset of four silos is still covered by masks with the others."""
    known = secrets(4)
    zeros = dict.fromkeys(known, np.zeros(LENGTH, np.uint32))
    made = parts(known, zeros)
    places = list(known)
    for chosen in range(1, 2**4 - 1):
        some = [made[i] for k, i in enumerate(places) if chosen >> k & 1]
        assert (summed(some) != 0).mean() > 0.99


def test_a_masked_vector_is_uniform_whatever_it_covers():
    """Chi-square of each byte's frequencies, 255 degrees of freedom: mean 255, deviation 22.6."""
    known = secrets(3)
    place, length = next(iter(known)), 200_000
    for covered in (np.zeros(length, np.uint32), np.full(length, 7, np.uint32)):
        seen = masked(covered, known[place], place, shown(known), CONTEXT).view(np.uint8)
        for byte in range(4):
            counts = np.bincount(seen[byte::4], minlength=256)
            expected = length / 256
            statistic = ((counts - expected) ** 2 / expected).sum()
            assert 255 - 5 * 22.6 < statistic < 255 + 5 * 22.6


def test_masks_of_another_context_or_roster_have_nothing_in_common():
    """A round, an attempt or a roster more has fresh masks, so that no two of them subtract."""
    known = secrets(4)
    zeros = np.zeros(LENGTH, np.uint32)
    first, *_, last = known
    keys = shown(known)
    one = masked(zeros, known[first], first, keys, CONTEXT)
    assert np.array_equal(one, masked(zeros, known[first], first, keys, CONTEXT))
    fewer = {i: key for i, key in keys.items() if i != last}
    renewed = {**keys, last: public("cd" * 32)}
    for other in (
        masked(zeros, known[first], first, keys, "ba" * 32),
        masked(zeros, known[first], first, fewer, CONTEXT),
        masked(zeros, known[first], first, renewed, CONTEXT),
    ):
        assert (one != other).mean() > 0.99


def test_a_secret_is_drawn_anew_and_fits_its_public_key():
    drawn_keys = {new_secret() for _ in range(20)}
    assert len(drawn_keys) == 20
    assert all(len(public(secret)) == 64 for secret in drawn_keys)


@pytest.mark.parametrize("point", ["00" * 32, "01" + "00" * 31])
def test_a_key_of_small_order_and_a_copy_of_ones_own_are_refused(point):
    known = secrets(2)
    first, second = known
    zeros = np.zeros(4, np.uint32)
    with pytest.raises(ProtocolError, match="is none"):
        masked(zeros, known[first], first, {**shown(known), second: point}, CONTEXT)
    with pytest.raises(ProtocolError, match="this silo's key"):
        masked(zeros, known[first], first, dict.fromkeys(known, public(known[first])), CONTEXT)
