"""Run folders from others: writing to one stays inside it, and no name in one blocks a reader."""

import json
import os
import shutil

import pytest

import pomona
from pomona.cli import app
from pomona.core.errors import StorageError
from pomona.core.files import UNFINISHED, publish, safe_path
from pomona.record.run_folder import load, require_unchanged
from pomona.results.figures.plot import FORMATS
from pomona.results.web.report_page import write
from pomona.storage.lock import require_own
from pomona.storage.run_status import Status, read_status
from problems import tiny

pytestmark = pytest.mark.long

ROUNDS = 2
# what a reader needs before it writes
READ = {"events.jsonl", "config.toml", "status.json", "partition.json"}


@pytest.fixture(scope="module")
def local_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "run"
    pomona.run(tiny("apple", rounds=ROUNDS), folder)
    write([load(folder)], folder, FORMATS)
    return folder


@pytest.fixture
def linked_run(local_run, tmp_path):
    """A copy in which every newly written file is a link to a file elsewhere, which contains
    "mine".
    """
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(local_run, folder)
    elsewhere.mkdir()
    written = [
        p
        for p in folder.rglob("*")
        if p.is_file() and p.name not in READ and p.parent.name != "checkpoints"
    ]
    for number, path in enumerate([*written, folder / UNFINISHED, folder / "figures" / UNFINISHED]):
        path.unlink(missing_ok=True)
        (elsewhere / str(number)).write_text("mine")
        path.symlink_to(elsewhere / str(number))
    return folder


def untouched(linked_run):
    return {path.read_bytes() for path in (linked_run.parent / "elsewhere").iterdir()} == {b"mine"}


def test_a_report_writes_through_no_link(linked_run, local_run):
    (linked_run / "predictions.npz").unlink()  # read, for calibration, before anything is written
    shutil.copy(local_run / "predictions.npz", linked_run)
    write([load(linked_run)], linked_run, FORMATS)
    assert untouched(linked_run)
    assert (linked_run / "figures" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_published_file_takes_no_others_place(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / UNFINISHED).symlink_to(tmp_path / "mine")
    publish(tmp_path / "run" / "page", [b"theirs"])
    assert (tmp_path / "mine").read_text() == "mine"
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["page"]


def test_figures_go_into_no_folder_elsewhere(local_run, tmp_path):
    folder = shutil.copytree(local_run, tmp_path / "run")
    shutil.move(folder / "figures", tmp_path / "elsewhere")
    (folder / "figures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="figures is a link"):
        write([load(local_run)], folder, FORMATS)


@pytest.fixture
def copied(local_run, tmp_path):
    """A run from elsewhere, with the models of a local run."""
    shutil.copytree(local_run / "models", tmp_path / "mine")
    return shutil.copytree(local_run, tmp_path / "run"), tmp_path / "mine"


def test_an_export_goes_into_no_folder_elsewhere(copied):
    folder, mine = copied
    content = {path.name: path.read_bytes() for path in mine.iterdir()}
    (folder / "exports").symlink_to(mine)
    with pytest.raises(StorageError, match="exports is a link; remove it"):
        app(["export", str(folder), "--client", "0", "--to", "safetensors"], exit_on_error=False)
    assert {path.name: path.read_bytes() for path in mine.iterdir()} == content


def test_an_export_is_of_the_model_that_the_run_left(copied):
    folder, _ = copied
    models = folder / "models"
    shutil.copy(models / "client-01.safetensors", models / "client-00.safetensors")
    with pytest.raises(StorageError, match=r"client-00\.safetensors changed since the run ended"):
        app(["export", str(folder), "--client", "0", "--to", "safetensors"], exit_on_error=False)
    assert not (folder / "exports").exists()


@pytest.mark.parametrize(
    "names", [("..", "x"), ("a", "..", "..", "x"), ("/x",), ("link", "x"), ("a", "link")]
)
def test_a_path_that_is_written_to_lies_in_its_folder(names, tmp_path):
    (tmp_path / "out" / "a").mkdir(parents=True)
    for link in ("link", "a/link"):
        (tmp_path / "out" / link).symlink_to(tmp_path)
    (tmp_path / "way").symlink_to("out")
    assert (
        safe_path(tmp_path / "way", "a", "b", "c.html") == tmp_path / "way" / "a" / "b" / "c.html"
    )
    with pytest.raises(StorageError, match="inside their own folder"):
        safe_path(tmp_path / "out", *names)


def test_an_evaluation_that_stands_twice_is_one_line(local_run, tmp_path):
    """As where the lines of a record were doubled, and its hashes made anew."""
    folder = shutil.copytree(local_run, tmp_path / "run")
    (folder / "status.json").unlink()
    (folder / "events.jsonl").write_bytes((local_run / "events.jsonl").read_bytes() * 2)
    with pytest.raises(StorageError, match=r"2 evaluations of the .* model, .*, in round 1"):
        load(folder)


@pytest.mark.parametrize(
    "name", ["events.jsonl", "config.toml", "status.json", "figures/index.json"]
)
def test_no_reader_waits_for_a_device_or_a_pipe(name, local_run, tmp_path):
    """A pipe that nobody writes to, and a device that never ends: in each place, an answer in one
    line, or none needed.
    """
    for number, put in enumerate((os.mkfifo, lambda path: path.symlink_to("/dev/zero"))):
        folder = shutil.copytree(local_run, tmp_path / str(number))
        (folder / name).unlink()
        put(folder / name)
        if name == "figures/index.json":  # the page's own list, of no use to anybody else
            write([load(folder)], folder, FORMATS)
            assert (folder / name).is_file()
            continue
        with pytest.raises(StorageError, match="not a file"):
            load(folder)


def test_a_run_goes_on_beside_no_pipe(tmp_path):
    (tmp_path / "models").mkdir()
    require_own(tmp_path)
    os.mkfifo(tmp_path / "models" / "client-00.safetensors")
    with pytest.raises(StorageError, match="is a pipe"):
        require_own(tmp_path)


def test_a_list_of_figures_that_is_nested_deep_counts_for_nothing(local_run, tmp_path):
    folder = shutil.copytree(local_run, tmp_path / "run")
    (folder / "figures" / "index.json").write_text("[" * 200_000)
    write([load(folder)], folder, FORMATS)
    assert "curves.png" in json.loads((folder / "figures" / "index.json").read_text())


@pytest.mark.parametrize(
    "name",
    ["/dev/zero", "../run/events.jsonl", "models/../../x", "", ".", "models/..", "models/\0"],
)
def test_a_status_speaks_of_files_of_its_folder(name, local_run, tmp_path):
    folder = shutil.copytree(local_run, tmp_path / "run")
    status = Status(state="finished", round=ROUNDS, code=0).model_dump() | {
        "sha256": {name: "0" * 64}
    }
    (folder / "status.json").write_text(json.dumps(status))
    for read in (
        lambda: read_status(folder),
        lambda: require_unchanged(folder),
        lambda: load(folder),
    ):
        with pytest.raises(StorageError, match=r"status\.json cannot be read"):
            read()
