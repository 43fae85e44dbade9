"""The bench engine: what is run and kept, selection, and handling of failures."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoints
from shutil import copytree

import numpy as np
import pytest
from bench_suites import SUITE, Counting, Never, changed, here, outcome

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


def test_each_method_runs_its_trials_and_then_the_chosen_point_on_the_other_seeds(whole):
    # 2 methods x (2 trials on seed 0 + the chosen one on seed 1)
    assert whole.counts == {"finished": 6}
    for r in whole.results["results"]:
        assert [t["point"]["lr"] for t in r["search"]] == [0.001, 0.3]
        assert [c["seed"] for c in r["cells"]] == [0, 1]
        assert r["cells"][0]["folder"] in [t["folder"] for t in r["search"]]


def test_the_choice_follows_the_runs_own_records(whole):
    for r in whole.results["results"]:
        scores = []
        for trial in r["search"]:
            run_ = load_run(whole.folder / trial["folder"])
            curve = run_.curve(*run_.about["headline"], "validation")
            scores.append(max(np.mean(e.accuracy) for e in curve))
            assert trial["validation"]["value"] == pytest.approx(scores[-1])
        assert r["chosen"] == r["search"][int(np.argmax(scores))]["point"]
        assert r["settings"]["lr"] == r["chosen"]["lr"]
        assert "seed" not in r["settings"]


def test_the_mean_over_seeds_is_that_of_the_cells(whole):
    for r, row in zip(whole.results["results"], whole.rows, strict=True):
        means = [
            c["figures"]["models"][c["figures"]["headline"]]["last"]["summary"]["mean"]
            for c in r["cells"]
        ]
        held_out = [max(c["figures"]["curve"]["validation_value"][1:]) for c in r["cells"]]
        assert row["validation_at_best_validation_mean"] == pytest.approx(sum(held_out) / 2)
        assert row["test_accuracy_at_last_mean"] == pytest.approx(sum(means) / 2)
        assert row["test_accuracy_at_last_std"] == pytest.approx(abs(means[0] - means[1]) / 2**0.5)
        assert row["seeds"] == 2
        assert f"{100 * sum(means) / 2:.2f} ± " in (whole.folder / "table.md").read_text()


def test_a_second_start_runs_nothing_and_changes_nothing(whole):
    before = outcome(whole.folder)
    again = run(SUITE, whole.folder, Never())
    assert outcome(whole.folder) == before
    assert again == load(whole.folder) == whole


def test_a_part_chooses_what_the_whole_does_and_the_rest_goes_on_from_it(whole, tmp_path):
    made = run(SUITE, tmp_path, here(), methods=["apple"])
    left, done = made.results["results"]
    assert done == whole.results["results"][1]
    assert (left["state"], left["chosen"], left["cells"]) == ("waiting", None, [])
    assert made.counts == {"finished": 3, "waiting": 2}  # of what is left, the two trials
    rest = Counting()
    run(SUITE, tmp_path, rest, scenarios=["dirichlet"], methods=["separate"])
    assert [folder.parts[-2] for folder in rest.folders] == 3 * ["separate"]
    assert outcome(tmp_path) == outcome(whole.folder)
    assert run(SUITE, tmp_path, Never()).results == whole.results


def test_a_scenario_chooses_the_same_whether_others_run_or_not(tmp_path):
    suite = changed(
        seeds=[0, 1],
        scenario={
            "few": {"data": {"train_limit": 120}},
            "turned": {"partition": {"turn_groups": 3}},
        },
        method={"separate": {}},
    )
    both = run(suite, tmp_path / "both", here())
    assert both.counts == {"finished": 6}
    for name, result in zip(("few", "turned"), both.results["results"], strict=True):
        alone = run(suite, tmp_path / name, here(), scenarios=[name]).select([name])
        assert alone.results["results"] == [result]
        assert alone.results == both.select([name]).results
    again = run(suite, tmp_path / "few", here())
    assert again.results == both.results


def test_a_process_reads_the_same_data_once(monkeypatch, tmp_path):
    seen = []

    def counted(settings):
        seen.append(settings.test_limit)
        return verdict_read(settings)

    verdict_read = reading.read
    bench_job._read_once.cache_clear()
    monkeypatch.setattr(reading, "read", counted)
    scenarios = {"few": {"data": {"test_limit": 60}}, "more": {"data": {"test_limit": 90}}}
    with here() as executor:
        bench = run(
            changed(points=1, scenario=scenarios, base={"rounds": 1}), tmp_path / "bench", executor
        )
    assert bench.counts == {"finished": 8}
    assert seen == [60, 90]


def test_models_and_checkpoints_of_finished_cells_go_and_the_record_stays(whole):
    (cell, *_) = [whole.folder / c["folder"] for c in whole.results["results"][1]["cells"]]
    assert (cell / "events.jsonl").exists()
    assert not any((cell / name).exists() for name in ("checkpoints", "models", "private"))


def test_models_stay_where_they_are_wanted(tmp_path):
    suite = changed(
        keep_models=True, points=1, seeds=[0], method={"separate": {}}, base={"rounds": 1}
    )
    made = run(suite, tmp_path, here())
    (cell,) = made.results["results"][0]["cells"]
    assert len(list((tmp_path / cell["folder"]).glob("models/*.safetensors"))) == 3
    assert made.results["results"][0]["search"] == []


def test_cut_short_at_any_job_it_comes_to_the_same(whole, tmp_path):
    def stop(k):
        if k == 1:
            raise KeyboardInterrupt

    starts = 0
    while starts < 9:
        starts += 1
        executor = Counting(stop)
        try:
            made = run(SUITE, tmp_path, executor)
            break
        except KeyboardInterrupt:
            # The job before the interrupt may not have been read yet.
            assert load(tmp_path).counts.get("finished", 0) in (starts - 1, starts)
            assert "waiting" in (tmp_path / "table.md").read_text()
    assert starts == 6
    assert outcome(tmp_path) == outcome(whole.folder)
    assert made.results == whole.results


def test_a_failed_cell_is_put_on_file_and_the_rest_goes_on(tmp_path):
    # That the digits belong to nobody, only the data show.
    suite = changed(points=1, scenario={"good": {}, "bad": {"partition": "natural"}})
    made = run(suite, tmp_path, here())
    assert made.counts == {"failed": 4, "finished": 4}
    assert [r["state"] for r in made.results["results"]] == [
        "finished",
        "finished",
        "failed",
        "failed",
    ]
    folder, reason = next(iter(made.failures.items()))
    failure = json.loads((tmp_path / folder / "failure.json").read_text())
    assert failure["reason"] == reason
    assert failure["code"] in (2, 3)
    assert "\n" not in reason
    assert str(tmp_path) not in reason
    (line,) = [line for line in (tmp_path / "table.md").read_text().splitlines() if reason in line]
    assert all(f"`{folder}`" in line for folder in made.failures)
    assert "(4: " in line
    before = outcome(tmp_path)
    run(suite, tmp_path, Never())
    assert outcome(tmp_path) == before
    run(suite, tmp_path, Never(), retry=True, scenarios=["good"])
    assert outcome(tmp_path) == before
    again = Counting()
    run(suite, tmp_path, again, retry=True)
    assert {f.parts[-3] for f in again.folders} == {"bad"}
    assert outcome(tmp_path) == before


def test_a_point_that_fails_is_not_chosen(tmp_path):
    suite = changed(seeds=[0], method={"separate": {}}, search={"lr": [1e30, 0.1]})
    (result,) = run(suite, tmp_path, here()).results["results"]
    assert [t["state"] for t in result["search"]] == ["failed", "finished"]
    assert result["search"][0]["validation"] is None
    assert result["chosen"] == {"lr": 0.1}
    assert result["state"] == "finished"


def test_where_all_points_fail_there_is_no_result(tmp_path):
    suite = changed(method={"separate": {}}, search={"lr": [1e30, 1e29]})
    made = run(suite, tmp_path, here())
    (result,) = made.results["results"]
    assert (result["state"], result["chosen"], result["cells"]) == ("failed", None, [])
    assert made.rows[0]["test_accuracy_at_last_mean"] is None
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
    made = run(suite, tmp_path / "bench", Never())
    assert made.counts == {"data missing": 2}
    where, path = made.failures.values()
    assert "fetch MNIST" in where
    assert str(rows) in path
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez(rows, x=digits.data.astype(np.float32), y=digits.target)
    assert run(suite, tmp_path / "bench", here()).counts == {"data missing": 1, "finished": 1}


def test_a_lost_process_is_made_up_for_once(whole, tmp_path):
    def once(k):
        if k == 0:
            raise WorkerError("its process died")

    executor = Counting(once)
    run(SUITE, tmp_path / "once", executor)
    assert len(executor.folders) == 7
    assert outcome(tmp_path / "once") == outcome(whole.folder)
    first = executor.folders[0].name

    class Always(Counting):
        def submit(self, fn, /, *args, **kwargs):
            self._fault = once if args[1].endswith(first) else (lambda k: None)
            self.folders = [] if args[1].endswith(first) else self.folders
            return super().submit(fn, *args, **kwargs)

    made = run(SUITE, tmp_path / "always", Always())
    assert list(made.failures.values()) == ["its process died"]
    assert made.results["results"][1] == whole.results["results"][1]


def test_a_bench_has_its_folder_for_itself(tmp_path):
    with locked(tmp_path), pytest.raises(LockedError, match="in use"):
        run(SUITE, tmp_path, Never())


def test_benches_that_share_a_folder_run_beside_each_other_alone(tmp_path):
    with locked(tmp_path, shared=True):
        with pytest.raises(LockedError, match="in use"):
            run(SUITE, tmp_path, Never())
        made = run(changed(points=1, seeds=[0], base={"rounds": 1}), tmp_path, here(), share=True)
    assert made.counts == {"finished": 2}
    with locked(tmp_path), pytest.raises(LockedError, match="in use"):
        run(SUITE, tmp_path, Never(), share=True)


def test_a_cell_that_another_bench_has_ended_is_not_run_again(whole, tmp_path):
    """With one process, the second cell waits for the first: in between, another bench does all."""

    class Overtaken(Counting):
        def submit(self, fn, /, *args, **kwargs):
            if not self.folders:
                job = super().submit(fn, *args, **kwargs)
                assert run(SUITE, tmp_path, here(), share=True).results == whole.results
                return job
            return super().submit(fn, *args, **kwargs)

    executor = Overtaken()
    made = run(SUITE, tmp_path, executor, jobs=1, share=True)
    assert len(executor.folders) == 1
    assert made.results == whole.results
    assert outcome(tmp_path) == outcome(whole.folder)


def test_a_failure_that_is_on_no_file_is_told_by_a_shared_bench_too(tmp_path):
    suite = changed(points=1, seeds=[0], method={"separate": {}}, base={"rounds": 1})
    made = run(suite, tmp_path, here(), share=True)
    (cell,) = made.results["results"][0]["cells"]
    folder = tmp_path / cell["folder"]
    for file in folder.rglob("status.json"):
        file.unlink()
    (folder / "link").symlink_to(tmp_path)
    made = run(suite, tmp_path, here(), share=True)
    assert made.counts == {"failed": 1}
    assert "symbolic link" in next(iter(made.failures.values()))


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
    ("umask", "group", "others"), [(0o002, 6, 4), (0o022, 4, 4), (0o077, 0, 0)]
)
def test_what_a_group_shares_it_can_lock(umask, group, others, tmp_path):
    """As the umask says, and nothing more to others."""
    before = os.umask(umask)
    try:
        run(changed(points=1, seeds=[0], base={"rounds": 1}), tmp_path, here(), share=True)
    finally:
        os.umask(before)
    locks = [tmp_path / ".writing", *tmp_path.rglob(".lock")]
    assert len(locks) == 4
    assert {file.stat().st_mode >> 3 & 7 for file in locks} == {group}
    assert {file.stat().st_mode & 7 for file in locks} <= {0, others}


def test_two_processes_share_a_bench(tmp_path, whole):
    """As two tasks of a Slurm array do, each with one process."""
    suite = tmp_path / "suite.json"
    suite.write_text(json.dumps(SUITE))
    script = (
        "import json, sys; from pathlib import Path; from pomona.experiments import run\n"
        "if __name__ == '__main__':\n"
        "    run(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), jobs=1, share=True)"
    )
    (tmp_path / "task.py").write_text(script)
    words = [sys.executable, str(tmp_path / "task.py"), str(suite), str(tmp_path / "bench")]
    tasks = [subprocess.Popen(words) for _ in range(2)]
    assert [task.wait(timeout=300) for task in tasks] == [0, 0]
    assert not list(tmp_path.rglob("checkpoints"))
    assert outcome(tmp_path / "bench") == outcome(whole.folder)


def test_a_cell_in_use_is_waited_for(whole, tmp_path):
    suite = changed(points=1, seeds=[0], method={"separate": {}}, base={"rounds": 1})
    holds = []

    class Held(Counting):
        def submit(self, fn, /, *args, **kwargs):
            if not self.folders:
                holds.append(locked(tmp_path / "bench" / args[1]))
                holds[0].__enter__()
                job = super().submit(fn, *args, **kwargs)
                holds[0].__exit__(None, None, None)
                return job
            return super().submit(fn, *args, **kwargs)

    executor = Held()
    assert run(suite, tmp_path / "bench", executor).counts == {"finished": 1}
    assert len(executor.folders) == 2


def test_a_bench_that_names_no_rate_keeps_the_runs_that_found_one(tmp_path):
    suite = changed(points=1, seeds=[0], search={}, method={"separate": {}}, base={"rounds": 1})
    (result,) = run(suite, tmp_path, here()).results["results"]
    found = load_run(tmp_path / result["cells"][0]["folder"]).config["lr"]
    assert isinstance(found, float)
    assert run(suite, tmp_path, Never()).counts == {"finished": 1}


@pytest.mark.parametrize("then", [True, False])
def test_a_bench_keeps_the_runs_of_either_engine(tmp_path, monkeypatch, then):
    """Whether pomona-native is installed may change between the starts."""
    find = engines.entry_points
    for known in (then, not then):
        with monkeypatch.context() as patch:
            patch.setattr(engines, "entry_points", find if known else lambda **_: EntryPoints())
            executor = here() if known is then else Never()
            made = run(SUITE, tmp_path, executor)
            assert made.counts == {"finished": 6}
    native = then and find(group=engines.ENTRY_POINTS, name="native")
    cells = [cell["folder"] for result in made.results["results"] for cell in result["cells"]]
    assert {load_run(tmp_path / folder).about["engine"] for folder in cells} == {
        "native" if native else "torch"
    }


def test_a_run_made_with_other_defaults_is_refused(tmp_path):
    suite = changed(points=1, seeds=[0], method={"separate": {}}, base={"rounds": 1})
    (result,) = run(suite, tmp_path, here()).results["results"]
    config = tmp_path / result["cells"][0]["folder"] / "config.toml"
    config.write_text(config.read_text().replace("momentum = 0.0", "momentum = 0.5"))
    write_status(config.parent, Status(state="finished", round=1, code=0))  # as it was then
    with pytest.raises(StorageError, match="momentum had other defaults"):
        run(suite, tmp_path, Never())


def test_jobs_must_be_some():
    with pytest.raises(ConfigError, match="jobs = 0"):
        run(SUITE, None, jobs=0)


def test_what_is_no_bench_cannot_be_loaded(whole, tmp_path):
    with pytest.raises(StorageError, match="no readable bench"):
        load(tmp_path)
    (tmp_path / "timing.json").write_text("{}")
    (tmp_path / "results.json").write_text('{"schema": 99}')
    with pytest.raises(StorageError, match="schema 99"):
        load(tmp_path)


def test_the_tables_are_views_of_the_results(whole):
    assert (whole.folder / "table.md").read_text() == markdown(whole.results)
    assert (whole.folder / "table.csv").read_text() == csv(whole.results)
    assert len(csv(whole.results).splitlines()) == 3


def test_the_reference_numbers_of_a_suite_are_named(whole):
    assert markdown(whole.results).split("\n\n")[1].startswith("Size ")
    known = {"title": "table 2 of the APPLE paper", "average": "best_test"}
    text = markdown({**whole.results, "reference": known})
    assert text.split("\n\n")[1].startswith("To be compared with table 2 of the APPLE paper. Size ")


def test_a_table_is_not_replaced_by_that_of_another_suite(whole, tmp_path):
    """A suite that has grown continues; one of another title, or without a method or a scenario of
    the table, is refused before anything is written.
    """
    out = tmp_path / "bench"
    copytree(whole.folder, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    apple = SUITE["method"]["apple"]
    for other, told in (
        (
            {"title": "Another"},
            r"and this one is 'Another'; give another folder \(--out\), or that title",
        ),
        ({"method": {"apple": apple}}, "and this one has no method separate; give another folder"),
        ({"scenario": {"iid": {}}}, "has no scenario dirichlet; give another folder"),
    ):
        with pytest.raises(StorageError, match=f"'{SUITE['title']}', .*{told}"):
            run(changed(**other), out, Never())
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    grown = changed(method={"fedavg": {}, **SUITE["method"]}, seeds=[0, 1, 2])
    # separate's seed 2 is run; apple's and the two trials of fedavg wait
    assert run(grown, out, here(), methods=["separate"]).counts == {"finished": 7, "waiting": 3}
    (out / "results.json").write_text("{")  # made anew from the cells
    assert load(run(SUITE, out, Never()).folder).rows == whole.rows
