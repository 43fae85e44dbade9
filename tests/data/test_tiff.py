"""TIFF as tifffile, ImageJ, OME, Pillow and libtiff write it: stored numbers, and one meaning."""

import importlib.util
import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from image_files import labels_of, pixels
from PIL import Image

from pomona.core.errors import ConfigError, DataError
from pomona.core.rng import stream
from pomona.data import data_settings, read
from pomona.data.formats import tiff
from pomona.data.formats.image_formats import opened

tifffile = pytest.importorskip("tifffile")
needs_codecs = pytest.mark.skipif(
    importlib.util.find_spec("imagecodecs") is None, reason="imagecodecs is not installed"
)
GRAY = np.arange(120).reshape(10, 12)


def written(tmp_path, values, **options):
    tifffile.imwrite(tmp_path / "1.tif", values, **options)
    return tmp_path / "1.tif"


def notes(path):
    return " ".join(opened(path).notes)


def error(path):
    with pytest.raises((DataError, ConfigError)) as fault:
        pixels(path)
    return str(fault.value)


# numbers


@needs_codecs
@pytest.mark.parametrize("compression", [None, "zlib", "lzw", "zstd", "packbits"])
@pytest.mark.parametrize(
    ("stored", "expected"),
    [("u1", "u1"), ("i1", "i2"), ("u2", "u2"), ("i2", "i2"), ("u4", "f4"), ("i4", "f4"), ("i8", "f4"),
     ("f2", "f4"), ("f4", "f4"), ("f8", "f4")],
)  # fmt: skip
def test_every_number_type_in_every_compression(tmp_path, stored, expected, compression):
    raw = GRAY.astype(stored)
    x = pixels(written(tmp_path, raw, compression=compression))
    assert x.dtype == expected
    np.testing.assert_array_equal(x[..., 0], raw)


@needs_codecs
@pytest.mark.parametrize("bits", [9, 10, 12, 14])
def test_packed_numbers_keep_their_values(tmp_path, bits):
    raw = (GRAY * 4 % 2**bits).astype(np.uint16)
    np.testing.assert_array_equal(pixels(written(tmp_path, raw, bitspersample=bits))[..., 0], raw)


@pytest.mark.parametrize(("bits", "factor"), [(1, 255), (2, 85), (4, 17)])
def test_few_bits_are_shown_as_eight_and_are_labels_as_stored(tmp_path, bits, factor):
    raw = (GRAY % 2**bits).astype(np.uint8)
    path = written(tmp_path, raw, bitspersample=bits, photometric="minisblack")
    np.testing.assert_array_equal(pixels(path)[..., 0], raw * factor)
    np.testing.assert_array_equal(labels_of(path, (10, 12), 16), raw)
    assert ("scaled" in notes(path)) == (bits > 1)


@pytest.mark.parametrize("options", [{"byteorder": ">"}, {"bigtiff": True}, {"tile": (16, 16)}, {"rowsperstrip": 3},
                                 {"byteorder": ">", "bigtiff": True, "tile": (16, 16), "compression": "zlib"}])  # fmt: skip
@pytest.mark.parametrize("stored", ["u1", "u2", "f4"])
def test_every_arrangement_of_the_bytes(tmp_path, stored, options):
    raw = np.tile(GRAY, (3, 4)).astype(stored)
    np.testing.assert_array_equal(pixels(written(tmp_path, raw, **options))[..., 0], raw)


# colours and channels


@pytest.mark.parametrize("planes", ["contig", "separate"])
@pytest.mark.parametrize("stored", ["u1", "u2", "f4"])
@pytest.mark.parametrize("channels", [3, 4, 6])
def test_colours_in_pixels_and_in_planes(tmp_path, stored, planes, channels):
    raw = (np.stack([GRAY + 10 * k for k in range(channels)], -1) * (400 if stored == "u2" else 1)).astype(stored)  # fmt: skip
    path = written(
        tmp_path,
        raw if planes == "contig" else np.moveaxis(raw, -1, 0),
        photometric="rgb",
        planarconfig=planes,
        extrasamples=["unspecified"] * (channels - 3),
    )
    np.testing.assert_array_equal(pixels(path), raw)


def test_the_alpha_channel_is_left_out_with_a_note(tmp_path):
    raw = np.stack([GRAY] * 4, -1)
    for stored in ("u1", "u2"):
        path = written(tmp_path, raw.astype(stored), photometric="rgb", extrasamples=["unassalpha"])
        np.testing.assert_array_equal(pixels(path), raw[..., :3])
        assert "alpha" in notes(path)
    two_channels = written(
        tmp_path, raw[..., :2].astype("u1"), photometric="minisblack", planarconfig="contig",
        extrasamples=["unassalpha"],
    )  # fmt: skip
    np.testing.assert_array_equal(pixels(two_channels), raw[..., :1])
    assert labels_of(two_channels, (10, 12), 256).shape == (10, 12)


@pytest.mark.parametrize("largest", [255, 65535])
def test_a_palette_is_colours_in_images_and_numbers_in_masks(tmp_path, largest):
    colours = stream(3, "colours").integers(0, largest + 1, (3, 256)).astype(np.uint16)
    path = written(
        tmp_path, GRAY.astype(np.uint8), photometric="palette", colormap=colours, compression="zlib"
    )
    eight = colours >> 8 if largest > 255 else colours
    expected = Image.open(path).convert("RGB") if largest > 255 else eight.T[GRAY]
    np.testing.assert_array_equal(pixels(path), np.asarray(expected))
    np.testing.assert_array_equal(pixels(path), eight.T[GRAY])
    np.testing.assert_array_equal(labels_of(path, (10, 12), 256), GRAY)


@pytest.mark.parametrize("stored", ["u1", "u2"])
def test_inks_become_rgb_with_a_note(tmp_path, stored):
    top = np.iinfo(stored).max
    raw = np.zeros((2, 3, 4), stored)
    raw[0, 0], raw[0, 1], raw[1, 0] = (top, 0, 0, 0), (0, 0, 0, top), (0, top, top, 0)
    path = written(tmp_path, raw, photometric="separated")
    x = pixels(path)
    assert x.dtype == stored
    assert x[0, :2].tolist() == [[0, top, top], [0, 0, 0]]
    assert x[1, :2].tolist() == [[top, 0, 0], [top, top, top]]
    assert "CMYK" in notes(path)


@needs_codecs
def test_jpeg_inside_is_rgb(tmp_path):
    raw = np.zeros((16, 16, 3), np.uint8)
    raw[..., 0] = 200
    path = written(tmp_path, raw, photometric="rgb", compression="jpeg")
    assert np.abs(pixels(path).astype(int) - raw).max() <= 3


@pytest.mark.parametrize("compression", [None, "jpeg", "tiff_lzw"])
def test_luma_and_chroma_are_converted_to_rgb(tmp_path, compression):
    """tifffile gives luma and chroma as they are stored."""
    rgb = Image.new("RGB", (16, 16), (200, 30, 60))
    rgb.convert("YCbCr").save(tmp_path / "1.tif", compression=compression)
    assert np.abs(pixels(tmp_path / "1.tif").astype(int) - np.asarray(rgb)).max() <= 3


def test_other_colours_are_refused_by_name(tmp_path):
    Image.new("RGB", (6, 4), (9, 8, 7)).convert("LAB").save(tmp_path / "1.tif")
    assert "CIELAB" in error(tmp_path / "1.tif")


# polarity


@pytest.mark.parametrize("stored", ["?", "u1", "u2", "i2", "f4"])
def test_one_polarity_for_all_types(tmp_path, stored):
    raw = (GRAY % 2 if stored == "?" else GRAY).astype(stored)
    path = written(tmp_path, raw, photometric="miniswhite")
    x = pixels(path)[..., 0].astype(np.float64)
    assert x[0, 0] > x[0, 1]
    low, high = {"?": (0, 1), "u1": (0, 255), "u2": (0, 65535), "i2": (-1, 0), "f4": (0, 0)}[stored]
    np.testing.assert_array_equal(x, (low + high - raw.astype(np.float64)) * (255 if stored == "?" else 1))  # fmt: skip
    assert "MinIsWhite" in notes(path)


@needs_codecs
def test_the_range_of_packed_numbers_is_that_of_their_bits(tmp_path):
    path = written(tmp_path, GRAY.astype("u2"), bitspersample=12, photometric="miniswhite")
    np.testing.assert_array_equal(pixels(path)[..., 0], 4095 - GRAY)


def test_a_boolean_mask_of_pillow(tmp_path):
    labels = np.zeros((10, 12), bool)
    labels[2:5, 2:5] = True
    Image.fromarray(labels).save(tmp_path / "1.tif")
    np.testing.assert_array_equal(labels_of(tmp_path / "1.tif", (10, 12), 2), labels)


@pytest.mark.parametrize("stored", ["i1", "u2", "i4", "u4", "i8", "f4", "f8"])
def test_a_mask_of_any_type_is_read(tmp_path, stored):
    labels = (GRAY % 3).astype(stored)
    for white in ("minisblack", "miniswhite"):
        path = written(tmp_path, labels, photometric=white)
        np.testing.assert_array_equal(labels_of(path, (10, 12), 3), labels)


@given(arrays.arrays(st.sampled_from(["u1", "u2", "i4", "?"]), st.tuples(st.integers(1, 9), st.integers(1, 9)),
                     elements=st.integers(0, 1)))  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_masks_of_any_size(tmp_path, labels):
    np.testing.assert_array_equal(labels_of(written(tmp_path, labels), labels.shape, 2), labels)


# orientation


@pytest.mark.parametrize("stored", ["u1", "u2", "i4"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_as_pillow_turns_it(tmp_path, orientation, stored):
    raw = GRAY.astype(stored)
    path = written(tmp_path, raw, extratags=[(274, 3, 1, orientation, True)])
    # given a name, it maps the file into memory in the wrong size (Pillow 13.0)
    expected = np.asarray(Image.open(io.BytesIO(path.read_bytes())).copy())
    np.testing.assert_array_equal(pixels(path)[..., 0], expected)
    np.testing.assert_array_equal(labels_of(path, expected.shape, 256), expected)
    assert ("orientation" in notes(path)) == (orientation > 1)


# pages


def test_pages_without_names_are_refused_with_their_number(tmp_path):
    for raw in (np.zeros((7, 10, 12), np.uint8), np.zeros((7, 10, 12), np.float64)):
        message = error(written(tmp_path, raw, photometric="minisblack"))
        assert all(text in message for text in ("7 pages", "QYX", "7 x 10 x 12"))
    pages = [Image.new("L", size) for size in ((6, 4), (3, 2))]
    pages[0].save(tmp_path / "1.tif", save_all=True, append_images=pages[1:])
    assert "2 pages" in error(tmp_path / "1.tif")


def test_one_page_that_stands_for_several_is_refused(tmp_path):
    path = written(tmp_path, np.zeros((7, 10, 12), np.uint8), photometric="minisblack", truncate=True)  # fmt: skip
    assert "several pictures" in error(path)


STACK = np.arange(5 * 10 * 12).reshape(5, 10, 12).astype(np.uint16)


def test_a_stack_of_ome_is_a_volume_with_its_spacing(tmp_path):
    path = tmp_path / "1.ome.tif"
    tifffile.imwrite(path, STACK, metadata={
        "axes": "ZYX", "PhysicalSizeX": 500.0, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": 0.7,
        "PhysicalSizeYUnit": "mm", "PhysicalSizeZ": 2.0, "PhysicalSizeZUnit": "mm"})  # fmt: skip
    np.testing.assert_array_equal(pixels(path)[..., 0], STACK)
    np.testing.assert_allclose(opened(path).spacing, (2, 0.7, 0.5))
    tifffile.imwrite(path, GRAY.astype("u2"), ome=True)
    np.testing.assert_array_equal(pixels(path)[..., 0], GRAY)


@pytest.mark.parametrize("axes", ["ZCYX", "CZYX"])
def test_channels_of_a_stack_are_the_last_axis(tmp_path, axes):
    raw = np.arange(5 * 2 * 10 * 12).reshape(*((5, 2) if axes[0] == "Z" else (2, 5)), 10, 12)
    tifffile.imwrite(tmp_path / "1.ome.tif", raw.astype(np.uint16), metadata={"axes": axes})
    expected = np.moveaxis(raw, axes.index("C"), -1)
    np.testing.assert_array_equal(pixels(tmp_path / "1.ome.tif"), expected)


def test_images_of_other_channels_or_pixels_are_noted(tmp_path):
    """By the metadata of OME: one site's magnification is another's, or its order of channels."""
    for k, names in enumerate((["DAPI", "GFP"], ["GFP", "DAPI"])):
        (tmp_path / "ab"[k]).mkdir()
        metadata = {"axes": "CYX", "Channel": {"Name": names}, "PhysicalSizeX": k + 1, "PhysicalSizeY": 1}  # fmt: skip
        tifffile.imwrite(tmp_path / "ab"[k] / "1.ome.tif", STACK[k : k + 2], metadata=metadata)
    text = " ".join(read(data_settings(name="images", path=tmp_path)).notes)
    assert "1 of DAPI, GFP (a/1.ome.tif), 1 of GFP, DAPI (b/1.ome.tif)" in text
    assert "1 of 0.001 x 0.001 mm (a/1.ome.tif), 1 of 0.001 x 0.002 mm (b/1.ome.tif)" in text


def test_a_mask_of_a_stack_is_a_volume(tmp_path):
    labels = (STACK % 3).astype(np.uint8)
    path = written(tmp_path, labels, imagej=True, metadata={"axes": "ZYX"})
    np.testing.assert_array_equal(tiff.labels(path)[..., 0], labels)


def test_tiles_that_are_not_in_the_file_are_noted(tmp_path):
    """As GDAL and others leave out those without data."""
    large = np.tile(GRAY.astype("u1"), (2, 2))
    for tiles, noted in (([large[:16, :16], None], True), ([large[:16, :16]] * 2, False)):
        blocks = iter([*tiles, *tiles])
        tifffile.imwrite(tmp_path / "1.tif", blocks, shape=(20, 24), dtype="u1", tile=(16, 16))
        assert ("not in the file" in notes(tmp_path / "1.tif")) == noted
        assert pixels(tmp_path / "1.tif")[:, 16:].any() != noted


@pytest.mark.parametrize("inside", [False, True])
def test_a_file_that_starts_with_a_smaller_copy_is_refused(tmp_path, inside):
    """As cameras write: a thumbnail first, and the picture in another page or within its tags."""
    with tifffile.TiffWriter(tmp_path / "1.tif") as file:
        for step, page_type in ((2, 1), (1, 0)):
            file.write(GRAY[::step, ::step].astype("u1"), photometric="minisblack", subfiletype=page_type,
                       subifds=int(inside and page_type), metadata=None)  # fmt: skip
    assert "smaller copy" in error(tmp_path / "1.tif")


# libraries


def test_a_missing_decoder_is_named_with_its_extra(tmp_path, monkeypatch):
    path = written(tmp_path, GRAY.astype("f8"), compression="zstd")

    def asarray(*_, **__):
        raise ValueError("<COMPRESSION.ZSTD: 50000> requires the 'imagecodecs' package")

    monkeypatch.setattr(tifffile.TiffPageSeries, "asarray", asarray)
    assert all(text in error(path) for text in ("ZSTD", "imagecodecs", "extra decoders"))


@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}, {"compression": "zlib", "predictor": True}])  # fmt: skip
@pytest.mark.parametrize("stored", ["u1", "u2", "i2", "f4"])
def test_numbers_are_those_of_pillow(tmp_path, stored, options):
    path = written(tmp_path, GRAY.astype(stored), **options)
    np.testing.assert_array_equal(pixels(path)[..., 0], np.asarray(Image.open(path)))


def test_gray_becomes_colour_and_sizes_one(tmp_path):
    for name, size, white in (("a", (8, 6), True), ("b", (10, 12), False)):
        (tmp_path / name).mkdir()
        tifffile.imwrite(tmp_path / name / "1.tif", np.full(size, 40, np.uint8),
                         photometric="miniswhite" if white else "minisblack")  # fmt: skip
    Image.new("RGB", (5, 5), (9, 8, 7)).save(tmp_path / "a" / "2.png")
    dataset = read(data_settings(name="images", path=tmp_path, resize=4))
    assert dataset.x[:, 0, 0].tolist() == [[215] * 3, [9, 8, 7], [40] * 3]
    assert "MinIsWhite" in " ".join(dataset.notes)


def test_a_calibration_of_imagej_is_noted(tmp_path):
    """ImageJ stores signed numbers of 16 bits as v + 32768, and says so in its description."""
    line = {"cf": 0, "c0": -32768, "c1": 1, "vunit": "Gray Value"}
    raw = GRAY.astype(np.uint16)
    path = written(tmp_path, raw, imagej=True, metadata=line)
    assert "a scale of the values (ImageJ, GDAL) is not applied" in notes(path)
    assert not notes(written(tmp_path, raw, imagej=True))


def test_what_gdal_says_of_values_is_noted(tmp_path):
    """Its tags are texts: of the value of gaps, and XML with a scale and an offset."""
    item = '<Item name="SCALE" sample="0" role="scale">{}</Item>'.format
    gap = lambda text: (42113, "s", 0, text, True)  # noqa: E731
    tags = [gap("-9999"), (42112, "s", 0, item("0.1"), True)]
    text = notes(
        written(tmp_path, np.pad(GRAY.astype("f4"), 1, constant_values=-9999), extratags=tags)
    )
    assert "pixels of -9999 are gaps (GDAL_NODATA), but count as this number" in text
    assert "a scale of the values" in text
    assert not notes(written(tmp_path, GRAY, extratags=[(42112, "s", 0, item("1"), True)]))
    for absent in ("-9999", "nan", "1e300", "none"):  # no pixel has it
        assert not notes(written(tmp_path, GRAY.astype(np.float32), extratags=[gap(absent)]))
    unreadable = [(42112, "s", 0, item("a tenth"), True)]
    assert "a scale of the values" in notes(written(tmp_path, GRAY, extratags=unreadable))
