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
def kept(tmp_path_factory):
    return pomona.run(tiny("fedrep", rounds=2), tmp_path_factory.mktemp("kept") / "run")


def test_it_shows_itself_in_three_lines(kept):
    lines = repr(kept).splitlines()
    assert len(lines) == 3
    assert lines[0] == "<fedrep on digits, dirichlet, 4 clients, 2 rounds"
    last = kept.summary["models"][kept.summary["headline"]]["last"]["test"]
    assert f"accuracy {100 * last:.2f} % in round 2" in lines[1].lower()
    assert str(kept.folder) in lines[2]
    assert len(repr(kept)) < 400


def test_a_run_that_is_not_finished_shows_how_far_it_is(kept, tmp_path):
    (tmp_path / "config.toml").write_text((kept.folder / "config.toml").read_text())
    events = (kept.folder / "events.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "events.jsonl").write_text("".join(e for e in events if '"end"' not in e))
    half = pomona.load(tmp_path)
    assert "unfinished, 2 rounds are done" in repr(half)
    assert half._repr_html_().startswith("<table>")
    assert dict(half.models) == {}
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(StorageError, match="its start is not recorded"):
        pomona.load(tmp_path)


def test_in_a_notebook_it_is_a_table_with_a_row_a_model(kept):
    html = kept._repr_html_()
    assert html.count("<tr>") == 1 + len(kept.summary["models"])
    for name, figures in kept.summary["models"].items():
        model, when = name.split(", ")
        assert f"<td>{model}</td><td>{when}</td>" in html
        assert f"{100 * figures['last']['test']:.2f} % (2)" in html
    assert "<script" not in html


def test_what_stands_in_names_is_text(kept):
    config = {**kept.config, "data": {"name": "<script>x</script>\n"}}
    shown = type(kept)(config, kept.about, [], [], [], kept.summary)
    assert "<script" not in shown._repr_html_()
    assert len(repr(shown).splitlines()) == 3


def test_its_columns_are_those_of_the_file(kept):
    columns = kept.columns()
    with (kept.folder / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {
        name: ["" if v is None else str(v) for v in values] for name, values in columns.items()
    } == {name: [row[name] for row in rows] for name in rows[0]}


def test_a_frame_is_pandas_where_there_is_pandas(kept, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PomonaError, match=r"install it, or take columns\(\)"):
        kept.to_frame()
    fake = types.ModuleType("pandas")
    fake.DataFrame = dict
    monkeypatch.setitem(sys.modules, "pandas", fake)
    columns = kept.columns()  # pandas' query takes the name round for its function
    assert kept.to_frame() == {
        "round_number" if name == "round" else name: v for name, v in columns.items()
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_models_are_there_in_memory_and_from_a_folder(workers, tmp_path):
    here = pomona.run(tiny("apple", rounds=2, workers=workers))
    there = pomona.run(tiny("apple", rounds=2), tmp_path / "run")
    assert list(here.models) == list(there.models) == [0, 1, 2, 3]
    for again in (there, pomona.load(tmp_path / "run")):
        for client, model in here.models.items():
            assert model.keys() == again.models[client].keys()
            assert all(
                torch.equal(tensor, again.models[client][name]) for name, tensor in model.items()
            )
    with pytest.raises(KeyError):
        here.models[9]


def test_who_never_took_part_has_no_model():
    result = pomona.run(tiny("separate", clients=6, rounds=1, participation=0.5))
    assert sorted(result.models) == sorted(result.rounds[0].cohort)


def test_a_plot_has_the_curves_of_each_run(kept):
    other = pomona.run(tiny("separate", rounds=2))
    assert [len(result.plot().axes) for result in (kept, other)] == [2, 2]
    loss, accuracy = kept.plot(other).axes
    drawn = [line.get_ydata().tolist() for line in accuracy.get_lines()]
    for result in (kept, other):
        headline = result.about["headline"]
        assert [e.mean * 100 for e in result.curve(*headline)] in drawn
    assert loss.get_lines()
    assert kept.plot()._repr_png_().startswith(b"\x89PNG")


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
    (shown,) = outputs
    last = result.summary["models"][result.summary["headline"]]["last"]["test"]
    *notes, line = shown[-1].splitlines()
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
