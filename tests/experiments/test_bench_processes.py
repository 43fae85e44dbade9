"""Benches that are killed, in separate processes; or on a Ray cluster."""

import os
import signal
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from multiprocessing import get_context
from types import SimpleNamespace

import pytest
from bench_suites import (
    HANGS,
    command,
    exit_of,
    outcome,
    run_here,
    run_until_killed,
    start_process,
    wait_for,
)

from pomona.cli import bench as cli
from pomona.core.errors import ConfigError, WorkerError
from pomona.core.rng import stream
from pomona.experiments.executors import ProcessPool, on_cluster
from pomona.federation.ray_cluster import on_each_node


@pytest.mark.slow
def test_killed_at_random_moments_it_comes_to_the_same(full_bench, tmp_path):
    context = get_context("forkserver")
    context.set_forkserver_preload(
        ["pomona.experiments.runner", "pomona.scenario", "sklearn.datasets"]
    )
    folder, deaths, draws = tmp_path / "bench", 0, stream(7, "moments of death")
    for write, delay in zip(draws.integers(1, 16, 40), draws.uniform(0, 0.02, 40), strict=True):
        process = context.Process(
            target=run_until_killed, args=(str(folder), int(write), float(delay))
        )
        process.start()
        process.join(HANGS)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        deaths += 1
    process = context.Process(target=run_here, args=(str(folder),))
    process.start()
    process.join(HANGS)
    assert process.exitcode == 0
    assert deaths >= 3, "a bench that ends within a few writes was not killed often enough"
    assert outcome(folder) == outcome(full_bench.folder)


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


@pytest.mark.long
def test_ctrl_c_is_130_and_a_killed_bench_takes_its_workers_along(full_bench, tmp_path):
    folder = tmp_path / "bench"

    def finished(n):
        return lambda: (
            sum('"finished"' in p.read_text() for p in folder.glob("cells/*/*/*/status.json")) >= n
        )

    first = start_process(command(folder, "--jobs", "2"))
    wait_for(finished(1))
    os.killpg(first.pid, signal.SIGINT)
    code, _, err = exit_of(first)
    assert (code, err.splitlines()[-1][:19]) == (130, "error[INTERRUPTED]:"), err
    second = start_process(command(folder, "--jobs", "1"))
    wait_for(finished(2))
    second.kill()
    exit_of(second)  # its pipes close when its worker, which has them too, is gone
    third = start_process(command(folder, "--jobs", "2", "--json"))
    code, text, err = exit_of(third)
    assert code == 0, err
    assert '"finished": 6' in text
    assert err.splitlines()[-1] == "6 of 6 runs done"
    assert outcome(folder) == outcome(full_bench.folder)


@pytest.mark.slow
def test_a_ray_cluster_comes_to_the_same(full_bench, tmp_path):
    if not find_spec("ray"):
        pytest.skip("needs the ray extra")
    folder = tmp_path / "bench"
    code, _, err = exit_of(start_process(command(folder, "--cluster", "ray")))
    assert code == 0, err
    assert outcome(folder) == outcome(full_bench.folder)


@pytest.mark.slow
def test_jobs_of_a_ray_cluster(tmp_path):
    """A death costs its own job only."""
    if not find_spec("ray"):
        pytest.skip("needs the ray extra")
    with on_cluster("ray", tmp_path) as executor:
        assert executor.cores == len(os.sched_getaffinity(0))
        jobs = [executor.submit(pow, 2, 5), executor.submit(os._exit, 3), executor.submit(int, "x")]
        assert jobs[0].result() == 32
        with pytest.raises(Exception, match="worker died unexpectedly"):
            jobs[1].result()
        with pytest.raises(ValueError, match="'x'"):
            jobs[2].result()
        assert [answer for _, answer in on_each_node(lambda: "here")]


def test_a_shared_bench_on_a_cluster_has_as_many_jobs_as_that_has_cores(monkeypatch, tmp_path):
    job_counts = []
    monkeypatch.setattr(cli, "on_cluster", lambda *_: nullcontext(SimpleNamespace(cores=70)))
    monkeypatch.setattr(cli, "run", lambda *_, jobs, **__: job_counts.append(jobs) or 1 / 0)
    for jobs in (None, 3):
        with pytest.raises(ZeroDivisionError):
            cli.bench("digits", out=tmp_path, cluster="ray", jobs=jobs, share=True)
    assert job_counts == [70, 3]


def test_without_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(ConfigError, match="cluster needs Ray; install Pomona with its extra ray"),
        on_cluster("ray", tmp_path),
    ):
        pass
