"""A file of a run given to ``bench``, and a suite given to ``run``: one line, with the command."""

import pytest

from command_line import call

RUN = "method = 'fedavg'\ndata = 'digits'\nrounds = 1\n"
SUITE = "title = 'x'\n[scenario.digits]\ndata = 'digits'\n[method.fedavg]\n"


def written(folder, text):
    path = folder / "file.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "suite",
    [
        SUITE,
        "title = 'x'\n[method.fedavg]\n[method.apple]\n",
        "title = 'x'\nseeds = [0, 1]\n[base]\nrounds = 1\n",
        "[method.fedavg]\nlr = 0.1\n",
    ],
)
@pytest.mark.parametrize("command", [("run",), ("run", "fedavg"), ("data", "show")])
def test_a_suite_is_for_bench(suite, command, tmp_path, capsys):
    path = written(tmp_path, suite)
    code, stdout, err = call(capsys, *command, path)
    assert (code, stdout, len(err.splitlines())) == (2, "", 1)
    assert f"pomona bench {path}" in err
    assert len(err) < 80 + 2 * len(str(path))


@pytest.mark.parametrize("run", [RUN, "rounds = 3\n", "[method]\nname = 'apple'\nmu = 0.1\n"])
def test_a_run_is_for_run(run, tmp_path, capsys):
    path = written(tmp_path, run)
    code, stdout, err = call(capsys, "bench", path)
    assert (code, stdout, len(err.splitlines())) == (2, "", 1)
    assert f"pomona run {path}" in err
    assert len(err) < 80 + 2 * len(str(path))


@pytest.mark.parametrize(
    ("table", "example"), [("scenario", "[scenario.digits]"), ("method", "[method.fedavg]")]
)
def test_a_suite_without_a_table_is_shown_how_to_write_it(table, example, tmp_path, capsys):
    text = SUITE.replace(f"[{table}.", "[base.") if table == "method" else "title='x'\n[method.a]\n"
    err = call(capsys, "bench", written(tmp_path, text))[2]
    assert f"{table} must be set" in err
    assert example in err


def test_one_mistyped_key_does_not_make_a_run_a_suite(tmp_path, capsys):
    err = call(capsys, "run", "fedavg", written(tmp_path, "title = 'x'\nrounds = 1\n"))[2]
    assert "unknown key 'title'" in err


OF_A_FEDERATION = "name = 'north'\n[[silo]]\nname = 'A'\n"
STUDY = "name = 'first'\ndecide = 60.0\n[run]\nmethod = 'fedavg'\n"
SILO = "name = 'A'\n[data]\npath = 'rows.csv'\n"


@pytest.mark.parametrize("argv", [("run",), ("bench",), ("data", "show")])
@pytest.mark.parametrize(
    ("text", "command"),
    [
        (OF_A_FEDERATION, "pomona deploy simulate {path}"),
        (STUDY, "pomona deploy simulate {path}"),
        (SILO, "pomona silo check"),
    ],
)
def test_files_of_a_federation_are_for_its_commands(text, command, argv, tmp_path, capsys):
    path = written(tmp_path, text)
    code, stdout, err = call(capsys, *argv, path)
    assert (code, stdout, len(err.splitlines())) == (2, "", 1)
    assert command.format(path=path) in err
