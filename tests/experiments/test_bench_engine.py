"""The bench engine: what is run and kept, selection, and handling of failures."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoints
from shutil import copytree

import numpy as np
import pytest
from bench_suites import SUITE, Counting, Never, changed, in_process, outcome

from pomona.config import resolve
from pomona.core.errors import ConfigError, LockedError, StorageError, WorkerError
from pomona.core.files import content
from pomona.data import reading
from pomona.experiments import job as bench_job
from pomona.experiments import load, run
from pomona.experiments.bench_table import csv, markdown, value
from pomona.objective import engine as engines
from pomona.record.run_folder import load as load_run
from pomona.storage.lock import locked
from pomona.storage.run_status import Status, write_status

pytestmark = pytest.mark.long


def test_each_method_runs_its_trials_and_then_the_chosen_point_on_the_other_seeds(full_bench):
    # 2 methods x (2 trials on seed 0 + the chosen one on seed 1)
    assert full_bench.counts == {"finished": 6}
    for r in full_bench.results["results"]:
        assert [t["point"]["lr"] for t in r["search"]] == [0.001, 0.3]
        assert [c["seed"] for c in r["cells"]] == [0, 1]
        assert r["cells"][0]["folder"] in [t["folder"] for t in r["search"]]


def test_the_choice_follows_the_runs_own_records(full_bench):
    for r in full_bench.results["results"]:
        scores = []
        for trial in r["search"]:
            run_ = load_run(full_bench.folder / trial["folder"])
            curve = run_.curve(*run_.about["headline"], "validation")
            scores.append(max(np.mean(e.accuracy) for e in curve))
            assert trial["validation"]["value"] == pytest.approx(scores[-1])
        assert r["chosen"] == r["search"][int(np.argmax(scores))]["point"]
        assert r["settings"]["lr"] == r["chosen"]["lr"]
        assert "seed" not in r["settings"]


def test_the_mean_over_seeds_is_that_of_the_cells(full_bench):
    for r, row in zip(full_bench.results["results"], full_bench.rows, strict=True):
        means = [
            c["figures"]["models"][c["figures"]["headline"]]["last"]["summary"]["mean"]
            for c in r["cells"]
        ]
        validation = [max(c["figures"]["curve"]["validation_value"][1:]) for c in r["cells"]]
        assert row["validation_at_best_validation_mean"] == pytest.approx(sum(validation) / 2)
        assert row["test_accuracy_at_last_mean"] == pytest.approx(sum(means) / 2)
        assert row["test_accuracy_at_last_std"] == pytest.approx(abs(means[0] - means[1]) / 2**0.5)
        assert row["seeds"] == 2
        assert f"{100 * sum(means) / 2:.2f} ± " in (full_bench.folder / "table.md").read_text()


def test_a_second_start_runs_nothing_and_changes_nothing(full_bench):
    files_before = outcome(full_bench.folder)
    second_bench = run(SUITE, full_bench.folder, Never())
    assert outcome(full_bench.folder) == files_before
    assert second_bench == load(full_bench.folder) == full_bench


def test_a_part_chooses_what_the_whole_does_and_the_rest_goes_on_from_it(full_bench, tmp_path):
    bench = run(SUITE, tmp_path, in_process(), methods=["apple"])
    incomplete, complete = bench.results["results"]
    assert complete == full_bench.results["results"][1]
    assert (incomplete["state"], incomplete["chosen"], incomplete["cells"]) == ("waiting", None, [])
    assert bench.counts == {"finished": 3, "waiting": 2}  # of what is left, the two trials
    executor = Counting()
    run(SUITE, tmp_path, executor, scenarios=["dirichlet"], methods=["separate"])
    assert [folder.parts[-2] for folder in executor.folders] == 3 * ["separate"]
    assert outcome(tmp_path) == outcome(full_bench.folder)
    assert run(SUITE, tmp_path, Never()).results == full_bench.results


def test_a_scenario_chooses_the_same_whether_others_run_or_not(tmp_path):
    suite = changed(
        seeds=[0, 1],
        scenario={
            "few": {"data": {"train_limit": 120}},
            "turned": {"partition": {"turn_groups": 3}},
        },
        method={"separate": {}},
    )
    joint_bench = run(suite, tmp_path / "both", in_process())
    assert joint_bench.counts == {"finished": 6}
    for name, result in zip(("few", "turned"), joint_bench.results["results"], strict=True):
        subset = run(suite, tmp_path / name, in_process(), scenarios=[name]).select([name])
        assert subset.results["results"] == [result]
        assert subset.results == joint_bench.select([name]).results
    continued = run(suite, tmp_path / "few", in_process())
    assert continued.results == joint_bench.results


def test_a_process_reads_the_same_data_once(monkeypatch, tmp_path):
    test_limits = []

    def counted(settings):
        test_limits.append(settings.test_limit)
        return verdict_read(settings)

    verdict_read = reading.read
    bench_job._read_once.cache_clear()
    monkeypatch.setattr(reading, "read", counted)
    scenarios = {"few": {"data": {"test_limit": 60}}, "more": {"data": {"test_limit": 90}}}
    with in_process() as executor:
        bench = run(
            changed(points=1, scenario=scenarios, base={"rounds": 1}), tmp_path / "bench", executor
        )
    assert bench.counts == {"finished": 8}
    assert test_limits == [60, 90]


def test_models_and_checkpoints_of_finished_cells_go_and_the_record_stays(full_bench):
    cell = full_bench.folder / full_bench.results["results"][1]["cells"][0]["folder"]
    assert (cell / "events.jsonl").exists()
    assert not any((cell / name).exists() for name in ("checkpoints", "models", "private"))


def test_models_stay_where_they_are_wanted(tmp_path):
    suite = changed(
        keep_models=True, points=1, seeds=[0], method={"separate": {}}, base={"rounds": 1}
    )
    bench = run(suite, tmp_path, in_process())
    (cell,) = bench.results["results"][0]["cells"]
    assert len(list((tmp_path / cell["folder"]).glob("models/*.safetensors"))) == 3
    assert bench.results["results"][0]["search"] == []


def test_cut_short_at_any_job_it_comes_to_the_same(full_bench, tmp_path):
    def stop(k):
        if k == 1:
            raise KeyboardInterrupt

    attempts = 0
    while attempts < 9:
        attempts += 1
        executor = Counting(stop)
        try:
            bench = run(SUITE, tmp_path, executor)
            break
        except KeyboardInterrupt:
            # The job before the interrupt may not have been read yet.
            assert load(tmp_path).counts.get("finished", 0) in (attempts - 1, attempts)
            assert "waiting" in (tmp_path / "table.md").read_text()
    assert attempts == 6
    assert outcome(tmp_path) == outcome(full_bench.folder)
    assert bench.results == full_bench.results


def test_a_failed_cell_is_put_on_file_and_the_rest_goes_on(tmp_path):
    # That the digits belong to nobody, only the data show.
    suite = changed(points=1, scenario={"good": {}, "bad": {"partition": "natural"}})
    bench = run(suite, tmp_path, in_process())
    assert bench.counts == {"failed": 4, "finished": 4}
    assert [r["state"] for r in bench.results["results"]] == [
        "finished",
        "finished",
        "failed",
        "failed",
    ]
    folder, reason = next(iter(bench.failures.items()))
    failure = json.loads((tmp_path / folder / "failure.json").read_text())
    assert failure["reason"] == reason
    assert failure["code"] in (2, 3)
    assert "\n" not in reason
    assert str(tmp_path) not in reason
    (line,) = [line for line in (tmp_path / "table.md").read_text().splitlines() if reason in line]
    assert all(f"`{folder}`" in line for folder in bench.failures)
    assert "(4: " in line
    files_before = outcome(tmp_path)
    run(suite, tmp_path, Never())
    assert outcome(tmp_path) == files_before
    run(suite, tmp_path, Never(), retry=True, scenarios=["good"])
    assert outcome(tmp_path) == files_before
    executor = Counting()
    run(suite, tmp_path, executor, retry=True)
    assert {f.parts[-3] for f in executor.folders} == {"bad"}
    assert outcome(tmp_path) == files_before


def test_a_point_that_fails_is_not_chosen(tmp_path):
    suite = changed(seeds=[0], method={"separate": {}}, search={"lr": [1e30, 0.1]})
    (result,) = run(suite, tmp_path, in_process()).results["results"]
    assert [t["state"] for t in result["search"]] == ["failed", "finished"]
    assert result["search"][0]["validation"] is None
    assert result["chosen"] == {"lr": 0.1}
    assert result["state"] == "finished"


def test_where_all_points_fail_there_is_no_result(tmp_path):
    suite = changed(method={"separate": {}}, search={"lr": [1e30, 1e29]})
    bench = run(suite, tmp_path, in_process())
    (result,) = bench.results["results"]
    assert (result["state"], result["chosen"], result["cells"]) == ("failed", None, [])
    assert bench.rows[0]["test_accuracy_at_last_mean"] is None
    assert value(result, "last") == "failed"


def test_missing_data_is_no_failure_and_is_looked_for_again(tmp_path):
    rows = tmp_path / "rows.npz"
    suite = changed(
        points=1,
        seeds=[0],
        method={"separate": {}},
        scenario={
            "mnist": {"data": {"name": "mnist", "dir": str(tmp_path)}},
            "own": {"data": {"name": "arrays", "path": str(rows)}},
        },
    )
    bench = run(suite, tmp_path / "bench", Never())
    assert bench.counts == {"data missing": 2}
    advice, path = bench.failures.values()
    assert "fetch MNIST" in advice
    assert str(rows) in path
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez(rows, x=digits.data.astype(np.float32), y=digits.target)
    assert run(suite, tmp_path / "bench", in_process()).counts == {"data missing": 1, "finished": 1}


def test_a_lost_process_is_made_up_for_once(full_bench, tmp_path):
    def fail_first_job(k):
        if k == 0:
            raise WorkerError("its process died")

    executor = Counting(fail_first_job)
    run(SUITE, tmp_path / "once", executor)
    assert len(executor.folders) == 7
    assert outcome(tmp_path / "once") == outcome(full_bench.folder)
    first = executor.folders[0].name

    class Always(Counting):
        def submit(self, fn, /, *args, **kwargs):
            self._fault = fail_first_job if args[1].endswith(first) else (lambda k: None)
            self.folders = [] if args[1].endswith(first) else self.folders
            return super().submit(fn, *args, **kwargs)

    failed_bench = run(SUITE, tmp_path / "always", Always())
    assert list(failed_bench.failures.values()) == ["its process died"]
    assert failed_bench.results["results"][1] == full_bench.results["results"][1]


def test_a_bench_has_its_folder_for_itself(tmp_path):
    with locked(tmp_path), pytest.raises(LockedError, match="in use"):
        run(SUITE, tmp_path, Never())


def test_benches_that_share_a_folder_run_beside_each_other_alone(tmp_path):
    with locked(tmp_path, shared=True):
        with pytest.raises(LockedError, match="in use"):
            run(SUITE, tmp_path, Never())
        suite = changed(points=1, seeds=[0], base={"rounds": 1})
        bench = run(suite, tmp_path, in_process(), share=True)
    assert bench.counts == {"finished": 2}
    with locked(tmp_path), pytest.raises(LockedError, match="in use"):
        run(SUITE, tmp_path, Never(), share=True)


def test_a_cell_that_another_bench_has_ended_is_not_run_again(full_bench, tmp_path):
    """With one process, the second cell waits for the first: in between, another bench does all."""

    class Overtaken(Counting):
        def submit(self, fn, /, *args, **kwargs):
            if not self.folders:
                job = super().submit(fn, *args, **kwargs)
                assert run(SUITE, tmp_path, in_process(), share=True).results == full_bench.results
                return job
            return super().submit(fn, *args, **kwargs)

    executor = Overtaken()
    bench = run(SUITE, tmp_path, executor, jobs=1, share=True)
    assert len(executor.folders) == 1
    assert bench.results == full_bench.results
    assert outcome(tmp_path) == outcome(full_bench.folder)


def test_a_failure_that_is_on_no_file_is_told_by_a_shared_bench_too(tmp_path):
    suite = changed(points=1, seeds=[0], method={"separate": {}}, base={"rounds": 1})
    bench = run(suite, tmp_path, in_process(), share=True)
    (cell,) = bench.results["results"][0]["cells"]
    folder = tmp_path / cell["folder"]
    for file in folder.rglob("status.json"):
        file.unlink()
    (folder / "link").symlink_to(tmp_path)
    bench = run(suite, tmp_path, in_process(), share=True)
    assert bench.counts == {"failed": 1}
    assert "symbolic link" in next(iter(bench.failures.values()))


def test_a_failure_that_another_bench_takes_back_meanwhile_is_none(tmp_path, monkeypatch):
    config = resolve({"method": "separate"})
    bench_job.store_failure(tmp_path, bench_job.Failure(1, "why"))
    assert bench_job.read_state(tmp_path, config).state == "failed"

    def taken_back(path):
        bench_job.clear_failure(path.parent)
        return content(path)

    monkeypatch.setattr(bench_job, "content", taken_back)
    assert bench_job.read_state(tmp_path, config).state == "waiting"


@pytest.mark.parametrize(
    ("umask", "group", "others_bits"), [(0o002, 6, 4), (0o022, 4, 4), (0o077, 0, 0)]
)
def test_what_a_group_shares_it_can_lock(umask, group, others_bits, tmp_path):
    """As the umask says, and nothing more to others."""
    old_umask = os.umask(umask)
    try:
        run(changed(points=1, seeds=[0], base={"rounds": 1}), tmp_path, in_process(), share=True)
    finally:
        os.umask(old_umask)
    locks = [tmp_path / ".writing", *tmp_path.rglob(".lock")]
    assert len(locks) == 4
    assert {file.stat().st_mode >> 3 & 7 for file in locks} == {group}
    assert {file.stat().st_mode & 7 for file in locks} <= {0, others_bits}


def test_two_processes_share_a_bench(tmp_path, full_bench):
    """As two tasks of a Slurm array do, each with one process."""
    suite = tmp_path / "suite.json"
    suite.write_text(json.dumps(SUITE))
    script = (
        "import json, sys; from pathlib import Path; from pomona.experiments import run\n"
        "if __name__ == '__main__':\n"
        "    run(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), jobs=1, share=True)"
    )
    (tmp_path / "task.py").write_text(script)
    command = [sys.executable, str(tmp_path / "task.py"), str(suite), str(tmp_path / "bench")]
    tasks = [subprocess.Popen(command) for _ in range(2)]
    assert [task.wait(timeout=300) for task in tasks] == [0, 0]
    assert not list(tmp_path.rglob("checkpoints"))
    assert outcome(tmp_path / "bench") == outcome(full_bench.folder)


def test_a_cell_in_use_is_waited_for(full_bench, tmp_path):
    suite = changed(points=1, seeds=[0], method={"separate": {}}, base={"rounds": 1})
    locks = []

    class LockedCell(Counting):
        def submit(self, fn, /, *args, **kwargs):
            if not self.folders:
                locks.append(locked(tmp_path / "bench" / args[1]))
                locks[0].__enter__()
                job = super().submit(fn, *args, **kwargs)
                locks[0].__exit__(None, None, None)
                return job
            return super().submit(fn, *args, **kwargs)

    executor = LockedCell()
    assert run(suite, tmp_path / "bench", executor).counts == {"finished": 1}
    assert len(executor.folders) == 2


def test_a_bench_that_names_no_rate_keeps_the_runs_that_found_one(tmp_path):
    suite = changed(points=1, seeds=[0], search={}, method={"separate": {}}, base={"rounds": 1})
    (result,) = run(suite, tmp_path, in_process()).results["results"]
    lr = load_run(tmp_path / result["cells"][0]["folder"]).config["lr"]
    assert isinstance(lr, float)
    assert run(suite, tmp_path, Never()).counts == {"finished": 1}


@pytest.mark.parametrize("native_first", [True, False])
def test_a_bench_keeps_the_runs_of_either_engine(tmp_path, monkeypatch, native_first):
    """Whether pomona-native is installed may change between the starts."""
    lookup = engines.entry_points
    for listed in (native_first, not native_first):
        with monkeypatch.context() as patch:
            patch.setattr(engines, "entry_points", lookup if listed else lambda **_: EntryPoints())
            executor = in_process() if listed is native_first else Never()
            bench = run(SUITE, tmp_path, executor)
            assert bench.counts == {"finished": 6}
    native = native_first and lookup(group=engines.ENTRY_POINTS, name="native")
    cells = [cell["folder"] for result in bench.results["results"] for cell in result["cells"]]
    assert {load_run(tmp_path / folder).about["engine"] for folder in cells} == {
        "native" if native else "torch"
    }


def test_a_run_made_with_other_defaults_is_refused(tmp_path):
    suite = changed(points=1, seeds=[0], method={"separate": {}}, base={"rounds": 1})
    (result,) = run(suite, tmp_path, in_process()).results["results"]
    config = tmp_path / result["cells"][0]["folder"] / "config.toml"
    config.write_text(config.read_text().replace("momentum = 0.0", "momentum = 0.5"))
    write_status(config.parent, Status(state="finished", round=1, code=0))  # as it was then
    with pytest.raises(StorageError, match="momentum had other defaults"):
        run(suite, tmp_path, Never())


def test_jobs_must_be_some():
    with pytest.raises(ConfigError, match="jobs = 0"):
        run(SUITE, None, jobs=0)


def test_what_is_no_bench_cannot_be_loaded(full_bench, tmp_path):
    with pytest.raises(StorageError, match="no readable bench"):
        load(tmp_path)
    (tmp_path / "timing.json").write_text("{}")
    (tmp_path / "results.json").write_text('{"schema": 99}')
    with pytest.raises(StorageError, match="schema 99"):
        load(tmp_path)


def test_the_tables_are_views_of_the_results(full_bench):
    assert (full_bench.folder / "table.md").read_text() == markdown(full_bench.results)
    assert (full_bench.folder / "table.csv").read_text() == csv(full_bench.results)
    assert len(csv(full_bench.results).splitlines()) == 3


def test_the_reference_numbers_of_a_suite_are_named(full_bench):
    assert markdown(full_bench.results).split("\n\n")[1].startswith("Size ")
    reference = {"title": "table 2 of the APPLE paper", "average": "best_test"}
    text = markdown({**full_bench.results, "reference": reference})
    assert text.split("\n\n")[1].startswith("To be compared with table 2 of the APPLE paper. Size ")


def test_a_table_is_not_replaced_by_that_of_another_suite(full_bench, tmp_path):
    """A suite that has grown continues; one of another title, or without a method or a scenario of
    the table, is refused before anything is written.
    """
    folder = tmp_path / "bench"
    copytree(full_bench.folder, folder)
    bytes_before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    apple = SUITE["method"]["apple"]
    for changes, message in (
        (
            {"title": "Another"},
            r"and this one is 'Another'; give another folder \(--out\), or that title",
        ),
        ({"method": {"apple": apple}}, "and this one has no method separate; give another folder"),
        ({"scenario": {"iid": {}}}, "has no scenario dirichlet; give another folder"),
    ):
        with pytest.raises(StorageError, match=f"'{SUITE['title']}', .*{message}"):
            run(changed(**changes), folder, Never())
    assert bytes_before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    larger = changed(method={"fedavg": {}, **SUITE["method"]}, seeds=[0, 1, 2])
    # separate's seed 2 is run; apple's and the two trials of fedavg wait
    counts = run(larger, folder, in_process(), methods=["separate"]).counts
    assert counts == {"finished": 7, "waiting": 3}
    (folder / "results.json").write_text("{")  # made anew from the cells
    assert load(run(SUITE, folder, Never()).folder).rows == full_bench.rows
