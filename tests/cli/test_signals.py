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


def run_on_after(fall):
    """Call it, then let handlers run for ten seconds, in pieces."""
    with handle_signals():
        fall()
        for _ in range(1000):
            signal.sigtimedwait([], 0.01)
    pytest.fail("the signal was lost")


def in_del(number):
    Dying(number)


def in_weak_reference(number):
    referent = Plain()
    _ = weakref.ref(referent, lambda _: signal.raise_signal(number))
    del referent


@pytest.mark.parametrize("fall", [in_del, in_weak_reference])
@pytest.mark.parametrize(
    ("number", "exception"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_in_a_callback_is_delivered_again(number, exception, fall):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(exception):
        run_on_after(partial(fall, number))


@pytest.mark.parametrize(
    ("argv", "target", "message"),
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
    argv, target, message, monkeypatch, capsys, tmp_path
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    old_handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(target, interrupted)
    monkeypatch.chdir(tmp_path)
    try:
        with pytest.raises(SystemExit, match="130"):
            cli.main(argv)
    finally:
        signal.signal(signal.SIGINT, old_handler)
    assert capsys.readouterr().err == f"error[INTERRUPTED]: stopped before the end; {message}\n"


@pytest.mark.parametrize(
    ("rounds", "continuation"), [((), "starts again"), ((2, 3), "continues after round 3 of 9")]
)
def test_a_run_that_is_interrupted_names_its_folder_and_its_last_round(
    rounds, continuation, monkeypatch, capsys, tmp_path
):
    def interrupted(scenario, folder, resume, live):
        (folder / "checkpoints").mkdir(parents=True)
        for number in rounds:
            (folder / f"checkpoints/round-{number:06}-{'0' * 64}.safetensors").touch()
        raise KeyboardInterrupt

    old_handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("pomona.cli.run_outcome.run_with_progress", interrupted)
    monkeypatch.chdir(tmp_path)
    try:
        with pytest.raises(SystemExit, match="130"):
            cli.main(["run", "fedavg", "rounds=9"])
    finally:
        signal.signal(signal.SIGINT, old_handler)
    (folder,) = (tmp_path / "runs").iterdir()
    record, fault = capsys.readouterr().err.splitlines()
    assert record == f"record: runs/{folder.name}"
    assert fault == (
        "error[INTERRUPTED]: stopped before the end; the same command with --out "
        f"runs/{folder.name} --resume {continuation}"
    )


def test_it_is_delivered_until_it_is_heard():
    times = []

    class RaisesAgain:
        def __del__(self):
            times.append(1)
            signal.raise_signal(signal.SIGTERM)

    def twice():
        RaisesAgain()
        handler = signal.getsignal(signal.SIGTERM)

        def into_a_callback(*_):
            signal.signal(signal.SIGTERM, handler)
            RaisesAgain()

        signal.signal(signal.SIGTERM, into_a_callback)  # what is delivered again is lost too

    with pytest.raises(SystemExit):
        run_on_after(twice)
    assert len(times) == 2


def test_other_exceptions_in_callbacks_go_where_they_went(monkeypatch):
    codes = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: codes.append(args.exc_value.code))
    referent = Plain()
    with handle_signals():
        _ = weakref.ref(referent, lambda _: sys.exit(5))
        del referent
    assert codes == [5]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_outside_the_main_thread_nothing_changes():
    old_hook, hooks = sys.unraisablehook, []

    def record_hook():
        with handle_signals():
            hooks.append(sys.unraisablehook)

    thread = Thread(target=record_hook)
    thread.start()
    thread.join()
    assert hooks == [old_hook]


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
    process = subprocess.run(
        [sys.executable, "-c", CALLBACK], capture_output=True, text=True, timeout=60, check=False
    )
    assert (process.returncode, process.stderr) == (143, "")
