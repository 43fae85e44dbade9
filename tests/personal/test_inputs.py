"""Inputs of a model: read like its training data, matched by names, refused with the same lines."""

import csv
import json
import os
import struct
import zipfile
import zlib

import numpy as np
import pandas as pd
import pytest
from crafted import craft, good, tree
from PIL import Image

from command_line import call
from pomona.core.errors import ConfigError, DataError, OutOfMemoryError
from pomona.data import data_settings
from pomona.data import read as read_data
from pomona.data.preprocessing import Preprocessing, TableColumn
from pomona.data.table_settings import table_form
from pomona.models import ModelSettings, build
from pomona.personal import PersonalModel
from pomona.personal.inputs import read
from pomona.record.model_metadata import ModelMetadata


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path):
    """A model of two columns, age and dose, whose training file also had site and sick."""
    return PersonalModel.load(good(tmp_path / "m.safetensors"))


@pytest.fixture
def picture(tmp_path):
    """A model of gray images of 8 x 8 pixels."""
    changes = {
        "network": {"name": "small"}, "kind": "image", "input_shape": [1, 8, 8], "columns": [], "others": [],
        "shift": [127.5], "scale": [127.5],
    }  # fmt: skip
    state = build(ModelSettings(name="small"), (1, 8, 8), 2).state_dict()
    return PersonalModel.load(craft(tmp_path / "p.safetensors", tree(**changes), state))


AS_TRAINED = "age,site,dose,sick\n3,Ulm,5,no\n30,Aue,0.5,yes\n"
EXPECTED = [[3.0, 5.0], [30.0, 0.5]]


@pytest.mark.parametrize(
    "text",
    [
        AS_TRAINED,
        "sick,dose,site,age\nno,5,Ulm,3\nyes,0.5,Aue,30\n",
        "dose,age\n5,3\n0.5,30\n",
        " dose , age \n5,3\n\n0.5,30\n",
        "site,age,dose\n7,3,5\n8,30,0.5\n",
    ],
    ids=["the training file", "reversed", "turned", "blanks", "a client of numbers"],
)
def test_columns_are_found_by_name(tmp_path, table, text):
    samples = read(write(tmp_path / "a.csv", text), table.about)
    assert samples.x.tolist() == EXPECTED
    assert samples.x.dtype == np.float32
    assert samples.note == ""


def test_a_table_without_names_is_taken_in_order_and_that_is_said(tmp_path, table, capsys):
    samples = read(write(tmp_path / "a.csv", "3,5\n30,0.5\n"), table.about)
    assert samples.x.tolist() == EXPECTED
    assert "has no header; its columns are taken in the order of the train" in samples.note
    assert "(age, dose)" in samples.note
    code, stdout, err = call(
        capsys, "predict", tmp_path / "m.safetensors", tmp_path / "a.csv", "--json"
    )
    assert code == 0
    assert len(json.loads(stdout)) == 2
    assert err == f"note: {samples.note}\n"


def test_a_model_without_names_takes_columns_in_order_and_says_so(tmp_path):
    nameless = PersonalModel.load(good(tmp_path / "n", columns=(), others=()))
    samples = read(write(tmp_path / "a.csv", "a,b\n3,5\n30,0.5\n"), nameless.about)
    assert samples.x.tolist() == EXPECTED
    assert "the model has no names of columns" in samples.note


def test_names_that_are_numbers_are_names(tmp_path):
    numbered = PersonalModel.load(good(tmp_path / "n", columns=("1", "0"), others=("y",)))
    turned = write(tmp_path / "a.csv", "0,1\n5,3\n0.5,30\n")
    assert read(turned, numbered.about).x.tolist() == EXPECTED
    assert read(write(tmp_path / "b.csv", "3,5\n30,0.5\n"), numbered.about).x.tolist() == EXPECTED
    (tmp_path / "wide.csv").write_text("3,5\n30,0.5\n", encoding="utf-16")
    assert read(tmp_path / "wide.csv", numbered.about).x.tolist() == EXPECTED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,doze\n3,5\n", "missing dose; unknown doze; the model takes age, dose"),
        ("age,site\n3,Ulm\n", "missing dose; the model takes age, dose"),
        ("age,dose,weight,ward\n3,5,1,2\n", "unknown weight, ward"),
        ("weight,height\n1,2\n", "missing age, dose; unknown weight, height"),
        ("age,age,dose\n1,2,3\n", "unknown age (2)"),
        ("Age,dose\n3,5\n", "differ in capital letters"),
        ("3,5,1\n", "3 columns, the model takes 2 (age, dose); give a header with their names"),
        ("3\n", "1 columns, the model takes 2"),
        ("age,dose\n3,5\n1,2,3\n1\n", "line 3: 3 cells, not 2"),
        ("age,dose\n3,x\n1,nan\n", "dose: 1 of 2 are not finite numbers, first 'x' in line 2"),
        ("age,dose\n3,1e39\n", "column dose: 1 of 1 are not finite numbers, first '1e39'"),
        ("age,dose\n", "no rows below its header"),
        ("", "is empty"),
    ],
)
def test_a_table_that_does_not_fit_is_told_by_name(tmp_path, table, text, message):
    with pytest.raises(DataError) as fault:
        read(write(tmp_path / "a.csv", text), table.about)
    assert message in str(fault.value)
    assert str(fault.value).startswith(str(tmp_path / "a.csv"))


def test_a_table_that_was_trained_on_is_answered_as_it_is_and_however_it_is_turned(
    tmp_path, capsys
):
    draw = np.random.Generator(np.random.Philox(5))
    rows = [
        (age, "AB"[k % 2], "ill" if age > 50 else "well", draw.random())
        for k, age in enumerate(range(20, 100))
    ]
    text = "\n".join(["age,site,out come,dose", *(f"{a},{s},{y},{d:.4f}" for a, s, y, d in rows)])
    write(tmp_path / "t.csv", text)
    write(tmp_path / "r.csv", "\n".join(["dose,age", *(f"{d:.4f},{a}" for a, _, _, d in rows)]))
    settings = [
        "--data",
        "table",
        f"data.path={tmp_path / 't.csv'}",
        "data.label_column=out come",
        "data.client_column=site",
    ]
    quick = ["model=logistic", "rounds=5", "lr=0.5", "batch_size=8", "workers=1"]
    run = ("run", "fedavg", *settings, *quick, "--out", tmp_path / "r", "--no-report")
    assert call(capsys, *run)[0] == 0
    model = tmp_path / "r/models/client-00.safetensors"
    metadata = PersonalModel.load(model).about
    assert (metadata.columns, metadata.others) == (("age", "dose"), ("site", "out come"))
    _, stdout, err = call(capsys, "predict", model, tmp_path / "t.csv", "--json")
    assert "rows were training rows" in err
    assert "40 of 80 rows belong to other clients than A" in err
    answers = json.loads(stdout)
    _, stdout, _ = call(capsys, "predict", model, tmp_path / "r.csv", "--json")
    assert [{**a, "input": ""} for a in json.loads(stdout)] == [{**a, "input": ""} for a in answers]
    assert np.mean([a["class"] == y for a, (_, _, y, _) in zip(answers, rows, strict=True)]) > 0.9
    assert all(set(a["probabilities"]) == {"ill", "well"} for a in answers)
    assert all(sum(a["probabilities"].values()) == pytest.approx(1) for a in answers)
    _, stdout, _ = call(capsys, "predict", model, tmp_path / "r.csv")
    assert "P(ill)" in stdout
    assert "P(well)" in stdout


def test_flags_and_targets_are_named(tmp_path, capsys):
    """At (3, 5) the outputs are 5.5 and 10.5, as in test_model_files."""
    names = {"labels": ("Edema", "[/x]\x1b[31m"), "classes": ()}
    rows = write(tmp_path / "a.csv", "age,dose\n3,5\n")
    (answer,) = PersonalModel.load(good(tmp_path / "f", targets="multilabel", **names)).predict(
        np.float32([[3, 5]])
    )
    logits = zip(names["labels"], (5.5, 10.5), strict=True)
    expected = {name: 1 / (1 + np.exp(-logit)) for name, logit in logits}
    assert answer == {"probabilities": pytest.approx(expected)}
    good(tmp_path / "r", targets="regression", **names)
    code, stdout, _ = call(capsys, "predict", tmp_path / "r", rows, "--json")
    values = dict(zip(names["labels"], (5.5, 10.5), strict=True))
    assert (code, json.loads(stdout)[0]["values"]) == (0, values)
    # a terminal is shown the names and obeys none
    code, stdout, _ = call(capsys, "predict", tmp_path / "r", rows)
    assert code == 0
    assert "predicted [/x] [31m" in stdout
    assert "\x1b" not in stdout
    good(tmp_path / "n", targets="regression", classes=())
    assert PersonalModel.load(tmp_path / "n").predict(np.float32([[3, 5]])) == [
        {"values": {"target 0": 5.5, "target 1": 10.5}}
    ]


def test_texts_of_a_table_are_found_by_name(tmp_path):
    changes = {
        "network": {"name": "fasttext"}, "kind": "text", "input_shape": [3], "vocabulary": 4, "words": ["up", "down"],
        "columns": ["body", "title"], "others": ["id", "mood"], "shift": [0.0], "scale": [1.0],
    }  # fmt: skip
    state = build(ModelSettings(name="fasttext"), (3,), 2, 4).state_dict()
    metadata = PersonalModel.load(craft(tmp_path / "t", tree(**changes), state)).about
    csv = write(tmp_path / "a.csv", "title,more,body\nup,x,down\nwhat,y,up up up\n")
    assert read(csv, metadata).x.tolist() == [[3, 2, 0], [2, 2, 2]]
    texts = write(tmp_path / "a.txt", "down up\nup up up what\n")
    assert read(texts, metadata).x.tolist() == [[3, 2, 0], [2, 2, 2]]
    # a line ends where files have it, and nowhere else that Unicode would break one
    with_breaks = write(tmp_path / "c.txt", "up\x0cup\r\ndown\x85\u2028down\n\nup")
    assert read(with_breaks, metadata).x.tolist() == [[2, 2, 0], [3, 3, 0], [0, 0, 0], [2, 0, 0]]
    with pytest.raises(DataError, match=r"missing body; the model takes body, title"):
        read(write(tmp_path / "b.csv", "title,text\na,b\n"), metadata)
    (tmp_path / "b.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match="bytes that are not UTF-8"):
        read(tmp_path / "b.txt", metadata)
    for x, message in (
        ([[0, 1, 2**40]], "outside 0 to 3"),
        ([[0.0, 1, 2]], "tokens are whole numbers"),
    ):
        np.savez(tmp_path / "x.npz", x=np.array(x))
        with pytest.raises(DataError, match=message):
            read(tmp_path / "x.npz", metadata)


def trained(folder, images):
    """Message of a training on a class folder with these images."""
    (folder / "class").mkdir(parents=True)
    for path in images:
        os.link(path, folder / "class" / path.name)
    with pytest.raises(DataError) as fault:
        read_data(data_settings(name="images", path=folder))
    return str(fault.value)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("u2", "has uint16 values, but the model takes uint8"),
        ("i4", "has float32 values, but the model takes uint8"),
        ("f4", "has float32 values, but the model takes uint8"),
    ],
)
def test_pixels_that_8_bits_cannot_hold_are_refused(tmp_path, picture, dtype, message):
    path = tmp_path / ("deep.png" if dtype == "u2" else "deep.tif")
    Image.fromarray((np.arange(64).reshape(8, 8) * 1000).astype(dtype)).save(path)
    with pytest.raises(DataError, match=message):
        read(path, picture.about)


def test_pixels_that_float32_cannot_hold_are_refused_as_in_training(tmp_path, picture):
    pytest.importorskip("tifffile")
    path = tmp_path / "deep.tif"
    Image.fromarray((np.arange(64).reshape(8, 8) + 2**24).astype("i4")).save(path)
    with pytest.raises(DataError, match=r"deep.tif has .* beyond .* float32") as fault:
        read(path, picture.about)
    assert str(fault.value).partition("deep.tif")[2] in trained(tmp_path / "train", [path])


def postscript(path):
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n")


def bomb(path):
    """A picture of one pixel, whose header promises 160 GB."""
    Image.new("L", (1, 1)).save(path)
    raw = bytearray(path.read_bytes())
    raw[16:24] = struct.pack(">II", 400_000, 400_000)
    raw[29:33] = struct.pack(">I", zlib.crc32(raw[12:29]))
    path.write_bytes(raw)


def pipe(path):
    os.mkfifo(path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (postscript, "it is not PNG, JPEG"),
        (bomb, "takes more memory than a reader process may have"),
        (pipe, "a pipe"),
    ],
)
def test_images_that_are_traps_are_refused(tmp_path, picture, prepare, message):
    prepare(tmp_path / "x.png")
    with pytest.raises((DataError, OutOfMemoryError), match=message):
        read(tmp_path / "x.png", picture.about)


def test_a_picture_beyond_pillows_limit_is_read_as_in_training(tmp_path, picture, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    Image.new("L", picture.about.sample_shape[:2], 7).save(tmp_path / "slide.png")
    assert (read(tmp_path / "slide.png", picture.about).x == 7).all()
    assert Image.MAX_IMAGE_PIXELS == 4


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".txt", ".png"])
def test_pipes_folders_and_nothing_are_no_inputs(tmp_path, table, picture, suffix):
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    model = picture if suffix == ".png" else table
    for name in ("pipe", "folder", "absent"):
        with pytest.raises(DataError) as fault:
            read(tmp_path / f"{name}{suffix}", model.about)
        assert name in str(fault.value)


def test_images_are_brought_to_the_models_form(tmp_path, picture):
    Image.fromarray(np.full((16, 12, 3), 200, np.uint8)).save(tmp_path / "c.png")
    x = read(tmp_path / "c.png", picture.about).x
    assert (x.shape, x.dtype) == ((1, 8, 8, 1), np.uint8)
    assert (x == 200).all()


def test_images_of_one_value_are_noted_if_most_are(picture):
    """Those of 0 and 1 too, which others store as 0 and 255."""
    blank, other = np.zeros((8, 8, 1), np.uint8), np.eye(8, dtype=np.uint8)[..., None]
    note = read(np.stack([blank + 9, other, 255 * other]), picture.about).note
    assert note.startswith("2 of 3 images have one value in all pixels")
    assert read(np.stack([blank, 2 * other]), picture.about).note == ""
    binary = picture.about.model_copy(update={"scale": (0.5,)})  # as all images of the training
    assert read(np.stack([other, other]), binary).note == ""


def test_an_archive_that_promises_more_than_it_holds_is_refused(tmp_path, picture):
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (70368744177664, 8, 8), }"
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr(
            "x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
        )
    with pytest.raises(OutOfMemoryError, match="more memory than a reader process may have"):
        read(tmp_path / "x.npz", picture.about)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            np.zeros((2, 9, 9), np.uint8),
            r"samples have shape \(9, 9, 1\), but the model takes \(8, 8, 1\)",
        ),
        (np.full((2, 8, 8), 0.5), "row 0 is float32 and does not fit into uint8"),
        (np.full((2, 8, 8), 256, np.uint16), "row 0 is uint16 and does not fit into uint8"),
        (np.zeros((2, 8, 8), np.int32), "images are uint8, uint16, int16, float32, not int32"),
        (np.zeros((2, 8, 8), object), "pickle is never read"),
    ],
)
def test_arrays_follow_the_rules_of_training(tmp_path, picture, x, message):
    np.savez(tmp_path / "x.npz", x=x)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "x.npz", picture.about)


def test_inputs_of_another_kind_are_said(tmp_path, table, picture):
    Image.new("L", (8, 8)).save(tmp_path / "x.png")
    for path, metadata, message in (
        (tmp_path / "x.png", table.about, "the model takes tables"),
        (write(tmp_path / "x.csv", "1,2\n"), picture.about, "the model takes images"),
        (write(tmp_path / "x.txt", "a b\n"), table.about, "has other columns than the model"),
    ):
        with pytest.raises(DataError, match=message):
            read(path, metadata)


def test_answers_name_the_patient_and_go_to_a_csv(tmp_path, table, capsys):
    # a spreadsheet would compute the second
    file = write(tmp_path / "a.csv", "patient,age,dose\nP-7,3,5\n=1+1,30,0.5\n")
    argv = ("predict", tmp_path / "m.safetensors", file)
    code, _, err = call(capsys, *argv)
    assert code == 3
    assert "unknown patient" in err
    assert "name a column of identifiers with --id" in err
    code, stdout, _ = call(capsys, *argv, "--id", "patient", "--json")
    assert code == 0
    answers = json.loads(stdout)
    assert [row["id"] for row in answers] == ["P-7", "=1+1"]
    code, stdout, err = call(capsys, *argv, "--id", "patient", "--csv", tmp_path / "answers.csv")
    assert (code, stdout) == (0, "")
    assert f"2 answers of the model of {table.about.client}: {tmp_path / 'answers.csv'}" in err
    header, *rows = csv.reader((tmp_path / "answers.csv").read_text().splitlines())
    assert header == [
        "input",
        "id",
        "class",
        "probability",
        *(f"P({name})" for name in table.about.names),
    ]
    assert [row[1] for row in rows] == ["P-7", "'=1+1"]
    for row, answer in zip(rows, answers, strict=True):
        assert [float(p) for p in row[4:]] == list(answer["probabilities"].values())


def test_a_column_of_names_must_be_there(tmp_path, table):
    with pytest.raises(DataError, match="no column 'patients'; known: age, dose"):
        read(write(tmp_path / "b.csv", "age,dose\n3,5\n"), table.about, "patients")
    with pytest.raises(DataError, match="has no columns; leave out the column 'patient'"):
        read(tmp_path / "a.npz", table.about, "patient")


WRITTEN = [
    ("größe;mg, dl;died\n1,5;2;no\n3;4,25;yes\n", {"separator": ";"}, "utf-8"),
    (
        "größe\tmg, dl\tdied\n1,5\t2\tno\n3\t4,25\tyes\n",
        {"separator": "\t", "encoding": "cp1252"},
        "cp1252",
    ),
    ('größe,"mg, dl",died\n"1,5",2,no\n3,"4,25",yes\n', {"decimal": ","}, "utf-8"),
    ('größe,"mg, dl",died\n1.5,2,no\n3,4.25,yes\n', {"encoding": "mac-roman"}, "mac-roman"),
    (
        "größe|mg, dl|died\n1.5|2|no\n3|4.25|yes\n",
        {"separator": "|", "decimal": ".", "encoding": "utf-16"},
        "utf-16-le",
    ),
]


@pytest.mark.parametrize(("text", "options", "encoding"), WRITTEN)
def test_how_a_table_is_written_can_be_set_where_it_is_not_found(tmp_path, text, options, encoding):
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode(encoding))
    with pytest.raises((DataError, ConfigError), match=r"data\.(separator|decimal|encoding)"):
        read_data(data_settings(name="table", path=path, label_column="died"))
    settings = data_settings(name="table", path=path, label_column="died", **options)
    data = read_data(settings)
    assert data.x.tolist() == [[1.5, 2], [3, 4.25]]
    assert (data.columns, data.classes) == (("größe", "mg, dl"), ("no", "yes"))
    assert [note for note in data.notes if "decimal mark" not in note] == []
    assert not ("decimal" in options and data.notes)
    fields = {"columns": data.columns, "others": ("died",), "form": table_form(settings)}
    metadata = ModelMetadata(**tree(**fields))
    assert read(path, metadata).x.tolist() == data.x.tolist()  # predict reads as training did


def _preprocessing(**columns):
    return Preprocessing(columns=tuple(TableColumn(name=n, **c) for n, c in columns.items()))


def test_numbers_in_another_unit_are_noted(table, tmp_path):
    """Kilograms in training; a mean of 75 and a deviation of 12 are all that a model keeps."""
    metadata = table.about.model_copy(update={"shift": (60.0, 75.0), "scale": (15.0, 12.0)})

    def note(*doses):
        rows = "".join(f"60,{dose}\n" for dose in doses)
        return read(write(tmp_path / "d.csv", f"age,dose\n{rows}"), metadata).note

    assert "column dose: 2 of 3 rows" in note(70000, 82000, 75)
    assert "mean 75" in note(70000)
    assert note(70, 95, 130) == note(70, 95, 70000) == ""  # a single slip among several
    assert note(1, 0) == note(1) == ""  # may be an answer
    assert note(170) == "" != note(170, 170)  # a single row may be the heaviest of many
    arrays = np.array([[60.0, 75.0], [60.0, 70000.0]], np.float32)
    assert read(arrays[:1], metadata).note == ""
    assert "column dose" in read(arrays[1:], metadata).note


def test_a_frame_without_rows_is_refused(table):
    with pytest.raises(DataError, match="no rows"):
        read(pd.DataFrame({"age": [], "dose": []}), table.about)


def test_dates_and_rare_categories_far_from_the_training(table, tmp_path):
    """Days with an offset are named as dates; the features of categories are not measured."""
    columns = _preprocessing(
        visit={"kind": "date", "offset": 8800.0}, sex={"kind": "category", "values": ("f", "m")}
    )
    metadata = table.about.model_copy(
        update={
            "preprocessing": columns, "columns": columns.features, "input_shape": (3,),
            "shift": (10.0, 0.999, 0.001), "scale": (30.0, 0.03, 0.03),
        }
    )  # fmt: skip

    def note(day):
        return read(write(tmp_path / "d.csv", f"visit,sex\n{day},m\n"), metadata).note

    assert note("2024-03-01") == ""
    assert "median 2034-03-01" in note("2034-03-01")
    assert "mean 2024-02-1" in note("2034-03-01")
    assert "check the dates" in note("2034-03-01")


@pytest.mark.parametrize(("zone", "turned"), [("", False), ("Z", False), ("+09:00", True)])
def test_times_of_another_zone_are_noted(zone, turned, table, tmp_path):
    columns = (TableColumn(name="age", kind="date"), TableColumn(name="dose"))
    metadata = table.about.model_copy(update={"preprocessing": Preprocessing(columns=columns)})
    samples = read(write(tmp_path / "n.csv", f"age,dose\n2000-01-02T09:00:00{zone},1\n"), metadata)
    assert samples.x.tolist() == [[1 + (0 if turned else 9 / 24), 1]]  # 9 o'clock in Tokyo is 0 UTC
    assert ("turned to UTC: age (1)" in samples.note) == turned


def test_bounds_and_marks_of_thousands_are_noted_as_in_training(table, tmp_path):
    columns = (TableColumn(name="age", censored=True), TableColumn(name="dose"))
    metadata = table.about.model_copy(
        update={
            "preprocessing": Preprocessing(columns=columns),
            "form": table_form(data_settings(name="table", path="a", decimal="comma")),
        }
    )
    samples = read(write(tmp_path / "n.csv", "age;dose\n<5;1.145\n60;0,5\n"), metadata)
    assert samples.x.tolist() == [[5, 1145], [60, 0.5]]
    assert "bounds such as <5, read as the number behind the sign: age (1)" in samples.note
    assert "marks of thousands, which count for nothing" in samples.note
