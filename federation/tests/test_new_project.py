"""What ``pomona new`` writes for federations: agreements that fit the data, an app of Flower."""

import sys
from importlib import import_module

import pytest
from flwr.app import Context, RecordDict

from command_line import call
from pomona.core.toml import read_file
from pomona_federation.agreement import Federation
from pomona_federation.rehearsal.inputs import scenario
from test_plain_flower_app import LocalGrid

pytestmark = pytest.mark.long


@pytest.fixture
def project(request, tmp_path, monkeypatch, capsys):
    """The project of a form, as the folder and on the path."""
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "new", "heart", "--from", request.param)[0] == 0
    monkeypatch.chdir(tmp_path / "heart")
    monkeypatch.syspath_prepend(tmp_path / "heart")
    modules = {path.stem for path in (tmp_path / "heart").glob("*.py")}
    for name in modules:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path / "heart"
    for name in modules:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("project", ["table", "images", "volumes"], indirect=True)
def test_its_agreement_fits_its_data(project):
    if (project / "volumes").exists():
        pytest.importorskip("nibabel")
    data = read_file(project / "run.toml")["data"]
    data.setdefault("name", "table" if "label_column" in data else "images")
    planned = Federation.load(project / "federation.toml")
    prepared = scenario(planned, {"data": data})
    assert planned.name == "heart"
    assert sorted(prepared.dataset.owners.names) == sorted(silo.name for silo in planned.silo)


@pytest.mark.parametrize("project", ["flower"], indirect=True)
def test_its_app_of_flower_trains(project, capsys):
    client, server = (import_module(name).app for name in ("client_app", "server_app"))
    settings = read_file(project / "pyproject.toml")["tool"]["flwr"]["app"]["config"]
    grid = LocalGrid(client, ())
    server(grid, Context(1, 0, {}, RecordDict(), settings | {"rounds": 3}))
    assert "fedamp accuracy 0." in capsys.readouterr().out
