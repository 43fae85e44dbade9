"""Predictions for a table of several clients: each row by its own client's model, and what is said
of rows that are another client's or were trained on.
"""

import csv
import json

import numpy as np
import pandas as pd
import pytest

import pomona
from command_line import call
from pomona.core.errors import DataError
from pomona.personal import PersonalModel
from pomona.personal.by_client import predict
from pomona.personal.inputs import read
from pomona.personal.memory import MemoryModel

SITES = ["East", "North", "West"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of separate models, whose answers differ, on the table patients.csv beside it."""
    folder = tmp_path_factory.mktemp("by_client")
    draw = np.random.default_rng(1)
    x = draw.normal(size=(120, 2))
    site = np.array(SITES)[np.arange(120) % 3]
    sign = np.where(site == "West", -1, 1)
    table = pd.DataFrame({"age": x[:, 0], "hospital": site, "crp": x[:, 1]})
    table["outcome"] = np.where(sign * x[:, 0] > 0, "ill", "well")
    table.to_csv(folder / "patients.csv", index=False)
    columns = {"label_column": "outcome", "client_column": "hospital"}
    data = {"name": "table", "path": folder / "patients.csv", **columns}
    pomona.run(method="separate", data=data, model="logistic", rounds=5, lr=0.5, out=folder / "run")
    return folder / "run"


def table(folder, hospitals, name="new.csv", **columns):
    path = folder / name
    draw = np.random.default_rng(2)
    rows = {"crp": draw.normal(size=len(hospitals)), "hospital": hospitals}
    rows["age"] = draw.normal(size=len(hospitals))
    pd.DataFrame({**rows, **columns}).to_csv(path, index=False)
    return path


def expected(run, path):
    """The answers of each row's model, one by one."""
    rows = pd.read_csv(path)
    models = {name: PersonalModel.of(pomona.load(run), name) for name in SITES}
    return [
        {"client": row.hospital, **models[row.hospital].predict([[row.age, row.crp]])[0]}
        for row in rows.itertuples()
    ]


def close(answers, target):
    for a, b in zip(answers, target, strict=True):
        assert (a["client"], a["class"]) == (b["client"], b["class"])
        assert a["probabilities"] == pytest.approx(b["probabilities"], abs=1e-6)


def test_each_row_is_answered_by_its_own_clients_model(run, tmp_path, capsys):
    path = table(tmp_path, ["West", "East", "West", "North", "East"], mrn=range(5))
    code, stdout, err = call(capsys, "predict", run, path, "--id", "mrn", "--json")
    assert code == 0
    answers = json.loads(stdout)
    close(answers, expected(run, path))
    assert [answer["id"] for answer in answers] == ["0", "1", "2", "3", "4"]
    assert "West (2)" in err
    assert "trained" not in err
    frame = predict(pomona.load(run), pd.read_csv(path).drop(columns="mrn"))
    close(frame.rows, answers)


def test_the_csv_names_each_rows_client(run, tmp_path, capsys):
    path = table(tmp_path, ["West", "East"])
    assert call(capsys, "predict", run, path, "--csv", tmp_path / "a.csv")[0] == 0
    with (tmp_path / "a.csv").open(encoding="utf-8") as lines:
        assert [row["client"] for row in csv.DictReader(lines)] == ["West", "East"]


def test_rows_that_were_trained_on_are_counted(run, capsys):
    code, stdout, err = call(capsys, "predict", run, run.parent / "patients.csv", "--json")
    assert (code, len(json.loads(stdout))) == (0, 120)
    partition = json.loads((run / "partition.json").read_text())
    trained = sum(len(client["train"]) for client in partition["clients"])
    assert f"{trained} of the run's rows were training rows" in err


def test_one_clients_model_says_how_many_rows_are_of_others(run, tmp_path, capsys):
    path = table(tmp_path, ["West", "East", "West", "North", "East"])
    model = run / "models" / "client-00.safetensors"
    code, _, err = call(capsys, "predict", model, path, "--json")
    assert code == 0
    assert "3 of 5 rows belong to other clients than East" in err
    assert "West (2), North (1)" in err
    code, _, err = call(capsys, "predict", model, run.parent / "patients.csv", "--json")
    assert "80 of 120 rows belong to other clients" in err
    assert "were training rows" in err
    east = table(tmp_path, ["East"] * 2, "east.csv")
    assert call(capsys, "predict", model, east, "--json")[2] == ""
    pd.read_csv(east).drop(columns="hospital").to_csv(east, index=False)
    assert call(capsys, "predict", model, east, "--json")[2] == ""


def test_rows_of_unknown_clients_are_refused_unless_one_model_is_named(run, tmp_path, capsys):
    path = table(tmp_path, ["Ulm", "East", "Ulm", ""])
    code, _, err = call(capsys, "predict", run, path)
    assert code == 3
    for phrase in ("3 of 4 rows", "Ulm (2)", "(no name) (1)", "East, North, West", "--client"):
        assert phrase in err
    code, stdout, _ = call(capsys, "predict", run, path, "--client", "West", "--json")
    assert (code, {answer["client"] for answer in json.loads(stdout)}) == (0, {"West"})


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("image.png",), "--client"),
        (("new.csv", "--client", "Ulm"), "no client 'Ulm'"),
        (("new.csv", "--client-column", "ward"), "no column 'ward'"),
    ],
)
def test_what_names_no_client_is_refused(run, tmp_path, capsys, argv, reason):
    table(tmp_path, ["East"])
    code, _, err = call(capsys, "predict", run, tmp_path / argv[0], *argv[1:])
    assert code in (2, 3)
    assert reason in err


def test_a_run_without_a_column_of_clients_asks_for_it(run, tmp_path, capsys):
    patients = pd.read_csv(run.parent / "patients.csv")
    files = []
    for name in SITES:
        path = tmp_path / f"{name}.csv"
        patients[patients.hospital == name].drop(columns="hospital").to_csv(path, index=False)
        files.append({"name": name, "train": path})
    data = {"clients": files, "label_column": "outcome"}
    folder = tmp_path / "run"
    pomona.run(method="separate", data=data, model="logistic", rounds=5, lr=0.5, out=folder)
    path = table(tmp_path, ["West", "North"])
    with pytest.raises(DataError, match="--client-column"):
        predict(pomona.load(folder), path)
    _, text, _ = call(capsys, "predict", folder, path, "--client-column", "hospital", "--json")
    close(json.loads(text), expected(folder, path))
    err = call(capsys, "predict", folder, files[0]["train"], "--client", "East")[2]
    assert "were training rows" in err


def remembering(run, name, neighbours=5):
    """A client's model with its rows, whose numbers and weight come from the table and partition."""
    rows = pd.read_csv(run.parent / "patients.csv")
    division = json.loads((run / "partition.json").read_text())["clients"]
    (splits,) = [c for c in division if set(rows.hospital[c["train"]]) == {name}]
    train, validation = (
        (rows.loc[splits[split], ["age", "crp"]].to_numpy(), rows.outcome[splits[split]])
        for split in ("train", "validation")
    )
    model = PersonalModel.of(pomona.load(run), name)
    memory = MemoryModel.from_rows(model, *train, neighbours).weighed(*validation)
    return memory, len(validation[0])


def test_answers_with_the_nearest_training_rows(run, tmp_path, capsys):
    path = table(tmp_path, ["West", "East", "West"])
    argv = ("predict", run, path, "--neighbours", 5, "--json")
    _, stdout, notes = call(capsys, *argv)
    for answer, row in zip(json.loads(stdout), pd.read_csv(path).itertuples(), strict=True):
        memory, validation = remembering(run, row.hospital)
        (expected,) = memory.predict([[row.age, row.crp]])
        assert answer["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)
        assert f"{row.hospital} {memory.weight:g} (chosen on {validation} valid" in notes
    assert "5 nearest training rows" in notes
    by_name = call(capsys, *argv[:3], "--client", "West", *argv[3:])
    assert json.loads(by_name[1])[0]["probabilities"] == json.loads(stdout)[0]["probabilities"]
    by_file = call(capsys, "predict", run / "models" / "client-02.safetensors", *argv[2:])
    assert json.loads(by_file[1]) == json.loads(by_name[1])


def test_nearest_rows_need_the_run_and_its_data(run, tmp_path, capsys):
    new, copy = table(tmp_path, ["West"]), tmp_path / "model.safetensors"
    copy.write_bytes((run / "models" / "client-02.safetensors").read_bytes())
    code, _, message = call(capsys, "predict", copy, new, "--neighbours", 5)
    assert (code, "leave --neighbours out" in message) == (3, True)
    code, _, message = call(capsys, "predict", tmp_path / "none", new)
    assert (code, "none does not exist" in message) == (6, True)


def test_numbers_are_distant_from_those_of_the_models_own_client(tmp_path):
    """Each client standardises by its own rows: 1,000 is usual at West, and far away elsewhere."""
    draw = np.random.default_rng(3)
    site = np.array(SITES)[np.arange(120) % 3]
    rows = pd.DataFrame({"age": draw.normal(size=120) + 1000 * (site == "West"), "hospital": site})
    rows["outcome"] = np.where(draw.random(120) < 0.5, "ill", "well")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    columns = {"label_column": "outcome", "client_column": "hospital", "fit": "client"}
    data = {"name": "table", "path": tmp_path / "rows.csv", **columns}
    run = pomona.run(method="separate", data=data, model="logistic", rounds=1, lr=0.1)
    west = rows[rows["hospital"] == "West"].drop(columns="outcome")
    assert not any("standard deviations" in note for note in predict(run, west).notes)
    (note,) = (n for n in predict(run, west.assign(age=1e6)).notes if "standard deviations" in n)
    assert "West: column age: 40 of 40 rows" in note
    some = west.assign(age=west["age"].where(np.arange(40) % 4 > 0, -999))
    (note,) = (n for n in predict(run, some).notes if "standard deviations" in n)
    assert "West: column age: 10 of 40 rows have -999" in note
    spread = west.assign(age=np.r_[[1000.0] * 25, np.linspace(780, 990, 10), [777.0] * 5])
    assert not any("standard deviations" in note for note in predict(run, spread).notes)
    usual = west.assign(age=west["age"].where(np.arange(40) % 4 > 0, 999))
    assert not any("standard deviations" in note for note in predict(run, usual).notes)


def test_markers_of_gaps_below_a_column_that_spreads_widely_are_noted(tmp_path):
    """-9 is 2 standard deviations from the mean, and the only number below 0; 77 may be an age, -7
    degrees, and -1 a change, where numbers below 0 are usual.
    """
    draw = np.random.default_rng(5)
    ranges = {"ldh": (20, 400), "age": (20, 95), "change": (-12, 12), "temp": (-9, 25)}
    rows = pd.DataFrame({name: draw.integers(*ends, 200) for name, ends in ranges.items()})
    rows.assign(y=np.arange(200) % 2).to_csv(tmp_path / "rows.csv", index=False)
    data = {"name": "table", "path": tmp_path / "rows.csv", "label_column": "y"}
    run = pomona.run(method="fedavg", data=data, clients=2, rounds=1, lr=0.1)
    cells = {"ldh": [50, 70, 300, -9, -9], "age": [40, 45, 50, 77, 77], "change": [-1, -1, 2, 5, 8]}
    cells["temp"] = [3, 5, 9, 2, -7]
    note = read(pd.DataFrame(cells), PersonalModel.of(run, 0).about).note
    assert note.count("below most training rows") == 1
    assert "column ldh: 2 of 5 rows have -9, below most" in note
    one = pd.DataFrame({name: values[3:4] for name, values in cells.items()} | {"change": -9})
    note = read(one, PersonalModel.of(run, 0).about).note
    assert note.startswith("column ldh: 1 of 1 rows have -9, below most")
    assert "change" not in note
    model = PersonalModel.of(run, 0).about
    for ldh, reading in (([50, 70, 300, 20, -9], "1 of 5 rows have -9"), ([-9] * 5, "5 of 5 rows")):
        assert f"column ldh: {reading}" in read(pd.DataFrame(cells | {"ldh": ldh}), model).note
    small = pd.DataFrame(cells | {"ldh": [2.1, 3.5, 9, 12, 18]})  # in another unit
    assert "column ldh: 5 of 5 rows are below a tenth of the training" in read(small, model).note
    rare = read(pd.DataFrame(cells | {"ldh": [20, 70, 2, 3, 4]}), model).note
    assert "ldh" not in rare


def test_markers_of_gaps_are_gaps_for_a_model_of_rows_without_any(tmp_path):
    rows = pd.DataFrame({"age": np.arange(60.0), "y": np.arange(60) % 2})
    data = {"name": "table", "path": tmp_path / "rows.csv", "missing_values": {"age": (-9,)}}
    rows.to_csv(data["path"], index=False)
    run = pomona.run(data=data | {"label_column": "y"}, clients=2, rounds=1, lr=0.1)
    with pytest.raises(DataError, match="column age: 1 of 2 cells are gaps, first '-9'"):
        PersonalModel.of(run, 0).predict(pd.DataFrame({"age": [5, -9]}))


def test_a_marker_of_one_column_is_noted_in_single_rows_of_another(tmp_path):
    """Though -9 is no further than 1.8 deviations below a mean of skewed numbers."""
    ages = np.arange(60)
    rows = pd.DataFrame({"age": ages, "crp": np.exp(ages / 12), "temp": ages - 20, "y": ages % 2})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    data = {"name": "table", "path": tmp_path / "rows.csv", "label_column": "y"}
    for markers, count in (({}, 0), ({"age": (-9,)}, 1)):
        run = pomona.run(data=data | {"missing_values": markers}, clients=2, rounds=1, lr=0.1)
        note = read(rows[:1].assign(crp=-9, temp=-9), PersonalModel.of(run, 0).about).note
        assert note.count("rows have -9") == note.count("column crp: 1 of 1 rows") == count
    (tmp_path / "a.csv").write_text("AGE,CRP\n5,3\n")  # whose first line is no row
    with pytest.raises(DataError, match="differ in capital letters"):
        read(tmp_path / "a.csv", PersonalModel.of(run, 0).about)


def test_answers_in_another_code_than_in_the_training_are_noted(tmp_path):
    """1 and 2 for yes and no: the training had 1 and 0."""
    rows = pd.DataFrame({"smoker": np.arange(60) % 3 // 2, "share": np.arange(60) % 7 / 6})
    rows.assign(y=np.arange(60) % 2).to_csv(tmp_path / "rows.csv", index=False)
    data = {"name": "table", "path": tmp_path / "rows.csv", "label_column": "y"}
    model = PersonalModel.of(pomona.run(data=data, clients=2, rounds=1, lr=0.1), 0).about
    assert read(rows, model).note == ""
    note = read(rows.assign(smoker=2 - rows["smoker"], share=1.2), model).note
    assert note.startswith("column smoker: 40 of 60 rows have 2")
    assert "share" not in note
