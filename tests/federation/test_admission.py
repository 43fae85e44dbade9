"""Admission: only agreed uplinks are accepted, and refused clients are named and count as
absent.
"""

import itertools
import json
import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save as library_save

import problems
from pomona.core.errors import ProtocolError
from pomona.federation import admission
from pomona.federation.admission import Expected, History, admit
from pomona.federation.exchange import Arrival, Reply
from pomona.methods import METHODS
from pomona.storage.safetensors_stream import DTYPES, digest, header, pieces
from pomona.storage.tensor_validation import decode, largest, non_finite
from pomona.testing import Federation
from pomona.testing.problems import class_points
from problems import passes

SPEC = {
    "core": torch.zeros(3, 2, device="meta"),
    "request": torch.zeros(2, dtype=torch.long, device="meta"),
}
SIZES = {i: 10 * (i + 1) for i in range(6)}
ROUND = Expected("run", 5, SIZES, SPEC, members=6)


def sound(scale=1.0):
    return {"core": torch.full((3, 2), scale), "request": torch.tensor([0, 5])}


def arrival(client, tensors=None, **changes):
    """The arrival of a client: a valid uplink, other tensors, or the error of reading them."""
    stated = {"run": "run", "round": 5, "samples": SIZES.get(client, 1)} | changes
    if isinstance(tensors, ProtocolError):
        return Arrival(Reply(client), **stated, unread=tensors)
    return Arrival(Reply(client, sound() if tensors is None else tensors), **stated)


def accepted(verdict):
    return [a.reply.client for a in verdict.accepted]


def judged(*arrivals, history=None):
    return admit(arrivals, ROUND, history or History())


def test_a_sound_round_is_let_in_in_order_of_clients():
    verdict = judged(arrival(4), arrival(0), arrival(2))
    assert accepted(verdict) == [0, 2, 4]
    assert verdict.rejected == ()
    assert all(digest(a.reply.uplink) == digest(sound()) for a in verdict.accepted)
    assert verdict.history.norms == {"core": (math.sqrt(6),) * 3}


def with_value(index, value):
    tensors = sound()
    tensors["core"].view(-1)[index] = value
    return tensors


INVALID_UPLINKS = {
    "nan": (with_value(3, math.nan), "'core' has values that are not finite (1 of 6)"),
    "inf": (with_value(0, -math.inf), "'core' has values that are not finite (1 of 6)"),
    "broadcastable": (sound() | {"core": torch.ones(1)}, "'core' has shape (1,), expected (3, 2)"),
    "row": (sound() | {"core": torch.ones(2)}, "'core' has shape (2,), expected (3, 2)"),
    "scalar": (sound() | {"core": torch.tensor(1.0)}, "'core' has shape (), expected (3, 2)"),
    "transposed": (
        sound() | {"core": torch.ones(2, 3)},
        "'core' has shape (2, 3), expected (3, 2)",
    ),
    "double": (
        sound() | {"core": torch.ones(3, 2).double()},
        "'core' has dtype torch.float64, expected torch.float32",
    ),
    "half": (
        sound() | {"core": torch.ones(3, 2).half()},
        "'core' has dtype torch.float16, expected torch.float32",
    ),
    "complex": (
        sound() | {"core": torch.ones(3, 2) * 1j},
        "'core' has dtype torch.complex64, expected torch.float32",
    ),
    "missing": ({"core": torch.ones(3, 2)}, "'request' is missing, expected core, request"),
    "extra": (sound() | {"more": torch.ones(1)}, "'more' is unknown, expected core, request"),
    "nothing": ({}, "'core' is missing"),
    "no tensor": (sound() | {"core": [[1.0]]}, "'core' is not a plain tensor"),
    "sparse": (sound() | {"core": torch.ones(3, 2).to_sparse()}, "'core' is not a plain tensor"),
    "meta": (sound() | {"core": torch.ones(3, 2, device="meta")}, "'core' is not a plain tensor"),
    "stranger": (
        sound() | {"request": torch.tensor([0, 6])},
        "'request' names clients 0 to 6, there are 0 to 5",
    ),
    "negative": (
        sound() | {"request": torch.tensor([-1, 2])},
        "'request' names clients -1 to 2, there are 0 to 5",
    ),
    "undecodable": (ProtocolError("an uplink cannot be read (x)"), "an uplink cannot be read (x)"),
}


@pytest.mark.parametrize("case", INVALID_UPLINKS)
def test_a_wrong_uplink_is_refused_with_client_round_tensor_and_reason(case):
    tensors, reason = INVALID_UPLINKS[case]
    verdict = judged(arrival(0), arrival(3, tensors))
    (rejection,) = verdict.rejected
    assert rejection.client == 3
    assert rejection.line == f"client 3, round 5: {rejection.reason}"
    assert reason in rejection.reason
    assert "\n" not in rejection.line
    assert ("lower lr" in rejection.remedy) == (case in {"nan", "inf"})
    assert ("must agree" in rejection.remedy) == (case not in {"nan", "inf", "undecodable"})
    assert accepted(verdict) == [0]
    assert verdict.history.strikes == {3: 1}


@pytest.mark.parametrize("samples", [0, -9, math.nan, math.inf, 10**18, True, [20], "20", 20.0, 19])
def test_a_number_of_samples_is_the_registered_one(samples):
    verdict = judged(arrival(1, samples=samples))
    assert "20 are registered" in verdict.rejected[0].reason
    assert verdict.history.strikes == {1: 1}


@pytest.mark.parametrize(
    "changes", [{"run": "other"}, {"round": 4}, {"round": 6}, {"client": 6}, {"client": -1}]
)
def test_what_is_stale_or_unasked_is_ignored_without_a_strike(changes):
    verdict = admit([arrival(2), arrival(**{"client": 1} | changes)], ROUND, History())
    assert accepted(verdict) == [2]
    assert len(verdict.rejected) == 1
    assert verdict.history == judged(arrival(2)).history


def test_one_uplink_a_client_and_round():
    verdict = judged(arrival(1), arrival(1), arrival(1, sound(2.0)))
    assert digest(verdict.accepted[0].reply.uplink) == digest(sound())
    assert [r.struck for r in verdict.rejected] == [False, False]
    reasons = " | ".join(r.reason for r in verdict.rejected)
    assert "the same uplink again" in reasons
    assert digest(sound(2.0)) in reasons
    assert digest(sound()) in reasons


def test_a_client_that_reports_a_fault_is_rejected_for_it_without_a_strike():
    fault = "client 4, round 5, step 2: the loss is nan"
    failed = replace(arrival(4), reply=Reply(4, fault=fault))
    verdict = judged(arrival(1, with_value(0, math.nan)), arrival(2), failed)
    assert accepted(verdict) == [2]
    assert [(r.client, r.reason == r.line == fault) for r in verdict.rejected] == [
        (4, True),
        (1, False),
    ]
    assert [r.struck for r in verdict.rejected] == [False, True]
    assert verdict.history.strikes == {1: 1}


def test_a_bad_copy_beside_a_good_one_is_no_strike():
    assert judged(arrival(1, with_value(0, math.nan)), arrival(1)).history.strikes == {}


def test_arrival_order_decides_nothing():
    arrivals = [
        arrival(0),
        arrival(1, sound(1e9)),
        arrival(2, with_value(0, math.nan)),
        arrival(3, sound(2.0)),
        arrival(9),
    ]
    arrivals += [arrival(4), arrival(5, sound(0.5))]
    verdicts = [
        judged(*order) for order in itertools.islice(itertools.permutations(arrivals), 0, None, 97)
    ]
    assert len(verdicts) > 50
    assert all(accepted(v) == [0, 3, 4, 5] for v in verdicts)
    assert all(
        (v.rejected, v.history) == (verdicts[0].rejected, verdicts[0].history) for v in verdicts
    )


def test_a_norm_is_bounded_by_a_multiple_of_the_median():
    """Ones (3, 2) have norm sqrt(6); the bound is 100 times the median over history."""
    history = History(norms={"core": (1.0, 2.0, 3.0, 50.0, 2.5)})
    edge = 100 * 2.5 / math.sqrt(6)
    verdict = judged(
        arrival(0, sound(edge * 0.999)), arrival(1, sound(edge * 1.001)), history=history
    )
    assert accepted(verdict) == [0]
    assert (
        verdict.rejected[0].line
        == "client 1, round 5: tensor 'core' has norm 250, the bound is 250"
    )
    assert verdict.history.norms["core"] == (1.0, 2.0, 3.0, 50.0, 2.5, pytest.approx(249.75))


def test_a_huge_core_is_refused_in_the_first_round_too():
    arrivals = [arrival(i, sound(1e6 if i == 2 else 1.0 + 0.1 * i)) for i in range(6)]
    assert accepted(judged(*arrivals)) == [0, 1, 3, 4, 5]
    assert accepted(judged(*arrivals[1:4])) == [1, 3]


def test_counts_and_losses_may_be_a_million_times_the_median():
    spec = {"model": torch.zeros(1), "risk": torch.zeros(1)}
    expected = replace(ROUND, spec=spec, auxiliary={"risk"})
    history = History(norms={"model": (1.0,) * 5, "risk": (1.0,) * 5})

    def accepted(model, risk):
        tensors = {"model": torch.tensor([model]), "risk": torch.tensor([risk])}
        return bool(admit([arrival(0, tensors)], expected, history).accepted)

    assert accepted(99.0, 9.9e5)
    assert not accepted(99.0, 1.1e6)
    assert not accepted(101.0, 1.0)


@pytest.mark.long
@pytest.mark.parametrize("name", ["fednova", "fedproto", "fedpac"])
def test_a_client_with_a_hundred_times_the_samples_of_the_others_is_no_outlier(name):
    """Its steps and counts of classes are over 100 times the median."""
    run = Federation(METHODS[name]().method(), class_points(*5 * [12], 2000))
    run.round(passes(name))
    assert problems.judged(run).rejected == ()


def test_zeros_are_valid_and_bound_nobody():
    """A method may begin at zero: a median of zero says nothing about what is too large."""
    history = History(norms={"core": (0.0,) * 10})
    assert accepted(judged(arrival(0, sound(0.0)), arrival(1, sound(3.0)), history=history)) == [
        0,
        1,
    ]


def test_a_norm_that_overflows_is_refused_even_while_nothing_is_known():
    spec = {"core": torch.zeros(4, dtype=torch.float64)}
    expected = Expected("run", 5, SIZES, spec, 6)
    verdict = admit(
        [arrival(0, {"core": torch.full((4,), 1e300, dtype=torch.float64)})], expected, History()
    )
    assert accepted(verdict) == []
    assert "norm inf" in verdict.rejected[0].reason


def test_the_window_forgets_the_oldest(monkeypatch):
    history = History(norms={"core": (1.0, 2.0, 3.0)})
    monkeypatch.setattr(admission, "WINDOW", 3)
    assert judged(arrival(0), history=history).history.norms["core"] == (2.0, 3.0, math.sqrt(6))


def test_three_refusals_in_a_row_are_quarantine_and_an_accepted_one_clears():
    bad, good, history = arrival(1, with_value(0, math.nan)), arrival(1), History()
    for uplink, strikes in ((bad, {1: 1}), (bad, {1: 2}), (good, {}), (bad, {1: 1}), (bad, {1: 2})):
        history = judged(uplink, history=history).history
        assert history.strikes == strikes
        assert history.quarantined() == frozenset()
        history = judged(arrival(0), history=history).history  # to be absent changes nothing
    history = judged(bad, bad, history=history).history
    assert history.quarantined() == {1}
    verdict = judged(good, arrival(0), history=history)
    assert accepted(verdict) == [0]
    assert "in quarantine after 3 refused uplinks in a row" in verdict.rejected[0].reason
    assert verdict.history.strikes == {1: 3}


@given(
    st.dictionaries(st.integers(0, 99), st.integers(1, 9)),
    st.dictionaries(st.text(), st.lists(st.floats(0, allow_infinity=False)).map(tuple)),
)
def test_a_history_survives_a_checkpoint(strikes, norms):
    history = History(strikes, norms)
    assert History.from_json(json.loads(json.dumps(history.as_json(), allow_nan=False))) == history


def test_a_spec_without_tensors_takes_uplinks_without_tensors():
    expected = Expected("run", 5, SIZES, {}, 6)
    assert accepted(admit([arrival(0, {})], expected, History())) == [0]


def test_receivers_look_for_themselves():
    assert non_finite(sound()) is None
    assert (
        non_finite({"a": torch.tensor([1.0, math.nan, math.inf])})
        == "tensor 'a' has values that are not finite (2 of 3)"
    )


# The decoder

WIRE = {
    "core": torch.zeros(3, 2),
    "flag": torch.zeros(3, dtype=torch.bool),
    "request": torch.zeros(2, dtype=torch.long),
}
VALUES = WIRE | {"core": torch.randn(3, 2, generator=torch.Generator().manual_seed(0))}
ENCODED = b"".join(pieces(VALUES))
LIMIT = 64 * 1024


def built(table, data=b"", length=None):
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def table(**changes):
    return json.loads(header(WIRE)[8:]) | changes


def test_what_was_sent_is_decoded_whoever_wrote_it():
    for data in (
        ENCODED,
        library_save(VALUES),
        library_save(VALUES, {"note": "x"}),
        b"".join(pieces(VALUES, "a note")),
    ):
        assert digest(decode(data, WIRE, largest(WIRE))) == digest(VALUES)
    shuffled = built(dict(reversed(table().items())), ENCODED[len(header(WIRE)) :])
    assert digest(decode(shuffled, WIRE, LIMIT)) == digest(VALUES)
    assert decode(b"".join(pieces({})), {}, LIMIT) == {}


def claim(dtype="F32", shape=(3, 2), offsets=(16, 40), **changes):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)} | changes


DATA = ENCODED[len(header(WIRE)) :]
MALFORMED = {
    "too long": (ENCODED + b"\0" * LIMIT, "the limit is"),
    "empty": (b"", "a header of 0 bytes"),
    "header of 2^63 bytes": (built({}, length=2**63), "at most"),
    "header longer than it may be": (built(b"{}" + b" " * 5000), "at most"),
    "shape of 2^40": (built(table(core=claim(shape=(2**40,)))), "does not match its shape"),
    "shape and offsets of 2^40": (
        built(table(core=claim(shape=(2**38,), offsets=(16, 16 + 2**40)))),
        "start at",
    ),
    "overlap": (built(table(core=claim(offsets=(8, 32))), DATA), "start at 8"),
    "gap": (built(table(core=claim(offsets=(24, 48))), DATA), "start at 24"),
    "beyond the end": (built(table(), DATA[:-1]), "the file has"),
    "bytes left over": (built(table(), DATA + b"\0"), "the file has"),
    "unknown dtype": (built(table(core=claim("F128")), DATA), "unknown dtype"),
    "dtype not hashable": (built(table(core=claim(["F32"])), DATA), "not described by"),
    "empty, too large": (
        built(table(core=claim(shape=(0, 2**62, 4), offsets=(16, 16)))),
        "too large",
    ),
    "negative shape": (built(table(core=claim(shape=(-3, -2))), DATA), "whole numbers"),
    "shape of floats": (built(table(core=claim(shape=(3.0, 2.0))), DATA), "whole numbers"),
    "shape of truth values": (built(table(core=claim(shape=(True, 6))), DATA), "whole numbers"),
    "offset 1e400": (
        built(header(WIRE)[8:].replace(b"[16,40]", b"[16,1e400]"), DATA),
        "whole numbers",
    ),
    "offset of 5000 digits": (
        built(b'{"core":{"data_offsets":[0,' + b"1" * 1200 + b"]}}"),
        "not described by",
    ),
    "more than agreed": (built(table(core=claim(more=1)), DATA), "not described by"),
    "duplicate name": (
        built(
            header(WIRE)[8:].rstrip()[:-1] + b',"core":' + json.dumps(claim()).encode() + b"}", DATA
        ),
        "twice",
    ),
    "metadata of numbers": (built(table(__metadata__={"a": 1}), DATA), "metadata"),
    "metadata list": (built(table(__metadata__=[]), DATA), "metadata"),
    "NaN": (built(b'{"a":NaN}'), "holds NaN"),
    "list": (built([]), "not a JSON object"),
    "no JSON": (built(b"PK\3\4"), "cannot be read"),
    "no UTF-8": (built(b'{"\xff":1}'), "cannot be read"),
    "UTF-16": (built("{}".encode("utf-16")), "cannot be read"),
    "nested": (built(b"[" * 1400), "cannot be read"),
    "nested dictionary": (built(b'{"a":' * 280), "cannot be read"),
    "pickle": (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n", "at most"),
    "other shape": (
        b"".join(pieces(VALUES | {"core": torch.zeros(6)})),
        "'core' has shape (6,), expected (3, 2)",
    ),
    "other dtype": (
        b"".join(pieces(VALUES | {"core": torch.zeros(3, dtype=torch.float64)})),
        "'core' has dtype",
    ),
    "other name": (
        b"".join(pieces({"a\nb\ud800": torch.zeros(1)} | VALUES)),
        r"'a\nb\ud800' is unknown",
    ),
    "missing": (b"".join(pieces({"core": torch.zeros(3, 2)})), "'flag' is missing"),
    "truth value of 2": (ENCODED[:-3] + b"\2\0\0", "boolean values"),
}


def measured(data, spec=WIRE, limit=LIMIT):
    """Decode; (result or error, bytes allocated at the peak, tensors included)."""
    tracemalloc.start()
    try:
        outcome = decode(data, spec, limit)
    except ProtocolError as fault:
        outcome = fault
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return outcome, peak + (
        sum(t.nbytes for t in outcome.values()) if isinstance(outcome, dict) else 0
    )


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_uplinks_are_refused(case):
    data, reason = MALFORMED[case]
    fault, allocated = measured(data)
    assert isinstance(fault, ProtocolError)
    assert fault.code == 10
    assert reason in str(fault)
    assert len(fault.line()) < 400
    fault.line().encode()
    assert allocated <= 2 * LIMIT


def test_memory_stays_within_twice_the_limit_at_full_size():
    spec = {"w": torch.zeros(500_000)}
    data, limit = b"".join(pieces(spec)), largest(spec)
    outcome, allocated = measured(data, spec, limit)
    assert digest(outcome) == digest(spec)
    assert allocated <= 2 * limit
    wide = built({f"n{k}": claim("F32", (0,), (0, 0)) for k in range(20)})
    assert measured(wide, spec, limit)[1] <= 2 * limit


numbers = st.integers(-2, 64) | st.sampled_from(
    [2**31, 2**62, 2**63, 2**64, 10**30, True, None, 1.5, "3"]
)
claims = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from([*DTYPES, "F8", "", None]),
        "shape": st.lists(numbers, max_size=4) | numbers,
        "data_offsets": st.lists(numbers, min_size=2, max_size=2) | st.lists(numbers, max_size=3),
        "more": numbers,
    },
)
names = st.sampled_from([*WIRE, "__metadata__", "", "\ud800", "x" * 300])
anything = st.recursive(
    numbers | names,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(names, x, max_size=3),
    max_leaves=5,
)
nearly_valid = st.dictionaries(names, claims | anything, max_size=2).map(lambda d: table(**d))
headers = (st.dictionaries(names, claims | anything, max_size=4) | nearly_valid | anything).map(
    lambda t: json.dumps(t).encode()
)
lengths = st.none() | st.integers(0, 400) | st.sampled_from([2**31, 2**63, 2**64 - 1])
edits = st.lists(
    st.tuples(st.integers(0, len(ENCODED) - 1), st.binary(max_size=3), st.integers(0, 3)),
    max_size=4,
)


def spliced(changes, length):
    data = bytearray(ENCODED)
    for offset, new, removed in changes:
        data[offset : offset + removed] = new
    return bytes(data[:length])


inputs = st.one_of(
    st.binary(max_size=200),
    st.builds(
        built,
        headers | st.binary(max_size=100),
        st.sampled_from([b"", DATA]) | st.binary(max_size=60),
        lengths,
    ),
    st.builds(spliced, edits, st.none() | st.integers(0, len(ENCODED))),
)


def any_input(data):
    outcome, allocated = measured(data)
    assert allocated <= 2 * LIMIT
    if isinstance(outcome, dict):
        assert {k: (t.dtype, t.shape) for k, t in outcome.items()} == {
            k: (t.dtype, t.shape) for k, t in WIRE.items()
        }
    else:
        assert isinstance(outcome, ProtocolError)
        assert "\n" not in outcome.line()
        outcome.line().encode()


@settings(max_examples=3000)
@given(inputs)
@pytest.mark.long
def test_any_input_ends_in_tensors_or_the_protocol_error(data):
    any_input(data)


@pytest.mark.slow
@settings(max_examples=100_000)
@given(inputs)
def test_a_hundred_thousand_inputs_end_well(data):
    any_input(data)


def test_every_bit_flip_and_cut_of_an_uplink_ends_well():
    for length in range(len(ENCODED)):
        assert isinstance(measured(ENCODED[:length])[0], ProtocolError)
    for bit in np.arange(8 * len(ENCODED)):
        flipped = bytearray(ENCODED)
        flipped[bit // 8] ^= 1 << bit % 8
        any_input(bytes(flipped))
