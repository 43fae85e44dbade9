"""``pomona bench`` on an existing bench: the closing summary, the live table, one-line errors."""

import io
import json
from functools import partial

import pytest
import tomli_w
from bench_suites import SUITE, changed, in_process
from rich.console import Console

import command_line
from pomona.cli import bench as command
from pomona.cli import main, output
from pomona.core.errors import ConfigError
from pomona.experiments import load, run
from pomona.experiments.bench_table import at_the_edge
from pomona.experiments.grid import plan
from pomona.experiments.job import Failure, JobState
from pomona.experiments.suite import read_suite, suites
from pomona.experiments.suite import suite_file as found
from pomona.results.web.comparison_page import TEXT
from pomona.results.web.comparison_page import write as write_page


@pytest.fixture
def invoke(capsys):
    """Run a command in this process: exit code, standard output, standard error."""

    return partial(command_line.call, capsys, "bench")


def suite_file(tmp_path, suite):
    path = tmp_path / "suite.toml"
    path.write_text(tomli_w.dumps(suite))
    return path


def test_the_closing_summary_names_results_and_paths(invoke, full_bench, tmp_path):
    code, stdout, err = invoke(suite_file(tmp_path, SUITE), "--out", full_bench.folder)
    assert (code, err) == (0, "")
    assert "6 finished" in stdout
    assert "Not compared: APPLE in dirichlet: each seed has other test samples" in stdout
    assert f"{100 * full_bench.rows[0]['test_accuracy_at_best_validation_mean']:.2f} ± " in stdout
    for name in ("table.md", "table.csv", "results.json"):
        assert str(full_bench.folder / name) in stdout
    assert stdout.endswith(f"next     pomona report {full_bench.folder}\n")
    code, stdout, _ = invoke(suite_file(tmp_path, SUITE), "--out", full_bench.folder, "--json")
    assert json.loads(stdout)["rows"] == full_bench.rows


def test_a_failed_cell_shows_in_the_exit_code(invoke, tmp_path):
    methods = {"separate": {"lr": 1e30}, "fedavg": {"lr": 0.1}}
    suite = changed(points=1, seeds=[0], method=methods, search={}, base={"rounds": 1})
    run(suite, tmp_path / "bench", in_process())
    code, stdout, _ = invoke(suite_file(tmp_path, suite), "--out", tmp_path / "bench")
    assert code == 1
    assert "1 failed" in stdout
    assert "cells/dirichlet/separate/seed-0-" in stdout
    code, stdout, _ = invoke(
        suite_file(tmp_path, suite), "--out", tmp_path / "bench", "--methods", "fedavg"
    )
    assert code == 0
    assert "1 finished\n" in stdout


def test_a_part_is_tabulated_and_what_is_left_is_named(invoke, tmp_path):
    absent_data = {"data": {"name": "mnist", "dir": str(tmp_path)}}
    suite = changed(
        points=1,
        seeds=[0],
        search={},
        base={"rounds": 1, "lr": 0.1},
        scenario={"a": {}, "b": {}, "c": {}, "gone": absent_data},
        method={"separate": {}, "fedavg": {}, "apple": {}},
    )
    folder, names = tmp_path / "bench", {"scenarios": ["a"], "methods": ["separate", "apple"]}
    bench = run(suite, folder, in_process(), **names)
    left = "Still to run: fedavg in a; all methods in b, c."
    argv = (
        suite_file(tmp_path, suite),
        "--scenarios",
        "a",
        "--methods",
        "separate",
        "apple",
        "--out",
        folder,
    )
    code, stdout, err = invoke(*argv)
    assert (code, err) == (0, "")
    assert "2 finished" in stdout
    assert (stdout.count(left), stdout.count("written  ")) == (1, 1)
    assert not any(state in stdout for state in ("waiting", "data missing", "gone"))
    code, stdout, _ = invoke(*argv, "--json")
    assert json.loads(stdout)["rows"] == bench.select(**names).rows == bench.rows[:3:2]
    # The folder is the whole suite's, and its tables and its page are.
    assert load(folder).rows == bench.rows
    assert bench.counts == {"data missing": 3, "finished": 2, "waiting": 7}
    assert left in (folder / "table.md").read_text()
    page = write_page(bench, tmp_path / "page")
    assert left in page.read_text()
    assert left in (page.parent / TEXT).read_text()


def test_of_a_whole_bench_nothing_is_left(invoke, full_bench, tmp_path):
    _, stdout, _ = invoke(suite_file(tmp_path, SUITE), "--out", full_bench.folder)
    write_page(full_bench, tmp_path / "page")
    for text in (
        stdout,
        (full_bench.folder / "table.md").read_text(),
        (tmp_path / "page" / TEXT).read_text(),
    ):
        assert "Still to run" not in text


@pytest.mark.long
def test_one_seed_first_and_the_others_later_in_the_same_folder(invoke, tmp_path):
    suite = changed(
        points=1,
        seeds=[0, 1],
        search={},
        base={"rounds": 1, "lr": 0.1},
        size={"cpu": {"seeds": [1, 2]}},
        method={"separate": {}},
    )
    argv = (suite_file(tmp_path, suite), "--out", tmp_path / "bench")
    assert invoke(*argv, "--seeds", "2", "rounds=2")[0] == 0
    first = load(tmp_path / "bench")
    (folder,) = {cell["folder"] for row in first.results["results"] for cell in row["cells"]}
    assert folder.startswith("cells/dirichlet/separate/seed-2-")
    assert invoke(*argv, "rounds=2")[0] == 0
    cells = load(tmp_path / "bench").results["results"][0]["cells"]
    assert [(cell["seed"], cell["folder"] == folder) for cell in cells] == [(1, False), (2, True)]


def test_a_reason_is_told_once_for_all_its_cells(invoke, tmp_path):
    # That the digits belong to nobody, only the data show.
    suite = changed(
        points=1, seeds=[0, 1], method={"separate": {}}, search={}, base={"partition": "natural"}
    )
    bench = run(suite, tmp_path / "bench", in_process())
    assert len(bench.failures) == 2
    code, stdout, _ = invoke(suite_file(tmp_path, suite), "--out", tmp_path / "bench")
    assert code == 1
    (line,) = [line for line in stdout.splitlines() if "cells/" in line]
    assert (
        line
        == f"{next(iter(bench.failures))} and 1 more: failed: {next(iter(bench.failures.values()))}"
    )


def test_a_mistake_is_one_line(invoke, tmp_path):
    file = suite_file(tmp_path, changed(sedes=[1]))
    code, stdout, err = invoke(file, "--out", tmp_path / "bench")
    assert (code, stdout) == (2, "")
    assert err.startswith("error[CONFIG]: ")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "bench").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--scenarios", "x"), "no scenario 'x' in this suite at size cpu; known: dirichlet"),
        (
            ("--methods", "separate", "fedavg"),
            "no method 'fedavg' in this suite at size cpu; known: apple, separate",
        ),
        (
            ("--methods", "aple"),
            "no method 'aple' in this suite at size cpu; did you mean apple? known: apple, "
            "separate",
        ),
        (("--methods",), "--methods"),
        (("--seeds", "x"), "seeds = 'x': give a whole number"),
        (("--seeds", "-1"), "seeds = '-1': must be at least 0"),
        (("--seeds", "0", "00"), "seeds: a seed is given twice"),
        (("--seeds", "rounds=1"), "--seeds rounds=1: no name; put one after --seeds"),
        (("--methods", "rounds=1"), "--methods rounds=1: no name; put one after --methods"),
    ],
)
def test_a_part_that_the_suite_does_not_have_is_one_line(invoke, tmp_path, argv, message):
    code, stdout, err = invoke(suite_file(tmp_path, SUITE), "--out", tmp_path / "bench", *argv)
    assert (code, stdout, len(err.splitlines())) == (2, "", 1)
    assert message in err
    assert not (tmp_path / "bench").exists()


def test_the_line_counts_what_is_done_and_failed(monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200)
    monkeypatch.setattr(output, "console", console)
    groups = plan(read_suite(SUITE), "cpu")
    verdicts = {cell.folder: JobState() for group in groups for cell in group.cells()}
    separate, apple = groups
    verdicts[separate.trials[0].folder] = JobState("failed", Failure(8, "diverged"))
    with output.StatusLine() as line:
        show = command.BenchProgress(line)
        show(groups, verdicts)
        verdicts[separate.trials[1].folder] = JobState("data missing")
        verdicts[apple.trials[0].folder] = JobState("finished", figures={"validation": None})
        show(groups, verdicts)
    assert "3 of 6 runs done, 1 failed, about" in screen.getvalue()


def test_without_a_suite_those_of_the_package_are_listed(invoke):
    code, stdout, _ = invoke()
    assert code == 0
    assert all(name in stdout for name in ("digits", "choose-a-method"))
    code, stdout, _ = invoke("--json")
    listed = json.loads(stdout)
    assert [s["suite"] for s in listed] == list(suites())
    assert all(read_suite(suites()[s["suite"]]).title == s["title"] for s in listed)


def test_an_unknown_suite_is_named_with_those_like_it(invoke):
    code, _, err = invoke("digit")
    assert code == 2
    assert "no file and no suite 'digit'; did you mean digits" in err


def test_a_folder_of_a_suites_name_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert found("digits") == suites()["digits"]
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match="no file and no suite 'other'"):
        found("other")


@pytest.mark.long
def test_settings_on_the_command_line_hold_for_every_run(invoke, tmp_path):
    """They win over scenario, method, size and search; what they set is not searched."""
    path = suite_file(tmp_path, changed(seeds=[0], method={"separate": {"batch_size": 8}}))
    folder = tmp_path / "out"
    settings = ("rounds=1", "batch_size=32", "lr=0.1")
    code, _, err = invoke(path, *settings, "--out", folder, "--jobs", "1")
    assert code == 0, err
    (result,) = json.loads((folder / "results.json").read_text())["results"]
    assert (
        result["settings"]["rounds"],
        result["settings"]["batch_size"],
        result["settings"]["lr"],
    ) == (1, 32, 0.1)
    assert result["search"] == []
    # Behind names they are settings, too.
    _, plain, _ = invoke(path, *settings, "--explain", "--json")
    _, behind, _ = invoke(path, "--methods", "separate", *settings, "--explain", "--json")
    assert json.loads(behind) == json.loads(plain)
    code, _, err = invoke(path, "rouns=1", "--out", tmp_path / "other")
    assert code == 2
    assert "did you mean rounds" in err
    code, _, err = invoke(path, *settings, "--out", tmp_path / "other", "--jobs", "0")
    assert code == 2
    assert "jobs = 0: give 1 or more" in err


def test_a_name_with_an_equals_sign_is_a_name(invoke, tmp_path):
    suite = changed(
        points=1, seeds=[0], search={}, base={"lr": 0.1}, method={"mu=0": {"method": "separate"}}
    )
    code, stdout, err = invoke(
        suite_file(tmp_path, suite), "--methods", "mu=0", "rounds=1", "--explain", "--json"
    )
    assert code == 0, err
    (cell,) = json.loads(stdout)
    assert (cell["method"], cell["settings"]["rounds"]) == ("mu=0", 1)


def test_explain_says_what_would_be_run_and_runs_nothing(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    suite = changed(
        points=3,
        seeds=[0, 1],
        search={"lr": [0.1, 0.2]},
        method={"apple": {"search": {"method.mu": [1, 2]}}},
    )
    code, stdout, _ = invoke(suite_file(tmp_path, suite), "momentum=0.9", "--explain", "--json")
    entries = json.loads(stdout)
    assert code == 0
    groups = plan(read_suite(changed(**suite, settings={"momentum": 0.9})), "cpu")
    pairs = [(g.scenario, g.method) for g in groups]
    assert [(t["scenario"], t["method"]) for t in entries] == pairs
    for t in entries:
        # a trial is the final run of its point and seed
        assert (t["points"], t["seeds"], t["runs"]) == (3, 2, 3 + 1)
        assert t["searched"] == {"lr": [0.1, 0.2], "method.mu": [1, 2]}
        assert t["settings"]["momentum"] == 0.9
    assert {p.name for p in tmp_path.iterdir()} == {"suite.toml"}


@pytest.mark.parametrize(
    ("values", "chosen", "edge"),
    [
        ((0.1, 0.2, 0.3), 0.3, True),
        ((0.1, 0.2, 0.3), 0.1, True),
        ((0.1, 0.2, 0.3), 0.2, False),
        ((0.1, 0.2), 0.1, False),
        (("a", "b", "c"), "a", False),
        ((True, False, 2), True, False),
    ],
)
def test_a_choice_at_the_edge_of_its_grid_is_named(values, chosen, edge):
    results = {
        "methods": {"apple": {"space": {"lr": list(values)}}},
        "results": [{"method": "apple", "scenario": "a", "chosen": {"lr": chosen}}],
    }
    warning = at_the_edge(results)
    assert (f"lr={chosen} of apple in a" in warning) == edge
    assert bool(warning) == edge


def test_a_suite_and_an_option_that_is_a_setting_are_answered_with_what_to_write(
    invoke, capsys, tmp_path
):
    file = suite_file(tmp_path, SUITE)
    for argv, message in (
        (
            ["run", "apple", file],
            f"{file} is a suite, a table of runs; run it with: pomona bench {file}",
        ),
        (["run", "apple", "--rounds", "5"], "A setting is written rounds=VALUE."),
        (["bench", "digits", "--batch-size=5"], "A setting is written batch_size=VALUE."),
        (
            ["run", "apple", "epochs=2"],
            "unknown key 'epochs'; did you mean local_epochs or partition.epochs?",
        ),
        (["methods", "--rounds", "5"], "Unknown option: --rounds."),
    ):
        with pytest.raises(SystemExit) as stop:
            main([*map(str, argv)])
        err = capsys.readouterr().err
        assert stop.value.code == 2
        assert message in err
        assert err.count("\n") == 1
