import io
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pomona.core.errors import DataError
from pomona.core.rng import stream
from pomona.data import data_settings, read
from pomona.data.catalogue import CATALOGUE
from pomona.data.cifar import restore


def residuals(images: np.ndarray) -> np.ndarray:
    """The forward transform as the format defines it, pixel by pixel: images (N, H, W, 3) to
    residuals (3, N, H, W).
    """
    red, green, blue = np.moveaxis(images.astype(int), -1, 0)
    planes = np.stack([red - green, green, blue - green]) % 256
    differences = np.empty(planes.shape, np.uint8)
    _, _, height, width = planes.shape
    for i in range(height):
        for j in range(width):
            zeros = np.zeros(planes.shape[:2], int)
            left = planes[:, :, i, j - 1] if j else planes[:, :, i - 1, 0] if i else zeros
            above = planes[:, :, i - 1, j] if i else left
            corner = planes[:, :, i - 1, j - 1] if i and j else left
            predicted = np.median([left, above, left + above - corner], axis=0).astype(int)
            differences[:, :, i, j] = (planes[:, :, i, j] - predicted + 128) % 256
    return differences


def restored(coded: np.ndarray) -> np.ndarray:
    images = np.ascontiguousarray(np.moveaxis(coded, 0, -1))
    restore(images)
    return images


@given(
    hnp.arrays(
        np.uint8,
        st.tuples(st.integers(0, 3), st.integers(1, 7), st.integers(1, 7), st.just(3)),
        elements=st.sampled_from([0, 1, 100, 128, 254, 255]),
    )
)
def test_restore_inverts_the_transform(images):
    np.testing.assert_array_equal(restored(residuals(images)), images)


@pytest.mark.parametrize("n", [1, 63, 64, 130])
def test_restore_over_blocks(n):
    images = stream(0, "images").integers(0, 256, (n, 32, 32, 3), np.uint8)
    np.testing.assert_array_equal(restored(residuals(images)), images)


def sample(n, classes, seed):
    source = stream(seed, "sample")
    return source.integers(0, 256, (n, 32, 32, 3), np.uint8), source.integers(0, classes, n)


def compact(folder, name, classes, **changes):
    folder.mkdir()
    (x, y), (x_test, y_test) = sample(5, classes, 1), sample(3, classes, 2)
    arrays = {"x_train_res": residuals(x), "y_train": y}
    arrays |= {"x_test_res": residuals(x_test), "y_test": y_test}
    np.savez_compressed(folder / name, **(arrays | changes))
    return np.concatenate([x, x_test]), np.concatenate([y, y_test])


@pytest.mark.parametrize(
    ("folder", "file", "number"),
    [("cifar10", "cifar10.npz", 10), ("cifar_100", "cifar100_subset.npz", 100)],
)
@pytest.mark.parametrize("memory_share", [0.25, 1e-15])
def test_compact(tmp_path, folder, file, number, memory_share):
    x, y = compact(tmp_path / folder, file, number)
    data = read(data_settings(name=f"cifar{number}", dir=tmp_path, memory_share=memory_share))
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y, y)
    assert data.name == f"cifar{number} (subset: 5 of 50000 training rows)"
    assert (data.n_train, data.classes) == (5, CATALOGUE[f"cifar{number}"].classes)
    assert len(set(data.classes)) == number


def test_images_from_jpeg_are_told(tmp_path):
    copies = {"lossy_train_idx": np.array([1, 2]), "lossy_test_idx": np.array([0])}
    compact(tmp_path / "cifar10", "cifar10.npz", 10, **copies)
    assert read(data_settings(name="cifar10", dir=tmp_path)).name.endswith(
        "(3 images from JPEG copies)"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.zeros(4, int)}, r"not uint8 \(3, 4, 32, 32\)"),
        ({"x_test_res": np.zeros((3, 3, 32, 31), np.uint8)}, "not uint8"),
        ({"y_test": np.array([0, 10, 1])}, "array y_test: 1 labels .* first 10 in row 1"),
    ],
)
def test_bad_compact(tmp_path, changes, message):
    compact(tmp_path / "cifar10", "cifar10.npz", 10, **changes)
    with pytest.raises(DataError, match=message):
        read(data_settings(name="cifar10", dir=tmp_path))


def records(x, *labels):
    planes = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    return np.concatenate(
        [*(np.asarray(y, np.uint8)[:, None] for y in labels), planes], axis=1
    ).tobytes()


def binary(number):
    """The official files of a small data set: name -> bytes, and the arrays they hold."""
    if number == 10:
        names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
        samples = [sample(2 + i, 10, i) for i in range(6)]
        files = {name: records(x, y) for name, (x, y) in zip(names, samples, strict=True)}
    else:
        samples = [sample(4, 100, 1), sample(2, 100, 2)]
        files = {
            f"{split}.bin": records(x, y // 5, y)
            for split, (x, y) in zip(("train", "test"), samples, strict=True)
        }
    return files, np.concatenate([x for x, _ in samples]), np.concatenate([y for _, y in samples])


def as_folder(path, files, number):
    path.mkdir(parents=True)
    for name, content in files.items():
        (path / name).write_bytes(content)


def as_archive(path, files, number):
    path.mkdir(parents=True)
    with tarfile.open(path / f"cifar-{number}-binary.tar.gz", "w:gz") as archive:
        for name, content in reversed(files.items()):  # the official archive is not in order either
            info = tarfile.TarInfo(f"inside/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("number", [10, 100])
@pytest.mark.parametrize("write", [as_folder, as_archive])
def test_binary(tmp_path, number, write):
    files, x, y = binary(number)
    write(tmp_path / f"cifar{number}", files, number)
    data = read(data_settings(name=f"cifar{number}", dir=tmp_path))
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y, y)
    assert data.n_train == len(y) - len(
        files["test_batch.bin" if number == 10 else "test.bin"]
    ) // (3073 + number // 100)


def test_binary_in_its_own_folder(tmp_path):
    files, x, _ = binary(10)
    as_folder(tmp_path / "cifar-10-batches-bin", files, 10)
    np.testing.assert_array_equal(read(data_settings(name="cifar10", dir=tmp_path)).x, x)


def test_bad_binary(tmp_path):
    files, _, _ = binary(10)
    folder = tmp_path / "cifar10"
    as_folder(folder, files, 10)
    settings = data_settings(name="cifar10", dir=tmp_path)
    (folder / "data_batch_3.bin").write_bytes(files["data_batch_3.bin"][:-1])
    with pytest.raises(DataError, match=r"data_batch_3.bin has \d+ bytes, not a multiple of 3073"):
        read(settings)
    (folder / "data_batch_3.bin").write_bytes(b"\x0a" + files["data_batch_3.bin"][1:])
    with pytest.raises(DataError, match=r"data_batch_3.bin: 1 labels .* first 10 in row 0"):
        read(settings)
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"cannot read .*data_batch_3.bin"):
        read(settings)


def test_bad_archive(tmp_path):
    files, _, _ = binary(10)
    settings = data_settings(name="cifar10", dir=tmp_path)
    as_archive(tmp_path / "cifar10", {k: v for k, v in files.items() if "4" not in k}, 10)
    with pytest.raises(DataError, match=r"has no data_batch_4.bin"):
        read(settings)
    path = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(DataError, match=r"cannot read .*tar.gz"):
        read(settings)
