"""Masks of secure aggregation: they cancel in a whole sum, in no other, and hide what they cover."""

import hmac
import shutil
import struct
import subprocess
from hashlib import sha256
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coalitions import pairwise_masks, smallest_sum
from pomona.core.errors import ProtocolError
from pomona.core.fixed_point import decoded, encoded, error
from pomona.core.training_settings import SecureAggregation
from pomona_federation.messages.tensor_bytes import masked, new_secret, public, require_keys

CONTEXT = "ab" * 32
LENGTH = 300


def secrets(n):
    """Private keys from a fixed seed, by place; places are not consecutive."""
    rng = np.random.default_rng(n)
    return {3 * i + 1: rng.bytes(32).hex() for i in range(n)}


def keyring(private):
    return {silo: public(secret) for silo, secret in private.items()}


def masked_vectors(private, values, context=CONTEXT):
    """Every silo's masked vector, by place."""
    keys = keyring(private)
    return {i: masked(values[i], secret, i, keys, context) for i, secret in private.items()}


def random_vectors(private, dtype, seed=0):
    rng = np.random.default_rng(seed)
    top = np.iinfo(dtype).max
    return {i: rng.integers(0, top, LENGTH, dtype, endpoint=True) for i in private}


def summed(vectors):
    return np.sum([*vectors], axis=0, dtype=next(iter(vectors)).dtype)


@pytest.mark.parametrize("n", [2, 3, 4, 12, 50])
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_masks_cancel_exactly_in_the_sum_over_all(n, dtype):
    private = secrets(n)
    values = random_vectors(private, dtype)
    vectors = masked_vectors(private, values)
    assert np.array_equal(summed(vectors.values()), summed(values.values()))
    assert all((vectors[i] != values[i]).mean() > 0.99 for i in private)


@given(st.sets(st.integers(0, 9), min_size=2), st.integers(0, 2**32 - 1))
def test_they_cancel_for_every_roster_of_any_places(silos, seed):
    rng = np.random.default_rng(seed)
    private = {i: rng.bytes(32).hex() for i in silos}
    values = random_vectors(private, np.uint32, seed)
    assert np.array_equal(summed(masked_vectors(private, values).values()), summed(values.values()))


def test_no_smaller_sum_tells_anything():
    """Every proper subset of four silos is still covered by masks with the others."""
    private = secrets(4)
    zeros = dict.fromkeys(private, np.zeros(LENGTH, np.uint32))
    vectors = masked_vectors(private, zeros)
    silos = list(private)
    for chosen in range(1, 2**4 - 1):
        subset = [vectors[i] for k, i in enumerate(silos) if chosen >> k & 1]
        assert (summed(subset) != 0).mean() > 0.99


def test_a_masked_vector_is_uniform_whatever_it_covers():
    """Chi-square of each byte's frequencies, 255 degrees of freedom: mean 255, deviation 22.6."""
    private = secrets(3)
    silo, length = next(iter(private)), 200_000
    for covered in (np.zeros(length, np.uint32), np.full(length, 7, np.uint32)):
        raw = masked(covered, private[silo], silo, keyring(private), CONTEXT).view(np.uint8)
        for byte in range(4):
            counts = np.bincount(raw[byte::4], minlength=256)
            expected = length / 256
            statistic = ((counts - expected) ** 2 / expected).sum()
            assert 255 - 5 * 22.6 < statistic < 255 + 5 * 22.6


def test_masks_of_another_context_or_roster_have_nothing_in_common():
    """A round, an attempt or a roster more has fresh masks, so that no two of them subtract."""
    private = secrets(4)
    zeros = np.zeros(LENGTH, np.uint32)
    first, *_, last = private
    keys = keyring(private)
    vector = masked(zeros, private[first], first, keys, CONTEXT)
    assert np.array_equal(vector, masked(zeros, private[first], first, keys, CONTEXT))
    fewer = {i: key for i, key in keys.items() if i != last}
    renewed = {**keys, last: public("cd" * 32)}
    for other_vector in (
        masked(zeros, private[first], first, keys, "ba" * 32),
        masked(zeros, private[first], first, fewer, CONTEXT),
        masked(zeros, private[first], first, renewed, CONTEXT),
    ):
        assert (vector != other_vector).mean() > 0.99


def test_a_secret_is_drawn_anew_and_fits_its_public_key():
    drawn_keys = {new_secret() for _ in range(20)}
    assert len(drawn_keys) == 20
    assert all(len(public(secret)) == 64 for secret in drawn_keys)


P = 2**255 - 19
ORDER_8 = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
# Wycheproof's public keys of small order (RFC 7748's curve and its twist), and numbers that are
# other spellings of smaller ones: beyond the modulus, or with the top bit, which X25519 ignores.
SMALL = [0, 1, *ORDER_8, P - 1]
SPELLINGS = [P, P + 1, 2**255 - 1, *(2**255 + point for point in (*SMALL, 9))]


@pytest.mark.parametrize("point", [*SMALL, *SPELLINGS])
def test_keys_with_which_no_secret_can_be_agreed_on_are_refused_by_name(point):
    key = point.to_bytes(32, "little").hex()
    with pytest.raises(ProtocolError, match="the key of basel for the sum is not a usable"):
        require_keys({"geneva": public("ab" * 32), "basel": key})
    if point in SMALL:
        assert not any(x25519(b"\x40" + bytes(31), point.to_bytes(32, "little")))


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=5, unique=True))
def test_keys_of_any_secrets_are_usable(drawn_secrets):
    require_keys({str(i): public(secret.hex()) for i, secret in enumerate(drawn_secrets)})


def test_no_mask_is_made_with_a_key_of_small_order():
    secret = "01" * 32
    keys = {0: public(secret), 4: bytes(32).hex()}
    with pytest.raises(ProtocolError, match="place 4"):
        masked(np.zeros(3, np.uint32), secret, 0, keys, "ab" * 32)


def test_one_key_of_two_silos_is_refused_by_both_names():
    key = public("ab" * 32)
    with pytest.raises(ProtocolError, match="basel has the same key for the sum as geneva"):
        require_keys({"geneva": key, "bern": public("cd" * 32), "basel": key})


@pytest.mark.parametrize("n", [3, 5, 7])
def test_peers_that_repeat_the_keys_of_others_do_not_cancel_their_masks(n):
    """With equal masks on both sides of the middle silo its vector would be in the clear."""
    private = secrets(n)
    silos = list(private)
    middle = n // 2
    keys = keyring(private)
    for k in range(middle):
        keys[silos[k]] = keys[silos[n - 1 - k]]
    zeros = np.zeros(LENGTH, np.uint32)
    assert (masked(zeros, private[silos[middle]], silos[middle], keys, CONTEXT) != 0).mean() > 0.99


# Coalitions.


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_server_with_some_silos_reads_the_sum_of_all_others_alone(n, count):
    for colluders in combinations(range(n), min(count, n - 1)):
        assert smallest_sum(n, colluders) == n - len(colluders)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_masks_are_sums_over_pairs(n):
    """So that the search may derive the mask of a pair once."""
    private = secrets(n)
    keys, zeros = keyring(private), np.zeros(LENGTH, np.uint32)
    for silo, secret in private.items():
        pairs = [{silo: keys[silo], peer: keys[peer]} for peer in set(keys) - {silo}]
        total = sum((masked(zeros, secret, silo, pair, CONTEXT) for pair in pairs), start=zeros)
        np.testing.assert_array_equal(masked(zeros, secret, silo, keys, CONTEXT), total)


def test_the_search_for_coalitions_finds_the_copied_key_where_places_are_not_bound():
    assert smallest_sum(3, (0,), pairwise_masks) == 1  # silo 1 lies between silos 0 and 2
    assert smallest_sum(3, (1,), pairwise_masks) == 2
    assert smallest_sum(5, (0, 1), pairwise_masks) == 1


@pytest.mark.slow
def test_a_symbolic_attacker_reads_no_change_but_where_a_part_of_the_protocol_is_left_out():
    maude = shutil.which("maude") or pytest.skip("needs maude (a Debian package)")
    model = Path(__file__).parents[2] / "docs" / "internals" / "secure_sum.maude"
    run = subprocess.run(
        [maude, "-no-banner", model],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    _, *searches = run.stdout.split("search [1] in ")
    attacked = {search.split()[0]: "Solution 1" in search for search in searches}
    assert attacked == {"SAFE": False, "WITHOUT-PLACES": True, "WITHOUT-MODEL": True}


# Other implementations.


def x25519(scalar, point):
    """RFC 7748, section 5, in integers."""
    p, k = 2**255 - 19, int.from_bytes(scalar, "little")
    k = (k & ~7 & (2**255 - 1)) | 2**254
    u = int.from_bytes(point, "little") & (2**255 - 1)
    a, b, c, d, swap = 1, 0, u, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if swap ^ bit:
            a, b, c, d = c, d, a, b
        swap = bit
        e, f, g, h = a + b, a - b, c + d, c - d
        aa, bb = e * e % p, f * f % p
        da, cb = h * e % p, g * f % p
        c, d = (da + cb) ** 2 % p, u * (da - cb) ** 2 % p
        a, b = aa * bb % p, (aa - bb) * (aa + 121665 * (aa - bb)) % p
    if swap:
        a, b = c, d
    return (a * pow(b, p - 2, p) % p).to_bytes(32, "little")


def chacha20(key, blocks):
    """RFC 8439, section 2.3, with counter and nonce from 0."""
    mask, stream = 2**32 - 1, b""
    quarters = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    quarters += [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for counter in range(blocks):
        initial = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter]
        initial += [0, 0, 0]
        x = [*initial]
        for _ in range(10):
            for a, b, c, d in quarters:
                for into, add, turned, rotation in (
                    (a, b, d, 16),
                    (c, d, b, 12),
                    (a, b, d, 8),
                    (c, d, b, 7),
                ):
                    x[into] = (x[into] + x[add]) & mask
                    mixed = x[turned] ^ x[into]
                    x[turned] = (mixed << rotation | mixed >> (32 - rotation)) & mask
        stream += struct.pack(
            "<16I", *((word_a + word_b) & mask for word_a, word_b in zip(x, initial, strict=True))
        )
    return stream


def test_masks_are_the_key_stream_that_the_document_states():
    """X25519, HKDF-SHA256 and ChaCha20 in plain Python, from the RFCs."""
    private = secrets(2)
    (first, a), (second, b) = private.items()
    keys = {i: x25519(bytes.fromhex(s), b"\x09" + bytes(31)) for i, s in private.items()}
    assert {i: key.hex() for i, key in keys.items()} == keyring(private)
    shared = x25519(bytes.fromhex(a), keys[second])
    assert shared == x25519(bytes.fromhex(b), keys[first])
    key_pair = b"".join(struct.pack(">I", silo) + keys[silo] for silo in sorted(keys))
    info = b"pomona secure aggregation mask 2\0" + key_pair
    pseudorandom = hmac.digest(bytes.fromhex(CONTEXT), shared, sha256)
    key = hmac.digest(pseudorandom, info + b"\1", sha256)
    stream = np.frombuffer(chacha20(key, 3), np.uint32)
    zeros = np.zeros(48, np.uint32)
    assert np.array_equal(masked(zeros, a, first, keyring(private), CONTEXT), stream)
    assert np.array_equal(masked(zeros, b, second, keyring(private), CONTEXT), zeros - stream)


@pytest.mark.parametrize("n", [4, 12, 50])
def test_the_sum_is_declearns(n):
    """Its masks and its quantisation (declearn 2.9), on the same weighted changes."""
    theirs = pytest.importorskip("declearn.secagg.masking")
    terms, rng = SecureAggregation(max_norm=10.0), np.random.default_rng(n)
    changes = rng.standard_normal((n, LENGTH), np.float32) / 10
    weights = rng.dirichlet(np.ones(n))
    private = dict(enumerate(rng.bytes(32).hex() for _ in range(n)))
    vectors = {i: encoded(changes[i], weights[i], terms) for i in private}
    ours = decoded(summed(masked_vectors(private, vectors).values()), terms)
    seeds = rng.integers(2**60, size=(n, n))
    total = np.zeros(LENGTH, object)
    for i in range(n):
        later = [int(s) for s in seeds[i, i + 1 :]]
        earlier = [int(s) for s in seeds[:i, i]]
        encrypter = theirs.MaskingEncrypter(later, earlier, bitsize=64, clipval=10.0)
        values, spec = encrypter.encrypt_numpy_array(changes[i].astype(np.float64) * weights[i])
        total = total + np.array(values, object)
    decrypter = theirs.MaskingDecrypter(n, bitsize=64, clipval=10.0)
    their_sum = decrypter.decrypt_numpy_array([int(v) % 2**64 for v in total], spec)
    assert np.abs(ours - their_sum).max() <= error(terms, n) + 1e-14
