"""The silo's own record of its visits: durable, repaired after a torn line, and never a cause of a
traceback.
"""

import json
import os

import pytest

from pomona_federation.silo import history

SCORE = {
    "model": "personal",
    "when": "trained",
    "split": "test",
    "samples": 4,
    "loss": 0.5,
    "accuracy": 0.5,
}
LINE = {
    "round": 1, "trained": True, "settled": 0, "scores": [SCORE], "info": {"dr": [0.5, 0.5]}, "names": {"0": "a"},
    "bytes_down": 3, "bytes_up": 4,
}  # fmt: skip


def test_a_torn_line_is_ended_and_left_out(tmp_path):
    """A kill tears the second of three lines at any byte."""
    line = json.dumps(LINE).encode()
    for size in range(1, len(line)):
        (tmp_path / history.FILE).write_bytes(line + b"\n" + line[:size])
        assert [v.round for v in history.read(tmp_path)[0]] == [1]
        history.append(tmp_path, {**LINE, "round": 3})
        visits, torn = history.read(tmp_path)
        assert ([v.round for v in visits], torn) == ([1, 3], 1)


def test_scores_of_a_model_that_the_federation_has_not_used_do_not_count(tmp_path):
    """The uplinks of rounds 2 and 3 are refused, round 3 is tried twice; that of round 4 has not
    been judged yet.
    """
    received = {**SCORE, "when": "received"}
    visits = [(1, True, 0), (2, True, 1), (3, True, 1), (3, True, 1), (4, False, 1), (4, True, 1)]
    for number, trained, settled in visits:
        line = {
            "round": number,
            "trained": trained,
            "settled": settled,
            "scores": [SCORE, received],
        }
        history.append(tmp_path, {**LINE, **line})
    rows, _ = history.read(tmp_path)
    confirmed = [
        (visit.round, [score.when for score in visit.scores]) for visit in history.confirmed(rows)
    ]
    pair, sole = ["trained", "received"], ["received"]
    assert confirmed == [(1, pair), (2, sole), (3, sole), (3, sole), (4, pair), (4, pair)]
    assert history.confirmed([]) == []


def test_a_line_whose_end_alone_is_missing_is_whole(tmp_path):
    (tmp_path / history.FILE).write_text(json.dumps(LINE))
    history.append(tmp_path, {**LINE, "round": 2})
    visits, torn = history.read(tmp_path)
    assert ([v.round for v in visits], torn) == ([1, 2], 0)


def test_a_visit_is_on_the_disk_when_it_was_written(tmp_path, monkeypatch):
    synced = []
    sync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size) or sync(handle)
    )
    history.append(tmp_path, LINE)
    assert synced == [(tmp_path / history.FILE).stat().st_size]
    assert (tmp_path / history.FILE).stat().st_mode & 0o777 == 0o600


CRAFTED = [
    b"[]",
    b"1",
    b"null",
    b"{}",
    b"{",
    b"\0\0",
    b"[" * 100_000,
    b"9" * 5000,
    b'{"round": "x", "scores": []}',
]
CRAFTED += [
    json.dumps({**LINE, **change}).encode()
    for change in ({"scores": [1]}, {"scores": [{}]}, {"info": 3})
]
CRAFTED += [
    json.dumps({**LINE, **change}).encode()
    for change in ({"names": []}, {"bytes_up": "x"}, {"round": 10**30})
]


@pytest.mark.parametrize("crafted", CRAFTED, ids=range(len(CRAFTED)))
def test_a_line_that_is_no_visit_is_left_out_and_counted(crafted, tmp_path):
    (tmp_path / history.FILE).write_bytes(crafted + b"\n" + json.dumps(LINE).encode() + b"\n")
    visits, torn = history.read(tmp_path)
    assert ([v.round for v in visits], torn) == ([1], 1)
