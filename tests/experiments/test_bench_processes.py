"""Benches that are killed, in separate processes; a Dask cluster of a scheduler and two workers."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context

import pytest
from bench_suites import (
    HANGS,
    command,
    ended,
    outcome,
    run_here,
    run_until_killed,
    started,
    wait_for,
)

from pomona.core.errors import ConfigError, WorkerError
from pomona.core.rng import stream
from pomona.experiments.executors import ProcessPool, cluster


@pytest.mark.slow
def test_killed_at_random_moments_it_comes_to_the_same(whole, tmp_path):
    context = get_context("forkserver")
    context.set_forkserver_preload(
        ["pomona.experiments.runner", "pomona.scenario", "sklearn.datasets"]
    )
    out, deaths, draws = tmp_path / "bench", 0, stream(7, "moments of death")
    for write, delay in zip(draws.integers(1, 16, 40), draws.uniform(0, 0.02, 40), strict=True):
        process = context.Process(
            target=run_until_killed, args=(str(out), int(write), float(delay))
        )
        process.start()
        process.join(HANGS)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        deaths += 1
    process = context.Process(target=run_here, args=(str(out),))
    process.start()
    process.join(HANGS)
    assert process.exitcode == 0
    assert deaths >= 3, "a bench that ends within a few writes was not killed often enough"
    assert outcome(out) == outcome(whole.folder)


def test_a_death_costs_its_own_job_only():
    with ProcessPool(1) as pool:
        jobs = [
            pool.submit(pow, 2, 5),
            pool.submit(os._exit, 3),
            pool.submit(pow, 2, 6),
            pool.submit(int, "x"),
        ]
        assert jobs[0].result() == 32
        with pytest.raises(WorkerError, match="exit 3"):
            jobs[1].result()
        assert jobs[2].result() == 64
        with pytest.raises(ValueError, match="'x'"):
            jobs[3].result()


def test_ctrl_c_is_130_and_a_killed_bench_takes_its_workers_along(whole, tmp_path):
    out = tmp_path / "bench"

    def finished(n):
        return lambda: (
            sum('"finished"' in p.read_text() for p in out.glob("cells/*/*/*/status.json")) >= n
        )

    first = started(command(out, "--jobs", "2"))
    wait_for(finished(1))
    os.killpg(first.pid, signal.SIGINT)
    code, _, err = ended(first)
    assert (code, err.splitlines()[-1][:19]) == (130, "error[INTERRUPTED]:"), err
    second = started(command(out, "--jobs", "1"))
    wait_for(finished(2))
    second.kill()
    ended(second)  # its pipes close when its worker, which has them too, is gone
    third = started(command(out, "--jobs", "2", "--json"))
    code, text, err = ended(third)
    assert code == 0, err
    assert '"finished": 6' in text
    assert err.splitlines()[-1] == "6 of 6 runs done"
    assert outcome(out) == outcome(whole.folder)


@contextmanager
def processes(*commands):
    with ExitStack() as stack:
        for words in commands:
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait, HANGS)
            stack.callback(process.terminate)
        yield


@pytest.mark.slow
def test_a_dask_cluster_comes_to_the_same(whole, tmp_path):
    pytest.importorskip("distributed", reason="needs the dask extra")
    out, note = tmp_path / "bench", tmp_path / "scheduler.json"
    common = ["--scheduler-file", str(note), "--no-dashboard"]
    scheduler = [
        sys.executable,
        "-m",
        "distributed.cli.dask_scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        *common,
    ]
    worker = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        "--nthreads",
        "1",
        "--no-nanny",
        *common,
    ]
    worker += ["--local-directory", str(tmp_path)]
    with processes(scheduler, worker, worker):
        wait_for(lambda: note.exists() and note.read_text().endswith("}"))
        address = json.loads(note.read_text())["address"]
        from distributed import Client

        with Client(address, timeout=HANGS, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=HANGS)
        code, _, err = ended(started(command(out, "--executor", address)))
        assert code == 0, err
        pids = {p.parent.name: p.read_text() for p in out.glob("cells/*/*/*/.lock")}
        assert len({json.loads(text)["pid"] for text in pids.values()}) == 2  # both have worked
    assert outcome(out) == outcome(whole.folder)


def test_nobody_at_the_address(tmp_path):
    pytest.importorskip("distributed", reason="needs the dask extra")
    with (
        pytest.raises(ConfigError, match="no Dask scheduler answers at nonsense"),
        cluster("nonsense", tmp_path),
    ):
        pass


def test_without_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(ConfigError, match="install Pomona with its extra dask"),
        cluster("tcp://127.0.0.1:1", tmp_path),
    ):
        pass
