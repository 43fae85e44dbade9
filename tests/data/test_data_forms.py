"""Equivalent notations give equal data; rotated files are read upright; settings without effect are
refused by name.
"""

import numpy as np
import pandas as pd
import pytest
from image_files import write_nifti
from PIL import Image

from pomona.config import resolve
from pomona.core.errors import ConfigError, DataError
from pomona.data import cell_values, data_settings, from_arrays, read
from pomona.partition.divergence import remarks
from pomona.scenario import Scenario

SITES = ("K\u00f6ln", "Ko\u0308ln")  # one name, composed and decomposed


def table(path, text, **settings):
    path.write_text(text, encoding="utf-8")
    return read(
        data_settings(**{"name": "table", "path": path, "label_column": "died", **settings})
    )


def test_zero_at_one_site_and_zero_point_zero_at_the_other_are_one_class(tmp_path):
    for name, cells in (("north", "01"), ("south", ("0.0", "1."))):
        lines = [f"{k},{cells[k % 2]}" for k in range(10)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,died", *lines]) + "\n")
    sites = [{"name": name, "train": str(tmp_path / f"{name}.csv")} for name in ("north", "south")]
    data = read(data_settings(clients=sites, label_column="died"))
    assert (data.classes, data.y.tolist()) == (("0", "1"), [0, 1] * 10)
    reordered = read(data_settings(clients=sites, label_column="died", classes=("1.0", "0")))
    assert (reordered.classes, reordered.y.tolist()) == (("1.0", "0"), [1, 0] * 10)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("3.0", "3"),
        (" 3. ", "3"),
        ("0.50", "0.5"),
        ("100", "100"),
        ("10.0", "10"),
        ("007", "007"),
        (SITES[1], SITES[0]),
    ],
)
def test_the_form_in_which_cells_are_compared(cell, expected):
    assert cell_values.plain(cell) == expected


@pytest.mark.parametrize(
    ("cell", "expected"),
    [("12.0", "12"), ("12.", "12"), ("12.10", "12.10"), ("007", "007"), (SITES[1], SITES[0])]
    + [(gap, "") for gap in ("NA", " ", "nan", "<NA>", "n/a")]
    + [(text, text) for text in ("none", "-", "unknown")],
)
def test_the_form_of_names(cell, expected):
    assert cell_values.name(cell) == expected


PATIENTS = ("12.1", "12.10", "3", "3.0", "NA", "NA", "", "none", "none")


def same_patients(groups):
    """Pairs of rows of one patient."""
    rows = range(len(PATIENTS))
    return {(i, k) for i in rows for k in rows if i < k and groups.number[i] == groups.number[k]}


def test_rows_without_a_name_are_patients_of_their_own_and_decimals_are_not_merged(tmp_path):
    expected = {(PATIENTS.index("3"), PATIENTS.index("3.0")), (7, 8)}  # both "none"
    rows = [f"{k},{patient},{k % 2}" for k, patient in enumerate(PATIENTS)]
    data = table(tmp_path / "t.csv", "\n".join(["x,who,died", *rows]), group_column="who")
    assert same_patients(data.groups) == expected
    x, y = np.arange(9.0)[:, None], np.arange(9) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, group=np.array(PATIENTS))
    assert (
        same_patients(read(data_settings(name="arrays", path=tmp_path / "a.npz")).groups)
        == expected
    )
    assert same_patients(read(from_arrays(x, y, group=pd.array(PATIENTS))).groups) == expected
    missing = pd.Series(PATIENTS).replace({"NA": pd.NA, "": None}).astype("string")
    assert same_patients(read(from_arrays(x, y, group=missing)).groups) == expected


def test_a_gap_is_no_client_and_one_subgroup(tmp_path):
    text = "x,who,died\n1,A,0\n2,NA,1\n3,,1\n4,A,0\n"
    message = "client column who: 2 of 4 rows name no client, first line 3"
    with pytest.raises(DataError, match=message):
        table(tmp_path / "t.csv", text, client_column="who")
    groups = table(tmp_path / "t.csv", text, subgroup_column="who", drop_columns=("who",)).subgroups
    assert (groups.names, groups.number.tolist()) == (("(missing)", "A"), [1, 0, 0, 1])
    with pytest.raises(DataError, match="row 1 names no client"):
        from_arrays(np.ones((2, 1)), [0, 1], client=["A", pd.NA])


def test_names_of_columns_are_one_whatever_their_form(tmp_path):
    for a, b in (SITES, reversed(SITES)):
        data = table(tmp_path / "t.csv", f"x,{a},died\n1,8,0\n2,9,1\n", drop_columns=(b,))
        assert (data.columns, data.others) == (("x",), (SITES[0], "died"))


def test_names_of_sites_are_one_whatever_their_form_and_other_spellings_are_noted(tmp_path):
    rows = [f"{k},{site},{k % 2}" for k in range(10) for site in (*SITES, "bonn", "Bonn ", "BONN")]
    data = table(
        tmp_path / "a.csv", "\n".join(["age,site,died", *rows]) + "\n", client_column="site"
    )
    assert data.owners.names == ("BONN", "Bonn", SITES[0], "bonn")
    scenario = Scenario.prepare(
        resolve(
            {
                "data": {
                    "name": "table",
                    "path": str(tmp_path / "a.csv"),
                    "label_column": "died",
                    "client_column": "site",
                }
            }
        )
    )
    assert any(
        "clients that differ in capital letters, blanks, zeros or the form" in line
        for line in scenario.remarks
    )


def test_categories_that_differ_in_their_writing_are_noted(tmp_path):
    rows = [f"{sex},{k % 2}" for k, sex in enumerate(("male", "Male", "female") * 5)]
    data = table(tmp_path / "a.csv", "\n".join(["sex,died", *rows]) + "\n", categories=("sex",))
    assert (
        sum("column sex: categories that differ in capital letters" in n for n in data.notes) == 1
    )


def lying(path, orientation):
    """An image (4, 6) with values 0 to 23 row by row as a viewer shows it, stored as the
    orientation says.
    """
    upright = np.arange(24, dtype=np.uint8).reshape(4, 6)
    stored = {
        1: upright,
        3: upright[::-1, ::-1],
        6: np.rot90(upright),
        8: np.rot90(upright, -1),
        2: upright[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(stored)).save(path, exif=exif)
    return upright


@pytest.mark.parametrize("orientation", [1, 2, 3, 6, 8])
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_pictures_and_masks_are_read_as_a_viewer_shows_them(tmp_path, orientation, suffix):
    if suffix == "tif" and orientation > 4:
        pytest.skip("Pillow 11.0 says the size of such a TIFF as it is stored")
    upright = lying(tmp_path / f"a.{suffix}", orientation)
    lines = f"path,mask,split\na.{suffix},a.{suffix},train\n"
    (tmp_path / "m.csv").write_text(lines)
    classes = tuple(map(str, range(24)))
    data = read(
        data_settings(
            name="images", path=tmp_path / "m.csv", targets="segmentation", classes=classes
        )
    )
    assert data.x[0, :, :, 0].tolist() == data.y[0].tolist() == upright.tolist()


def test_problems_of_a_manifest_come_in_the_order_of_its_lines(tmp_path):
    (tmp_path / "m.csv").write_text("path,label,split\na.png,x,exam\nb.png,,train\nc.png,y,exam\n")
    with pytest.raises(DataError) as fault:
        read(data_settings(name="images", path=tmp_path / "m.csv"))
    numbers = [
        line.strip().split(":")[0]
        for line in fault.value.text().splitlines()
        if line.strip().startswith("line ")
    ]
    assert len(numbers) == 5
    assert numbers == sorted(numbers)


def test_voxels_of_several_sizes_and_masks_without_a_class_are_noted(tmp_path):
    pytest.importorskip("nibabel")
    for k in range(4):
        write_nifti(
            tmp_path / f"{k}.nii",
            np.full((3, 4, 5), k, np.int16),
            np.diag([1.0, 1.0, (1.0, 5.0)[k % 2], 1.0]),
        )
    (tmp_path / "m.csv").write_text(
        "path,label\n" + "".join(f"{k}.nii,{'ab'[k % 2]}\n" for k in range(4))
    )
    data = read(data_settings(name="images", path=tmp_path / "m.csv"))
    assert any(
        "2 of 1 x 1 x 1 mm (0.nii), 2 of 5 x 1 x 1 mm (1.nii)" in line for line in data.notes
    )
    np.savez(tmp_path / "m.npz", x=np.zeros((6, 4, 4), np.uint8), y=np.zeros((6, 4, 4), np.uint8))
    masks = data_settings(
        name="arrays", path=tmp_path / "m.npz", targets="segmentation", classes=("ground", "vessel")
    )
    scenario = Scenario.prepare(
        resolve(
            {
                "data": masks.model_dump(mode="json", exclude_unset=True),
                "model": {"name": "unet", "depth": 1},
                "clients": 1,
            }
        )
    )
    assert any(
        "no pixel of any mask is of class vessel" in line
        for line in remarks(scenario.dataset, scenario.partition)
    )


def test_a_spreadsheets_semicolons_and_decimal_commas_are_read_and_noted(tmp_path):
    data = table(
        tmp_path / "a.csv",
        "age;crp;died\n20;1,5;0\n-3;,5;1\n".replace(";,5", ";0,25"),
        validation_share=0,
    )
    assert (data.x.tolist(), data.y.tolist(), data.columns) == (
        [[20, 1.5], [-3, 0.25]],
        [0, 1],
        ("age", "crp"),
    )
    divided, comma = (
        f"{tmp_path / 'a.csv'}: {note}"
        for note in (
            "cells are divided by ';'",
            "a comma in a number is its decimal mark: 1,5 in crp is read as 1.5",
        )
    )
    assert data.notes == (divided, comma)
    settings = {"name": "table", "path": tmp_path / "a.csv", "label_column": "died"}
    assert read(data_settings(**settings, separator=";")).notes == (comma,)
    assert read(data_settings(**settings, decimal=",")).notes == (divided,)
    assert not read(data_settings(**settings, separator=";", decimal=",")).notes
    assert not table(tmp_path / "b.csv", "age,died\n1,0\n2,1\n").notes


def test_columns_are_kept_by_name_and_markers_hold_for_all(tmp_path):
    text = "id,a,b,c,died\nx,1,-9,text,0\ny,-9,4,text,1\nz,3,4,text,0\n"
    options = {"keep_columns": ("a", "b"), "missing": "median", "missing_values": {"*": (-9,)}}
    data = table(tmp_path / "a.csv", text, **options)
    assert data.columns == ("a", "a missing", "b", "b missing")
    assert data.x.tolist() == [[1, 0, 4, 1], [2, 1, 4, 0], [3, 0, 4, 0]]
    with pytest.raises(ConfigError, match=r"data.drop_columns: column a of .* in keep_columns too"):
        table(tmp_path / "a.csv", text, keep_columns=("a",), drop_columns=("a",))
