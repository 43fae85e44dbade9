"""A signal during a callback, where Python discards exceptions, still ends the program."""

import signal
import subprocess
import sys
import weakref
from functools import partial
from threading import Thread

import pytest

from pomona import cli
from pomona.cli import handle_signals


class Dying:
    """Raises a signal when it is deleted."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        signal.raise_signal(self.number)


class Plain:
    """A target for references."""


def goes_on_after(fall):
    """Call it, then let handlers run for ten seconds, in pieces."""
    with handle_signals():
        fall()
        for _ in range(1000):
            signal.sigtimedwait([], 0.01)
    pytest.fail("the signal was lost")


def in_del(number):
    Dying(number)


def in_weak_reference(number):
    thing = Plain()
    _ = weakref.ref(thing, lambda _: signal.raise_signal(number))
    del thing


@pytest.mark.parametrize("fall", [in_del, in_weak_reference])
@pytest.mark.parametrize(
    ("number", "ends"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_in_a_callback_is_delivered_again(number, ends, fall):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(ends):
        goes_on_after(partial(fall, number))


@pytest.mark.parametrize(
    ("words", "where", "said"),
    [
        (
            ["run", "fedavg", "--out", "r"],
            "pomona.cli.run_outcome.run_with_progress",
            "the same command starts again",
        ),
        (
            ["bench", "digits", "--out", "b"],
            "pomona.cli.bench.run",
            "run the same command again to continue; finished cells are in b",
        ),
        (["privacy-audit", "r"], "pomona.cli.audit.load", "the same command continues"),
        (["report", "runs"], "pomona.cli.report.load", "the same command starts again"),
    ],
)
def test_each_command_that_is_interrupted_says_how_it_goes_on(
    words, where, said, monkeypatch, capsys, tmp_path
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(where, interrupted)
    monkeypatch.chdir(tmp_path)
    try:
        with pytest.raises(SystemExit, match="130"):
            cli.main(words)
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == f"error[INTERRUPTED]: stopped before the end; {said}\n"


@pytest.mark.parametrize(
    ("rounds", "said"), [((), "starts again"), ((2, 3), "continues after round 3 of 9")]
)
def test_a_run_that_is_interrupted_names_its_folder_and_its_last_round(
    rounds, said, monkeypatch, capsys, tmp_path
):
    def interrupted(scenario, folder, resume, live):
        (folder / "checkpoints").mkdir(parents=True)
        for number in rounds:
            (folder / f"checkpoints/round-{number:06}-{'0' * 64}.safetensors").touch()
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("pomona.cli.run_outcome.run_with_progress", interrupted)
    monkeypatch.chdir(tmp_path)
    try:
        with pytest.raises(SystemExit, match="130"):
            cli.main(["run", "fedavg", "rounds=9"])
    finally:
        signal.signal(signal.SIGINT, before)
    (folder,) = (tmp_path / "runs").iterdir()
    record, fault = capsys.readouterr().err.splitlines()
    assert record == f"record: runs/{folder.name}"
    assert fault == (
        "error[INTERRUPTED]: stopped before the end; the same command with --out "
        f"runs/{folder.name} --resume {said}"
    )


def test_it_is_delivered_until_it_is_heard():
    times = []

    class Again:
        def __del__(self):
            times.append(1)
            signal.raise_signal(signal.SIGTERM)

    def twice():
        Again()
        handler = signal.getsignal(signal.SIGTERM)

        def into_a_callback(*_):
            signal.signal(signal.SIGTERM, handler)
            Again()

        signal.signal(signal.SIGTERM, into_a_callback)  # what is delivered again is lost too

    with pytest.raises(SystemExit):
        goes_on_after(twice)
    assert len(times) == 2


def test_other_exceptions_in_callbacks_go_where_they_went(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: seen.append(args.exc_value.code))
    thing = Plain()
    with handle_signals():
        _ = weakref.ref(thing, lambda _: sys.exit(5))
        del thing
    assert seen == [5]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_outside_the_main_thread_nothing_changes():
    before, seen = sys.unraisablehook, []

    def look():
        with handle_signals():
            seen.append(sys.unraisablehook)

    thread = Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


CALLBACK = """
import os, signal, weakref
from pomona.cli import main, app

class Plain: pass

@app.command
def fall():
    thing = Plain()
    _ = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    del thing
    for _ in range(1000):
        signal.sigtimedwait([], 0.01)

main(["fall"])
"""


def test_a_command_ends_with_143_and_prints_no_ignored_exception():
    ended = subprocess.run(
        [sys.executable, "-c", CALLBACK], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (143, "")
