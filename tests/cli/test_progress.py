"""Progress of a run: on a terminal of 80 columns, through a pipe, and in one line."""

import os
import pty
import re
import signal
import subprocess
import sys
import termios
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pomona.cli import main
from pomona.cli.progress import Lines
from pomona.config import resolve
from pomona.federation.progress import RunProgress, clock, line, metric_text
from pomona.record.rows import Evaluation, RoundRow

SMALL = (
    "--data",
    "digits",
    "data.train_limit=120",
    "data.test_limit=60",
    "clients=3",
    "lr=0.1",
    "model.hidden=[4]",
)
RUN = [sys.executable, "-m", "pomona", "run"]


def evaluations(number, *models):
    return [
        Evaluation(number, *m, "test", (0, 1), (9, 9), (0.5, 0.5), (0.9, 0.9255)) for m in models
    ]


def row(number):
    return RoundRow(number, 1.0, (0, 1), (0.5, 0.5), (8, 8), (8, 8))


class Clock:
    """A clock that a test sets."""

    seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.mark.parametrize(
    ("method", "models"),
    [
        ("fedavg-ft", (("global", "received"), ("local", "trained"), ("personal", "received"))),
        ("fedrep", (("personal", "received"), ("personal", "trained"))),
        ("apple", (("personal", "trained"),)),
        ("per-fedavg+ala", (("global", "received"), ("personal", "received"))),
    ],
)
def test_eighty_columns_hold_round_times_and_models(method, models):
    time = Clock()
    config = resolve({"method": method, "rounds": 400})
    progress = RunProgress.of_run(config, time)
    progress.update(row(1), [])
    time.seconds = 3700.0
    progress.update(row(40), evaluations(40, *models))
    text = line(progress, 80)
    assert len(text) <= 80
    assert "40/400 1:01:40 left " in text
    assert text.count("91.27 %") == len(models), text
    assert all(model in text for model, _ in models)
    twice = len({model for model, _ in models}) < len(models)
    assert all((moment in text) is twice for _, moment in models)
    assert text.index(config.method.method().card.headline[0]) == text.index("left") + len(
        "left 9:15:00  "
    )


def test_a_wide_terminal_has_a_bar_and_a_narrow_one_the_judged_model():
    progress = RunProgress.of_run(resolve({"method": "fedavg-ft", "rounds": 4}), Clock())
    progress.update(row(2), evaluations(2, ("global", "received"), ("personal", "received")))
    assert "━" * 12 + "─" * 12 in line(progress, 120)
    assert line(progress, 40).startswith("2/4 0:00 left 0:00  personal 91.27 %")
    assert all(len(line(progress, width)) <= width for width in range(10, 130))


def test_the_time_left_is_that_of_the_rounds_since_it_went_on():
    time = Clock()
    progress = RunProgress.of_run(resolve({"rounds": 100}), time)
    time.seconds = 1000.0  # reading and restoring
    progress.start_clock()
    assert progress.remaining == "-:--"
    time.seconds = 1010.0
    progress.update(row(51), [])  # the run goes on after round 50
    assert (progress.remaining, clock(progress.elapsed)) == (clock(10 * 49), "0:10")


def test_a_moment_is_named_where_a_model_has_two():
    rows = evaluations(1, ("personal", "received"), ("personal", "trained"), ("global", "received"))
    text = "personal trained 91.27 %, received 91.27 %  global 91.27 %"
    assert metric_text(rows, ("personal", "trained")) == text


def test_without_a_terminal_a_line_comes_at_the_beginning_every_five_seconds_and_at_the_end(capsys):
    time = Clock()
    lines = Lines(RunProgress.of_run(resolve({"method": "apple", "rounds": 12}), time))
    lines.on_run_begin()
    for number in range(1, 13):
        time.seconds += 2.0
        lines.on_round_end(row(number), evaluations(number, ("personal", "trained")))
    lines.on_note("a word\x1b[31m")
    lines_shown = capsys.readouterr().err.splitlines()
    assert lines_shown[0] == "apple: training, 12 rounds"
    assert lines_shown[1] == "apple: round 3 of 12 after 0:06, 0:18 left; personal 91.27 %"
    assert [s.split()[2] for s in lines_shown[1:-1]] == ["3", "6", "9"]
    assert lines_shown[-1] == "note: a word [31m"


def test_the_end_shows_what_was_evaluated_after_the_last_round(capsys):
    """A model as received after the last round is evaluated when all rounds are done."""
    received, trained = ("global", "received"), ("local", "trained")
    late = evaluations(2, received, trained)
    result = SimpleNamespace(evaluations=[*evaluations(1, received, trained), *late])
    result.evaluations[0] = replace(result.evaluations[0], value=(0.0,) * len(late[0].value))
    for progress in (
        RunProgress.of_run(resolve({"method": "fedavg", "rounds": 2}), Clock()) for _ in range(2)
    ):
        progress.update(row(2), result.evaluations[:1])
        assert progress.metrics == "global 0.00 %"
        progress.finish(result)
        assert progress.metrics == "global 91.27 %  local 91.27 %"
    lines = Lines(RunProgress.of_run(resolve({"method": "fedavg", "rounds": 9}), Clock()))
    lines.on_round_end(row(1), result.evaluations[:1])
    lines.on_run_end(result)  # stopped early, after the first of nine
    assert (
        capsys.readouterr().err == "fedavg: 1 round done in 0:00; global 91.27 %  local 91.27 %\n"
    )


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"} | {
        "COLUMNS": "",
        "NO_COLOR": "1",
    }


@pytest.mark.long
def test_a_pseudo_terminal_of_eighty_columns(tmp_path):
    """What stands on the terminal in the end, once control sequences are taken out."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    variables = {k: v for k, v in environment().items() if k != "COLUMNS"}
    argv = [*RUN, "fedrep", *SMALL, "rounds=3", "--no-report", "--out", str(tmp_path / "run")]
    with subprocess.Popen(
        argv, stderr=theirs, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=variables
    ) as run:
        os.close(theirs)
        output = b""
        while piece := _read(ours):
            output += piece
    os.close(ours)
    assert run.returncode == 0, output
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode()))
    last = [text for text in lines if "3/3" in text][-1]
    assert len(last) <= 80
    assert re.search(
        (
            r"3/3 \d+:\d\d left 0:00  personal (received|trained) [\d.]+ %, (trained|received) "
            r"[\d.]+ "
            r"%"
        ),
        last,
    )


def _read(handle):
    try:
        return os.read(handle, 4096)
    except OSError:  # the last writer of a pseudo-terminal is gone
        return b""


@pytest.mark.slow
def test_through_a_pipe_lines_arrive_while_the_run_goes(tmp_path):
    """The run has a million rounds: what is read was not kept until its end."""
    argv = [
        *RUN,
        "fedavg",
        *SMALL,
        "rounds=1000000",
        "eval_every=1000",
        "--out",
        str(tmp_path / "run"),
    ]
    with subprocess.Popen(
        argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment(), text=True
    ) as run:
        lines = [next(line for line in run.stderr if "fedavg" in line) for _ in range(2)]
        run.send_signal(signal.SIGTERM)
        run.stderr.read()
    assert run.returncode == 143
    assert lines[0] == "fedavg: training, 1000000 rounds\n"
    assert re.match(r"fedavg: round \d+ of 1000000 after \d+:\d\d, [\d:]+ left", lines[1])


MODELS = """
from torch import nn


class MyCNN(nn.Module):
    def __init__(self):
        super().__init__()


def frozen(settings, input_shape, n_outputs, vocabulary):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, n_outputs))
    return net.requires_grad_(False)
"""


@pytest.mark.parametrize("name", ["MyCNN", "frozen", "missing"])
def test_a_network_that_cannot_be_used_is_one_line(name, tmp_path, monkeypatch, capsys):
    (tmp_path / f"nets_{name.lower()}.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "run",
                "fedavg",
                *SMALL[:-1],
                f"model=nets_{name.lower()}:{name}",
                "--out",
                str(tmp_path / "run"),
            ]
        )
    stderr = capsys.readouterr().err
    assert stop.value.code == 2, stderr
    assert stderr.count("\n") == 1
    assert stderr.startswith("error[CONFIG]: ")
    assert not (tmp_path / "run").exists()
