import gzip
import struct

import numpy as np
import pytest

from pomona.core.errors import ConfigError, DataError
from pomona.data import data_settings, read
from pomona.data.catalogue import CATALOGUE
from pomona.data.idx import stored


def idx_bytes(array: np.ndarray, type_code: int = 0x08) -> bytes:
    return (
        bytes([0, 0, type_code, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def write(path, array, pack=gzip.compress, type_code=0x08):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(idx_bytes(array, type_code)))


def arrays(n, side=5, classes=10):
    x = (np.arange(n * side * side) * 7 % 256).astype(np.uint8).reshape(n, side, side)
    return x, (np.arange(n) % classes).astype(np.uint8)


def write_set(folder, prefix="", test="t10k", suffix=".gz", n=(6, 3), classes=10, first=0):
    pack = gzip.compress if suffix else bytes
    for split, rows in zip(("train", test), n, strict=True):
        x, y = arrays(rows, classes=classes)
        write(folder / f"{prefix}{split}-images-idx3-ubyte{suffix}", x, pack)
        write(folder / f"{prefix}{split}-labels-idx1-ubyte{suffix}", y + np.uint8(first), pack)


@pytest.mark.parametrize("suffix", [".gz", ""])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "fashion_mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
    ],
)
def test_layouts(tmp_path, name, folder, suffix):
    write_set(tmp_path / folder, suffix=suffix)
    data = read(data_settings(name=name, dir=tmp_path))
    train, test = arrays(6), arrays(3)
    np.testing.assert_array_equal(data.x[..., 0], np.concatenate([train[0], test[0]]))
    np.testing.assert_array_equal(data.y, np.concatenate([train[1], test[1]]))
    assert (data.n_train, data.kind, data.classes) == (6, "image", CATALOGUE[name].classes)
    assert (data.x.dtype, data.y.dtype, data.x.shape) == (np.uint8, np.int64, (9, 5, 5, 1))
    # the model sees -1 to 1
    assert (np.array([0, 255]) - data.shift[0]).tolist() == [-data.scale[0], data.scale[0]]


@pytest.mark.parametrize("split", ["byclass", "balanced", "letters"])
@pytest.mark.parametrize("folder", ["emnist", "EMNIST/raw", "emnist/gzip"])
def test_emnist_is_upright(tmp_path, split, folder):
    first = 1 if split == "letters" else 0
    write_set(tmp_path / folder, f"emnist-{split}-", "test", classes=26, first=first, n=(30, 3))
    data = read(data_settings(name=f"emnist-{split}", dir=tmp_path))
    x, y = arrays(30, classes=26)
    np.testing.assert_array_equal(data.x[:30, :, :, 0], x.transpose(0, 2, 1))
    np.testing.assert_array_equal(data.y[:30], y)
    assert len(data.classes) == {"byclass": 62, "balanced": 47, "letters": 26}[split]


def test_path_points_at_a_folder_or_at_the_training_images(tmp_path):
    write_set(tmp_path / "here")
    by_folder = read(data_settings(name="mnist", path=tmp_path / "here"))
    by_file = read(
        data_settings(name="mnist", path=tmp_path / "here" / "train-images-idx3-ubyte.gz")
    )
    assert by_folder.fingerprint == by_file.fingerprint


def test_own_idx_may_lack_a_test_part_and_mix_packed_and_plain(tmp_path):
    x, y = arrays(4, classes=3)
    write(tmp_path / "train-images-idx3-ubyte.gz", x)
    write(tmp_path / "train-labels-idx1-ubyte", y, bytes)
    data = read(data_settings(name="images", format="idx", path=tmp_path))
    assert (data.n_train, len(data), data.classes) == (4, 4, ("0", "1", "2"))
    write(tmp_path / "t10k-images-idx3-ubyte", x, bytes)
    write(tmp_path / "t10k-labels-idx1-ubyte.gz", y)
    assert (len(read(data_settings(name="images", format="idx", path=tmp_path)))) == 8


def test_big_endian_types(tmp_path):
    values = np.array([-3, 70000, 5], ">i4")
    write(tmp_path / "a", values, type_code=0x0C)
    np.testing.assert_array_equal(stored([tmp_path / "a"])[0].values, values)


def test_large_arrays_live_on_disk(tmp_path):
    write_set(tmp_path / "mnist")
    plain = read(data_settings(name="mnist", dir=tmp_path))
    mapped = read(data_settings(name="mnist", dir=tmp_path, memory_share=1e-15))
    assert isinstance(mapped.x, np.memmap)
    assert not isinstance(plain.x, np.memmap)
    assert mapped.fingerprint == plain.fingerprint


def _packed(damage):
    return lambda data: gzip.compress(damage(data))


BAD = {
    "truncated gzip": ("images", lambda b: gzip.compress(b)[:-12], "cannot read"),
    "flipped checksum": ("images", lambda b: gzip.compress(b)[:-8] + b"abcdefgh", "cannot read"),
    "fewer bytes than promised, packed": (
        "images",
        _packed(lambda b: b[:-30]),
        "promises 150 bytes but has 120",
    ),
    "fewer bytes than promised, plain": (
        "images",
        lambda b: b[:-1],
        "promises 150 bytes but has 149",
    ),
    "more bytes than promised": (
        "images",
        _packed(lambda b: b + b"x"),
        "promises 150 bytes but has 151",
    ),
    "wrong magic": ("images", _packed(lambda b: b"PNG!" + b[4:]), "not an IDX file"),
    "unknown type": ("images", _packed(lambda b: b[:2] + b"\x07" + b[3:]), "not an IDX file"),
    "empty file": ("images", lambda b: b"", "not an IDX file"),
    "cut in the header": ("images", _packed(lambda b: b[:9]), "within its header"),
    "absurd size": ("images", _packed(lambda b: b[:4] + b"\xff" * 12 + b[16:]), "promises"),
    "wrong dims": (
        "images",
        lambda b: b[:3] + b"\1" + struct.pack(">I", 6) + b[16:22],
        "uint8 (6,); images are",
    ),
    "too few labels": ("labels", lambda b: idx_bytes(np.zeros(5, np.uint8)), "has 6 rows but"),
    "label out of range": (
        "labels",
        lambda b: b[:-2] + b"\x0a\x0b",
        "2 labels are not class numbers from 0 to 9, first 10 in row 4",
    ),
    "labels of two axes": (
        "labels",
        lambda b: idx_bytes(np.zeros((6, 2), np.uint8)),
        "not one per row",
    ),
    "float labels": (
        "labels",
        lambda b: idx_bytes(np.full(6, 0.5, ">f4"), 0x0D),
        "labels are float32, not whole numbers",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(tmp_path, case):
    content, damage, message = BAD[case]
    write_set(tmp_path / "mnist")
    (path,) = (tmp_path / "mnist").glob(f"train-{content}*")
    path.write_bytes(damage(gzip.decompress(path.read_bytes())))
    with pytest.raises(DataError) as caught:
        read(data_settings(name="mnist", dir=tmp_path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_parts_of_different_shape(tmp_path):
    write_set(tmp_path / "mnist")
    write(tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz", arrays(3, side=4)[0])
    with pytest.raises(DataError, match="same shape"):
        read(data_settings(name="mnist", dir=tmp_path))


def test_missing_files_say_where_and_what(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"MNIST \(LeCun.*POMONA_DATA") as caught:
        read(data_settings(name="mnist", dir=tmp_path))
    assert str(tmp_path / "mnist") in str(caught.value)
    monkeypatch.delenv("POMONA_DATA", raising=False)
    with pytest.raises(DataError, match="point POMONA_DATA or --data-dir"):
        read(data_settings(name="mnist"))
    write_set(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="t10k-labels"):
        read(data_settings(name="mnist", dir=tmp_path))
    with pytest.raises(ConfigError, match=r"data.path"):
        read(data_settings(name="images", format="idx"))
    with pytest.raises(DataError, match="does not exist"):
        read(data_settings(name="images", format="idx", path=tmp_path / "nowhere"))
    with pytest.raises(DataError, match="train-images"):
        read(data_settings(name="images", format="idx", path=tmp_path))


def test_the_environment_names_the_folder(tmp_path, monkeypatch):
    write_set(tmp_path / "mnist")
    monkeypatch.setenv("POMONA_DATA", str(tmp_path))
    assert len(read(data_settings(name="mnist"))) == 9
