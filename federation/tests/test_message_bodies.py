"""Bodies of messages: everything read from a peer is bounded, and anything invalid is a one-line
error.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damage import places
from pomona.core.errors import ProtocolError
from pomona_federation.messages import message_bodies, study_bodies
from pomona_federation.study import parse_study

HASH, OTHER_HASH = "a" * 64, "b" * 64
ORIGIN = {"silo": "silo-1", "round": 1, "tensor": "core", "signature": "00ff"}
ROW_FORM = {"many": True, "dtype": "F32", "width": 3}
ENTRY = {"form": ROW_FORM, "index": [0], "rows": {"1": HASH}, "origins": {"1": ORIGIN}}
NEWCOMER = {
    "place": 3,
    "silo": "late",
    "key": "ecdsa-sha2-nistp384 AAAA",
    "certificate": "ecdsa-sha2-nistp384-cert-v01@openssh.com AAAA",
}
TASK = {
    "agreement": HASH,
    "run": "ab12",
    "number": 1,
    "place": 0,
    "trains": True,
    "watched": ["received"],
    "sizes": [5, 6, 7],
    "settled": 0,
    "start": None,
    "downlink": {"cores": ENTRY},
    "newcomers": [NEWCOMER],
}
FIGURE = {
    "model": "own",
    "when": "trained",
    "split": "test",
    "samples": 9,
    "loss": 0.5,
    "accuracy": 0.5,
}
ANSWER = {
    "agreement": HASH,
    "run": "ab12",
    "number": 1,
    "silo": "silo-0",
    "task": OTHER_HASH,
    "samples": 5,
    "uplink": HASH,
    "rows": {"core": "00ff"},
    "loss": 1.0,
    "scores": [FIGURE],
    "seconds": 1.5,
    "fault": "",
    "missing": [],
    "held": [HASH],
}
HELLO = {"agreement": HASH, "run": "ab12", "nonce": "cd34"}
HELLO_REPLY = {**HELLO, "silo": "silo-0", "samples": 5, "fault": ""}
REFUSED = {"silo": "silo-0", "fault": "no"}
COMPLETE = {
    message_bodies.Task: TASK,
    message_bodies.Answer: ANSWER,
    message_bodies.Hello: HELLO,
    message_bodies.HelloReply: HELLO_REPLY,
    message_bodies.Refusal: REFUSED,
}


def put(value, path, new):
    """A copy with another value at a position."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(copy[path[0]], path[1:], new)
    return copy


LINES = {("fault",)}  # free text, which is made harmless and not refused
HOSTILE = [
    "/etc/passwd",
    "../../keys/silo.key",
    "[/red]",
    "\x1b]0;x\x07\n",
    "a" * 501,
    10**400,
    -1,
    -(10**30),
    2**53,
]
HOSTILE += [[[]], {"a": {}}, 1e308]
POSITIONS = [(kind, path) for kind, body in COMPLETE.items() for path in places(body)]


@pytest.mark.parametrize(
    ("kind", "path"), POSITIONS, ids=lambda v: getattr(v, "__name__", None) or ".".join(map(str, v))
)
def test_no_field_takes_what_has_no_bound(kind, path):
    """Each of the values in each field: refused in one line; free text comes out as one harmless
    line.
    """
    assert message_bodies.read(kind, json.dumps(COMPLETE[kind]))
    for value in HOSTILE:
        if path[-1] == "loss" and isinstance(value, int) and abs(value) < 1e100:
            continue  # a number like any other
        text = json.dumps(put(COMPLETE[kind], path, value))
        if path in LINES and isinstance(value, str):
            line = getattr(message_bodies.read(kind, text), path[0])
            assert len(line) <= 500
            assert line.isprintable()
        else:
            with pytest.raises(ProtocolError, match=r"cannot be read") as fault:
                message_bodies.read(kind, text)
            assert len(str(fault.value)) < 500
            assert str(fault.value).isprintable()


MANY = dict.fromkeys(map(str, range(5000)))
DOWNLINK = {"core": {"form": ROW_FORM, "index": [0], "rows": MANY}}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (message_bodies.Answer, {"scores": [MANY] * 9}),
        (message_bodies.Answer, {"rows": MANY}),
        (message_bodies.Answer, MANY),
        (message_bodies.Task, {"downlink": MANY}),
        (message_bodies.Task, {"downlink": DOWNLINK}),
        (message_bodies.Task, {"renewals": [{"silo": "silo-1", "keys": [0] * 5000}]}),
        (message_bodies.SumRequest, {"keys": MANY}),
        (study_bodies.SurveyAnswer, {"columns": {"columns": [0] * 5000}}),
        (study_bodies.SurveyAnswer, {"figures": {"rows": 1, "words": MANY}}),
    ],
)
def test_of_a_body_full_of_faults_few_are_noted(kind, fields):
    """Each takes a kilobyte: 1 MB of them took up to 1.4 GB."""
    with pytest.raises(ProtocolError, match=r"cannot be read") as fault:
        message_bodies.read(kind, json.dumps(COMPLETE.get(kind, {}) | fields))
    assert fault.value.__context__.error_count() < 10


@pytest.mark.parametrize(
    "section",
    [
        {"kind": "train", "task": {"classes": [0] * 99}},
        {"kind": "train", "task": {"preprocessing": {"columns": [0] * 99}}},
        {"kind": "search", "search": {"space": MANY}},
        {"kind": "evaluate", "evaluate": {"models": MANY}},
    ],
)
def test_so_it_is_of_a_study(section):
    with pytest.raises(ProtocolError, match=r"cannot be read") as fault:
        parse_study(json.dumps(section))
    assert fault.value.__context__.error_count() < 10


@pytest.mark.parametrize("key", ["/etc/passwd", "[/red]", "a" * 41, "", "\n"])
@pytest.mark.parametrize(
    ("kind", "path"),
    [(message_bodies.Task, ("downlink",)), (message_bodies.Answer, ("rows",))],
    ids=["task", "answer"],
)
def test_keys_are_names(kind, path, key):
    (value,) = COMPLETE[kind][path[0]].values()
    with pytest.raises(ProtocolError, match="cannot be read"):
        message_bodies.read(kind, json.dumps(put(COMPLETE[kind], path, {key: value})))


BODIES = {
    "too long": lambda: " " * 2**25,
    "deep": lambda: "[" * 100_000,
    "deep in a field": lambda: json.dumps({**HELLO, "nonce": 0}).replace(
        "0", "[" * 50_000 + "]" * 50_000
    ),
    "an integer of 5000 digits": lambda: json.dumps(REFUSED).replace('"no"', "9" * 5000),
    "half a surrogate": lambda: '{"silo": "silo-0", "fault": "\\ud800"}',
    "300,000 other keys": lambda: json.dumps(ANSWER | {f"k{i}": 0 for i in range(300_000)}),
    "a million held rows": lambda: json.dumps(ANSWER | {"held": [HASH] * 200_000}),
    "none": lambda: "",
}


@pytest.mark.long
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("kind", COMPLETE)
def test_bodies_without_end_are_one_line(kind, body):
    with pytest.raises(ProtocolError) as fault:
        message_bodies.read(kind, BODIES[body]())
    assert len(str(fault.value)) < 500


@pytest.mark.long
@given(
    st.sampled_from(POSITIONS),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    ),
)
def test_what_is_read_can_be_written_again(position, value):
    """Any value anywhere: a ProtocolError, or a record that says the same when it is read again."""
    kind, path = position
    try:
        record = message_bodies.read(kind, json.dumps(put(COMPLETE[kind], path, value)))
    except ProtocolError:
        return
    assert message_bodies.read(kind, record.model_dump_json()) == record
    assert record.statement
