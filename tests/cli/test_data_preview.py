"""What ``pomona data show`` prints of rows, and draws of images."""

import csv
import json
from contextlib import suppress
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

import pomona
from masks import archive
from pomona.cli import main
from pomona.cli.data import _prepared
from pomona.cli.data_preview import preview, training_rows
from pomona.data import from_arrays
from pomona.results.figures.contact_sheet import contact_sheet
from pomona.results.figures.plot import drawing

PATIENTS = """site,age,sex,seen,crp,died
N,63,m,2020-01-03,1.5,yes
N,50,f,2020-02-03,,no
N,41,f,2020-02-13,2.5,no
N,45,m,2020-03-13,2.5,yes
S,63,m,2020-01-04,1.5,no
S,51,f,2020-02-09,7,no
S,42,f,2020-02-10,2.6,yes
S,47,m,2020-03-11,2.1,yes
"""
COLUMNS = {
    "label_column": "died",
    "client_column": "site",
    "categories": ["sex"],
    "dates": ["seen"],
    "missing": "median",
}


def patients(folder):
    (folder / "t.csv").write_text(PATIENTS)
    data = {"name": "table", "path": str(folder / "t.csv"), **COLUMNS}
    return _prepared(pomona.Config(method="fedavg", data=data))


def test_cells_stand_next_to_the_numbers_that_the_model_gets(tmp_path):
    scenario, source = patients(tmp_path)
    table = preview(scenario, source)
    lines = {row[0]: row[1:] for row in table.rows}
    data, written = scenario.dataset, [*csv.DictReader(PATIENTS.splitlines())]
    assert list(table.header[1:3]) == ["N", "S"]
    for k, (_, row) in enumerate(training_rows(scenario)):
        names = data.preprocessing[0].features
        numbers = (data.x[row] - np.float32(data.shift)) / np.float32(data.scale)
        assert [lines[n][k].partition(" -> ")[2] for n in names] == [f"{v:.4g}" for v in numbers]
        cells = {n: lines[n][k].partition(" -> ")[0] for n in names}
        (patient,) = [
            w
            for w in written
            if (w["age"], w["seen"], w["crp"] or "(gap)")
            == (cells["age"], cells["seen"], cells["crp"])
        ]
        assert (cells["sex=f"], cells["sex=m"], lines["label"][k]) == (
            *[patient["sex"]] * 2,
            patient["died"],
        )


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_rows_are_of_every_client_in_turn(rows):
    x, y = np.arange(40, dtype=float).reshape(20, 2), np.arange(20) % 2
    data = from_arrays(x, y, client=["A"] * 4 + ["B"] * 16)
    scenario, source = _prepared(pomona.Config(method="fedavg", data=data))
    picked = training_rows(scenario, rows)
    assert [client for client, _ in picked][:2] == [0, 1][:rows]
    assert len({row for _, row in picked}) == len(picked) == min(rows, len(picked))
    lines = preview(scenario, source).rows[1:]
    for k, row in enumerate(row for _, row in training_rows(scenario)):
        assert [float(line[k + 1].partition(" -> ")[0]) for line in lines] == x[row].tolist()


def test_columns_of_the_table_have_a_legend_and_rows_are_in_json(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(PATIENTS)
    keys = [f"data.{key}={json.dumps(value)}" for key, value in COLUMNS.items()]
    argv = ["data", "show", "--data", "table", f"data.path={tmp_path}/t.csv", *keys]
    with suppress(SystemExit):
        main(argv)
    text = capsys.readouterr().out
    for legend in ("emd: ", "Effective classes: ", "Rows by class: ", "as the model will see"):
        assert legend in text
    with suppress(SystemExit):
        main([*argv, "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[0]["feature"] == "label"
    assert any(" -> " in row["N"] for row in rows[1:])


def test_words_are_shown_as_the_model_knows_them(tmp_path):
    rows = ["text,label", *(f"good film {k % 3},{k % 2}" for k in range(40))]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    data = {"name": "text", "path": str(tmp_path / "t.csv"), "label_column": "label"}
    data["text_columns"] = ["text"]
    config = pomona.Config(method="fedavg", data=data, model="fasttext", clients=2)
    lines = preview(*_prepared(config)).rows
    assert all("good film" in " ".join(line) for line in lines)


AFFINES = (np.diag([1.0, 1.0, 2.0, 1.0]), np.diag([-1.0, -1.0, 2.0, 1.0]))  # stored as RAS and LPS


def volumes(folder: Path):
    """Volumes with a bright spot at the patient's right, front and head, of two sites that store
    their axes in two ways.
    """
    lines = ["path,mask,client"]
    for site, affine in zip("NS", AFFINES, strict=True):
        for k in range(4):
            image = np.random.default_rng(k).normal(size=(10, 12, 6)).astype(np.float32)
            mask = np.zeros(image.shape, np.uint8)
            mask[7:9, 8:10, 4:6] = 1
            image += 20 * mask
            turned = (slice(None, None, int(affine[0, 0])),) * 2
            name = f"{site}{k}"
            nibabel.save(nibabel.Nifti1Image(image[turned], affine), folder / f"{name}.nii")
            nibabel.save(nibabel.Nifti1Image(mask[turned], affine), folder / f"{name}-mask.nii")
            lines.append(f"{name}.nii,{name}-mask.nii,{site}")
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    data = {
        "name": "images",
        "path": str(folder / "list.csv"),
        "targets": "segmentation",
        "classes": ["ground", "spot"],
    }
    net = {"name": "monai:UNet", "args": {"channels": [4, 8], "strides": [2]}}
    return pomona.Config(method="fedavg", data=data, model=net)


@pytest.mark.long
def test_a_turned_volume_is_seen_at_once(tmp_path):
    pytest.importorskip("monai")
    scenario, _ = _prepared(volumes(tmp_path))
    with drawing():
        sheet = contact_sheet(scenario)
        axes = sheet.figure.axes
        letters = [[text.get_text() for text in ax.texts] for ax in axes[:3]]
        assert letters == [list("RLAP"), list("RLSI"), list("APSI")]  # right, left, top, bottom
        for ax in axes:
            cover = ax.images[1].get_array()  # drawn from below, to the right
            height, across = (np.argwhere(~cover.mask).mean(axis=0) + 0.5) / cover.shape
            assert min(height, across) > 0.5
        assert [ax.get_title("left") for ax in axes[:1]] == ["axial, 5 of 6"]
        sheet.save(tmp_path, ("png",))
    with Image.open(tmp_path / "images.png") as picture:
        assert min(picture.size) > 300


def test_one_picture_of_each_client_is_written(tmp_path, capsys):
    argv = ["data", "show", "--data", "digits", "clients=3", "partition.name=iid"]
    with suppress(SystemExit):
        main(argv)
    assert "--out FOLDER" in capsys.readouterr().out
    with suppress(SystemExit):
        main([*argv, "--out", str(tmp_path)])
    assert "images.png" in capsys.readouterr().out
    with Image.open(tmp_path / "images.png") as picture:
        assert picture.format == "PNG"


def test_a_table_has_no_picture(tmp_path):
    with drawing():
        assert contact_sheet(patients(tmp_path)[0]) is None


def test_masks_are_shown_without_a_network(tmp_path, capsys):
    """The default network has no masks as outputs, but nothing is trained here."""
    path = archive(tmp_path / "m.npz")
    argv = ["data", "show", "--data", "arrays", f"data.path={path}", "data.targets=segmentation"]
    with suppress(SystemExit):
        main([*argv, "partition.name=iid", "clients=2"])
    assert "as the model will see them" in capsys.readouterr().out
    with suppress(SystemExit):
        main([*argv, "partition.name=iid", "clients=2", "model.name=logistic"])
    assert "set model = unet" in capsys.readouterr().err
