"""The audit file: its content, detection of alterations, and robustness to kills."""

import hashlib
import json
import os
import re
import stat
import tracemalloc
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.core.errors import StorageError
from pomona_federation import audit_log, unused_uplinks
from pomona_federation.audit_log import Audit, complete_lines, verify
from pomona_federation.unused_uplinks import ADMITTED, UNUSED


def written(path, events):
    with Audit(path) as audit:
        for event, fields in events:
            audit.write(event, **fields)
    return path.read_bytes()


def test_the_chain_is_the_hash_of_the_chain_before_and_the_line(tmp_path):
    path = tmp_path / "audit.jsonl"
    lines = (
        written(path, [("start", {"pid": 7}), ("join", {"silo": "north"})]).decode().splitlines()
    )
    chain = ""
    for line in lines:
        claimed, _, record = line.removeprefix('{"chain": "').partition('", ')
        chain = hashlib.sha256(f"{chain}\n{{{record}".encode()).hexdigest()
        assert claimed == chain
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [r["event"] for r in complete_lines(path)] == ["start", "join"]
    assert next(complete_lines(path))["time"].endswith("+00:00")
    assert verify(path) is None


def test_reopened_it_goes_on(tmp_path):
    path = tmp_path / "audit.jsonl"
    first = written(path, [("a", {})])
    assert written(path, [("b", {})]).startswith(first)
    assert verify(path) is None


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_changed_line_is_named(tmp_path, number):
    path = tmp_path / "audit.jsonl"
    lines = written(path, [("round", {"number": n}) for n in range(3)]).splitlines(keepends=True)
    lines[number] = lines[number].replace(b'"number": %d' % number, b'"number": 9')
    path.write_bytes(b"".join(lines))
    assert verify(path) == number + 1


def test_another_spelling_a_missing_and_a_swapped_line_show(tmp_path):
    path = tmp_path / "audit.jsonl"
    lines = written(path, [("round", {"number": n}) for n in range(4)]).splitlines(keepends=True)
    for altered, broken in (
        ([lines[0], lines[2], lines[3]], 2),
        ([lines[1], lines[0], lines[2]], 1),
        ([lines[0], lines[1].replace(b'": ', b'":'), lines[2]], 2),
        ([lines[0], b"\n", lines[1]], 2),
    ):
        path.write_bytes(b"".join(altered))
        assert verify(path) == broken


@given(st.data())
def test_cut_anywhere_it_goes_on_and_says_what_was_lost(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    text = written(path, [("a", {"k": "ä"}), ("b", {})])
    size = data.draw(st.integers(0, len(text)))
    path.write_bytes(text[:size])
    newlines = [k for k, byte in enumerate(text) if byte == ord("\n")]
    complete = sum(size >= newline for newline in newlines)  # whole, perhaps but for its newline
    piece = 0 if size in newlines else size - text[:size].rfind(b"\n") - 1
    written(path, [("c", {})])
    assert verify(path) is None
    events = [(r["event"], r.get("bytes")) for r in complete_lines(path)]
    assert events == [("a", None), ("b", None)][:complete] + (
        [("torn", piece)] if piece else []
    ) + [("c", None)]


def test_a_piece_that_nobody_owns_up_to_is_broken(tmp_path):
    path = tmp_path / "audit.jsonl"
    text = written(path, [("a", {}), ("b", {})])
    path.write_bytes(text[:-6])
    assert verify(path) == 2
    path.write_bytes(text[:-6] + b"\n" + text)
    assert verify(path) == 2


def test_two_writers_share_one_chain(tmp_path):
    path = tmp_path / "audit.jsonl"
    with Audit(path) as audit_a, Audit(path) as audit_b:
        for n in range(3):
            audit_a.write("one", number=n)
            audit_b.write("other", number=n)
            audit_b.write("other", number=n)
    assert verify(path) is None
    assert len(list(complete_lines(path))) == 9


def test_what_the_disk_refuses_is_said(tmp_path):
    with pytest.raises(StorageError, match="cannot write"):
        Audit(tmp_path / "no folder" / "audit.jsonl")
    with pytest.raises(StorageError, match="cannot be read"):
        verify(tmp_path / "nothing")
    audit = Audit(Path("/dev/full"))
    with audit, pytest.raises(StorageError, match="No space left"):
        audit.write("start")


def test_values_must_be_plain(tmp_path):
    with Audit(tmp_path / "audit.jsonl") as audit, pytest.raises(ValueError, match="JSON"):
        audit.write("a", loss=float("nan"))
    assert json.loads("[]") == list(complete_lines(tmp_path / "audit.jsonl"))


CRAFTED = {
    "a number that is none": b'{"time": Infinity, "event": "x", "chain": "00"}',
    "half a character": b'{"event": "\\ud800", "chain": "00"}',
    "a chain that is a number": b'{"event":"x","chain":7}',
    "lists in lists": b"[" * 100_000,
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_line_that_nobody_wrote_is_broken_and_the_file_goes_on(name, tmp_path):
    path = tmp_path / "audit.jsonl"
    with Audit(path) as log:
        log.write("first")
    path.write_bytes(path.read_bytes() + CRAFTED[name] + b"\n")
    with Audit(path) as log:
        log.write("last")
    assert [line["event"] for line in complete_lines(path)] == ["first", "last"]
    assert verify(path) == 2


def test_the_end_of_a_file_is_enough_to_go_on(tmp_path, monkeypatch):
    """However long it is: whoever sends many messages makes none slower."""
    path = tmp_path / "audit.jsonl"
    written(path, [("round", {"number": n}) for n in range(1000)])
    lines = []
    monkeypatch.setattr(audit_log, "parsed", lambda line: lines.append(line) or json.loads(line))
    with Audit(path) as log:
        log.write("last")
    assert len(lines) == 2, "the last line is looked for, and taken in"
    monkeypatch.undo()
    assert verify(path) is None


@pytest.mark.parametrize("block", [1, 2, 50, 200, 2**14])
@pytest.mark.parametrize(
    "tail", [b"", b"\n", b"\n\n\n", b'{"time', b"[" * 300 + b"\n" + b"]" * 300, b"x\ny\nz\n"]
)
def test_the_last_whole_line_is_found_behind_whatever_follows(tmp_path, monkeypatch, block, tail):
    monkeypatch.setattr(audit_log, "BLOCK", block)
    path = tmp_path / "audit.jsonl"
    text = written(path, [("a", {"k": "\u00e4" * 90}), ("b", {})])
    path.write_bytes(text + tail)
    written(path, [("c", {})])
    events = [line["event"] for line in complete_lines(path)]
    assert events == ["a", "b", *(["torn"] if tail and not tail.endswith(b"\n") else []), "c"]
    chains = [line["chain"] for line in complete_lines(path)]
    path.write_bytes(text + path.read_bytes()[len(text) + len(tail) :].lstrip(b"\n"))
    assert [line["chain"] for line in complete_lines(path)] == chains
    if b"torn" not in path.read_bytes():
        assert verify(path) is None
    path.write_bytes(tail)
    written(path, [("c", {})])
    assert list(complete_lines(path))[-1]["event"] == "c"


def test_a_decision_is_looked_for_from_the_end_and_no_further(tmp_path, monkeypatch):
    path, read_bytes, pread = tmp_path / "audit.jsonl", [], os.pread
    agreement_a, agreement_b = "1" * 64, "2" * 64
    first = written(path, [("accepted", {"agreement": agreement_a}), ("round", {"number": 0})])
    written(path, [("round", {"agreement": agreement_a, "number": n}) for n in range(1000)])
    late = [
        ("declined", {"agreement": agreement_a}),
        ("accepted", {"agreement": agreement_b}),
        ("round", {"agreement": agreement_a}),
    ]
    text = written(path, late)
    monkeypatch.setattr(
        audit_log.os, "pread", lambda *args: read_bytes.append(args[1]) or pread(*args)
    )
    assert audit_log.tail(path, {"accepted", "declined"}, agreement_a)["event"] == "declined"
    assert sum(read_bytes) <= audit_log.BLOCK < len(text)
    assert audit_log.tail(path, {"accepted"}, agreement_a)["agreement"] == agreement_a, (
        "the first line of all follows nothing"
    )
    assert audit_log.tail(path, {"accepted"}, "3" * 64) is None
    path.write_bytes(text[len(first) :])
    assert audit_log.tail(path, {"declined"}, agreement_a)["event"] == "declined"
    lines = text.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-4], *lines[-3:]]))
    assert audit_log.tail(path, {"declined"}, agreement_a) is None, (
        "it does not follow what stands before it now"
    )


def test_a_sparse_log_of_gigabytes_is_refused_after_a_megabyte(tmp_path):
    path = tmp_path / "audit.jsonl"
    written(path, [("accepted", {"agreement": "1" * 64})])
    os.truncate(path, 2**40)
    tracemalloc.start()
    last = partial(audit_log.tail, events={"accepted"}, agreement="1" * 64)
    for reader in (lambda path: list(complete_lines(path)), verify, last):
        with pytest.raises(StorageError, match="has a line of more than 1048576 bytes"):
            reader(path)
    with Audit(path) as log, pytest.raises(StorageError, match="has a line of more than"):
        log.write("start")
    assert tracemalloc.get_traced_memory()[1] < 16 * audit_log.LINE
    tracemalloc.stop()


def test_no_server_has_a_silo_write_any_number_of_lines(tmp_path, monkeypatch):
    clock = [7200.0]
    monkeypatch.setattr(audit_log.time, "time", lambda: clock[0])
    (tmp_path / "state").mkdir()
    path = tmp_path / "state" / "audit.jsonl"
    for _ in range(3):
        audit_log.write_limited(tmp_path / "state", "answered", round=1, task="a" * 64)
    for number in range(10 * audit_log.REFUSALS):
        audit_log.write_limited(tmp_path / "state", "refused", reason=f"no {number}")
    audit_log.write_limited(tmp_path / "state", "answered", round=2, task="b" * 64)
    lines = list(complete_lines(path))
    assert [line["event"] for line in lines] == [
        "answered",
        *["refused"] * audit_log.REFUSALS,
        "answered",
    ]
    assert [line.get("unwritten") for line in lines if "unwritten" in line] == [
        2,
        9 * audit_log.REFUSALS,
    ]
    for number in range(2 * audit_log.REMEMBERED):
        audit_log.write_limited(tmp_path / "state", "answered", round=number + 3)
    assert len(list(complete_lines(path))) == len(lines) + 2 * audit_log.REMEMBERED
    clock[0] += audit_log.HOUR
    audit_log.write_limited(tmp_path / "state", "refused", reason="no 0")
    (tmp_path / "state" / "node" / audit_log.LIMITED).write_text("{")
    audit_log.write_limited(tmp_path / "state", "refused", reason="no 0")
    assert [line["reason"] for line in list(complete_lines(path))[-2:]] == ["no 0"] * 2
    assert verify(path) is None


def test_the_table_of_events_in_the_documents_is_complete():
    root = Path(__file__).parents[2]
    page = (
        (root / "docs" / "internals" / "federation.md")
        .read_text()
        .partition("## Audit logs")[2]
        .partition("\n## ")[0]
    )
    table = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))))
    written = {"registered", "unregistered", audit_log.TORN}  # from sync_keys; from Audit itself
    codes = [path.read_text() for path in (root / "federation" / "src").rglob("*.py")]
    for code in codes:
        for event in re.findall(
            r"(?:audit\.write\(|audited\(|self\._audit\(|write_line\([^,]+,)\s*(?:silo, )?"
            r"([\w\" ]+?(?: if [\w.]+ else \"\w+\")?)[,)]",
            code,
        ):
            constants = (
                re.search(rf'^{event} = ("\w+")', text, re.MULTILINE) for text in [code, *codes]
            )
            constant = next(filter(None, constants), None)
            written |= set(re.findall(r'"(\w+)"', constant[1] if constant else event))
            written |= {ADMITTED, UNUSED} & {vars(unused_uplinks).get(event)}
    assert table == written


@pytest.mark.parametrize("left", ["nothing", "a line", "a line and a half"])
def test_a_file_that_is_cut_under_its_writer_goes_on_and_shows_where(left, tmp_path):
    """As by a rotation that copies and truncates."""
    path = tmp_path / "audit.jsonl"
    with Audit(path) as audit:
        audit.write("a")
        line = path.stat().st_size
        audit.write("b")
        os.truncate(path, {"nothing": 0, "a line": line, "a line and a half": line * 3 // 2}[left])
        audit.write("c")
        audit.write("d")
    assert [r["event"] for r in complete_lines(path)][-2:] == ["c", "d"]
    assert verify(path) == (1 if left == "nothing" else 2 if left == "a line" else 3)
