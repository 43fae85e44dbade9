"""What commands without rounds show of their progress, through a pipe."""

import time

import pytest

from pomona.cli import output
from pomona.cli.output import StatusLine, TimeLeft, activity


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    seconds = [0.0]
    monkeypatch.setattr(output, "monotonic", lambda: seconds[0])
    return seconds


def test_the_time_left_follows_from_what_this_start_has_done(clock):
    left = TimeLeft()
    assert left(2, 8) == ""  # two were there before
    clock[0] = 60.0
    assert left(4, 8) == f", about {60 / (4 - 2) * (8 - 4) / 60:.0f} min left"
    assert left(8, 8) == ""


def test_each_stage_has_a_rate_of_its_own(clock, capsys):
    with StatusLine() as line:
        for stage, seconds in (("shadow runs", 30.0), ("records", 6.0)):
            for completed in range(4):
                line.show(f"{stage}: {completed} of 3", completed, 3, stage)
                clock[0] += seconds
    lines = capsys.readouterr().err.splitlines()
    assert "shadow runs: 2 of 3, about 30 s left" in lines
    assert "records: 2 of 3, about 6 s left" in lines


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, ""), (0.1, "reading rows.csv ...\n")])
def test_work_without_a_count_says_what_it_is_if_it_takes_long(seconds, lines, monkeypatch, capsys):
    monkeypatch.setattr(output, "SILENT", 0.02 if seconds else 60.0)
    with activity("reading\033rows.csv"):
        time.sleep(seconds)
    assert capsys.readouterr().err == lines
