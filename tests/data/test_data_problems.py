"""All problems of data in one error: by column for a table, by file for images."""

import os
import re
import socket
from zlib import compress, crc32

import numpy as np
import pytest
from PIL import Image

from pomona.core.errors import ConfigError, DataError
from pomona.data import data_settings, read

N = 40


def hospital(path):
    """A table as hospitals export it: identifier, dates, categories, gaps, decimal comma, outlier,
    odd labels.
    """
    rows = ["patient,visit,sex,age,lactate,creatinine,weight,ward,died"]
    for k in range(N):
        lactate = "" if k % 4 == 1 else f"{k / 10}"
        weight = "n.m." if k == 6 else "70.5"
        died = {3: "", 5: "NA", 8: "yes"}.get(k, "no")
        rows.append(
            f'P{k:04d},2024-03-{k % 28 + 1:02d},{"FM"[k % 2]},{30 + k},{lactate},"0,{k}",{weight},{k % 3},{died}'
        )
    path.write_text("\n".join(rows) + "\n")
    return path


def refused(**settings):
    with pytest.raises(DataError) as caught:
        read(data_settings(**settings))
    return caught.value


def test_a_table_is_told_all_that_is_wrong_with_it_in_one_go(tmp_path):
    fault = refused(name="table", path=hospital(tmp_path / "h.csv"), label_column="died")
    lines = fault.text().splitlines()
    assert lines == [
        f"error[DATA]: {tmp_path / 'h.csv'} has 8 problems:",
        "  label column died: 1 of 40 are empty, first in line 5; "
        "every row needs a label; leave these rows out (tables: data.unlabelled=drop)",
        "  label column died: 1 of 40 are 'NA', first in line 7; every row needs a label; leave "
        "these rows out (tables: data.unlabelled=drop), or name it in data.classes",
        "  column patient: 40 of 40 are not finite numbers, first 'P0000' in line 2: an "
        "identifier, or texts?",
        "  column visit: 40 of 40 are not finite numbers, first '2024-03-01' in line 2: dates",
        "  column sex: 40 of 40 are not finite numbers, first 'F' in line 2: a category? (F, M)",
        "  column lactate: 10 of 40 cells are gaps, first '' in line 3",
        "  column creatinine: 40 of 40 are not finite numbers, first '0,0' in line 2: decimal "
        "commas?",
        "  column weight: 1 of 40 are not finite numbers, first 'n.m.' in line 8",
        "  gaps: fill them with medians and flag them, data.missing=median",
        "  commas in numbers: if they are decimal marks, data.decimal=comma; if they separate "
        "thousands, data.decimal=point, or remove them",
        """  dates: read them as days, 'data.dates=["visit"]'""",
        "  single cells: correct them, take out their rows, or, if they mark gaps, "
        """'data.missing_values={weight = ["n.m."]}'""",
        """  categories: one column of 0 and 1 for each value, 'data.categories=["sex"]'""",
        "  to leave columns out: "
        """'data.drop_columns=["patient", "visit", "sex", "lactate", "creatinine"]'""",
    ]
    assert "\n" not in str(fault)
    assert all(line.strip() in str(fault) for line in lines[1:])


def test_what_the_message_advises_mends_the_table(tmp_path):
    path = hospital(tmp_path / "h.csv")
    path.write_text(
        path.read_text().replace("n.m.", "70").replace(",NA", ",no").replace("0,\n", "0,no\n")
    )
    advised = re.search(
        r"'data\.drop_columns=(\[.*?\])'",
        str(refused(name="table", path=path, label_column="died", drop_columns=("patient",))),
    )
    dropped = tuple(re.findall(r'"(\w+)"', advised[1]))
    data = read(data_settings(name="table", path=path, label_column="died", drop_columns=dropped))
    assert (data.x.shape, data.classes) == ((N, 3), ("no", "yes"))
    assert data.columns == ("age", "weight", "ward")
    assert set(dropped) < set(data.others)


def test_columns_are_left_out_by_name_or_number(tmp_path):
    (tmp_path / "a.csv").write_text("x,1,5\ny,2,6\n")
    by_number = read(
        data_settings(name="table", path=tmp_path / "a.csv", label_column=-1, drop_columns=("0",))
    )
    assert (by_number.x.tolist(), by_number.classes) == ([[1], [2]], ("5", "6"))
    for dropped, message in (
        (("2",), "is the label or the client"),
        (("5",), r"data.drop_columns: .* no column 5"),
    ):
        with pytest.raises(ConfigError, match=message):
            read(
                data_settings(
                    name="table", path=tmp_path / "a.csv", label_column=-1, drop_columns=dropped
                )
            )
    path = tmp_path / "b.odd"
    path.write_text("id,age,y\n7,1,5\n8,2,6\n")
    message = r"no column 'idd'; did you mean id\?.*; it was read as CSV: no format .* '\.odd'"
    with pytest.raises(ConfigError, match=message):
        read(data_settings(name="table", path=path, label_column="y", drop_columns=("idd",)))


@pytest.mark.parametrize("n", [20, 21, 500])
def test_of_many_problems_twenty_are_shown_and_the_rest_counted(tmp_path, n):
    rows = "".join(f"1,2{',3' * (k < n)}\n" for k in range(n + 1))
    (tmp_path / "a.csv").write_text("0,1\n" + rows)
    lines = refused(name="table", path=tmp_path / "a.csv", label_column=0).text().splitlines()
    assert lines[0].endswith(f"has {n} problems:")
    assert lines[1] == "  line 2: 3 cells, not 2; complete the line"
    assert len(lines) == (21 if n <= 20 else 22)
    assert n <= 20 or lines[-1] == f"  and {n - 20} more"


def test_rows_without_an_owner_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x,site,y\n1,a,0\n2, ,1\n3,,1\n")
    fault = refused(name="table", path=tmp_path / "a.csv", label_column="y", client_column="site")
    assert "client column site: 2 of 3 rows name no client, first line 3" in str(fault)


@pytest.mark.parametrize("label", ["9" * 5000, "-" + "9" * 5000, "²", "٣", "-", "--1"])
def test_labels_of_odd_digits_are_class_names(tmp_path, label):
    (tmp_path / "a.csv").write_text(f"1,{label}\n2,1\n3,10\n", encoding="utf-8")
    classes = read(data_settings(name="table", path=tmp_path / "a.csv", label_column=1)).classes
    assert set(classes) == {label, "1", "10"}


def test_several_columns_of_flags(tmp_path):
    (tmp_path / "a.csv").write_text("age,mass,edema,site\n1,0,1,a\n2,1,1.0,b\n")
    settings = {
        "name": "table",
        "path": tmp_path / "a.csv",
        "client_column": "site",
        "targets": "multilabel",
    }
    data = read(data_settings(label_columns=("edema", "mass"), **settings))
    assert (data.y.tolist(), data.classes, data.labels) == ([[1, 0], [1, 1]], (), ("edema", "mass"))
    assert (data.x.tolist(), data.y.dtype) == ([[1], [2]], np.float32)
    by_number = read(
        data_settings(label_columns=(1, 2), classes=("Mass", "Edema"), header=True, **settings)
    )
    assert by_number.labels == ("Mass", "Edema")
    with pytest.raises(DataError, match="2 targets, but the names 'Mass'"):
        read(data_settings(label_columns=(1, 2), classes=("Mass",), header=True, **settings))
    for extra, message in (
        ({"label_column": "mass"}, "keep one"),
        ({"targets": "classes"}, "set data.targets = multilabel or regression"),
    ):
        with pytest.raises(ConfigError, match=message):
            read(data_settings(**{**settings, "label_columns": ("mass", "edema"), **extra}))
    real = read(
        data_settings(label_columns=("age", "mass"), **{**settings, "targets": "regression"})
    )
    assert (real.y.tolist(), real.labels, real.columns) == (
        [[1, 0], [2, 1]],
        ("age", "mass"),
        ("edema",),
    )


def pictures(root, names=("cat", "dog"), n=4, size=(6, 4)):
    for name in names:
        (root / name).mkdir(parents=True)
        for k in range(n):
            noise = np.random.Generator(np.random.Philox(k)).integers(
                0, 255, (size[1], size[0], 3), dtype=np.uint8
            )
            Image.fromarray(noise).save(root / name / f"{k}.png")


def test_all_images_that_cannot_be_read_are_named_at_once(tmp_path):
    pictures(tmp_path, n=8)
    cat = tmp_path / "cat"
    (cat / "0.png").write_bytes(b"")
    (cat / "1.png").write_bytes((cat / "1.png").read_bytes()[:-30])
    (cat / "2.png").write_bytes(b"hello")
    Image.new("I;16", (6, 4)).save(cat / "3.png")
    Image.new("L", (5, 5)).save(cat / "4.png")
    (cat / "5.png").unlink()
    os.mkfifo(cat / "5.png")
    (cat / "6.png").unlink()
    (cat / "6.png").symlink_to("nowhere")
    frames = [Image.new("L", (6, 4), k) for k in range(3)]
    frames[0].save(tmp_path / "dog" / "7.tif", save_all=True, append_images=frames[1:])
    lines = refused(name="images", path=tmp_path).text().splitlines()
    assert lines[0] == f"error[DATA]: {tmp_path} has 8 problems:"
    assert lines[1:] == [
        "  cannot read the image cat/0.png (it is empty); replace or remove it",
        "  cannot read the image cat/2.png (it is not PNG, JPEG, BMP, GIF, WEBP, PPM); "
        "replace or remove it",
        "  cannot read cat/5.png (it is a pipe, a socket or a device, not a file)",
        "  cannot read cat/6.png (No such file or directory)",
        lines[5],
        "  images of several sizes: 11 of 6 x 4 (cat/1.png), 1 of 5 x 5 (cat/4.png); set data.resize",
        "  8-bit images do not mix with others (11 of 8 bits (uint8) (cat/1.png), 1 of 16 "
        "bits (uint16) (cat/3.png)); convert all to one, or set data.window if their units are "
        "the same",
        lines[8],
    ]
    assert re.search(r"dog/7.tif contains several pictures \(3 pages", lines[5])
    assert re.fullmatch(
        r"  cannot read the image cat/1\.png \(.*truncated.*\); replace or remove it", lines[8]
    )


def test_no_decoder_is_chosen_by_what_a_file_holds(tmp_path, monkeypatch):
    """Pillow hands PostScript to Ghostscript, a program; whatever its file is called."""
    from PIL import EpsImagePlugin

    monkeypatch.setattr(
        EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was asked for")
    )
    pictures(tmp_path)
    Image.new("RGB", (6, 4)).save(tmp_path / "cat" / "9.eps")
    (tmp_path / "cat" / "9.eps").rename(tmp_path / "cat" / "9.png")
    assert "cat/9.png (it is not PNG" in str(refused(name="images", path=tmp_path))


def bomb(path, side):
    """A PNG whose header declares side x side black pixels, compressed by about a thousand."""

    def chunk(name, body):
        return len(body).to_bytes(4, "big") + name + body + crc32(name + body).to_bytes(4, "big")

    size = side.to_bytes(4, "big") * 2
    chunks = (
        chunk(b"IHDR", size + b"\x08\0\0\0\0"),
        chunk(b"IDAT", compress(bytes(1000))),
        chunk(b"IEND", b""),
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


@pytest.mark.parametrize("side", [8193, 10_000, 60_000])
def test_small_files_that_promise_large_pictures_are_refused(tmp_path, side):
    pictures(tmp_path)
    bomb(tmp_path / "cat" / "9.png", side)
    assert re.search(
        r"cannot read the image cat/9\.png", str(refused(name="images", path=tmp_path))
    )


def test_what_would_be_passed_over_is_refused_or_noted_by_name(tmp_path):
    pictures(tmp_path)
    (tmp_path / "masks").mkdir()
    (tmp_path / ".cache").mkdir()
    Image.new("L", (6, 4)).save(tmp_path / "overview.png")
    for name in ("a.heic", "b.heic", "c.jp2", "notes.txt", "Thumbs.db", ".DS_Store", "IM0001"):
        (tmp_path / "cat" / name).write_bytes(b"?")
    lines = refused(name="images", path=tmp_path).text().splitlines()
    for line, texts in zip(
        lines[1:],
        (
            ("1 images lie in no class (overview.png)", "put them into class folders"),
            ("2 files .heic are not read (cat/a.heic, cat/b.heic)", "HEIF", "PNG or TIFF"),
            ("1 files .jp2 are not read (cat/c.jp2)", "JPEG 2000", "PNG or TIFF"),
            ("masks: no image in it, so no class", "remove it"),
        ),
        strict=True,
    ):
        assert all(text in line for text in texts), line
    for path in (
        tmp_path / "overview.png",
        *tmp_path.glob("cat/*.heic"),
        tmp_path / "cat" / "c.jp2",
    ):
        path.unlink()
    (tmp_path / "masks").rmdir()
    data = read(data_settings(name="images", path=tmp_path))
    assert data.classes == ("cat", "dog")
    assert sorted(note.removeprefix(f"{tmp_path}: ") for note in data.notes) == [
        "1 files .txt are not read (cat/notes.txt)",
        "1 files without a suffix are not read (cat/IM0001)",
    ]


def test_folders_beside_the_parts_are_no_secret(tmp_path):
    for split in ("train", "held_back"):
        pictures(tmp_path / split)
    fault = refused(name="images", path=tmp_path)
    assert "outside of train/, val/ and test/ (held_back/" in str(fault)
    (tmp_path / "held_back").rename(tmp_path / "validation")
    assert read(data_settings(name="images", path=tmp_path)).n_train == 8


def test_classes_that_are_named_may_be_without_images(tmp_path):
    pictures(tmp_path, ("cat",))
    data = read(data_settings(name="images", path=tmp_path, classes=("cat", "dog")))
    assert (data.classes, set(data.y)) == (("cat", "dog"), {0})


@pytest.mark.parametrize("file_type", ["pipe", "socket", "device", "folder"])
@pytest.mark.parametrize("name", ["csv", "npz", "idx", "mnist", "cifar10"])
def test_what_is_no_plain_file_is_never_waited_for(tmp_path, monkeypatch, name, file_type):
    file = tmp_path / {
        "idx": "train-images-idx3-ubyte",
        "mnist": "train-images-idx3-ubyte",
        "cifar10": "cifar-10-binary.tar.gz",
    }.get(name, f"a.{name}")
    monkeypatch.chdir(tmp_path)
    if file_type == "pipe":
        os.mkfifo(file)
    elif file_type == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(file.name)
    elif file_type == "device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    section = {
        "csv": {"path": file, "label_column": 0},
        "npz": {"path": file},
        "idx": {"name": "images", "format": "idx", "path": tmp_path},
    }.get(name, {"name": name, "path": tmp_path})
    with pytest.raises(DataError, match=r"it is a|has no (train\.csv|table)"):
        read(data_settings(**section))
