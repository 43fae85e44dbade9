import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pomona.core.errors import DataError, OutOfMemoryError
from pomona.data import data_settings, npz, read
from pomona.data.catalogue import CATALOGUE

X, Y = np.arange(12.0).reshape(4, 3) ** 2, np.array([0, 2, 1, 2])
IMAGES = np.arange(4 * 6 * 6, dtype=np.uint8).reshape(4, 6, 6)


def load(tmp_path, arrays, save=np.savez, **settings):
    save(tmp_path / "own.npz", **arrays)
    return read(data_settings(name="arrays", path=tmp_path / "own.npz", **settings))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", ">f4", "i2", "?", "f2"])
def test_tables_in_any_order_and_type(tmp_path, save, order, dtype):
    x = np.asarray(X % 256 if dtype == "f2" else X, dtype, order=order)
    data = load(tmp_path, {"x": x, "y": Y}, save)
    np.testing.assert_array_equal(data.x, x.astype(np.float32))
    assert (data.kind, data.n_train, data.classes) == ("table", 4, ("0", "1", "2"))
    np.testing.assert_allclose(data.shift, x.astype(float).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(
        data.scale, np.where(np.ptp(x.astype(float), axis=0) > 0, x.astype(float).std(axis=0), 1)
    )


def test_test_part_and_names(tmp_path):
    arrays = {"x_train": X, "y_train": Y, "x_test": X[:2] + 100, "y_test": Y[:2]}
    arrays["classes"] = np.array(["a", "b", "c"])
    data = load(tmp_path, arrays)
    assert (data.n_train, len(data), data.classes) == (4, 6, ("a", "b", "c"))
    assert data.notes == ()
    (note,) = load(tmp_path, {**arrays, "clients": Y}).notes
    assert note.startswith("arrays that are not read: clients;")
    np.testing.assert_allclose(data.shift, X.mean(axis=0))  # the test rows do not count
    assert load(tmp_path, arrays, classes=("p", "q", "r", "s")).classes == ("p", "q", "r", "s")


@pytest.mark.parametrize("x", [IMAGES, IMAGES[..., None], np.stack([IMAGES] * 3, axis=-1)])
def test_images(tmp_path, x):
    data = load(tmp_path, {"x": x, "y": Y[:, None]})
    np.testing.assert_array_equal(data.x, x.reshape(4, 6, 6, -1))
    np.testing.assert_array_equal(data.y, Y)


def test_regression_and_flags(tmp_path):
    data = load(tmp_path, {"x": X, "y": X[:, 0]}, targets="regression")
    assert (data.y.shape, data.y.dtype, data.classes, data.n_outputs) == ((4, 1), np.float32, (), 1)
    flags = np.eye(4, 5, dtype=np.uint8)
    data = load(tmp_path, {"x": X, "y": flags}, targets="multilabel")
    np.testing.assert_array_equal(data.y, flags)
    assert (data.n_outputs, data.labels) == (5, ())


def test_flags_and_targets_have_the_names_that_settings_give(tmp_path):
    arrays = {"x": X, "y": np.eye(4, 2, dtype=np.uint8)}
    data = load(tmp_path, arrays, targets="multilabel", classes=("Edema", "Hernia"))
    assert (data.classes, data.labels) == ((), ("Edema", "Hernia"))
    assert load(tmp_path, arrays, targets="regression", classes=("mm", "kg")).labels == ("mm", "kg")
    for names in (("Edema",), ("Edema", "Hernia", "Mass"), ("Edema", "Edema")):
        with pytest.raises(
            DataError, match=r"2 targets, but the names 'Edema'.*; give each its own name"
        ):
            load(tmp_path, arrays, targets="multilabel", classes=names)


def _nan(x, row):
    x = x.copy()
    x[row, 1] = np.nan
    return x


BAD = {
    "no x": ({"z": X}, {}, "no array 'x' (it has z)"),
    "no y": ({"x": X}, {}, "no array 'y'"),
    "no y_test": ({"x": X, "y": Y, "x_test": X}, {}, "no array 'y_test'"),
    "counts": ({"x": X, "y": Y[:3]}, {}, "array x has 4 rows but"),
    "no rows": ({"x": X[:0], "y": Y[:0]}, {}, "has no rows; give some"),
    "nan": ({"x": _nan(X, 2), "y": Y}, {}, "array x: 1 rows hold NaN, infinite or too large numbers, first row 2"),
    "nan in the test part": (
        {"x": X, "y": Y, "x_test": _nan(X, 1), "y_test": Y},
        {},
        "array x_test: 1 rows hold NaN",
    ),
    "beyond float32": ({"x": X * 1e300, "y": Y}, {}, "first row 0"),
    "negative label": ({"x": X, "y": Y - 1}, {}, "1 labels are not class numbers from 0 to 99999, first -1 in row 0"),
    "label of no class": (
        {"x": X, "y": Y},
        {"classes": ("a", "b")},
        "2 labels are not class numbers from 0 to 1, first 2 in row 1",
    ),
    "float labels": ({"x": X, "y": Y + 0.5}, {}, "labels are float64, not whole numbers"),
    "text labels": ({"x": X, "y": Y.astype(str)}, {}, "not whole numbers"),
    "one-hot labels": ({"x": X, "y": np.eye(4, dtype=int)}, {}, "not one per row"),
    "objects": ({"x": X.astype(object), "y": Y}, {}, "pickle is never read"),
    "complex": ({"x": X.astype(complex), "y": Y}, {}, "store numbers or texts"),
    "scalar": ({"x": np.array(1.0), "y": Y}, {}, "one entry per row"),
    "vector": ({"x": X[:, 0], "y": Y}, {}, "x is float64 (4,); images are (N, H, W) or (N, H, W, C)"),
    "images of 32 bits": ({"x": IMAGES.astype(np.int32), "y": Y}, {}, "float32, not int32; store one of these"),
    "images of flags": ({"x": IMAGES > 7, "y": Y}, {}, "float32, not bool"),
    "a pixel that is not a number": ({"x": _nan(IMAGES / 255, 2), "y": Y}, {}, "x: 1 rows hold NaN"),
    "a pixel beyond float32": ({"x": IMAGES * 1e300, "y": Y}, {}, "x: 4 rows hold NaN, infinite or too large"),
    "volumes without channels": ({"x": np.zeros((4, 6, 6, 6)), "y": Y}, {}, "1 if gray"),
    "images without rows": ({"x": np.zeros((4, 0, 6)), "y": Y}, {}, "no empty axis"),
    "channels first": ({"x": np.zeros((4, 3, 6, 6), np.uint8), "y": Y}, {}, "channels last"),
    "infinite target": ({"x": X, "y": X[:, 0] + np.inf}, {"targets": "regression"}, "array y: 4 rows hold NaN"),
    "text targets": ({"x": X, "y": Y.astype(str)}, {"targets": "regression"}, "regression needs numbers"),
    "flag of two": (
        {"x": X, "y": np.eye(4) * 2},
        {"targets": "multilabel"},
        "4 rows hold flags other than 0 and 1, first row 0",
    ),
    "parts of different width": ({"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y}, {}, "same shape"),
    "classes named twice": ({"x": X, "y": Y}, {"classes": ("a", "b", "a")}, "same name"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_archives(tmp_path, case):
    arrays, settings, message = BAD[case]
    with pytest.raises(DataError) as caught:
        load(tmp_path, arrays, **settings)
    assert message in str(caught.value)
    assert "own.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def _write(path, header, body):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header + body)


def _npy(shape, body=b"", dtype="<f8"):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\1\0" + (len(text) + 1).to_bytes(2, "little") + text + b"\n" + body


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_npy((10**12,), b"12345678"), "more memory than a reader process may have"),
        (_npy((1,), b"1234567"), "expected 8 bytes got 7"),
        (_npy((-1, -1), b"12345678"), "cannot read"),
        (_npy((1,), b"12345678", "|O"), "pickle is never read"),
        (b"\x93NUMPY\1\0\5\0nope\n", "cannot read .*array x"),
        (b"\x93NUMPY\1\0\x0b\0{'shape': (\n", "cannot read .*array x"),
        (b"\x93NUMPY\1\0\x0d\0{'shape': 2Px\n", "cannot read .*array x"),
        (b"\x93NUMPY\7\0", "cannot read .*array x"),
        (b"", "cannot read .*array x"),
    ],
)
def test_headers_that_lie(tmp_path, content, message):
    _write(tmp_path / "a.npz", content, b"")
    with pytest.raises((DataError, OutOfMemoryError), match=message):
        npz.archive(tmp_path / "a.npz")


def test_damaged_archives(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, x=X, y=Y)
    content = path.read_bytes()
    settings = data_settings(name="arrays", path=path)
    path.write_bytes(content[:-40])
    with pytest.raises(DataError, match=r"cannot read .*own.npz"):
        read(settings)
    body = content.index(X.tobytes())
    path.write_bytes(content[:body] + b"?" + content[body + 1 :])
    with pytest.raises(DataError, match="Bad CRC"):
        read(settings)
    path.write_bytes(b"x,y\n1,2\n")
    with pytest.raises(DataError, match="not a zip file"):
        read(settings)


@pytest.mark.long
@given(
    hnp.arrays(
        st.sampled_from(["<f4", ">i2", "u1"]),
        hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5),
    ),
    st.sampled_from("CF"),
)
def test_any_array_comes_back(tmp_path_factory, array, order):
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    np.savez_compressed(path, x=np.asarray(array, order=order))
    back = npz.archive(path)["x"].values
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_rows_larger_than_a_chunk(tmp_path):
    x = np.arange(3 * 700 * 700 * 3, dtype=np.uint32).astype(np.uint8).reshape(3, 700, 700, 3)
    for order in "CF":
        data = load(tmp_path, {"x": np.asarray(x, order=order), "y": Y[:3]})
        np.testing.assert_array_equal(data.x, x)


def medmnist(tmp_path, name, channels, labels, n=(5, 2, 3), **changes):
    arrays = {}
    for split, rows in zip(("train", "val", "test"), n, strict=True):
        shape = (rows, 28, 28) if channels == 1 else (rows, 28, 28, channels)
        arrays[f"{split}_images"] = np.full(shape, len(arrays) + 1, np.uint8)
        arrays[f"{split}_labels"] = labels(rows)
    np.savez_compressed(tmp_path / f"{name}.npz", **(arrays | changes))
    return data_settings(name=name, dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "channels"), [("organamnist", 1), ("pathmnist", 3), ("bloodmnist", 3), ("octmnist", 1)]
)
def test_medmnist(tmp_path, name, channels):
    settings = medmnist(
        tmp_path, name, channels, lambda n: np.arange(n, dtype=np.uint8)[:, None] % 4
    )
    data = read(settings)
    assert (data.x.shape, data.n_train, data.classes) == (
        (10, 28, 28, channels),
        7,
        CATALOGUE[name].classes,
    )
    assert data.x[:, 0, 0, 0].tolist() == [1] * 5 + [3] * 2 + [5] * 3  # train, then val, then test
    assert data.y.tolist() == [0, 1, 2, 3, 0, 0, 1, 0, 1, 2]


def test_medmnist_is_centred_as_8_bits_in_any_dtype(tmp_path):
    images = {f"{split}_images": np.full((1, 2, 2), 255.0) for split in ("train", "val", "test")}
    labels = lambda n: np.zeros((n, 1), np.uint8)  # noqa: E731
    data = read(medmnist(tmp_path, "octmnist", 1, labels, n=(1, 1, 1), **images))
    assert (data.shift, data.scale, data.learn) == ((127.5,), (127.5,), None)


def test_chestmnist_has_flags(tmp_path):
    data = read(medmnist(tmp_path, "chestmnist", 1, lambda n: np.eye(n, 14, dtype=np.uint8)))
    assert (data.y.dtype, data.n_outputs, data.classes) == (np.float32, 14, ())
    assert (len(data.labels), data.labels[0], data.labels[13]) == (14, "atelectasis", "hernia")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_images": np.zeros((3, 28, 28, 28), np.uint8)}, "1 if gray"),
        (
            {"val_labels": np.full((2, 1), 11, np.uint8)},
            "2 labels are not class numbers from 0 to 10, first 11 in row 0",
        ),
        ({"train_labels": np.zeros((4, 1), np.uint8)}, "train_images has 5 rows"),
    ],
)
def test_bad_medmnist(tmp_path, changes, message):
    settings = medmnist(tmp_path, "organamnist", 1, lambda n: np.zeros((n, 1), np.uint8), **changes)
    with pytest.raises(DataError, match=message):
        read(settings)


def test_two_arrays_of_one_name_are_refused(tmp_path):
    load(tmp_path, {"x": X, "y": Y})
    with (
        zipfile.ZipFile(tmp_path / "own.npz", "a") as archive,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        archive.writestr("x.npy", archive.read("x.npy"))
    with pytest.raises(DataError, match="two arrays named 'x'"):
        read(data_settings(name="arrays", path=tmp_path / "own.npz"))


def test_an_array_that_is_encrypted_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(6))
    raw = bytearray(path.read_bytes())
    for signature, flag in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(signature) + flag] |= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match="encrypted"):
        npz.archive(path)
