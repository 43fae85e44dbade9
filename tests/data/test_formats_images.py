"""The tables of pictures and of folders of images in ``docs/formats.md``, line by line."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from image_files import labels_of, write_dicom
from PIL import Image, ImageCms

from pomona.core.errors import DataError
from pomona.data import data_settings, read
from pomona.data.formats.image_formats import opened

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
from format_lines import Cases

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")
PICTURES, FOLDERS = Cases("Pictures"), Cases("Folders of images")
GRAY = np.arange(120, dtype=np.uint8).reshape(10, 12)
RGB = np.stack([GRAY, GRAY + 9, GRAY + 99], -1)


@pytest.mark.parametrize("name", PICTURES.names)
def test_a_line_of_pictures(name, tmp_path):
    PICTURES.functions[name](tmp_path)


@pytest.mark.parametrize("name", FOLDERS.names)
def test_a_line_of_folders(name, tmp_path):
    FOLDERS.functions[name](tmp_path)


def test_all_lines_have_a_function():
    PICTURES.check()
    FOLDERS.check()


def pixels(path):
    file = opened(path)
    return file.decoded(file.shape[-1])


def notes(path):
    return " ".join(opened(path).notes)


def saved(path, image, **options):
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(path, **options)
    return path


def tiff(path, values, **options):
    tifffile.imwrite(path / "1.tif", values, **options)
    return path / "1.tif"


def refused(path, *texts):
    with pytest.raises(DataError) as fault:
        pixels(path)
    assert all(text in str(fault.value) for text in (*texts, path.name)), fault.value


def equal(path, expected):
    np.testing.assert_array_equal(pixels(path), expected)


def pnm(path, magic, top, values):
    """A binary PNM, written after netpbm's description: big-endian where the top is above 255."""
    head = f"{magic}\n{values.shape[1]} {values.shape[0]}\n{top}\n".encode()
    path.write_bytes(head + values.astype(">u2" if top > 255 else "u1").tobytes())
    return path


@PICTURES.line("P1")
def as_stored(path):
    for suffix in ("png", "bmp", "tif", "gif"):
        equal(saved(path / f"1.{suffix}", GRAY), GRAY[..., None] if suffix != "gif" else pixels(path / "1.gif"))  # fmt: skip
    for suffix in ("png", "bmp", "ppm", "webp"):
        equal(saved(path / f"2.{suffix}", RGB, lossless=True), RGB)
    deep = GRAY.astype(np.uint16) * 500
    equal(saved(path / "3.png", deep), deep[..., None])
    deep = deep.astype(np.int64)
    for top in (65535, 60000, 4095):
        equal(pnm(path / "4.pgm", "P5", top, deep % (top + 1)), (deep % (top + 1))[..., None])


@PICTURES.line("P2")
def transparency(path):
    alpha = np.dstack([RGB, GRAY])
    for name, image in (("1.png", alpha), ("2.webp", alpha)):
        file = saved(path / name, image, lossless=True, exact=True)
        equal(file, RGB)
        assert "alpha" in notes(file)
    palette = Image.fromarray(RGB).quantize(8)
    file = saved(path / "3.png", palette, transparency=0)
    equal(file, np.asarray(palette.convert("RGB")))
    assert "alpha" in notes(file)
    assert not notes(saved(path / "4.png", palette))


@PICTURES.line("P3")
def deep_colours(path):
    deep = RGB.astype(np.uint16) * 200
    refused(pnm(path / "1.ppm", "P6", 65535, deep), "16-bit", "TIFF")
    refused(pnm(path / "1.ppm", "P6", 4095, deep % 4096), "16-bit")
    import imagecodecs

    (path / "2.png").write_bytes(imagecodecs.png_encode(deep))
    refused(path / "2.png", "16-bit", "TIFF")


@PICTURES.line("P4")
def few_bits(path):
    for top in (1, 3, 15, 100):
        file = pnm(path / "1.pgm", "P5", top, GRAY % (top + 1))
        np.testing.assert_allclose(pixels(file)[..., 0], GRAY % (top + 1) * (255 / top), atol=0.51)
        assert "scaled" in notes(file)
        np.testing.assert_array_equal(labels_of(file, (10, 12), 101), GRAY % (top + 1))
    labels = GRAY % 2 == 1
    np.testing.assert_array_equal(labels_of(saved(path / "2.png", labels), (10, 12), 2), labels)
    for bits in (2, 4):  # a PNG of gray of few bits, after the standard
        file = path / f"{bits}.png"
        file.write_bytes(png(GRAY % 2**bits, bits))
        np.testing.assert_array_equal(pixels(file)[..., 0], GRAY % 2**bits * (255 // (2**bits - 1)))
        np.testing.assert_array_equal(labels_of(file, (10, 12), 16), GRAY % 2**bits)
        assert "scaled" in notes(file)


def png(values, bits):
    import struct
    import zlib

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))  # fmt: skip

    planes = (values[..., None] >> np.arange(bits - 1, -1, -1)) & 1
    packed = np.packbits(planes.reshape(len(values), -1), axis=1)
    rows = b"".join(b"\0" + row.tobytes() for row in packed)
    head = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], bits, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*entry) for entry in chunks)


@PICTURES.line("P5")
def exif(path):
    tags = Image.Exif()
    tags[0x0112] = 6
    equal(saved(path / "1.png", GRAY, exif=tags), np.rot90(GRAY, -1)[..., None])
    assert "orientation" in notes(path / "1.png")
    labels = labels_of(path / "1.png", (12, 10), 256)
    np.testing.assert_array_equal(labels, np.rot90(GRAY, -1))


@PICTURES.line("P6")
def inks(path):
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    for name in ("1.jpg", "1.tif"):
        red = pixels(saved(path / name, image))[8, 8].astype(int)
        assert np.abs(red - (255, 0, 0)).max() < 6
        assert "CMYK" in notes(path / name)
    data = (path / "1.jpg").read_bytes()
    marker = data.index(b"\xff\xee")  # the marker of Adobe
    (path / "2.jpg").write_bytes(data[:marker] + data[marker + 2 + int.from_bytes(data[marker + 2 : marker + 4], "big") :])  # fmt: skip
    refused(path / "2.jpg", "CMYK", "RGB")


@PICTURES.line("P7")
def profiles(path):
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    assert not notes(saved(path / "1.png", RGB, icc_profile=srgb))
    for name in ("2.png", "2.jpg", "2.tif"):
        assert "profile" in notes(saved(path / name, RGB, icc_profile=lab))


@PICTURES.line("P8")
def animations(path):
    frames = [Image.fromarray(GRAY * k) for k in (1, 2, 3)]
    for suffix in ("gif", "png", "webp"):
        file = saved(path / f"1.{suffix}", frames[0], save_all=True, append_images=frames[1:])
        refused(file, "several pictures")
    for suffix, picture in (("pbm", GRAY > 9), ("pgm", GRAY), ("pgm", GRAY.astype(np.uint16))):
        content = saved(path / f"1.{suffix}", Image.fromarray(picture)).read_bytes()
        (path / f"2.{suffix}").write_bytes(content + content)
        refused(path / f"2.{suffix}", "several pictures")
        equal(path / f"1.{suffix}", picture[..., None] * np.uint16(255 if suffix == "pbm" else 1))


@PICTURES.line("P9")
def polarity(path):
    for stored in ("u1", "u2", "i2", "f4", "f8"):
        x = pixels(tiff(path, GRAY.astype(stored), photometric="miniswhite"))
        assert x[0, 0] > x[0, 1] > x[9, 11]
        assert "MinIsWhite" in notes(path / "1.tif")


@PICTURES.line("P10")
def booleans(path):
    labels = GRAY > 60
    np.testing.assert_array_equal(labels_of(tiff(path, labels), (10, 12), 2), labels)


@PICTURES.line("P11")
def planes(path):
    deep = np.stack([GRAY.astype(np.uint16) * k for k in (1, 300, 400, 500, 7)])
    separate = tiff(path, deep[:3], photometric="rgb", planarconfig="separate")
    equal(separate, np.moveaxis(deep[:3], 0, -1))
    contiguous = np.ascontiguousarray(np.moveaxis(deep, 0, -1))
    equal(tiff(path, contiguous, photometric="minisblack", planarconfig="contig"), contiguous)


@PICTURES.line("P12")
def numbers(path):
    read_as = {"i1": "i2", "i2": "i2", "u2": "u2", "f2": "f4", "f4": "f4", "f8": "f4", "i4": "f4", "u8": "f4"}  # fmt: skip
    for stored, expected in read_as.items():
        x = pixels(tiff(path, GRAY.astype(stored)))
        assert x.dtype == expected
        np.testing.assert_array_equal(x[..., 0], GRAY)
        assert ("rounded" in notes(path / "1.tif")) == (stored == "f8")
    refused(tiff(path, np.full((3, 4), 2**24 + 1, np.int32)), "float32")
    assert pixels(tiff(path, np.full((3, 4), 2**24, np.uint32)))[0, 0] == 2**24


@PICTURES.line("P13")
def packed(path):
    for bits in (10, 12, 14):
        deep = GRAY.astype(np.uint16) * 8
        equal(tiff(path, deep, bitspersample=bits), deep[..., None])


@PICTURES.line("P14")
def turned(path):
    equal(tiff(path, GRAY.astype("i4"), extratags=[(274, 3, 1, 3, True)]), GRAY[::-1, ::-1, None])
    assert "orientation" in notes(path / "1.tif")


STACK = np.arange(600, dtype=np.uint16).reshape(5, 10, 12)


@PICTURES.line("P15")
def stacks(path):
    tifffile.imwrite(path / "1.tif", STACK, imagej=True, resolution=(2.0, 4.0), metadata={"axes": "ZYX", "spacing": 3.0, "unit": "mm"})  # fmt: skip
    tifffile.imwrite(path / "2.ome.tif", STACK, metadata={"axes": "ZYX", "PhysicalSizeX": 0.5, "PhysicalSizeXUnit": "mm", "PhysicalSizeY": 250.0, "PhysicalSizeZ": 0.3, "PhysicalSizeZUnit": "cm"})  # fmt: skip
    for file in (path / "1.tif", path / "2.ome.tif"):
        equal(file, STACK[..., None])
        np.testing.assert_allclose(opened(file).spacing, (3, 0.25, 0.5))
        assert "orientation" in notes(file)


@PICTURES.line("P16")
def channels(path):
    equal(
        tiff(path, STACK[:2], imagej=True, metadata={"axes": "CYX"}), np.moveaxis(STACK[:2], 0, -1)
    )


@PICTURES.line("P17")
def pages(path):
    refused(tiff(path, STACK, photometric="minisblack"), "5 pages", "QYX")
    refused(tiff(path, STACK, imagej=True, metadata={"axes": "TYX"}), "TYX")


@PICTURES.line("P18")
def pyramids(path):
    with tifffile.TiffWriter(path / "1.tif") as file:
        file.write(GRAY, photometric="minisblack", metadata=None)
        file.write(GRAY[::2, ::2].copy(), photometric="minisblack", subfiletype=1, metadata=None)
    equal(path / "1.tif", GRAY[..., None])
    assert "smaller copies" in notes(path / "1.tif")


@PICTURES.line("P19")
def colours_and_numbers(path):
    refused(saved(path / "1.tif", Image.fromarray(RGB).convert("LAB")), "CIELAB")
    refused(tiff(path, GRAY.astype("c8")), "complex")


@PICTURES.line("P20")
def arrangements(path):
    large = np.tile(GRAY, (4, 4)).astype(np.uint16)
    for compression in ("lzw", "zlib", "zstd", "packbits"):
        equal(tiff(path, large, bigtiff=True, byteorder=">", tile=(16, 16), compression=compression), large[..., None])  # fmt: skip


@PICTURES.line("P21")
def other_files(path):
    for name, text in (("1.svs", "slide"), ("1.heic", "HEIF"), ("1.jxl", "JPEG XL"), ("1.zarr", "arrays"), ("1.pdf", "document"),
                       ("1.mp4", "video"), ("1.npy", "NumPy"), ("1.czi", "microscope")):  # fmt: skip
        (path / name).write_bytes(b"?")
        refused(path / name, text)
    (path / "1.jpg").write_bytes(b"\0\0\0\x18ftypavif" + bytes(200))
    refused(path / "1.jpg", "AVIF", "content")


# folders


def tree(root, *patterns, n=2):
    """``n`` images in each folder; ``A+B/c+d`` is four folders."""
    for pattern in patterns:
        folders = [root]
        for level in pattern.split("/"):
            folders = [folder / name for folder in folders for name in level.split("+")]
        for folder in folders:
            folder.mkdir(parents=True)
            for k in range(n):
                Image.new("L", (3, 2), k).save(folder / f"{k}.png")
    return root


def dataset(path):
    data = read(data_settings(name="images", path=path))
    return data, " ".join(data.notes)


@FOLDERS.line("O1")
def classes(path):
    for pattern in ("train+test/a+b", "a+b/train+test"):
        data, _ = dataset(tree(path / pattern[:2], pattern))
        assert (data.classes, data.n_train, len(data), data.owners) == (("a", "b"), 4, 8, None)
    assert dataset(tree(path / "none", "a+b"))[0].n_train == 4


@FOLDERS.line("O2")
def sites(path):
    data, note = dataset(tree(path, "N+W/a+b", "S/a"))
    assert (data.owners.names, data.classes) == (("N", "S", "W"), ("a", "b"))
    assert "SITE/CLASS" in note
    assert "S has no images of b" in note


@FOLDERS.line("O3")
def sites_with_parts(path):
    for number, pattern in enumerate(("N+S/train+val+test/a+b", "train+val+test/N+S/a+b")):
        data, remarks = dataset(tree(path / str(number), pattern))
        assert (data.owners.names, np.bincount(data.owners.role).tolist()) == (("N", "S"), [8] * 3)
        assert "SITE/CLASS" in remarks


@FOLDERS.line("O4")
def patients(path):
    for number, pattern in enumerate((("a/1+2", "b/3+4"), ("N/a+b/1+2", "S/a+b/3+4"))):
        data, remarks = dataset(tree(path / str(number), *pattern))
        assert len({*data.groups.number}) == 4
        assert "by the folder of each patient" in remarks


@FOLDERS.line("O5")
def unclear(path):
    for number, folders in enumerate((("N/a+b", "S/a+c"), ("fold0/a+b", "fold1/a+b"))):
        root = tree(path / str(number), *folders)
        with pytest.raises(DataError, match=r"data\.folders"):
            dataset(root)
    data = read(data_settings(name="images", path=root, folders=["any", "class"]))
    assert (data.classes, data.owners) == (("a", "b"), None)


def slices(path, *patients, n=2):
    for k, (folder, patient) in enumerate(patients):
        for i in range(n):
            write_dicom(path / folder / f"{k}{i}.dcm", np.full((3, 4), k, np.uint16), PatientID=patient)  # fmt: skip
    return path


@FOLDERS.line("O6")
def by_header(path):
    data, remarks = dataset(slices(path / "1", ("a", "p"), ("b", "p"), ("b", "q")))
    assert data.groups.number.tolist() == [0, 0, 0, 0, 1, 1]
    assert "PatientID" in remarks
    data, remarks = dataset(slices(path / "2", ("a", "ANON"), ("b", "ANON")))
    assert data.groups is None
    assert "ANON" in remarks


@FOLDERS.line("O7")
def bids(path):
    for c, k in (("a", 1), ("a", 2), ("b", 3)):
        for s in (1, 2):
            (path / c / f"sub-{k}").mkdir(parents=True, exist_ok=True)
            saved(path / c / f"sub-{k}" / f"sub-{k}_ses-{s}.png", GRAY)
    assert dataset(path)[0].groups.number.tolist() == [0, 0, 1, 1, 2, 2]


@FOLDERS.line("O8")
def torn(path):
    _, remarks = dataset(slices(path, ("train/a", "1"), ("train/b", "2"), ("test/a", "1")))
    assert "for training and for testing" in remarks


@FOLDERS.line("O9")
def two_sites(path):
    data, remarks = dataset(slices(path, ("N/a", "1"), ("N/b", "2"), ("S/a", "1"), ("S/b", "3")))
    assert len({*data.groups.within(data.owners.client)}) == 4
    assert "two patients" in remarks


@FOLDERS.line("O10")
def without_suffix(path):
    for name in "ab":
        slices(path, (name, name), n=1)
        next((path / name).iterdir()).rename(path / name / "IM0001")
    assert len(dataset(path)[0]) == 2


@FOLDERS.line("O11")
def decathlon(path):
    nibabel = pytest.importorskip("nibabel")
    for name in ("imagesTr", "labelsTr"):
        (path / name).mkdir()
        nibabel.save(
            nibabel.Nifti1Image(np.ones((4, 3, 2), np.uint8), np.eye(4)), path / name / "1.nii"
        )
    pairs = [{"image": "./imagesTr/1.nii", "label": "./labelsTr/1.nii"}]
    tree = {
        "labels": {"0": "background", "1": "spleen"},
        "training": pairs,
        "test": ["./imagesTs/2.nii"],
    }
    (path / "dataset.json").write_text(json.dumps(tree))
    data, remarks = dataset(path)
    assert (data.classes, data.targets, data.y.shape) == (
        ("background", "spleen"),
        "segmentation",
        (1, 2, 3, 4),
    )
    assert "1 images for testing" in remarks


@FOLDERS.line("O12")
def sidecars(path):
    tree(path, "a/s1+s2", "b/s3+s4")
    for folder in path.glob("*/*"):
        (folder / "0.json").write_text("{}")
    assert dataset(path)[1].count(".json") == 1 + 3  # the suffix, and three names


@FOLDERS.line("O13")
def masks_as_images(path):
    tree(path, "images+masks")
    note = dataset(path)[1]
    assert "images are named like masks of others (masks/0.png" in note
