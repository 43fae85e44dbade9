import pytest
from PIL import Image

from pomona.core.errors import DataError
from pomona.data import data_settings, read


def picture(path, value, size=(6, 4), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def classes(root, names=("cat", "dog"), n=2, first=0, **options):
    for c, name in enumerate(names):
        for i in range(n):
            picture(root / name / f"{i}.png", (first + 10 * c + i, c, i), **options)


def first_channel(data):
    return data.x[:, 0, 0, 0].tolist()


def test_one_folder_a_class(tmp_path):
    classes(tmp_path)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / ".cache").mkdir()
    data = read(data_settings(name="images", path=tmp_path))
    assert (data.x.shape, data.classes, data.y.tolist(), data.n_train) == (
        (4, 4, 6, 3),
        ("cat", "dog"),
        [0, 0, 1, 1],
        4,
    )
    assert data.x[:, 2, 3].tolist() == [[0, 0, 0], [1, 0, 1], [10, 1, 0], [11, 1, 1]]


def test_thumbnails_and_folders_named_like_images_are_no_images(tmp_path):
    classes(tmp_path)
    expected = first_channel(read(data_settings(name="images", path=tmp_path)))
    for hidden in (".@__thumb", "@eaDir", "more/.cache/deep"):
        picture(tmp_path / "cat" / hidden / "0.png", 200)
    picture(tmp_path / "._0.png", 200)
    (tmp_path / "dog" / "folder.png").mkdir()
    data = read(data_settings(name="images", path=tmp_path))
    assert (first_channel(data), data.notes) == (expected, ())


@pytest.mark.parametrize(
    ("splits", "order", "n_train"),
    [
        (("train", "test"), [0, 1, 10, 11, 100, 101, 110, 111], 4),
        (("train", "val"), [0, 1, 10, 11, 100, 101, 110, 111], 4),
        (("train", "val", "test"), [0, 1, 10, 11, 100, 101, 110, 111, 200, 201, 210, 211], 8),
        (("train",), [0, 1, 10, 11], 4),
    ],
)
def test_parts(tmp_path, splits, order, n_train):
    for i, split in enumerate(splits):
        classes(tmp_path / split, first=100 * i if i < 2 else 200)
    data = read(data_settings(name="images", path=tmp_path))
    assert (first_channel(data), data.n_train) == (order, n_train)


def test_gray_only_if_all_are_gray(tmp_path):
    picture(tmp_path / "a" / "1.png", 7, mode="L")
    assert read(data_settings(name="images", path=tmp_path)).x.shape == (1, 4, 6, 1)
    picture(tmp_path / "b" / "1.png", (1, 2, 3))
    data = read(data_settings(name="images", path=tmp_path))
    assert data.x[:, 0, 0].tolist() == [[7, 7, 7], [1, 2, 3]]


def test_resize_makes_one_size(tmp_path):
    picture(tmp_path / "a" / "1.png", (9, 9, 9), size=(8, 8))
    picture(tmp_path / "a" / "2.png", (7, 7, 7), size=(5, 9))
    with pytest.raises(
        DataError,
        match=r"several sizes: 1 of 8 x 8 \(1.png\), 1 of 5 x 9 \(2.png\); set data.resize",
    ):
        read(data_settings(name="images", path=tmp_path))
    data = read(data_settings(name="images", path=tmp_path, resize=6))
    assert data.x.shape == (2, 6, 6, 3)
    assert first_channel(data) == [9, 7]


def tiny(root):
    for i, name in enumerate(("n01", "n02")):
        picture(
            root / "train" / name / "images" / f"{name}_0.JPEG", (50 * (i + 1),) * 3, size=(64, 64)
        )
    for i in range(2):
        picture(root / "val" / "images" / f"val_{i}.JPEG", (200 + i,) * 3, size=(64, 64))
    (root / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n"
    )
    picture(root / "test" / "images" / "test_0.JPEG", (0, 0, 0), size=(64, 64))  # has no labels


@pytest.mark.parametrize(
    "path", ["tiny-imagenet-200", "tiny_imagenet", "tiny-imagenet/tiny-imagenet-200"]
)
def test_tiny_imagenet(tmp_path, path):
    tiny(tmp_path / path)
    data = read(data_settings(name="tiny-imagenet", dir=tmp_path))
    assert (data.x.shape, data.n_train, data.classes) == ((4, 64, 64, 3), 2, ("n01", "n02"))
    assert (data.y.tolist(), first_channel(data)) == ([0, 1, 1, 0], [50, 100, 200, 201])
    assert read(data_settings(name="images", path=tmp_path / path)).fingerprint == data.fingerprint


def _truncate(root):
    path = root / "dog" / "1.png"
    path.write_bytes(path.read_bytes()[:-30])


BAD = {
    "no image at all": (
        lambda root: (root / "dog" / "1.png").write_bytes(b"hello"),
        "cannot read the image",
    ),
    "truncated": (_truncate, "dog/1.png"),
    "16 bits": (
        lambda root: picture(root / "dog" / "1.png", 700, mode="I;16"),
        r"do not mix .*\(3 of 8 bits .*\(cat/0.png\), 1 of 16 bits .*\(dog/1.png\)\)",
    ),
    "no images": (
        lambda root: [path.unlink() for path in root.rglob("*.png")],
        "cat: no image in it, so no class",
    ),
    "no classes": (
        lambda root: [path.rename(root / f"{i}.png") for i, path in enumerate(root.rglob("*.png"))],
        r"4 images lie in no class \(0.png, 1.png, 2.png and 1 more\)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_images(tmp_path, case):
    damage, message = BAD[case]
    classes(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError, match=message):
        read(data_settings(name="images", path=tmp_path))


def test_a_file_is_no_folder(tmp_path):
    picture(tmp_path / "1.png", (0, 0, 0))
    with pytest.raises(DataError, match=r"1.png"):
        read(data_settings(name="images", path=tmp_path / "1.png"))


def test_a_class_only_tests_know(tmp_path):
    classes(tmp_path / "train")
    classes(tmp_path / "test", ("cat", "dok"))
    with pytest.raises(DataError, match="did you mean dog"):
        read(data_settings(name="images", path=tmp_path))


@pytest.mark.parametrize("line", ["val_1.JPEG", "val_1.JPEG\tn09"])
def test_bad_annotations(tmp_path, line):
    tiny(tmp_path / "tiny-imagenet")
    (tmp_path / "tiny-imagenet" / "val" / "val_annotations.txt").write_text(
        f"val_0.JPEG\tn02\n{line}\n"
    )
    with pytest.raises(DataError, match=r"val_annotations.txt, line 2"):
        read(data_settings(name="tiny-imagenet", dir=tmp_path))
