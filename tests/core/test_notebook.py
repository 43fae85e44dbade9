"""A result in Python code: its display, its columns, its models."""

import csv
import sys
import types

import pytest
import torch

import pomona
from pomona.core.errors import PomonaError, StorageError
from pomona.federation.callbacks import NullCallback
from problems import tiny

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return pomona.run(tiny("fedrep", rounds=2), tmp_path_factory.mktemp("kept") / "run")


def test_it_shows_itself_in_three_lines(run):
    lines = repr(run).splitlines()
    assert len(lines) == 3
    assert lines[0] == "<fedrep on digits, dirichlet, 4 clients, 2 rounds"
    last = run.summary["models"][run.summary["headline"]]["last"]["test"]
    assert f"accuracy {100 * last:.2f} % in round 2" in lines[1].lower()
    assert str(run.folder) in lines[2]
    assert len(repr(run)) < 400


def test_a_run_that_is_not_finished_shows_how_far_it_is(run, tmp_path):
    (tmp_path / "config.toml").write_text((run.folder / "config.toml").read_text())
    events = (run.folder / "events.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "events.jsonl").write_text("".join(e for e in events if '"end"' not in e))
    unfinished = pomona.load(tmp_path)
    assert "unfinished, 2 rounds are done" in repr(unfinished)
    assert unfinished._repr_html_().startswith("<table>")
    assert dict(unfinished.models) == {}
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(StorageError, match="its start is not recorded"):
        pomona.load(tmp_path)


def test_in_a_notebook_it_is_a_table_with_a_row_a_model(run):
    html = run._repr_html_()
    assert html.count("<tr>") == 1 + len(run.summary["models"])
    for name, figures in run.summary["models"].items():
        model, moment = name.split(", ")
        assert f"<td>{model}</td><td>{moment}</td>" in html
        assert f"{100 * figures['last']['test']:.2f} % (2)" in html
    assert "<script" not in html


def test_what_stands_in_names_is_text(run):
    config = {**run.config, "data": {"name": "<script>x</script>\n"}}
    result = type(run)(config, run.about, [], [], [], run.summary)
    assert "<script" not in result._repr_html_()
    assert len(repr(result).splitlines()) == 3


def test_its_columns_are_those_of_the_file(run):
    columns = run.columns()
    with (run.folder / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {
        name: ["" if v is None else str(v) for v in values] for name, values in columns.items()
    } == {name: [row[name] for row in rows] for name in rows[0]}


def test_a_frame_is_pandas_where_there_is_pandas(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PomonaError, match=r"install it, or take columns\(\)"):
        run.to_frame()
    fake = types.ModuleType("pandas")
    fake.DataFrame = dict
    monkeypatch.setitem(sys.modules, "pandas", fake)
    columns = run.columns()  # pandas' query takes the name round for its function
    assert run.to_frame() == {
        "round_number" if name == "round" else name: v for name, v in columns.items()
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_models_are_there_in_memory_and_from_a_folder(workers, tmp_path):
    in_memory = pomona.run(tiny("apple", rounds=2, workers=workers))
    in_folder = pomona.run(tiny("apple", rounds=2), tmp_path / "run")
    assert list(in_memory.models) == list(in_folder.models) == [0, 1, 2, 3]
    for result in (in_folder, pomona.load(tmp_path / "run")):
        for client, model in in_memory.models.items():
            assert model.keys() == result.models[client].keys()
            assert all(
                torch.equal(tensor, result.models[client][name]) for name, tensor in model.items()
            )
    with pytest.raises(KeyError):
        in_memory.models[9]


def test_who_never_took_part_has_no_model():
    result = pomona.run(tiny("separate", clients=6, rounds=1, participation=0.5))
    assert sorted(result.models) == sorted(result.rounds[0].cohort)


def test_a_plot_has_the_curves_of_each_run(run):
    separate = pomona.run(tiny("separate", rounds=2))
    assert [len(result.plot().axes) for result in (run, separate)] == [2, 2]
    loss, accuracy = run.plot(separate).axes
    lines = [line.get_ydata().tolist() for line in accuracy.get_lines()]
    for result in (run, separate):
        headline = result.about["headline"]
        assert [e.mean * 100 for e in result.curve(*headline)] in lines
    assert loss.get_lines()
    assert run.plot()._repr_png_().startswith(b"\x89PNG")


def ipython(monkeypatch, **shell):
    """A stand-in for IPython, whose shell has these attributes; returns what it has displayed."""
    outputs = []

    class Output:
        def update(self, bundle, raw):
            assert raw
            outputs[-1].append(bundle["text/plain"])

    def display(bundle, raw, display_id):
        assert raw
        assert display_id
        outputs.append([bundle["text/plain"]])
        return Output()

    fake = types.ModuleType("IPython")
    fake.get_ipython = lambda: types.SimpleNamespace(**shell)
    fake.display = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    return outputs


def test_a_run_in_a_notebook_shows_one_line(monkeypatch):
    outputs = ipython(monkeypatch, kernel=object())
    result = pomona.run(tiny("fedrep", rounds=3, lr="auto"))
    (displays,) = outputs
    last = result.summary["models"][result.summary["headline"]]["last"]["test"]
    *notes, line = displays[-1].splitlines()
    assert "3/3" in line
    assert f"{100 * last:.2f} %" in line
    assert any(note.startswith("note: lr") for note in notes)


def test_elsewhere_it_shows_none(monkeypatch):
    outputs = ipython(monkeypatch)  # of a terminal
    pomona.run(tiny("separate", rounds=1))
    ipython(monkeypatch, kernel=object())
    pomona.run(tiny("separate", rounds=1), callback=NullCallback())
    assert not outputs


def test_a_damaged_model_is_named(tmp_path):
    result = pomona.run(tiny("fedavg", rounds=1), tmp_path / "run")
    path = tmp_path / "run/models/client-01.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert result.models[0]
    with pytest.raises(StorageError, match=r"client-01\.safetensors"):
        result.models[1]
