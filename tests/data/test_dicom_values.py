"""DICOM values are those of the modality, wherever the header keeps their scale; pydicom and
highdicom write the files.
"""

import numpy as np
import pytest
from image_files import write_dicom
from pydicom.dataset import Dataset

from pomona.core.errors import ConfigError, DataError
from pomona.data import data_settings, read
from pomona.data.formats.image_formats import opened

pydicom = pytest.importorskip("pydicom")
from pydicom import pixels as pydicom_pixels  # noqa: E402
from pydicom import uid  # noqa: E402
from pydicom.data import get_testdata_file  # noqa: E402

STORED = np.array([[1, 2], [300, 4095]], np.uint16)


def changed(path, change, **elements):
    """A file of 12 bits whose data set a function changes."""
    write_dicom(path, STORED, **{"BitsStored": 12, "HighBit": 11, **elements})
    dataset = pydicom.dcmread(path)
    change(dataset)
    dataset.save_as(path)
    return path


def value(path):
    file = opened(path)
    return file, file.decoded(file.shape[-1])[..., 0]


def item(**elements):
    dataset = Dataset()
    for name, content in elements.items():
        setattr(dataset, name, content)
    return dataset


def table(bits, entries, first=0, lut_type="OD"):
    def change(dataset):
        lut = item(ModalityLUTType=lut_type, LUTDescriptor=[len(entries) % 2**16, first, bits])
        lut.add_new(0x00283006, "OW", np.asarray(entries, np.uint16).tobytes())
        dataset.ModalityLUTSequence = [lut]

    return change


@pytest.mark.parametrize("inverted", [False, True])
def test_a_modality_lut(tmp_path, inverted):
    path = changed(
        tmp_path / "l.dcm", table(16, np.arange(4096) * 3 + 7, lut_type="US"),
        PhotometricInterpretation=f"MONOCHROME{2 - inverted}",
    )  # fmt: skip
    file, got = value(path)
    dataset = pydicom.dcmread(path)
    right = pydicom_pixels.apply_modality_lut(dataset.pixel_array, dataset)
    np.testing.assert_array_equal(got, 65535 - right if inverted else right)
    assert file.dtype == np.uint16


def test_a_short_modality_lut_is_clipped_at_its_ends(tmp_path):
    path = changed(tmp_path / "l.dcm", table(8, np.arange(200), first=10))
    dataset = pydicom.dcmread(path)
    np.testing.assert_array_equal(
        value(path)[1], pydicom_pixels.apply_modality_lut(dataset.pixel_array, dataset)
    )


def mapping(unit, **elements):
    code = item(CodeValue=unit, CodingSchemeDesignator="UCUM", CodeMeaning=unit)
    return item(MeasurementUnitsCodeSequence=[code], LUTLabel="a", **elements)


LINEAR = {
    "RealWorldValueFirstValueMapped": 0, "RealWorldValueLastValueMapped": 4095,
    "RealWorldValueSlope": 0.5, "RealWorldValueIntercept": 3.0,
}  # fmt: skip


def test_a_real_world_mapping_where_no_other_scale_is(tmp_path):
    def change(dataset):
        dataset.RealWorldValueMappingSequence = [mapping("mm2/s", **LINEAR)]

    path = changed(tmp_path / "r.dcm", change)
    file, got = value(path)
    np.testing.assert_array_equal(got, STORED * 0.5 + 3)
    assert file.unit == "mm2/s"
    file, got = value(changed(tmp_path / "s.dcm", change, RescaleSlope=2, RescaleIntercept=-1))
    np.testing.assert_array_equal(got, STORED.astype(int) * 2 - 1)
    assert "real-world values too (mm2/s)" in file.notes[0]


def test_a_table_of_real_world_values_is_noted(tmp_path):
    def change(dataset):
        listed = {
            "RealWorldValueFirstValueMapped": 1,
            "RealWorldValueLastValueMapped": 4095,
            "RealWorldValueLUTData": (np.arange(4095) ** 0.5).tolist(),
        }
        dataset.RealWorldValueMappingSequence = [mapping("g/ml", **listed)]

    file, got = value(changed(tmp_path / "r.dcm", change))
    np.testing.assert_array_equal(got, STORED)
    assert "real-world values too (g/ml), not applied" in file.notes[0]
    assert file.unit == ""


def test_a_modality_lut_of_signed_numbers(tmp_path):
    """The table has a value for each of 16 bits, and its first is that of -32768."""
    stored = np.array([[-32768, -1], [0, 32767]], np.int16)
    path = write_dicom(tmp_path / "l.dcm", stored)
    dataset = pydicom.dcmread(path)
    table(16, np.arange(2**16)[::-1], first=-(2**15))(dataset)
    dataset.save_as(path)
    np.testing.assert_array_equal(value(path)[1], 32767 - stored.astype(int))


@pytest.mark.parametrize("name", ["FloatPixelData", "DoubleFloatPixelData"])
def test_float_pixels(tmp_path, name):
    values = np.linspace(-2, 2, 4).reshape(2, 2).astype("f4" if name[0] == "F" else "f8")
    path = write_dicom(
        tmp_path / "f.dcm", values, PixelData=None, BitsStored=None, HighBit=None,
        PixelRepresentation=None, **{name: values.tobytes()},
    )  # fmt: skip
    file, got = value(path)
    np.testing.assert_array_equal(got, values.astype(np.float32))
    assert ("64 bits" in " ".join(file.notes)) == (name[0] == "D")


@pytest.mark.parametrize(
    ("elements", "unit", "inverted"),
    [
        ({"Modality": "CR"}, "", True),
        ({"Modality": "DX", "PixelIntensityRelationship": "LOG"}, "LOG", True),
        ({"Modality": "CT", "RescaleSlope": 1, "RescaleIntercept": -1024}, "HU", False),
        ({"Modality": "CT", "RescaleSlope": "", "RescaleIntercept": ""}, "stored numbers", True),
        ({"Modality": "PT", "Units": "BQML", "RescaleSlope": 2, "RescaleIntercept": 0}, "BQML", False),
        ({"Modality": "MR", "RescaleSlope": 2, "RescaleIntercept": 0, "RescaleType": "US"}, "", True),
    ],
)  # fmt: skip
def test_monochrome1_is_inverted_unless_the_values_have_a_unit(tmp_path, elements, unit, inverted):
    """PS3.3 C.7.6.3.1.2: MONOCHROME1 is about display, HU are HU however they are shown."""
    path = write_dicom(
        tmp_path / "m.dcm", STORED, BitsStored=12, HighBit=11,
        PhotometricInterpretation="MONOCHROME1", **elements,
    )  # fmt: skip
    file, got = value(path)
    slope, shift = elements.get("RescaleSlope") or 1, elements.get("RescaleIntercept") or 0
    stored = 4095 - STORED if inverted else STORED
    np.testing.assert_array_equal(got, stored.astype(int) * slope + shift)
    assert file.unit == unit
    assert ("inverted" if inverted else "kept") in " ".join(file.notes)


NOTED = {
    "overlay": (lambda d: d.add_new(0x60003000, "OW", bytes(2)), "overlays"),
    "burned in": (lambda d: setattr(d, "BurnedInAnnotation", "YES"), "burned into"),
    "shape": (lambda d: setattr(d, "PresentationLUTShape", "INVERSE"), "Presentation LUT Shape"),
    "window": (lambda d: [setattr(d, "WindowCenter", 40), setattr(d, "WindowWidth", 400)], "VOI LUT"),
    "VOI LUT": (lambda d: setattr(d, "VOILUTSequence", [item(LUTExplanation="a")]), "VOI LUT"),
    "presentation": (lambda d: setattr(d, "PresentationLUTSequence", [item(LUTLabel="a")]), "Presentation"),
    "profile": (lambda d: d.add_new(0x00282000, "OB", b"Display P3"), "profile is not sRGB"),
    "PET": (lambda d: [setattr(d, "Modality", "PT"), setattr(d, "Units", "BQML")], "not converted to SUV"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOTED)
def test_what_is_not_applied_is_noted(tmp_path, case):
    change, note = NOTED[case]
    file, got = value(changed(tmp_path / "n.dcm", change))
    np.testing.assert_array_equal(got, STORED)
    assert note in " ".join(file.notes)


def test_files_of_several_units_are_noted(tmp_path):
    for k, units in enumerate(("BQML", "CNTS", "BQML", "GML")):
        write_dicom(
            tmp_path / "ab"[k % 2] / f"{k}.dcm", STORED, Modality="PT", Units=units,
            DecayCorrection="START",
        )  # fmt: skip
    notes = " ".join(read(data_settings(name="images", path=tmp_path)).notes)
    assert "several units: 2 of BQML, decay corrected to START" in notes


def test_raw_mammograms_beside_those_for_display_are_noted(tmp_path):
    for k, intent in enumerate(("PRESENTATION", "PRESENTATION", "PROCESSING")):
        write_dicom(
            tmp_path / "ab"[k % 2] / f"{k}.dcm", STORED, PresentationIntentType=f"FOR {intent}"
        )
    notes = " ".join(read(data_settings(name="images", path=tmp_path)).notes)
    assert "2 of FOR PRESENTATION (a/0.dcm), 1 of FOR PROCESSING (a/2.dcm)" in notes


# transfer syntaxes

COMPRESSED = {
    "JPEG Lossless": "SC_rgb_jpeg_gdcm.dcm",
    "JPEG-LS": "MR_small_jpeg_ls_lossless.dcm",
    "JPEG 2000": "MR_small_jp2klossless.dcm",
    "RLE": "MR_small_RLE.dcm",
    "deflated": "image_dfl.dcm",
    "big-endian": "MR_small_bigendian.dcm",
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_files_are_read(name):
    path = get_testdata_file(COMPRESSED[name], download=False)
    dataset = pydicom.dcmread(path)
    file = opened(__import__("pathlib").Path(path))
    got = file.decoded(file.shape[-1])
    np.testing.assert_array_equal(got.reshape(dataset.pixel_array.shape), dataset.pixel_array)
    if name in ("JPEG-LS", "JPEG 2000", "RLE", "big-endian"):  # one image, without a loss
        plain = pydicom.dcmread(get_testdata_file("MR_small.dcm", download=False))
        np.testing.assert_array_equal(got[..., 0], plain.pixel_array)


def compressed(path, syntax):
    write_dicom(path, STORED)
    dataset = pydicom.dcmread(path)
    dataset.PixelData = pydicom.encaps.encapsulate([b"\0\0"])
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.save_as(path)
    return path


def test_a_missing_decoder_is_named(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"High-Throughput JPEG 2000 .*which is not supported"):
        opened(compressed(tmp_path / "h.dcm", uid.HTJ2K))
    with pytest.raises(DataError, match=r"MPEG-4 .*which is not supported \(docs/formats.md"):
        opened(compressed(tmp_path / "v.dcm", uid.MPEG4HP41))
    decoder = pydicom_pixels.get_decoder(uid.JPEGLosslessSV1)
    monkeypatch.setattr(decoder, "_available", {})
    monkeypatch.setattr(decoder, "_unavailable", {"gdcm": ("python-gdcm>=3.0.10",)})
    with pytest.raises(ConfigError, match=r"JPEG Lossless.*extra decoders .*gdcm"):
        opened(compressed(tmp_path / "j.dcm", uid.JPEGLosslessSV1))


# what is no image


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("reportsi.dcm", "Basic Text SR"), ("rtplan.dcm", "RT Plan"), ("waveform_ecg.dcm", "Waveform"),
        ("rtstruct.dcm", "RT Structure Set, not an image; draw its contours"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_named(name, message):
    path = get_testdata_file(name, download=False)
    if path is None:
        pytest.skip("not among the installed files")
    with pytest.raises(DataError, match=message):
        opened(__import__("pathlib").Path(path))


def test_bits_at_the_upper_end_are_refused(tmp_path):
    path = write_dicom(tmp_path / "a.dcm", STORED << 4, BitsStored=12, HighBit=15)
    with pytest.raises(DataError, match="12 bits stored up to bit 15"):
        opened(path)


@pytest.mark.parametrize("photometry", ["MONOCHROME1", "MONOCHROME2"])
def test_a_padding_value_is_noted_as_it_is_read(tmp_path, photometry):
    """Of 12 bits, 0 with slope 2 and intercept 1 is 1; inverted, 2 * 4095 + 1 + 1 - 1."""
    path = changed(
        tmp_path / "p.dcm", lambda dataset: None, PhotometricInterpretation=photometry,
        BitsStored=12, HighBit=11, PixelPaddingValue=0, RescaleSlope=2, RescaleIntercept=1,
    )  # fmt: skip
    file, _ = value(path)
    padding = 8191 if photometry == "MONOCHROME1" else 1
    assert any(f"a padding value ({padding}) of pixels" in note for note in file.notes)
