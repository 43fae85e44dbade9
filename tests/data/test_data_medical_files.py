"""NIfTI, DICOM, 16-bit PNG and TIFF: files survive a round trip, and every fault is one line with
the file.
"""

import gzip
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from image_files import pixels, write_dicom, write_nifti, write_series
from PIL import Image

from pomona.core.errors import ConfigError, DataError
from pomona.core.rng import stream
from pomona.data import data_settings, read
from pomona.data.formats.image_formats import opened
from pomona.data.images import image_stack
from pomona.data.images.image_stack import stacked
from representatives import representatives

nibabel = pytest.importorskip("nibabel")
pytest.importorskip("pydicom")
tifffile = pytest.importorskip("tifffile")


def values(dtype, shape=(5, 4, 3), low=0, high=200):
    return stream(1, "values").integers(low, high, shape).astype(dtype)


# NIfTI


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize(
    ("stored", "expected"),
    [("u1", "uint8"), ("i1", "int16"), ("u2", "uint16"), (">i2", "int16"), ("i4", "float32"), ("f4", "float32"), ("f8", "float32")],
)  # fmt: skip
def test_nifti_of_every_type(tmp_path, stored, expected, suffix):
    volume = values(stored, low=0, high=100)
    x = pixels(write_nifti(tmp_path / f"v{suffix}", volume))
    assert x.dtype == expected
    np.testing.assert_array_equal(x[..., 0], volume)


def test_nifti_with_channels_and_with_a_slope(tmp_path):
    volume = values("f4", (5, 4, 3, 2))
    np.testing.assert_array_equal(pixels(write_nifti(tmp_path / "c.nii", volume)), volume)
    raw = values("i2", (5, 4, 3))
    nifti = nibabel.Nifti1Image(raw.transpose(2, 1, 0), np.eye(4))
    nifti.header["scl_slope"], nifti.header["scl_inter"] = 0.5, -3
    content = nifti.to_bytes()
    offset = struct.unpack_from("<f", content, 108)[0]
    assert offset == 352
    # nibabel sets slopes anew on saving: they are written into the bytes, where the standard has
    # them
    (tmp_path / "s.nii").write_bytes(content[:112] + struct.pack("<ff", 0.5, -3) + content[120:])
    np.testing.assert_array_equal(pixels(tmp_path / "s.nii")[..., 0], raw * np.float32(0.5) - 3)
    (tmp_path / "w.nii").write_bytes(content[:112] + struct.pack("<ff", 1, -24) + content[120:])
    x = pixels(tmp_path / "w.nii")
    assert x.dtype == np.float32  # -32768 - 24 is beyond 16 bits
    np.testing.assert_array_equal(x[..., 0], raw.astype(int) - 24)


@pytest.mark.parametrize("flips", [(1, 1, 1), (-1, 1, 1), (1, -1, -1), (-1, -1, 1)])
@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
def test_nifti_axes_are_those_of_the_patient(tmp_path, flips, axes):
    """Whatever order and direction the axes are stored in, the same patient gives the same
    array.
    """
    volume = values("i2", (5, 4, 3))
    stored = volume.transpose(2, 1, 0)[tuple(slice(None, None, f) for f in flips)].transpose(axes)
    affine = np.zeros((4, 4))
    affine[3, 3] = 1
    for axis, direction in enumerate(axes):
        affine[direction, axis] = flips[direction] * (1 + direction)  # mm
    nibabel.save(nibabel.Nifti1Image(np.ascontiguousarray(stored), affine), tmp_path / "v.nii.gz")
    np.testing.assert_array_equal(pixels(tmp_path / "v.nii.gz")[..., 0], volume)


def test_nifti_that_is_none(tmp_path):
    good = write_nifti(tmp_path / "v.nii", values("i2", (5, 4, 3))).read_bytes()
    path = tmp_path / "bad.nii"
    for content, message in (
        (b"", "cannot read the image"),
        (b"hello" * 100, "cannot read the image"),
        (good[:-9], "promises 472 bytes but has 463"),
        (
            good[:42] + struct.pack("<3h", 32767, 32767, 32767) + good[48:],
            "promises 70362301923678 bytes",
        ),
        (good[:42] + struct.pack("<3h", 0, 4, 3) + good[48:], "no pixel"),
        (good[:42] + struct.pack("<3h", -5, 4, 3) + good[48:], "no pixel|cannot read"),
        (good[:40] + struct.pack("<4h", 2, 12, 5, 1) + good[48:], "a volume has"),
        (good[:40] + struct.pack("<4h", 3, 12, 5, 1) + good[48:], "a volume has"),
        (
            good[:70] + struct.pack("<hh", 128, 24) + good[74:],
            "promises|store whole or real numbers",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message) as fault:
            pixels(path)
        assert "\n" not in str(fault.value)
        assert "bad.nii" in str(fault.value)
    (tmp_path / "z.nii.gz").write_bytes(
        gzip.compress(good[:42] + struct.pack("<3h", 900, 900, 900) + good[48:])
    )
    with pytest.raises(DataError, match="cannot read the image"):
        pixels(tmp_path / "z.nii.gz")
    with pytest.raises(DataError, match=r"No such file"):
        opened(tmp_path / "nowhere.nii")


def test_a_volume_with_nan_is_named(tmp_path):
    volume = values("f4")
    volume[2, 1, 1] = np.nan
    with pytest.raises(
        DataError, match=r"v.nii holds NaN or infinite numbers; replace or remove it"
    ):
        pixels(write_nifti(tmp_path / "v.nii", volume))


# DICOM


@pytest.mark.parametrize(
    ("stored", "bits", "slope", "shift", "expected"),
    [
        ("u1", 8, None, None, "uint8"), ("u2", 12, None, None, "uint16"), ("u2", 12, 1, -1024, "int16"),
        ("i2", 16, None, None, "int16"), ("i2", 16, 1, -1024, "float32"), ("u2", 16, 0.5, 0, "float32"),
        ("u2", 10, 2, 0, "uint16"), ("u2", 16, -1, 0, "float32"), ("u2", 8, 1, 0, "uint8"),
    ],
)  # fmt: skip
def test_dicom_values_are_those_of_the_modality(tmp_path, stored, bits, slope, shift, expected):
    raw = values(stored, (4, 3))
    change = {"BitsStored": bits, "HighBit": bits - 1}
    change |= {"RescaleSlope": slope, "RescaleIntercept": shift}
    x = pixels(write_dicom(tmp_path / "1.dcm", raw, **change))
    assert x.dtype == expected
    np.testing.assert_array_equal(x[..., 0], raw.astype(float) * (slope or 1) + (shift or 0))


def test_dicom_with_white_for_low_values_is_turned_round(tmp_path):
    raw = values("u2", (4, 3))
    change = {"PhotometricInterpretation": "MONOCHROME1", "BitsStored": 10, "HighBit": 9}
    np.testing.assert_array_equal(
        pixels(write_dicom(tmp_path / "1.dcm", raw, **change))[..., 0], 1023 - raw
    )


def test_dicom_in_colour(tmp_path):
    raw = values("u1", (4, 3, 3))
    change = {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0}
    np.testing.assert_array_equal(pixels(write_dicom(tmp_path / "1.dcm", raw, **change)), raw)


BAD_DICOM = {
    "frames": ({"NumberOfFrames": 2}, "holds 2 frames"),
    "no rows": ({"Rows": 0}, "no pixel"),
    "other rows": ({"Rows": 40}, "cannot read the image"),
    "many rows": ({"Rows": 65535, "Columns": 65535}, "cannot read the image"),
    "32 bits": ({"BitsStored": 33, "BitsAllocated": 40}, "33 bits"),
    "a palette": ({"PhotometricInterpretation": "PALETTE COLOR"}, "PALETTE COLOR"),
    "no rows said": ({"Rows": None}, "not an image"),
    "no pixels": ({"PixelData": None}, "cannot read the image"),
    "slope 0": ({"RescaleSlope": 0}, "RescaleSlope 0.0"),
}


@pytest.mark.parametrize("case", BAD_DICOM)
def test_dicom_that_is_refused(tmp_path, case):
    changes, message = BAD_DICOM[case]
    path = write_dicom(tmp_path / "1.dcm", values("u2", (4, 3)), **changes)
    with pytest.raises(DataError, match=message) as fault:
        pixels(path)
    assert "1.dcm" in str(fault.value)


def test_what_is_no_dicom(tmp_path):
    good = write_dicom(tmp_path / "1.dcm", values("u2", (4, 3))).read_bytes()
    for content in (b"", b"hello", good[:200], good[:-5], good[128:]):
        (tmp_path / "1.dcm").write_bytes(content)
        with pytest.raises(DataError, match=r"cannot read the image .*1.dcm"):
            pixels(tmp_path / "1.dcm")


def test_a_series_is_a_volume_from_the_feet_to_the_head(tmp_path):
    volume = values("u2", (6, 4, 3))
    change = {"BitsStored": 12, "HighBit": 11, "RescaleSlope": 1, "RescaleIntercept": -1024}
    folder = write_series(tmp_path / "ct", volume, **change)
    (folder / "DICOMDIR").write_bytes(b"?")
    x = pixels(folder)
    assert x.dtype == np.int16
    np.testing.assert_array_equal(x[..., 0], volume.astype(int) - 1024)


def test_a_series_without_places_is_in_the_order_of_its_numbers(tmp_path):
    volume = values("i2", (4, 4, 3))
    folder = write_series(tmp_path / "mr", volume[:, ::-1, ::-1], ImagePositionPatient=None)
    np.testing.assert_array_equal(pixels(folder)[..., 0], volume)


def test_slices_of_several_slopes_are_in_one_unit(tmp_path):
    """As of PET: each slice has a slope of its own."""
    volume = values("u2", (3, 4, 3))
    folder = write_series(tmp_path / "pet", volume)
    for k, path in enumerate(sorted(folder.iterdir())):
        spot = {"ImagePositionPatient": [0, 0, k], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
        write_dicom(
            path, volume[k, ::-1, ::-1], RescaleSlope=0.25 * (k + 1), RescaleIntercept=0, **spot
        )
    np.testing.assert_array_equal(
        pixels(folder)[..., 0], volume * (0.25 * np.arange(1, 4))[:, None, None]
    )


def _removing(name):
    return lambda folder: (folder / name).unlink()


BAD_SERIES = {
    "a missing slice": (
        _removing("s001.dcm"),
        r"slices are missing between s004.dcm and s003.dcm: distance 5, elsewhere 2.5",
    ),
    "none": (lambda folder: [path.unlink() for path in folder.iterdir()], "no DICOM file"),
    "a damaged slice": (lambda folder: (folder / "s003.dcm").write_bytes(b"?"), r"cannot read the image .*s003.dcm"),
    "twice": (
        lambda folder: (folder / "t.dcm").write_bytes((folder / "s000.dcm").read_bytes()),
        "at the same position",
    ),
    "another series": (
        lambda folder: write_dicom(
            folder / "t.dcm", values("i2", (4, 3)), SeriesInstanceUID="1.2.9"
        ),
        "t.dcm differs from s000.dcm in series",
    ),
    "another size": (
        lambda folder: write_dicom(folder / "t.dcm", values("i2", (4, 4))),
        "differs from s000.dcm in size",
    ),
    "no order": (
        lambda folder: (
            [path.unlink() for path in folder.iterdir()]
            and [write_dicom(folder / f"{k}.dcm", values("i2", (4, 3))) for k in range(2)]
        ),
        "have no order",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_SERIES)
def test_a_series_that_is_not_whole(tmp_path, case):
    """Slices lie 2.5 mm apart, slice k in file 7 k mod 5: from the feet to the head s000, s002,
    s004, s001, s003.
    """
    damage, message = BAD_SERIES[case]
    folder = write_series(tmp_path / "ct", values("i2", (5, 4, 3)))
    damage(folder)
    with pytest.raises(DataError, match=message) as fault:
        pixels(folder)
    assert "\n" not in str(fault.value)


# PNG and TIFF


def png(bits, colour, rows):
    """A hand-made PNG, as Pillow writes no 16-bit colour."""

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    height, width = rows.shape[:2]
    raw = b"".join(b"\0" + row.astype(">u2").tobytes() for row in rows)
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(raw))
        + chunk(b"IEND", b"")
    )


def test_png_of_16_bits(tmp_path):
    raw = values("u2", (4, 3), high=65536)
    (tmp_path / "1.png").write_bytes(png(16, 0, raw))
    np.testing.assert_array_equal(pixels(tmp_path / "1.png")[..., 0], raw)
    # Pillow would cut them to 8 bits
    for colour, shape in ((2, (4, 3, 3)), (4, (4, 3, 2)), (6, (4, 3, 4))):
        (tmp_path / "2.png").write_bytes(png(16, colour, values("u2", shape)))
        with pytest.raises(DataError, match=r"16-bit .*TIFF"):
            opened(tmp_path / "2.png")


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 3), (6, 7, 5)])
@pytest.mark.parametrize("stored", ["u1", "u2", "i2", "f4", ">u2", "f8"])
def test_tiff_of_every_type(tmp_path, stored, shape):
    raw = values(stored, shape)
    options = {
        2: {},
        3: {"photometric": "rgb" if shape[-1] == 3 else "minisblack", "planarconfig": "contig"},
    }[len(shape)]
    tifffile.imwrite(tmp_path / "1.tif", raw, byteorder=">" if stored[0] == ">" else "<", **options)
    np.testing.assert_array_equal(pixels(tmp_path / "1.tif"), raw.reshape(*shape[:2], -1))


def test_tiff_that_is_refused(tmp_path):
    path = tmp_path / "1.tif"
    tifffile.imwrite(path, values("u2", (4, 3, 3)), photometric="rgb")
    good = path.read_bytes()
    for content in (
        good[:-20],
        good[:40],
        b"II*\0" + good[4:9],
        good.replace(struct.pack("<HHII", 257, 4, 1, 4), struct.pack("<HHII", 257, 4, 1, 2**31)),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"1.tif"):
            pixels(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"cannot read the image .*1.tif \(it is empty\); replace"):
        pixels(path)
    tifffile.imwrite(path, values("u2", (2, 4, 3)), photometric="minisblack")
    with pytest.raises(DataError, match="contains several pictures"):
        pixels(path)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    for name in ("nibabel", "pydicom", "tifffile"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    (tmp_path / "a.nii").write_bytes(b"?")
    (tmp_path / "a.dcm").write_bytes(b"?")
    for path, package in ((tmp_path / "a.nii", "nibabel"), (tmp_path / "a.dcm", "pydicom")):
        with pytest.raises(
            ConfigError, match=rf"a\..* needs {package}; install Pomona with its extra images"
        ):
            opened(path)


# Folders of them, windows and memory


def test_a_window(tmp_path):
    """[40, 400]: -160 and less is 0, 40 is 127.5 rounded to even, 240 and more is 255."""
    raw = np.array([[-1000, -160, 40], [140, 240, 3000]], np.int16)
    for label in "ab":
        write_dicom(tmp_path / label / "1.dcm", raw)
    data = read(data_settings(name="images", path=tmp_path, window=(40, 400)))
    assert data.x[0, ..., 0].tolist() == [[0, 0, 128], [191, 255, 255]]
    assert (data.x.dtype, data.shift, data.scale) == (np.uint8, (127.5,), (127.5,))
    plain = read(data_settings(name="images", path=tmp_path))
    assert (plain.x.dtype, plain.x[1, ..., 0].tolist(), plain.learn is None) == (
        np.int16,
        raw.tolist(),
        False,
    )


def test_volumes_in_folders_of_classes(tmp_path):
    volumes = values("i2", (4, 5, 4, 3))
    for k, volume in enumerate(volumes):
        write_nifti(tmp_path / "ab"[k % 2] / f"{k}.nii.gz", volume)
    data = read(data_settings(name="images", path=tmp_path))
    np.testing.assert_array_equal(data.x[..., 0], volumes[[0, 2, 1, 3]])
    assert (data.classes, data.y.tolist(), data.x.dtype) == (("a", "b"), [0, 0, 1, 1], np.int16)
    write_nifti(tmp_path / "a" / "9.nii", values("i2", (5, 4, 2)))
    with pytest.raises(
        DataError,
        match=r"several sizes: 4 of 3 x 4 x 5 \(a/0.nii.gz\), 1 of 2 x 4 x 5 .*all volumes to one",
    ):
        read(data_settings(name="images", path=tmp_path))


def test_bad_files_are_skipped_if_asked(tmp_path):
    """A header, pixels and a number that are bad: three of seven files, in training and test
    part.
    """
    for split, n in (("train", 4), ("test", 3)):
        for k in range(n):
            write_nifti(
                tmp_path / split / "ab"[k % 2] / f"{k}.nii", np.full((2, 3, 4), 10 * k, np.float32)
            )
    (tmp_path / "train" / "a" / "0.nii").write_bytes(b"?")
    nan = np.zeros((2, 3, 4), np.float32)
    nan[0, 0, 0] = np.inf
    write_nifti(tmp_path / "train" / "b" / "3.nii", nan)
    (tmp_path / "test" / "b" / "1.nii").write_bytes(
        (tmp_path / "test" / "b" / "1.nii").read_bytes()[:-4]
    )
    with pytest.raises(DataError) as fault:
        read(data_settings(name="images", path=tmp_path))
    assert fault.value.text().splitlines()[0].endswith("has 3 problems:")
    data = read(data_settings(name="images", path=tmp_path, skip_bad=True))
    assert (data.x[:, 0, 0, 0, 0].tolist(), data.y.tolist(), data.n_train) == (
        [20, 10, 0, 20],
        [0, 1, 0, 0],
        2,
    )
    assert data.notes[0] == f"{tmp_path}: 3 of 7 files are skipped (data.skip_bad)"
    assert [
        name in note
        for name, note in zip(
            ("train/a/0.nii", "test/b/1.nii", "train/b/3.nii"), data.notes[1:], strict=True
        )
    ] == [True] * 3
    for path in tmp_path.rglob("*.nii"):
        path.write_bytes(b"?")
    with pytest.raises(DataError, match="none of 7 files can be read"):
        read(data_settings(name="images", path=tmp_path, skip_bad=True))


@pytest.mark.parametrize("suffix", representatives(["nii.gz", "series"], ["nii.gz"]))
def test_memory_does_not_grow_with_the_number_of_volumes(tmp_path, suffix, monkeypatch):
    """Arrays on disk are no memory of Python's: what is left at the peak is one volume, however
    many there are.
    """
    monkeypatch.setattr(image_stack, "read_in_child", lambda work, *_: work())  # to be traced
    volume = values("i2", (16, 128, 128))  # the headers of its slices are 13 KB

    def peak(n):
        paths = [tmp_path / f"{n}-{k}.{suffix}" for k in range(n)]
        for path in paths:
            write_nifti(path, volume) if suffix == "nii.gz" else write_series(path, volume)
        tracemalloc.start()
        stack = stacked("it", paths, data_settings(name="images", memory_share=1e-9))
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert isinstance(stack.x.base, np.memmap) or isinstance(stack.x, np.memmap)
        assert (stack.x[-1, ..., 0] == volume).all()
        return peak_bytes

    peak(1)  # what is imported once
    small, large = peak(3), peak(18)
    # fifteen more volumes, and not one of them in memory
    assert large < small + volume.nbytes, (small, large)


def test_images_of_16_bits_are_brought_to_one_size(tmp_path):
    for k, size in enumerate(((6, 4), (9, 9))):
        (tmp_path / "ab"[k]).mkdir()
        Image.fromarray(np.full(size, 60000, np.uint16)).save(tmp_path / "ab"[k] / "1.png")
    with pytest.raises(DataError, match=r"several sizes: .*set data.resize"):
        read(data_settings(name="images", path=tmp_path))
    data = read(data_settings(name="images", path=tmp_path, resize=5))
    assert (data.x.shape, data.x.dtype, np.unique(data.x).tolist()) == (
        (2, 5, 5, 1),
        np.uint16,
        [60000],
    )


# sites that differ


def sites(folder, north, south):
    """Two images of two classes, by elements, at each of two sites."""
    for site, (values, elements) in (("N", north), ("S", south)):
        for label in "ab":
            write_dicom(folder / site / label / "1.dcm", values, **elements)
    return data_settings(name="images", path=folder, window=(40, 400))


DEEP = np.array([[-1000, -160, 40], [140, 240, 3000]], np.int16)
EIGHT = np.array([[0, 1, 40], [140, 240, 255]], np.uint8)


def test_a_window_brings_8_and_16_bits_together(tmp_path):
    settings = sites(tmp_path, (EIGHT, {}), (DEEP, {}))
    data = read(settings)
    assert data.x.dtype == np.uint8
    np.testing.assert_array_equal(data.x[0, ..., 0], EIGHT)
    assert data.x[2, ..., 0].tolist() == [[0, 0, 128], [191, 255, 255]]
    assert "2 8-bit images (N/a/1.dcm and 1 more) are kept as stored" in " ".join(data.notes)
    with pytest.raises(DataError, match=r"do not mix .*N/a/1.dcm.*S/a/1.dcm.* data.window"):
        read(data_settings(name="images", path=tmp_path))


def test_a_window_applies_to_8_bits_with_a_unit(tmp_path):
    """In HU, 40 is the middle of the window, whatever the number of bits."""
    hu = {"Modality": "CT", "RescaleSlope": 1, "RescaleIntercept": 0}
    data = read(sites(tmp_path, (EIGHT, hu), (DEEP, {"Modality": "CT", "RescaleType": "HU"})))
    assert data.x[0, ..., 0].tolist() == [[102, 103, 128], [191, 255, 255]]
    assert data.x[2, ..., 0].tolist() == [[0, 0, 128], [191, 255, 255]]
    assert "as stored; data" not in " ".join(data.notes)


def test_8_and_16_bits_of_two_units_do_not_mix(tmp_path):
    units = [{"Modality": "PT", "Units": unit} for unit in ("BQML", "GML")]
    with pytest.raises(DataError, match=r"do not mix .*N/a/1.dcm.*S/a/1.dcm"):
        read(sites(tmp_path, (EIGHT, units[0]), (DEEP, units[1])))


def test_notes_on_several_units_sizes_and_spacings_name_a_file_of_each_side(tmp_path):
    units = [{"Modality": "PT", "Units": unit} for unit in ("BQML", "GML")]
    notes = " ".join(read(sites(tmp_path / "u", (DEEP, units[0]), (DEEP, units[1]))).notes)
    assert "2 of BQML (N/a/1.dcm), 2 of GML (S/a/1.dcm)" in notes
    poses = [
        {"ImageOrientationPatient": [1, 0, 0, 0, 0, -1], "PixelSpacing": [2, 2]},
        {"PatientOrientation": ["R", "FA"], "ImagerPixelSpacing": [0.125, 0.1]},
    ]
    notes = " ".join(read(sites(tmp_path / "p", (DEEP, poses[0]), (DEEP, poses[1]))).notes)
    assert "of the patient: 2 of L, F (N/a/1.dcm), 2 of R, F (S/a/1.dcm); turn" in notes
    assert "pixel sizes: 2 of 2 x 2 mm (N/a/1.dcm), 2 of 0.125 x 0.1 mm (S/a/1.dcm)" in notes
    with pytest.raises(DataError, match=r"2 of 3 x 2 \(N/a/1.dcm\), 2 of 2 x 2 \(S/a/1.dcm\)"):
        read(sites(tmp_path / "s", (DEEP, {}), (DEEP[:, :2], {})))
    for site, side in (("N", 1), ("S", 2)):
        for label in "ab":
            volume = values("i2", (4, 3, 3))
            write_nifti(tmp_path / "v" / site / label / "1.nii", volume, np.diag([side, 1, 1, 1]))
    notes = " ".join(read(data_settings(name="images", path=tmp_path / "v")).notes)
    assert "1 x 1 x 1 mm (N/a/1.nii), 2 of 1 x 1 x 2 mm (S/a/1.nii)" in notes


def test_reports_in_class_folders_are_one_note(tmp_path):
    for label in "ab":
        write_dicom(tmp_path / label / "1.dcm", DEEP)
        for k in range(2):
            write_dicom(
                tmp_path / label / f"report{k}.dcm", DEEP, Rows=None, Columns=None, PixelData=None,
                SOPClassUID="1.2.840.10008.5.1.4.1.1.88.11",
            )  # fmt: skip
    data = read(data_settings(name="images", path=tmp_path))
    assert (len(data), data.y.tolist()) == (2, [0, 1])
    [note] = [note for note in data.notes if "SR" in note]
    assert "4 of 6 files" in note
    assert "a/report0.dcm is a DICOM Basic Text SR" in note


def test_nothing_but_reports_is_an_error(tmp_path):
    for label in "ab":
        write_dicom(tmp_path / label / "1.dcm", DEEP, Rows=None, Columns=None, PixelData=None)
    with pytest.raises(DataError, match=r"none of 2 files .*1.dcm is a DICOM"):
        read(data_settings(name="images", path=tmp_path))
