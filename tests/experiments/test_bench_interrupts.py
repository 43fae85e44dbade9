"""An interrupted bench ends: at any moment of the signal, on any busy machine."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import pytest
from bench_suites import command, exit_of, start_process, wait_for

from pomona.core.errors import WorkerError
from pomona.core.rng import stream
from pomona.experiments import executors
from pomona.experiments.executors import ProcessPool, WorkerProcess
from pomona.experiments.runner import postponed


def test_a_signal_is_heeded_where_it_is_asked_for_and_nowhere_else():
    reached = []

    def work():
        with postponed() as heed:
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the line behind the signal")
            heed()
            reached.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == ["the line behind the signal"]
    with pytest.raises(KeyboardInterrupt):  # the handler of before is back
        os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_that_nobody_asked_for_is_heeded_at_the_end_of_the_block():
    reached = []

    def work():
        with postponed():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the end of the block")
        reached.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == ["the end of the block"]


def test_a_fault_of_the_block_is_raised_though_a_signal_came():
    def work():
        with postponed():
            os.kill(os.getpid(), signal.SIGINT)
            raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        work()


def test_in_another_thread_nothing_is_postponed_and_nothing_fails():
    handlers = []

    def work():
        with postponed() as heed:
            handlers.append(signal.getsignal(signal.SIGINT))
            heed()

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGINT)]


def test_a_worker_that_is_just_being_started_is_ended_too(monkeypatch):
    """The first start takes as long as PyTorch's import; a bench that ends meanwhile must neither
    fail nor wait for a job.
    """
    started_event, go_event, messages = Event(), Event(), []
    real_start = executors.CONTEXT.Process.start

    def slow(process):
        started_event.set()
        go_event.wait()
        real_start(process)

    def job():
        try:
            lane.run(signal.pause, (), {})  # without an end of its own
        except WorkerError as fault:
            messages.append(str(fault))

    monkeypatch.setattr(executors.CONTEXT.Process, "start", slow)
    lane = WorkerProcess()
    thread = Thread(target=job)
    thread.start()
    started_event.wait()
    lane.kill()
    go_event.set()
    thread.join()
    assert messages
    assert "its process died (signal 9)" in messages[0]


def test_a_worker_that_cannot_be_started_costs_its_own_job_only(monkeypatch):
    real_start, faults = executors.CONTEXT.Process.start, [EOFError("unexpected EOF")]

    def fail_first_start(process):
        if faults:
            raise faults.pop()
        real_start(process)

    monkeypatch.setattr(executors.CONTEXT.Process, "start", fail_first_start)
    with ProcessPool(1) as workers:
        first, second = workers.submit(pow, 2, 5), workers.submit(pow, 2, 6)
        with pytest.raises(WorkerError, match="cannot be started"):
            first.result()
        assert second.result() == 64


def blocked():
    """Whether SIGINT is blocked in this process."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.long
def test_ctrl_c_is_blocked_in_workers_from_their_first_moment_on():
    """In a process of its own, since the server of forks may run already in this one."""
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\nfrom test_bench_interrupts import blocked\n"
        "from pomona.experiments.executors import ProcessPool\nif __name__ == '__main__':\n    "
        "with ProcessPool(1) as lanes:\n        print(lanes.submit(blocked).result(), blocked())\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, *map(str, Path(__file__).parents[:2])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.split() == ["True", "False"]


@pytest.mark.slow
def test_ctrl_c_in_the_first_moment_of_the_workers_is_130(tmp_path):
    """The whole group gets the signal while the process that workers are forked from still imports
    PyTorch.
    """
    process = start_process(command(tmp_path / "bench", "--jobs", "2"))
    assert process.stderr.readline() == "0 of 6 runs done\n"
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = exit_of(process)
    assert (code, err.splitlines()[-1][:19]) == (130, "error[INTERRUPTED]:"), err
    assert "Traceback" not in err


def is_empty_group(group):
    """Whether a process group is empty."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def files(folder):
    """How many files and folders there are below one; a folder may go meanwhile."""
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))


@pytest.mark.slow
def test_at_random_moments_under_load_every_signal_ends_it(tmp_path):
    """30 benches beside four busy processes; the moment, which the commit's tree draws, is counted
    in files of the bench, not in seconds.
    """
    from representatives import number  # workers import this module from a bare path

    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    draws = stream(number("signals"), "moments of signals")
    try:
        for k in range(30):
            process = start_process(command(tmp_path / str(k), "--jobs", "2"))
            process.stderr.readline()  # it runs
            cells, files_wanted = tmp_path / str(k) / "cells", int(draws.integers(0, 40))
            while process.poll() is None and files(cells) < files_wanted:
                pass
            signal_number = (signal.SIGINT, signal.SIGTERM)[k % 2]
            (os.killpg if draws.integers(2) else os.kill)(process.pid, signal_number)
            code, _, err = exit_of(process)
            assert code in (0, 130, 143), (k, code, err)
            assert "Traceback" not in err, (k, err)
            wait_for(lambda group=process.pid: is_empty_group(group))
    finally:
        for process in busy:
            process.kill()
            process.wait()
