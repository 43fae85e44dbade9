"""``pomona new``: each project runs as written, and nothing that exists is overwritten."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from command_line import call
from pomona.cli.new import FORMS, PLACEHOLDER, TEMPLATES
from pomona.testing import conformance


def run(folder, *argv):
    """Run Python in the project's folder."""
    path = os.pathsep.join(filter(None, sys.path))
    process = subprocess.run(
        [sys.executable, *argv],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not process.returncode, process.stdout + process.stderr


@pytest.mark.long
@pytest.mark.parametrize("template", sorted(FORMS.keys() - {"flower"}))  # the federation's
def test_a_project_runs_as_written(template, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if template == "volumes":
        pytest.importorskip("nibabel")
    code, stdout, _ = call(capsys, "new", "heart", "--from", template)
    assert (code, [path.name for path in tmp_path.iterdir()]) == (0, ["heart"])
    project = tmp_path / "heart"
    text = "".join(path.read_text() for path in project.glob("*.*"))
    assert "# heart" in text
    assert PLACEHOLDER not in text
    assert "README.md" in stdout
    run(project, "-m", "pytest", "-q", "test_project.py", "-k", "run")


@pytest.mark.long
def test_the_notebook_of_a_project_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "new", "heart")[0] == 0
    cells = json.loads((tmp_path / "heart/notebook.ipynb").read_text())["cells"]
    code_cells = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    run(tmp_path / "heart", "-W", "ignore", "-c", "\n".join(code_cells))


@pytest.mark.long
def test_the_method_of_new_projects_keeps_what_all_promise(monkeypatch):
    spec = importlib.util.spec_from_file_location("new_method", TEMPLATES / "method/method.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    for check in conformance(module.Mine()):
        check()


@pytest.mark.parametrize(
    "name", ["Heart", "../heart", "/heart", "", ".", "a b", "a" * 41, "-heart"]
)
def test_names_that_are_not_those_of_a_folder_are_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, *_ = call(capsys, "new", name)
    assert code == 2
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("template", "remedy"), [("volumes", "images"), ("flower", "federation")])
def test_a_package_that_is_missing_is_named(template, remedy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pomona.cli.new.find_spec", lambda name: None)
    code, _, err = call(capsys, "new", "heart", "--from", template)
    assert (code, [*tmp_path.iterdir()]) == (2, [])
    assert remedy in err


@pytest.mark.parametrize("exists", ["folder", "file", "link"])
def test_nothing_is_overwritten(exists, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "heart"
    {
        "folder": path.mkdir,
        "file": lambda: path.write_text("mine"),
        "link": lambda: path.symlink_to("nowhere"),
    }[exists]()
    code, _, err = call(capsys, "new", "heart")
    assert code
    assert "heart" in err
    assert [entry.name for entry in tmp_path.iterdir()] == ["heart"]
    assert path.is_symlink() or path.is_file() or not [*path.iterdir()]
