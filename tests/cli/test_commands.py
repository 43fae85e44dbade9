"""The command line as users see it: words in, a result or a one-line error out."""

import gzip
import json
import re
import shutil
import subprocess
import sys
import time
import tomllib
from errno import EACCES, ENOSPC
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from jsonschema import Draft202012Validator

import pomona
from command_line import call
from pomona.cli import main
from pomona.cli.predict import answers
from pomona.cli.run import DEMO, unused
from pomona.core.errors import ConfigError, StorageError

SMALL = [
    "data.train_limit=240",
    "data.test_limit=120",
    "clients=4",
    "rounds=2",
    "batch_size=16",
    "workers=1",
    "model.hidden=[8]",
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two recorded runs of one scenario."""
    folder = tmp_path_factory.mktemp("runs")
    from pomona.config import read_overrides, resolve

    for method in ("apple", "separate"):
        pomona.run(resolve({"method": {"name": method}}, read_overrides(SMALL)), folder / method)
    return folder


RUNS = {
    "pomona": [
        "-P",
        "-c",
        "import sys; sys.argv = ['pomona', 'methods']\nfrom pomona.cli import main\nmain()",
    ],
    "python -m pomona": ["-m", "pomona", "methods"],
}


@pytest.mark.parametrize("entry", RUNS)
@pytest.mark.long
def test_what_lies_in_the_current_folder_is_not_imported(entry, tmp_path):
    """Somebody may have sent it, with a file that is called like a package."""
    for name in ("rich", "pomona_native", "timm"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)")
    process = subprocess.run(
        [sys.executable, *RUNS[entry]], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (process.returncode, "fedavg" in process.stdout) == (0, True), process.stderr


@pytest.mark.parametrize(
    "command",
    [
        "demo",
        "run",
        "compare",
        "report",
        "elsewhere",
        "privacy-audit",
        "predict",
        "methods",
        "data list",
        "data show",
    ],
)
def test_every_command_explains_itself(capsys, command):
    code, stdout, _ = call(capsys, *command.split(), "--help")
    assert code == 0
    assert "--json" in stdout


@pytest.mark.parametrize(
    ("argv", "command"),
    [(["predict"], "pomona predict"), (["data", "shw"], "pomona data"), (["runn"], "pomona")],
)
def test_a_wrong_use_names_the_help_of_its_command(capsys, argv, command):
    code, _, err = call(capsys, *argv)
    assert code == 2
    assert err.startswith("error[USAGE]: ")
    assert err.endswith(f" See {command} --help.\n")


def test_the_commands_are_listed_with_their_arguments_and_values(capsys):
    """Each that --help explains, with names that its own --help shows and a schema that holds its default."""
    code, stdout, _ = call(capsys, "commands", "--json")
    listed = {entry["command"]: entry for entry in json.loads(stdout)["commands"]}
    assert code == 0
    assert listed.keys() >= {f"pomona {name}" for name in ("demo", "run", "data show", "commands")}
    assert all(argument["what"] for entry in listed.values() for argument in entry["arguments"])
    for name in ("run", "predict", "data show"):
        _, page, _ = call(capsys, *name.split(), "--help")
        arguments = listed[f"pomona {name}"]["arguments"]
        assert {"--json"} in [{*entry["names"]} for entry in arguments]
        for entry in arguments:
            assert all(option in page for option in entry["names"] if entry["kind"] == "option")
            Draft202012Validator.check_schema(entry["values"])
            if "default" in entry:
                Draft202012Validator(entry["values"]).validate(entry["default"])
    first, overrides, *_ = listed["pomona run"]["arguments"]
    assert (first["names"], first["kind"], first["required"]) == (["method"], "argument", True)
    assert (overrides["kind"], overrides["values"]["type"]) == ("words", "array")


def test_a_run_ends_in_a_summary_and_files(capsys, tmp_path):
    code, stdout, _ = call(
        capsys,
        "run",
        "apple",
        "--data",
        "digits",
        "--partition",
        "iid",
        *SMALL,
        "--out",
        tmp_path / "r",
    )
    assert code == 0
    assert re.search(r"APPLE +personal +trained", stdout)
    assert re.search(r"rounds   last 2, best on validation [12], best on test [12]\n", stdout)
    assert "BMCTA" in stdout
    assert (tmp_path / "r/report.html").exists()
    assert (tmp_path / "r/models/client-03.safetensors").exists()


def test_a_run_for_programs_is_json(capsys, tmp_path):
    argv = (
        "run",
        "fedavg",
        "--data",
        "digits",
        *SMALL,
        "--out",
        tmp_path / "r",
        "--no-report",
        "--json",
    )
    code, stdout, _ = call(capsys, *argv)
    summary = json.loads(stdout)
    assert code == 0
    assert summary["folder"] == str(tmp_path / "r")
    assert summary == {
        **pomona.load(tmp_path / "r").summary,
        "notes": [note.text for note in pomona.load(tmp_path / "r").notes],
        "folder": summary["folder"],
        "report": None,
    }


def test_the_command_line_wins_over_files_over_defaults(capsys, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(
        'rounds = 7\nlr = 0.5\n[data]\nname = "breast-cancer"\n[method]\nname = "fedprox"\nmu = '
        "0.25\n"
    )
    code, stdout, _ = call(
        capsys, "run", "fedprox", file, "rounds=9", "--data", "digits", "--dry-run", "--json"
    )
    config = json.loads(stdout)
    assert code == 0
    assert (config["rounds"], config["lr"], config["data"]["name"], config["method"]["mu"]) == (
        9,
        0.5,
        "digits",
        0.25,
    )
    assert config["batch_size"] == pomona.Config().batch_size


def test_a_file_that_names_its_method_is_enough(capsys, tmp_path):
    file = tmp_path / "federation.toml"
    file.write_text('method = "apfl"\nrounds = 3\n')
    code, stdout, _ = call(capsys, "run", file, "rounds=9", "--dry-run", "--json")
    settings = json.loads(stdout)
    assert (code, settings["method"]["name"], settings["rounds"]) == (0, "apfl", 9)
    file.write_text("rounds = 3\n")
    code, _, err = call(capsys, "run", file, "--dry-run")
    assert code != 0
    assert (
        f"{file} does not name a method; add method = 'NAME' to it, or run: pomona run NAME {file}"
        in " ".join(err.split())
    )


def test_a_dry_run_prints_a_file_that_runs_the_same(capsys, tmp_path):
    _, stdout, _ = call(
        capsys, "run", "apple", "--partition", "practical", "method.budget=2", "--dry-run"
    )
    (tmp_path / "again.toml").write_text(stdout)
    _, second, _ = call(capsys, "run", "apple", tmp_path / "again.toml", "--dry-run")
    assert second == stdout
    text = "age\N{NO-BREAK SPACE}(years)"  # a name of a column, with a character that is not shown
    tree = {"data.name": "table", "data.path": "x.csv", "data.label_column": text}
    words = [f"{key}={json.dumps(value)}" for key, value in tree.items()]
    _, stdout, _ = call(capsys, "run", "fedavg", *words, "--dry-run")
    assert tomllib.loads(stdout)["data"]["label_column"] == text


def test_runs_are_compared_and_reported(capsys, recorded, tmp_path):
    code, stdout, _ = call(capsys, "compare", recorded / "apple", recorded / "separate", "--json")
    rows = json.loads(stdout)
    assert code == 0
    assert {r["method"] for r in rows} == {"apple", "separate"}
    assert [r["last"] for r in rows if r["method"] == "apple"] == [
        pomona.load(recorded / "apple").curve("personal", "trained")[-1].mean
    ]
    code, stdout, _ = call(capsys, "compare", recorded)
    assert code == 0
    assert "APPLE" in stdout
    folder = tmp_path / "\N{IDEOGRAPHIC SPACE}1"  # in names of Japanese folders
    code, stdout, _ = call(capsys, "report", recorded, "--out", folder)
    assert code == 0
    assert Path(stdout.removesuffix("\n")) == folder / "report.html"


@pytest.mark.parametrize(
    "key", ["method", "method.name", "data.name", "model", "model.name", "model.loss"]
)
def test_no_setting_of_a_record_imports_code_unless_asked(
    capsys, recorded, tmp_path, monkeypatch, key
):
    """Wherever settings name own code: a record from someone else is looked at, or made again,
    without it.
    """
    (tmp_path / "own_trap.py").write_text("raise RuntimeError('own code ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    folder = shutil.copytree(recorded / "separate", tmp_path / "run")
    (folder / "status.json").unlink()  # its hashes are those of the honest settings
    tree = tomllib.loads((folder / "config.toml").read_text())
    section, _, last = key.rpartition(".")
    (tree[section] if section else tree)[last] = "own_trap:f"
    (folder / "config.toml").write_text(tomli_w.dumps(tree))
    commands = ("report", "compare", "elsewhere")
    for argv in ([command, folder] for command in commands):
        code, _, err = call(capsys, *argv)
        assert code in (0, ConfigError.code, StorageError.code)
    assert "--own-code" in err or "holds no readable run" in err


def test_a_personal_model_answers_for_arrays_and_images(capsys, recorded, tmp_path):
    from PIL import Image
    from sklearn.datasets import load_digits

    digit = load_digits().images[0] * 255 / 16
    pixels = np.rint(digit).astype(np.uint8)
    np.savez(tmp_path / "two.npz", x=np.stack([pixels, pixels]))
    Image.fromarray(pixels).save(tmp_path / "one.png")
    model = recorded / "apple/models/client-00.safetensors"
    code, stdout, _ = call(
        capsys, "predict", model, tmp_path / "two.npz", tmp_path / "one.png", "--json"
    )
    answers = json.loads(stdout)
    assert code == 0
    assert [a["class"] for a in answers] == [answers[0]["class"]] * 3
    assert all(0 < a["probability"] <= 1 for a in answers)


def test_answers_name_the_client_whose_model_gave_them(capsys, tmp_path):
    rows = [f"{k % 7},{k % 2},{('North', 'Södra [red]')[k % 2]}" for k in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["a,ill,hospital", *rows]))
    settings = [
        f"data.path={tmp_path / 't.csv'}",
        "data.label_column=ill",
        "data.client_column=hospital",
        "rounds=1",
    ]
    options = ["lr=0.1", "workers=1", "--no-report", "--out"]
    call(capsys, "run", "separate", "--data", "table", *settings, *options, tmp_path / "r")
    for number, name in enumerate(("North", "Södra [red]")):
        question = (
            "predict",
            tmp_path / f"r/models/client-{number:02d}.safetensors",
            tmp_path / "t.csv",
        )
        code, stdout, err = call(capsys, *question)
        assert code == 0, err
        assert stdout.splitlines()[0].strip() == f"the model of {name}"
        _, stdout, _ = call(capsys, *question, "--json")
        assert [answer["client"] for answer in json.loads(stdout)] == [name] * len(rows)


def test_a_table_of_survival_names_each_edge():
    row = {
        "input": "new.csv[0]",
        "survival": {"365": 0.75, "730": 0.25},
        "median": 730.0,
        "risk": 1.5,
    }
    table = answers([row], "North")
    assert table.header == ["input", "median", "risk", "P(time > 365)", "P(time > 730)"]
    assert list(table.rows[0]) == ["new.csv[0]", "730", "1.5", "0.75", "0.25"]


def test_methods_say_what_they_cost_and_keep(capsys):
    code, stdout, _ = call(capsys, "methods", "--json")
    cards = json.loads(stdout)
    assert code == 0
    assert cards["apple"]["headline"] == ["personal", "trained"]
    assert "directed relationships" in cards["apple"]["exchange"]["private"]
    assert {
        "separate",
        "fedavg",
        "fedavg-local",
        "fedavg-ft",
        "fedprox",
        "fedprox-ft",
        "apple",
    } <= cards.keys()


@pytest.mark.long
def test_data_are_listed_and_shown_before_any_training(capsys, tmp_path):
    code, stdout, _ = call(capsys, "data", "list", "--json")
    assert code == 0
    assert "digits" in [d["name"] for d in json.loads(stdout)["data"]]
    _, stdout, _ = call(capsys, "data", "list")
    assert "small beta means strong skew." in " ".join(stdout.split())
    argv = ("data", "show", "--data", "digits", "--partition", "practical", "--out", tmp_path)
    code, stdout, _ = call(capsys, *argv, "--save", tmp_path / "p.json", "--json")
    summary = json.loads(stdout)
    assert code == 0
    assert sum(map(sum, summary["label_counts"])) == sum(summary["sizes"]["train"])
    assert (tmp_path / "labels.png").exists()
    settings = ("partition.name=file", f"partition.path={tmp_path / 'p.json'}", "--json")
    code, stdout, _ = call(capsys, "data", "show", "--data", "digits", *settings)
    assert code == 0
    assert json.loads(stdout)["partition_sha256"] == summary["partition_sha256"]


def test_data_show_names_classes_and_says_what_is_odd(capsys, tmp_path):
    rows = [
        "a,site,y",
        *(f"{k},{'[/x]' if k % 2 else 'B'},{'no' if k < 50 else '[red]yes'}" for k in range(60)),
    ]
    (tmp_path / "t.csv").write_text("\n".join([*rows, "55,lonely,no"]) + "\n")
    settings = (f"data.path={tmp_path / 't.csv'}", "data.label_column=y", "data.client_column=site")
    code, stdout, _ = call(capsys, "data", "show", "--data", "table", *settings)
    assert code == 0
    assert "Rows of each class" in stdout
    assert "[red]yes" in stdout
    assert "[/x]" in stdout
    assert "note: 1 of 3 clients have no test rows and are in no mean: lonely" in stdout
    code, stdout, _ = call(capsys, "data", "show", "--data", "table", *settings, "--json")
    summary = json.loads(stdout)
    assert [row["class"] for row in summary["targets_by_part"]] == ["[red]yes", "no"]
    assert sum(row[split] for row in summary["targets_by_part"] for split in summary["sizes"]) == 61
    assert "1 of 3 clients have no test rows and are in no mean: lonely" in summary["notes"]


@pytest.mark.parametrize(
    ("targets", "names", "expected"),
    [
        (
            "multilabel",
            ["Edema", "Hernia"],
            ["Rows of each label", "Edema", "Hernia", "flags that are the same"],
        ),
        ("multilabel", [], ["Rows of each label", "label 0", "label 1"]),
        ("regression", ["mm", "kg"], ["Targets", "mm", "kg"]),
    ],
)
def test_data_show_names_labels_and_targets(capsys, tmp_path, targets, names, expected):
    y = np.column_stack([np.arange(40) % 2, np.zeros(40)]) + (targets == "regression") * 0.5
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).random((40, 3)), y=y)
    settings = (
        f"data.path={tmp_path / 'a.npz'}",
        f"data.targets={targets}",
        f"data.classes={names}",
        "clients=2",
    )
    code, stdout, _ = call(capsys, "data", "show", "--data", "arrays", *settings)
    assert code == 0
    assert all(text in stdout for text in expected)


def test_a_run_says_at_its_start_what_is_odd(capsys, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).random((40, 3)), y=np.full(40, 1))
    argv = (
        f"data.path={tmp_path / 'a.npz'}",
        "clients=2",
        "rounds=1",
        "lr=0.1",
        "model=logistic",
        "--no-report",
    )
    code, _, err = call(
        capsys, "run", "fedavg", "--data", "arrays", *argv, "--out", tmp_path / "run"
    )
    assert code == 0
    notes = " ".join(err.split())
    assert "all rows are of class 1: there is nothing to learn, and accuracy is 100 %" in notes
    assert "note: no row is of class 0; numbers of classes start at 0" in notes


@pytest.mark.long
def test_the_demo_compares_six_methods(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("pomona.cli.run.DEMO", {**DEMO, "rounds": 2})
    start_time = time.monotonic()
    code, stdout, _ = call(capsys, "demo", "--out", tmp_path / "demo")
    assert code == 0
    assert time.monotonic() - start_time < 120
    assert all(name in stdout for name in ("Separate", "FedAvg", "FedFomo", "APPLE", "report.html"))
    assert (tmp_path / "demo/report.html").exists()


def test_a_second_demo_takes_the_next_free_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(unused("pomona-demo")) == "pomona-demo"
    (tmp_path / "pomona-demo").mkdir()
    (tmp_path / "pomona-demo-2").mkdir()
    assert str(unused("pomona-demo")) == "pomona-demo-3"


def idx(folder, images, labels, prefix="train"):
    """Write an IDX pair as MNIST's."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array, magic in (
        (f"{prefix}-images-idx3-ubyte", images, 2051),
        (f"{prefix}-labels-idx1-ubyte", labels, 2049),
    ):
        header = b"".join(int(n).to_bytes(4, "big") for n in (magic, *array.shape))
        (folder / f"{name}.gz").write_bytes(
            gzip.compress(header + array.astype(np.uint8).tobytes())
        )


def mnist_like(folder):
    """A folder that reads as MNIST: 40 training images and 20 test images."""
    noise = np.random.Generator(np.random.Philox(0)).integers(0, 256, (60, 28, 28))
    idx(folder / "mnist", noise[:40], np.arange(40) % 10)
    idx(folder / "mnist", noise[40:], np.arange(20) % 10, "t10k")
    return folder


def truncated(folder):
    path = mnist_like(folder) / "mnist/train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])


def wrong_labels(folder):
    mnist_like(folder)
    noise = np.zeros((40, 28, 28))
    idx(folder / "mnist", noise, np.full(40, 77))


def nan_pixel(folder):
    x = np.zeros((30, 4), dtype=np.float32)
    x[17, 2] = np.nan
    np.savez(folder / "own.npz", x=x, y=np.arange(30) % 3)


BAD = {
    "unknown data set": (None, "fedavg --data mnits", 2, ["mnits", "mnist"]),
    "unknown method": (None, "aple", 2, ["aple", "apple", "module:Class"]),
    "unknown partition": (None, "apple --partition practicl", 2, ["practical"]),
    "unknown key": (None, "apple method.lamda=1", 2, ["method.lamda"]),
    "value out of range": (None, "apple rounds=0", 2, ["rounds = 0"]),
    "no such option": (None, "apple --datta digits", 2, ["--datta"]),
    "missing files": (None, "fedavg --data mnist --data-dir {here}", 3, ["mnist", "not found"]),
    "truncated gzip": (truncated, "fedavg --data mnist --data-dir {here}", 3, ["train-images"]),
    "label out of range": (wrong_labels, "fedavg --data mnist --data-dir {here}", 3, ["77"]),
    "NaN pixel": (nan_pixel, "fedavg --data arrays data.path={here}/own.npz", 3, ["own.npz", "17"]),
    "no samples": (None, "fedavg --data digits data.train_limit=20 clients=30", 3, ["client"]),
    "image too small": (None, "fedavg --data digits model.name=lenet", 2, ["lenet", "8x8"]),
    "no data folder": (None, "fedavg --data cifar10", 3, ["POMONA_DATA"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_an_exit_code_and_nothing_written(
    case, capsys, tmp_path, monkeypatch
):
    prepare, command, code, expected = BAD[case]
    monkeypatch.delenv("POMONA_DATA", raising=False)
    if prepare:
        prepare(tmp_path)
    argv = command.format(here=tmp_path).split()
    got, stdout, err = call(capsys, "run", *argv, "--out", tmp_path / "run")
    assert got == code, err
    assert stdout == ""
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("error[")
    assert all(text in err for text in expected), err
    assert not (tmp_path / "run").exists()


def test_an_unwritable_folder_and_a_folder_with_a_run(capsys, recorded, tmp_path):
    (tmp_path / "file").write_text("x")
    code, _, err = call(capsys, "run", "separate", *SMALL, "--out", tmp_path / "file/run")
    assert code == 6
    assert err.startswith("error[STORAGE]")
    copy = tmp_path / "copy"
    shutil.copytree(recorded / "separate", copy)
    code, _, err = call(capsys, "run", "separate", *SMALL, "--out", copy)
    assert code == 5
    assert "already holds a run" in err


@pytest.mark.parametrize("command", ["compare", "elsewhere", "report"])
def test_a_folder_without_a_run_is_said(capsys, tmp_path, command):
    code, _, err = call(capsys, command, tmp_path)
    assert code == 6
    assert str(tmp_path) in err


def test_wrong_model_files_and_inputs_are_said(capsys, recorded, tmp_path):
    model = recorded / "apple/models/client-00.safetensors"
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    np.savez(tmp_path / "wrong.npz", x=np.zeros((2, 9, 9)))
    for argv, code, message in (
        ((tmp_path / "x.safetensors", tmp_path / "wrong.npz"), 6, "does not contain a model"),
        (
            (recorded / "apple/private/client-00.safetensors", tmp_path / "wrong.npz"),
            6,
            "does not contain a model",
        ),
        ((model, tmp_path / "wrong.npz"), 3, "(9, 9, 1)"),
        ((model, tmp_path / "absent.npz"), 3, "absent.npz"),
        ((model,), 3, "no input"),
    ):
        got, _, err = call(capsys, "predict", *argv)
        assert got == code, err
        assert message in err


def test_a_model_of_texts_answers_for_lines(capsys, tmp_path):
    phrases = ("good great fine", "bad awful poor")
    lines = [f'{k % 2},"{phrases[k % 2]} thing {k}"' for k in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    settings = [
        "data.name=text",
        f"data.path={tmp_path / 't.csv'}",
        "data.label_column=0",
        "data.text_columns=[1]",
        "data.sequence_length=6",
        "model.name=fasttext",
        "partition.name=iid",
    ]
    common = ("clients=2", "rounds=20", "batch_size=8", "lr=1.0", "workers=1")
    code, _, err = call(
        capsys, "run", "separate", *settings, *common, "--out", tmp_path / "r", "--no-report"
    )
    assert code == 0, err
    (tmp_path / "new.txt").write_text("a great thing\nan awful thing\n")
    model = tmp_path / "r/models/client-00.safetensors"
    code, stdout, err = call(capsys, "predict", model, tmp_path / "new.txt", "--json")
    assert code == 0, err
    assert [a["class"] for a in json.loads(stdout)] == ["0", "1"]
    np.savez(tmp_path / "tokens.npz", x=np.full((1, 6), 999))
    code, _, err = call(capsys, "predict", model, tmp_path / "tokens.npz")
    assert code == 3
    assert "hold token numbers outside 0 to" in err


def test_a_path_of_another_account_is_one_line(tmp_path, monkeypatch, capsys):
    """Of 33 commands as another account ten ended in a traceback; to root all is permitted, so the
    error is made.
    """

    def closed(path, *_, **__):
        raise PermissionError(EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "glob", closed)
    with pytest.raises(SystemExit, match="6"):
        main(["silo", "studies", "--folder", str(tmp_path)])
    stderr = capsys.readouterr().err
    assert stderr.startswith(
        f"error[STORAGE]: {tmp_path}/state/studies: Permission denied; use the account that owns it"
    )
    assert stderr.count("\n") == 1


def test_a_fault_that_names_no_file_is_one_line_with_its_command(tmp_path, monkeypatch, capsys):
    """As of a write to a full disk, or of a current folder that was removed."""

    def full_disk(*_, **__):
        raise OSError(ENOSPC, "No space left on device")

    def stderr_of_command():
        with pytest.raises(SystemExit, match="6"):
            main(["silo", "studies", "--folder", str(tmp_path)])
        return capsys.readouterr().err

    advice = "then run the command again\n"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "glob", full_disk)
        assert stderr_of_command() == (
            f"error[STORAGE]: pomona silo studies: No space left on device; make room, {advice}"
        )
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert stderr_of_command() == (
        "error[STORAGE]: pomona silo studies: No such file or directory; check the connection, the device or the current folder, "
        + advice
    )
