"""What the command line says of a run, a script hears too."""

import inspect
import json
import warnings
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pomona
from pomona.cli import main
from pomona.core.notes import LONGEST, Note, distinct
from pomona.data import from_arrays, from_clients
from pomona.federation.callbacks import StopAfter
from pomona.models.compatibility import final_activation
from pomona.record import events

SHARED = "same at another client"


def two_sites():
    """All rows of South are at North too; classes are numbered from 1."""
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(240, 3))
    label = (rows[:, 0] - rows[:, 2] > 0).astype(int) + 1
    site = np.array(["North"] * 240 + ["South"] * 100)
    return np.concatenate([rows, rows[:100]]), np.concatenate([label, label[:100]]), site


def settings(**overrides):
    x, y, site = two_sites()
    data = from_arrays(x, y, client=site)
    return {"method": "fedavg", "data": data, "rounds": 2, "lr": 0.3, "workers": 1, **overrides}


def texts(result):
    return [note.text for note in result.notes]


def test_a_script_hears_each_note_once_at_its_own_line():
    arguments, line = settings(), inspect.currentframe().f_lineno + 2
    with pytest.warns(pomona.PomonaWarning) as caught:
        result = pomona.run(**arguments)
    assert [str(warning.message) for warning in caught] == texts(result)
    assert {(warning.filename, warning.lineno) for warning in caught} == {(__file__, line)}
    shared, empty = (next(n for n in result.notes if s in n.text) for s in (SHARED, "of class 0"))
    assert all(fact in shared.text for fact in ("100", "South at North"))
    assert {shared.topic, empty.topic} == {"data"}


def test_what_is_chosen_is_a_note():
    lines = texts(pomona.run(**settings(lr="auto", engine="torch")))
    assert any(line.startswith("lr = ") for line in lines)
    natives = texts(pomona.run(**settings(engine="auto")))
    assert any(line.startswith("engine = ") for line in natives)
    x, y, _ = two_sites()
    dealt = pomona.run(**settings(data=from_arrays(x, y), rounds=1)).notes
    assert any(n.topic == "partition" and "clients = 12" in n.text for n in dealt)
    with_clients = pomona.run(**settings(data=from_arrays(x, y), rounds=1, clients=3)).notes
    assert not any(n.topic == "partition" for n in with_clients)


def test_the_record_has_the_notes_also_after_a_resume(tmp_path):
    uninterrupted = pomona.run(**settings(), out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        pomona.run(**settings(), out=tmp_path / "run", callback=StopAfter(1))
    resumed = pomona.run(**settings(), out=tmp_path / "run", resume=True)
    assert uninterrupted.notes == resumed.notes == pomona.load(tmp_path / "run").notes
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    stored = [event for event in map(json.loads, lines) if event["event"] == "note"]
    assert [event["text"] for event in stored] == texts(uninterrupted)
    assert len(stored) == len({event["text"] for event in stored})


def table(folder):
    x, y, site = two_sites()
    rows = [
        f"{s},{','.join(map(str, row))},{label}" for s, row, label in zip(site, x, y, strict=True)
    ]
    (folder / "t.csv").write_text("\n".join(["site,a,b,c,y", *rows]) + "\n")
    return ["--data", "table", f"data.path={folder}/t.csv", "data.client_column=site"]


def test_the_command_line_says_them_as_lines_and_not_as_warnings(tmp_path, capsys):
    keys = ["data.label_column=y", "rounds=1", "lr=0.3", "workers=1"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", pomona.PomonaWarning)
        with suppress(SystemExit):
            main(["run", "fedavg", *table(tmp_path), *keys, "--out", f"{tmp_path}/run", "--json"])
    output = capsys.readouterr()
    result = pomona.load(tmp_path / "run")
    assert json.loads(output.out)["notes"] == texts(result)
    assert [line[6:] for line in output.err.splitlines() if line[:6] == "note: "] == texts(result)
    page = (tmp_path / "run" / "report.html").read_text()
    assert ">Notes</h2>" in page
    assert SHARED in page


def test_showing_data_prints_and_warns(capsys):
    with pytest.warns(pomona.PomonaWarning, match=SHARED) as caught:
        pomona.show_data(**settings())
    assert {warning.filename for warning in caught} == {__file__}
    assert f"note: {caught[0].message}"[:60] in capsys.readouterr().out


def test_the_estimator_warns():
    x, y, site = two_sites()
    model = pomona.PersonalizedFederation("fedavg", rounds=1, lr=0.1)
    with pytest.warns(pomona.PomonaWarning, match="engine = ") as caught:
        model.fit(x, y, site)
    assert {warning.filename for warning in caught} == {__file__}
    of_equal_rows = [text for text in texts(model.result_) if "duplicates=drop" in text]
    assert any("test rows equal training rows" in text for text in of_equal_rows)
    expected = [text for text in texts(model.result_) if text not in of_equal_rows]
    assert [str(warning.message) for warning in caught] == expected


@pytest.mark.long
def test_a_bench_warns_of_what_its_runs_share(tmp_path):
    shared = settings(rounds=1)
    del shared["method"], shared["workers"]
    with pytest.warns(pomona.PomonaWarning, match=SHARED) as caught:
        bench = pomona.bench(["separate", "fedavg"], tmp_path / "bench", jobs=1, **shared)
    assert [str(warning.message) for warning in caught] == [note.text for note in bench.notes]
    assert len(caught) == len({note.text for note in bench.notes})


class Rounds:
    def __init__(self):
        self.numbers = []

    def on_round_end(self, row, evaluations):
        self.numbers.append(row.round)


class Documented(Rounds):
    run_begins = 0

    def on_run_begin(self):
        self.run_begins += 1

    def on_note(self, text):
        self.last = text


def test_a_callback_has_any_of_the_methods():
    single, several = Rounds(), Documented()
    pomona.run(**settings(), callback=single)
    result = pomona.run(**settings(), callback=several)
    assert single.numbers == several.numbers == [1, 2]
    assert several.run_begins == 1
    assert several.last in texts(result)


@pytest.mark.parametrize("callback", [print, object()])
def test_a_callback_that_would_hear_nothing_is_refused(callback):
    with pytest.raises(pomona.ConfigError, match="none of on_run_begin, on_before_commit"):
        pomona.run(**settings(), callback=callback)


class Activated(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.fc, self.end = nn.Linear(3, 4), layer

    def forward(self, x):
        return self.end(self.fc(x))


@pytest.mark.parametrize(
    ("layer", "activation"),
    [
        (nn.Softmax(dim=1), ("softmax", "end")),
        (nn.Sequential(nn.LogSoftmax(dim=1), nn.Flatten()), ("log-softmax", "")),
        (nn.Sigmoid(), ("sigmoid", "end")),
        (torch.sigmoid, ("sigmoid", "")),
        (lambda x: x.softmax(1).reshape(-1, 4), ("softmax", "")),
        (nn.ReLU(), ("ReLU", "end")),
        (nn.Identity(), None),
        (lambda x: 2 * x.sigmoid() - 1, None),
    ],
)
def test_the_last_activation_is_recognised(layer, activation):
    recognised = final_activation(Activated(layer), torch.zeros(1, 3))
    assert (recognised and recognised[0]) == (activation and activation[0])
    if recognised and activation and activation[1]:
        assert recognised[1] == activation[1]


def softmax_network(settings, input_shape, n_outputs, vocabulary):
    return nn.Sequential(nn.Linear(input_shape[0], n_outputs), nn.Softmax(dim=1))


def raw_network(settings, input_shape, n_outputs, vocabulary):
    return nn.Sequential(nn.Linear(input_shape[0], n_outputs), nn.Identity())


def test_a_network_that_ends_in_softmax_is_noted():
    def lines(name):
        return [
            t for t in texts(pomona.run(**settings(model=f"{__name__}:{name}"))) if "logits" in t
        ]

    (line,) = lines("softmax_network")
    assert "softmax, layer 1" in line
    assert "remove it" in line
    assert lines("raw_network") == []


@given(st.text(), st.sampled_from(["data", "partition", "settings", "training"]))
def test_a_note_survives_its_record(text, topic):
    note = Note(text, topic, 3)
    assert "\n" not in note.text
    assert len(note.text) <= LONGEST
    assert events.read(json.dumps({"event": "note", **vars(note)})) == ("note", note)


@pytest.mark.parametrize(
    "event", [{"text": 3}, {"text": "a", "topic": "weather"}, {"text": "a", "round": -1}, {}]
)
def test_a_note_of_another_form_is_refused(event):
    with pytest.raises(ValueError, match="note"):
        events.read(json.dumps({"event": "note", **event}))


@given(st.lists(st.sampled_from("abc"), max_size=6))
def test_distinct_notes_are_in_order(letters):
    assert [note.text for note in distinct(map(Note, letters))] == list(dict.fromkeys(letters))


def test_clients_are_called_by_their_names():
    x, y, _ = two_sites()
    data = from_arrays(x, y, client=["A"] * 120 + ["B"] * 120 + ["C"] * 100)
    result = pomona.run(**settings(data=data, rounds=1, attack={"clients": [1], "kind": "nan"}))
    lines = [note for note in result.notes if note.topic == "training"]
    assert lines
    assert all(note.text.startswith("B, round 1: ") and note.round == 1 for note in lines)


def test_a_client_without_training_rows_is_called_by_its_name():
    x, y, _ = two_sites()
    with pytest.raises(pomona.DataError, match="client C has no training rows"):
        pomona.run(**settings(data=from_clients({"A": (x, y), "C": (x[:0], y[:0])})))
