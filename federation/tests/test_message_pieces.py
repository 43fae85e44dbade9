"""A message in few records: it survives the round trip, and other content is refused."""

import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from pomona.core.errors import ProtocolError
from pomona_federation.messages import message_bus
from pomona_federation.messages.message_bus import DATA, Letter, Message, packed, unpacked


@pytest.mark.parametrize(
    "enclosed", [{}, {"uplink": b"abc"}, {"a": b"", "b": bytes(range(256)) * 3, "c": b"x"}]
)
@pytest.mark.parametrize("piece", [1, 7, 64, 5 * 2**20])
def test_a_message_comes_back_whole(enclosed, piece, monkeypatch):
    monkeypatch.setattr(message_bus, "PIECE", piece)
    message = Message("train", '{"a": "\u00e4\u2028"}', "ab", enclosed)
    content = packed(message)
    sizes = [len(content[str(i)][DATA]) for i in range(len(content))]
    assert set(sizes[:-1]) <= {piece}
    assert 0 < sizes[-1] <= piece
    assert unpacked(content) == message


def test_a_small_message_is_two_objects():
    """Flower's own object of the message comes on top: three requests up and three down."""
    assert (
        len(get_all_nested_objects(packed(Message("train", "{}", "ab", {"uplink": bytes(1000)}))))
        == 2
    )


def record(data):
    return RecordDict({"0": ConfigRecord({DATA: data})})


def letter(tail=b"", **keys):
    fields = {"kind": "a", "body": "", "signature": "", "enclosed": [], "versions": None} | keys
    text = Letter.model_construct(**fields).model_dump_json().encode()
    return len(text).to_bytes(8, "little") + text + tail


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({}),
        RecordDict({"1": ConfigRecord({DATA: letter()})}),
        RecordDict({"0": ConfigRecord({DATA: letter(), "more": 1})}),
        RecordDict({"0": ConfigRecord({DATA: "text"})}),
        RecordDict({"0": ArrayRecord({"x": Array("uint8", (1,), "x", b"x")})}),
        record(b""),
        record(b"\xff" * 8),
        record((2**40).to_bytes(8, "little")),
        record((2).to_bytes(8, "little") + b"{}"),
        record((4).to_bytes(8, "little") + b"null"),
        record(letter(b"x")),
        record(letter(enclosed=[("a", 1)])),
        record(letter(b"xy", enclosed=[("a", 1)])),
        record(letter(b"xy", enclosed=[("a", 1), ("a", 1)])),
        record(letter()[:-1]),
        record(letter().replace(b'"a"', b"null")),
        record(letter(b"xy", enclosed=[("a", 2)]).replace(b"2]", b"-2]")),
        record(letter(b"xy", enclosed=[("a" * 65, 2)])),
        record(letter(b"xy", enclosed=[("../a", 2)] * 5000)),
        record(letter(kind="")),
        record(letter(kind="a" * 41)),
        record(letter(kind="a\n")),
        record(letter(signature="zz")),
        record(letter(signature="ab" * 151)),
    ],
)
def test_anything_else_is_refused(content):
    with pytest.raises(ProtocolError) as fault:
        unpacked(content)
    # each fault that is noted takes a kilobyte
    assert getattr(fault.value.__context__, "error_count", int)() < 10
    assert unpacked(record(letter(b"xy", enclosed=[("a", 2)]))).enclosed == {"a": b"xy"}
