"""Data and models from others, read as training data and by ``pomona predict``."""

import gzip
import io
import json
import struct
import tempfile
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import tifffile
from edits import JSON, Valid, damaged, edited, inputs
from hypothesis import strategies as st
from PIL import Image
from targets import TARGETS, Target, target

from data.image_files import write_dicom, write_nifti, write_series
from personal.crafted import craft, good, tree
from pomona.data import data_settings, read
from pomona.personal import PersonalModel
from pomona.personal.inputs import read as read_inputs

ROWS = np.array([[3.0, 5.0], [-1.0, 40.0]], np.float32)


def archive(**arrays):
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def picture(file_format):
    content = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(content, file_format)
    return content.getvalue()


def idx(array):
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


TABLE = b"age,dose,site,sick\n" + b"".join(
    b"%d,%d.5,%s,%d\n" % (i, i, b"AB"[i % 2 : i % 2 + 1], i % 2) for i in range(12)
)


def parquet():
    """A table with a text, a date, a dictionary and gaps."""
    content = io.BytesIO()
    columns = {"age": [*range(11), None], "day": [date(2020, 1, 1 + i) for i in range(12)]}
    columns |= {"site": pa.array(list("AB" * 6)).dictionary_encode(), "sick": [0, 1] * 6}
    pyarrow.parquet.write_table(pa.table(columns), content)
    return content.getvalue()


TEXTS = b"sick,body,title\n" + b'0,"up, and ""down""",first\n1,down,second\n' * 4
X, Y = np.arange(96, dtype=np.float32).reshape(24, 4), np.arange(24) % 3
CSV = {"name": "table", "label_column": "sick", "client_column": "site"}
FILES = {
    "table.csv": (TABLE, CSV),
    "table.csv, without a header": (TABLE.partition(b"\n")[2], {"name": "table", "label_column": -1, "client_column": 2}),
    "table.parquet": (parquet(), CSV),
    "texts.csv": (TEXTS, {"name": "text", "label_column": "sick", "text_columns": ("body", "title")}),
    "table.npz": (archive(x=X, y=Y, x_test=X[:6], y_test=Y[:6]), {"name": "arrays"}),
    "targets.npz": (archive(x=X, y=X[:, :2]), {"name": "arrays", "targets": "regression"}),
    "flags.npz": (archive(x=X, y=(X[:, :2] % 2).astype(int)), {"name": "arrays", "targets": "multilabel"}),
    "images.npz": (archive(x=np.zeros((24, 8, 8, 1), np.uint8), y=Y), {"name": "arrays"}),
    "medical.npz": (
        archive(**{f"{p}_{k}": a for p in ("train", "val", "test") for k, a in (("images", np.zeros((6, 28, 28), np.uint8)), ("labels", Y[:6, None] % 2))}),
        {"name": "pneumoniamnist"},
    ),
}  # fmt: skip


def as_data(name, world):
    """One custom data file."""
    data, section = FILES[name]
    folder = world.folder / "data" / name
    folder.mkdir(parents=True)
    path = folder / {"medical.npz": "pneumoniamnist.npz"}.get(name, name.partition(",")[0])

    def act(data):
        path.write_bytes(data)
        dataset = read(data_settings(**section, path=path))
        assert len(dataset.x) == len(dataset.y)

    return inputs(Valid(data)), act


TARGETS += [Target(f"{name}, read for training", 20, partial(as_data, name)) for name in FILES]


def one_file(files, changed, section, world):
    """One of several custom data files."""
    folder = world.folder / "data" / changed.replace("/", "-")

    def act(data):
        for name, content in {**files, changed: data}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        dataset = read(data_settings(path=folder, **section))
        assert len(dataset.x) == len(dataset.y)

    return inputs(Valid(files[changed])), act


IMAGES, LABELS = np.zeros((6, 5, 5), np.uint8), (np.arange(6) % 10).astype(np.uint8)
IDX = {"train-images-idx3-ubyte": idx(IMAGES), "train-labels-idx1-ubyte": idx(LABELS)}
IDX |= {
    "t10k-images-idx3-ubyte.gz": gzip.compress(idx(IMAGES)),
    "t10k-labels-idx1-ubyte.gz": gzip.compress(idx(LABELS)),
}
CLASSES = {f"{c}/{i}.png": picture("png") for c in "ab" for i in range(3)} | {
    "b/3.jpg": picture("jpeg"),
    "a/3.gif": picture("gif"),
}
CLIENTS = {"one.csv": TABLE, "two.csv": TABLE}


def medical():
    """A volume, a slice, a series of slices, 16-bit images and a manifest of them."""
    volume = np.arange(60, dtype=np.int16).reshape(5, 4, 3)
    rgb = io.BytesIO()
    tifffile.imwrite(rgb, np.arange(36, dtype=np.uint16).reshape(4, 3, 3), photometric="rgb")
    gray = io.BytesIO()
    Image.fromarray(np.arange(12, dtype=np.uint16).reshape(4, 3)).save(gray, "png")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        paths = {
            "in/v.nii": write_nifti(directory / "v.nii", volume),
            "in/v.nii.gz": write_nifti(directory / "v.nii.gz", volume),
        }
        paths["in/1.dcm"] = write_dicom(directory / "1.dcm", volume[0])
        paths |= {
            f"ct/{path.name}": path for path in write_series(directory / "ct", volume).iterdir()
        }
        files = {name: path.read_bytes() for name, path in paths.items()}
    listed = ["path,label,client,split,group"]
    listed += [f"{name},a,A,train,{k}" for k, name in enumerate(("in/v.nii", "in/v.nii.gz", "ct"))]
    return files | {
        "list.csv": "\n".join(listed).encode(),
        "in/w.tif": rgb.getvalue(),
        "in/d.png": gray.getvalue(),
    }


MEDICAL = medical()
VOLUMES = {f"a/{name}": MEDICAL[f"in/{name}"] for name in ("v.nii", "v.nii.gz")}
FLAT = {f"a/{name}": MEDICAL[f"in/{name}"] for name in ("1.dcm", "d.png", "w.tif")}


def within(files, changed, section, world):
    """One file in a folder of images, for one class, or in a manifest."""
    path = world.folder / "data" / changed.replace("/", "-")
    path = path / "list.csv" if "list.csv" in files else path

    def act(data):
        for name, content in {**files, changed: data}.items():
            file = (path.parent if path.suffix else path) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        dataset = read(data_settings(path=path, **section))
        assert len(dataset.x) == len(dataset.y) > 0

    return inputs(Valid(files[changed])), act


TARGETS += [
    Target(f"{name}, among images of more than 8 bits", 20, partial(within, files, name, section))
    for files, section, names in (
        *(
            ({name: content}, {"name": "images", "skip_bad": name == "a/1.dcm"}, (name,))
            for name, content in FLAT.items()
        ),
        (VOLUMES, {"name": "images"}, VOLUMES),
        (MEDICAL, {"name": "images"}, ("list.csv", "ct/s002.dcm")),
    )
    for name in names
]
TARGETS += [
    Target(f"{name}, read for training", 20, partial(one_file, files, name, section))
    for files, section, names in (
        (IDX, {"name": "images", "format": "idx"}, IDX),
        (CLASSES, {"name": "images"}, ("a/0.png", "b/3.jpg", "a/3.gif")),
    )
    for name in names
]


# Models and what they are asked.


@target("model file, asked by predict", 7)
def model(world):
    path = good(world.folder / "model.safetensors")
    predictions, content = PersonalModel.load(path).predict(ROWS), path.read_bytes()

    def act(data):
        path.write_bytes(data)
        assert PersonalModel.load(path).predict(ROWS) == predictions

    return inputs(Valid(content)), act


@target("model file, well sealed, asked by predict", 10)
def sealed(world):
    path = world.folder / "sealed.safetensors"

    def act(data):
        try:
            craft(path, json.loads(data))
        except (ValueError, UnicodeError, RecursionError, TypeError, AttributeError):
            return "absent"  # nobody can seal what is no JSON object
        answers = PersonalModel.load(path).predict(ROWS)
        assert len(answers) == len(ROWS)
        json.dumps(answers, allow_nan=False)
        return "taken"

    return edited(Valid(json.dumps(tree()).encode(), JSON)), act


INPUTS = {
    "rows.csv": b"age,site,dose\n3,Ulm,5\n30,Aue,0.5\n",
    "rows.npz": archive(x=ROWS),
    "image.png": picture("png"),
    "rows.txt": "up and down\nÄrger\n".encode(),
}


def predicted(name, world):
    """A file of inputs for a table model; an image is not valid input for it."""
    folder = world.folder / "asked" / name
    folder.mkdir(parents=True)
    model = PersonalModel.load(good(folder / "model"))

    def act(data):
        (folder / name).write_bytes(data)
        json.dumps(model.predict(read_inputs(folder / name, model.about).x), allow_nan=False)

    return st.one_of(damaged(Valid(INPUTS[name])), inputs(Valid(INPUTS[name]))), act


TARGETS += [Target(f"{name}, asked of a model", 17, partial(predicted, name)) for name in INPUTS]
