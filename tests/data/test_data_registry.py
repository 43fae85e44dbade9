import os
import subprocess
import sys
import tempfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits

from pomona.core.errors import ConfigError, DataError, StorageError
from pomona.core.registry import load
from pomona.core.rng import stream
from pomona.data import DATASETS, Dataset, Owners, data_settings, describe, read
from pomona.data.axes import CONTENTS
from pomona.data.dataset import RowGroups
from pomona.data.images.image_arrays import resized
from pomona.storage import mapped_array


def test_digits_are_stretched_exactly():
    data = read(data_settings())
    source = load_digits()
    assert (data.name, data.x.shape, data.n_train, len(data.classes)) == (
        "digits",
        (1797, 8, 8, 1),
        1797,
        10,
    )
    np.testing.assert_array_equal(np.rint(data.x[..., 0] * (16 / 255)), source.images)
    assert (data.x.min(), data.x.max()) == (0, 255)
    np.testing.assert_array_equal(data.y, source.target)


def test_breast_cancer_is_standardised():
    data = read(data_settings(name="breast-cancer"))
    z = (data.x.astype(float) - data.shift) / data.scale
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(z.std(axis=0), 1, rtol=1e-10)
    np.testing.assert_array_equal(data.y, load_breast_cancer().target)
    assert (data.classes, data.kind) == (("malignant", "benign"), "table")


def test_every_name_has_a_reader_and_a_line():
    listing = {line.name: line for line in describe()}
    assert list(listing) == [*DATASETS, *CONTENTS]
    for name in DATASETS:
        assert callable(load(DATASETS[name]))
        assert listing[name].about
        assert listing[name].where


def test_listing_says_what_is_there(tmp_path):
    (tmp_path / "pathmnist.npz").touch()
    listing = {line.name: line for line in describe(tmp_path)}
    assert (listing["pathmnist"].present, listing["pathmnist"].where) == (
        True,
        str(tmp_path / "pathmnist.npz"),
    )
    assert (listing["mnist"].present, listing["mnist"].where) == (
        False,
        "fetch MNIST (LeCun, Cortes, Burges), IDX files",
    )
    assert (listing["digits"].present, listing["table"].present) == (True, None)


def test_import_and_listing_stay_light():
    code = (
        "import sys, pomona.data as d; d.describe(); print({'torch', 'sklearn', 'scipy', "
        "'PIL', 'safetensors'} & set(sys.modules))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert process.stdout == "set()\n"


def test_unknown_names():
    with pytest.raises(ConfigError, match="did you mean mnist"):
        read(data_settings(name="mnits"))
    with pytest.raises(ConfigError, match="cannot load"):
        read(data_settings(name="no.module:here"))
    with pytest.raises(ConfigError, match="not a function"):
        read(data_settings(name="math:pi"))


def own_table(settings):
    return np.arange(6).reshape(3, 2), np.array([0, 2, 1])


def own_images(settings):
    return np.zeros((2, 5, 5), np.uint8), [1, 0]


def own_dataset(settings):
    return Dataset("mine", "table", np.ones((2, 1), np.float32), np.array([0, 1]), ("a", "b"), 1)


def own_targets(settings):
    return np.ones((2, 1)), np.array([0.5, 1.5])


def own_integers(settings):
    return np.zeros((2, 5, 5), np.int64), [0, 1]


def own_nan(settings):
    return np.array([[0.0], [np.nan]]), [0, 1]


def own_uneven(settings):
    return np.zeros((2, 5)), [0, 1, 1]


def own_objects(settings):
    return np.array(["a", "b"]), [0, 1]


def own_ragged(settings):
    return [[1, 2], [3]], [0, 1]


def no_dataset(settings):
    return None


def test_own_functions():
    data = read(data_settings(name=f"{__name__}:own_table"))
    assert (data.kind, data.x.dtype, data.classes, data.n_train) == (
        "table",
        np.float32,
        ("0", "1", "2"),
        3,
    )
    data = read(data_settings(name=f"{__name__}:own_images", classes=("p", "q")))
    assert (data.x.shape, data.y.tolist(), data.classes) == ((2, 5, 5, 1), [1, 0], ("p", "q"))
    assert read(data_settings(name=f"{__name__}:own_dataset")).name == "mine"
    assert read(data_settings(name=f"{__name__}:own_targets", targets="regression")).y.tolist() == [
        [0.5],
        [1.5],
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_integers", "float32, not int64"),
        ("own_nan", "first row 1"),
        ("own_uneven", "x has 2 rows but .*y has 3"),
        ("own_objects", "give numbers"),
        ("own_ragged", "own_ragged, x: list is not an array"),
        ("no_dataset", "returned NoneType"),
        ("own_targets", "not whole numbers"),
    ],
)
def test_bad_own_functions(name, message):
    with pytest.raises(DataError, match=message):
        read(data_settings(name=f"{__name__}:{name}"))


OWNED = Dataset(
    "own", "table", np.ones((20, 1), np.float32), np.arange(20) % 2, ("a", "b"), 20, columns=("v",),
    owners=Owners(("n", "s"), np.arange(20) // 10, np.zeros(20, np.int8)),
    groups=RowGroups("g", np.arange(20)),
)  # fmt: skip
BAD_FIELDS = {
    "owners of two rows": (
        {"owners": Owners(("n", "s"), np.arange(2), np.zeros(2, np.int8))},
        r"client of the owners is int64 \(2,\), not int64 \(20,\)",
    ),
    "labels of two rows": ({"y": np.arange(2)}, "20 inputs but 2 labels"),
    "groups of two rows": ({"groups": RowGroups("g", np.arange(2))}, r"groups are int64 \(2,\)"),
    "one axis": ({"x": np.ones(20, np.float32)}, r"x is float32 \(20,\)"),
    "a column without a name": ({"columns": ("",)}, "one of the columns has an empty name"),
    "a long name": ({"columns": ("v" * 501,)}, "has an empty name or one over 500 characters"),
    "no labels": ({"y": None}, "y is a NoneType; give a NumPy array"),
    "masked cells": (
        {"x": np.ma.masked_array(np.ones((20, 1), np.float32), mask=True)},
        "x is a MaskedArray; give a NumPy array .*, NaN where a value is missing",
    ),
    "a list of owners": (
        {"owners": Owners(("n", "s"), [0, 1] * 10, np.zeros(20, np.int8))},
        "client of the owners is a list; give a NumPy array",
    ),
    "no array": ({"x": [[1.0]] * 20}, "x is a list; give a NumPy array"),
    "infinite at one client": (
        {"x": np.where(np.arange(20) < 10, np.inf, 1).astype(np.float32)[:, None]},
        "x: 10 rows hold NaN, infinite or too large numbers",
    ),
}


@pytest.mark.parametrize("case", BAD_FIELDS)
def test_an_own_data_set_is_checked_before_its_clients_are_compared(case, monkeypatch):
    changes, message = BAD_FIELDS[case]
    monkeypatch.setitem(globals(), "own_dataset", lambda _: replace(OWNED, **changes))
    with pytest.raises(DataError, match=message):
        read(data_settings(name=f"{__name__}:own_dataset"))


def own_classes(_):
    return read(data_settings())


def test_targets_must_fit():
    with pytest.raises(ConfigError, match=r"digits has classes; drop data\.targets = regression"):
        read(data_settings(name=f"{__name__}:own_classes", targets="regression"))


def images(n, height, width, channels):
    x = stream(0, "images").integers(0, 256, (n, height, width, channels), np.uint8)
    return Dataset("it", "image", x, np.zeros(n, np.int64), ("a",), n, (127.5,), (127.5,))


@pytest.mark.parametrize(
    ("height", "width", "channels", "side"),
    [(32, 32, 3, 28), (8, 8, 1, 28), (5, 9, 2, 4), (1, 1, 4, 3)],
)
def test_resize(height, width, channels, side):
    data = images(3, height, width, channels)
    small = resized(data, side, 0.25)
    assert (small.x.shape, small.x.dtype) == ((3, side, side, channels), np.uint8)
    # A triangle as wide as the shrinking factor, normalised, along each axis.
    expected = data.x.astype(float)
    for axis, n in ((1, height), (2, width)):
        width_of = max(1.0, n / side)
        centre = (np.arange(side)[:, None] + 0.5) * n / side
        weight = np.maximum(0, 1 - np.abs((np.arange(n) + 0.5 - centre) / width_of))
        expected = np.moveaxis(
            np.tensordot(weight / weight.sum(1, keepdims=True), expected, (1, axis)), 0, axis
        )
    np.testing.assert_allclose(small.x, expected, atol=1.01)  # Pillow rounds after each axis
    if channels == 3:
        np.testing.assert_array_equal(
            small.x[0], Image.fromarray(data.x[0]).resize((side, side), Image.Resampling.BILINEAR)
        )
    assert resized(data, side, 1e-15).fingerprint == small.fingerprint


def test_resize_leaves_alone_what_fits():
    data = images(2, 6, 6, 1)
    assert resized(data, None, 0.25) is data
    assert resized(data, 6, 0.25) is data
    assert read(data_settings(resize=12)).x.shape == (1797, 12, 12, 1)
    with pytest.raises(ConfigError, match="resize"):
        resized(replace(data, kind="table", x=np.zeros((2, 3), np.float32)), 6, 0.25)


def test_allocate():
    small = mapped_array.allocate((3, 2), np.float32, 0.25)
    assert not isinstance(small, np.memmap)
    mapped = mapped_array.allocate((3, 2), np.float32, 1e-15)
    assert isinstance(mapped, np.memmap)
    mapped[...] = 5
    assert (mapped.sum(), mapped.shape, mapped.dtype) == (30, (3, 2), np.float32)
    assert mapped_array.allocate((0, 2), np.float32, 1e-15).shape == (0, 2)
    edge = mapped_array.machine_memory() // 4
    assert not isinstance(mapped_array.allocate((edge,), np.uint8, 0.25), np.memmap)


def test_no_file_stays_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mapped = mapped_array.allocate((10,), np.uint8, 1e-15)
    mapped[:] = 1
    assert list(tmp_path.iterdir()) == []


def test_no_room_on_disk(monkeypatch):
    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full_disk, raising=False)
    with pytest.raises(StorageError, match="TMPDIR"):
        mapped_array.allocate((10,), np.uint8, 1e-15)


@pytest.mark.parametrize(
    "settings",
    [
        {"test_share": 0}, {"test_share": 1}, {"validation_share": 1}, {"validation_share": -0.1}, {"train_limit": 0},
        {"resize": 0}, {"memory_share": 0}, {"vocabulary_size": 1}, {"sequence_length": 0}, {"targets": "other"},
        {"split": "mine"}, {"unknown": 1}, {"clients": ({"name": "", "train": "a.csv"},)},
    ],
)  # fmt: skip
def test_settings_refuse(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        data_settings(name="mine:rows", **settings)


def test_columns_are_numbers_or_names():
    assert data_settings(
        name="text", label_column="-1", text_columns=("2", "body")
    ).text_columns == (2, "body")
