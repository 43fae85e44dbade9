"""What makes a block of slices: order, gaps, doubles, tilt, several series, names of files."""

import shutil

import numpy as np
import pytest
from image_files import pixels, series, write_dicom
from pydicom.dataset import Dataset

from pomona.core.errors import DataError
from pomona.data import data_settings, read
from pomona.data.formats.image_formats import opened

pydicom = pytest.importorskip("pydicom")
from pydicom.data import get_testdata_file  # noqa: E402
from pydicom.uid import EnhancedCTImageStorage  # noqa: E402

SHAPE = (6, 4, 5)


def volume():
    return np.arange(np.prod(SHAPE), dtype=np.int16).reshape(SHAPE)


def turned():
    return volume()[:, ::-1, ::-1]


def values(path):
    return pixels(path)[..., 0]


def edit(path, **changes):
    dataset = pydicom.dcmread(path)
    for name, content in changes.items():
        setattr(dataset, name, content)
    dataset.save_as(path)


@pytest.mark.parametrize("names", ["some", "all", "bare"])
def test_files_are_recognised_by_their_content(tmp_path, names):
    """Names of archives: CT.1.2.840... and none at all."""
    folder = series(tmp_path / "s", volume())
    for k, path in enumerate(sorted(folder.iterdir())):
        if names == "bare":
            path.rename(folder / f"IM{k:04}")
        elif names == "all" or k % 2:
            path.rename(folder / f"CT.1.2.840.113619.{k}")
    np.testing.assert_array_equal(values(folder), turned())
    assert opened(folder).notes == ()


def test_a_single_file_of_any_name(tmp_path):
    path = write_dicom(tmp_path / "CT.1.2.840.5", volume()[0])
    np.testing.assert_array_equal(values(path), volume()[0])


def test_files_without_the_preamble(tmp_path):
    """As of old archives: the data set alone."""
    folder = series(tmp_path / "s", volume())
    for path in folder.iterdir():
        dataset = pydicom.dcmread(path)
        dataset.preamble = None
        del dataset.file_meta
        pydicom.dcmwrite(
            path, dataset, implicit_vr=True, little_endian=True, enforce_file_format=False
        )
    np.testing.assert_array_equal(values(folder), turned())


def test_strangers_are_left_out_with_a_note_and_damaged_slices_are_not(tmp_path):
    folder = series(tmp_path / "s", volume())
    (folder / "notes.txt").write_text("hello")
    report = get_testdata_file("reportsi.dcm", download=False)
    shutil.copy(report, folder / "report.dcm")
    notes = " ".join(opened(folder).notes)
    assert "not DICOM, and left out: notes.txt" in notes
    assert "report.dcm, a DICOM Basic Text SR" in notes
    np.testing.assert_array_equal(values(folder), turned())
    (folder / "CT.1.2.840.9").write_bytes(b"cut off")
    with pytest.raises(DataError, match=r"CT\.1\.2\.840\.9"):
        opened(folder)


TILT = np.deg2rad(20)


def test_a_tilted_gantry_is_noted_and_its_grid_is_sheared(tmp_path):
    folder = series(tmp_path / "s", volume(), (1, 0, 0, 0, np.cos(TILT), -np.sin(TILT)))
    (tmp_path / "m.csv").write_text("path,label\ns,a\n")
    data = read(data_settings(name="images", path=str(tmp_path / "m.csv")))
    assert "tilted by 20 degrees" in " ".join(data.notes)
    grid = opened(folder).grid
    np.testing.assert_allclose(grid.matrix[:3, 2], [0, 0, 3], atol=1e-6)
    np.testing.assert_allclose(
        grid.matrix[:3, 1], [0, -2 * np.cos(TILT), -2 * np.sin(TILT)], atol=1e-6
    )


def test_an_oblique_series_is_no_tilted_one(tmp_path):
    row, column = np.array([np.cos(0.3), np.sin(0.3), 0]), np.array([-np.sin(0.3), np.cos(0.3), 0])
    folder = series(tmp_path / "s", volume(), (*row, *column))
    np.testing.assert_array_equal(values(folder), turned())
    assert opened(folder).notes == ()


def test_uneven_distances_are_noted(tmp_path):
    folder = series(tmp_path / "s", volume())
    for k, z in ((4, 13), (5, 17)):
        edit(folder / f"00{k}.dcm", ImagePositionPatient=[-11, -9, z])
    file = opened(folder)
    line = f"slice distances from 3 to 4 mm; they are taken as {17 / 5} mm"
    assert line in " ".join(file.notes)
    assert file.spacing[0] == 17 / 5


def test_slices_of_several_echoes_at_their_own_positions_are_noted(tmp_path):
    folder = series(tmp_path / "s", volume(), EchoTime=10)
    assert opened(folder).notes == ()
    edit(folder / "003.dcm", EchoTime=80)
    assert opened(folder).notes == ("slices differ in EchoTime: they may be of several volumes",)


def test_slices_of_several_patients_are_noted(tmp_path):
    """As after a tool that gave them new identifiers, but one UID of the series."""
    folder = series(tmp_path / "s", volume(), PatientID="a")
    assert opened(folder).notes == ()
    edit(folder / "003.dcm", PatientID="b")
    assert opened(folder).notes == ("slices of several patients in one series (a, b)",)


def rename_series(folder):
    for k in (1, 3):
        edit(folder / f"00{k}.dcm", SeriesInstanceUID="1.2.99")


def second_echo(folder):
    for k in range(6):
        dataset = pydicom.dcmread(folder / f"00{k}.dcm")
        dataset.EchoTime, dataset.SOPInstanceUID = 4.6, f"1.2.5.{k}"
        dataset.save_as(folder / f"1{k}.dcm")
        edit(folder / f"00{k}.dcm", EchoTime=2.3)


BAD = {
    "two series": (rename_series, r"differs from 000.dcm in series .* 2 series\); put each series"),
    "two echoes": (second_echo, r"EchoTime .* \(12 slices at 6 positions\); .* put each volume"),
    "a missing slice": (lambda f: (f / "002.dcm").unlink(), "missing between 001.dcm and 003.dcm: distance 6"),
    "another spacing": (lambda f: edit(f / "002.dcm", PixelSpacing=[2.1, 2.1]), "in spacing"),
    "another orientation": (
        lambda f: edit(f / "002.dcm", ImageOrientationPatient=[0, 1, 0, -1, 0, 0]), "in orientation",
    ),
    "a shifted slice": (
        lambda f: edit(f / "002.dcm", ImagePositionPatient=[-5, -9, 6]), "002.dcm is shifted by 6 mm",
    ),
    "a slice without position": (lambda f: edit(f / "002.dcm", ImageOrientationPatient=None), "in orientation"),
    "colour": (
        lambda f: write_dicom(
            f / "009.dcm", np.zeros((4, 5, 3), np.uint8), SamplesPerPixel=3, PlanarConfiguration=0,
            PhotometricInterpretation="RGB", ImagePositionPatient=[-11, -9, 18], PixelSpacing=[2, 2],
            ImageOrientationPatient=[1, 0, 0, 0, 1, 0],
        ),
        "colour",
    ),
    "a mosaic": (lambda f: edit(f / "002.dcm", ImageType=["ORIGINAL", "PRIMARY", "M", "MOSAIC"]), "mosaic"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_slices_that_form_no_block(tmp_path, case):
    damage, message = BAD[case]
    folder = series(tmp_path / "s", volume())
    damage(folder)
    with pytest.raises(DataError, match=message):
        values(folder)


@pytest.mark.parametrize("name", ["scout.dcm", "000 scout.dcm"])
def test_localizers_are_left_out(tmp_path, name):
    """Wherever the name of the file sorts them; their size and values do not count."""
    folder = series(tmp_path / "s", volume())
    write_dicom(
        folder / name, np.full((9, 9), -30_000, np.int16), ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"],
        ImagePositionPatient=[0, 0, 0], ImageOrientationPatient=[0, 1, 0, 0, 0, -1],
    )  # fmt: skip
    np.testing.assert_array_equal(values(folder), turned())
    assert f"1 localizers are left out ({name})" in " ".join(opened(folder).notes)


def test_a_folder_of_series_names_them(tmp_path):
    """As a study in an archive's export: STUDY/SERIES/files."""
    for name in ("SE1", "SE2"):
        series(tmp_path / "study" / name, volume())
    with pytest.raises(DataError, match=r"no DICOM file.*name one of the folders.*SE1, SE2"):
        opened(tmp_path / "study")


def test_files_fewer_than_the_header_counts_are_noted(tmp_path):
    folder = series(tmp_path / "s", volume(), ImagesInAcquisition=6)
    assert opened(folder).notes == ()
    (folder / "005.dcm").unlink()
    assert "5 files, but the header counts 6 images" in " ".join(opened(folder).notes)


def test_a_series_without_positions_says_so(tmp_path):
    folder = series(tmp_path / "s", volume(), ImagePositionPatient=None)
    np.testing.assert_array_equal(values(folder), volume())
    assert "does not state the volume's orientation" in " ".join(opened(folder).notes)


# many frames


def groups(**sequences):
    """A functional group of sequences of one item."""
    group = Dataset()
    for name, elements in sequences.items():
        content = Dataset()
        for key, content_value in elements.items():
            setattr(content, key, content_value)
        setattr(group, name, [content])
    return group


def enhanced(path, planes, positions, slopes=None, **extra):
    """An enhanced CT by pydicom: orientation and spacing shared, position and slope per frame."""
    slopes = slopes or [1] * len(planes)
    write_dicom(
        path, planes[0], SOPClassUID=EnhancedCTImageStorage, NumberOfFrames=len(planes), Modality="CT",
        PixelData=np.ascontiguousarray(planes).tobytes(),
    )  # fmt: skip
    dataset = pydicom.dcmread(path)
    dataset.SharedFunctionalGroupsSequence = [
        groups(
            PixelMeasuresSequence={"PixelSpacing": [2, 2], "SliceThickness": 3},
            PlaneOrientationSequence={"ImageOrientationPatient": [1, 0, 0, 0, 1, 0]},
        )
    ]
    dataset.PerFrameFunctionalGroupsSequence = [
        groups(
            PlanePositionSequence={"ImagePositionPatient": [-11, -9, z]},
            PixelValueTransformationSequence={
                "RescaleSlope": slope, "RescaleIntercept": -24, "RescaleType": "HU"},
            **{name: {key: content[k] for key, content in items.items()} for name, items in extra.items()},
        )
        for k, (z, slope) in enumerate(zip(positions, slopes, strict=True))
    ]  # fmt: skip
    dataset.save_as(path)
    return path


def test_an_enhanced_file_is_a_volume_in_order_of_its_positions(tmp_path):
    order = [3, 0, 5, 1, 4, 2]
    slopes = [1 + k for k in order]
    path = enhanced(tmp_path / "e.dcm", volume()[order], [3 * k for k in order], slopes)
    file = opened(path)
    expected = turned() * (1 + np.arange(6))[:, None, None] - 24
    np.testing.assert_array_equal(values(path), expected)
    assert (file.spacing, file.unit) == ((3.0, 2.0, 2.0), "HU")
    (tmp_path / "s").mkdir()
    path.rename(tmp_path / "s" / "e.dcm")
    np.testing.assert_array_equal(values(tmp_path / "s"), expected)


def test_an_enhanced_file_of_one_frame_is_an_image_and_many_are_a_series(tmp_path):
    for k in range(6):
        (tmp_path / "s").mkdir(exist_ok=True)
        enhanced(tmp_path / "s" / f"{9 - k}.dcm", volume()[k : k + 1], [3 * k])
    np.testing.assert_array_equal(values(tmp_path / "s" / "9.dcm"), volume()[0] - 24)
    np.testing.assert_array_equal(values(tmp_path / "s"), turned() - 24)


def test_time_points_in_one_file_are_refused_by_name(tmp_path):
    planes = np.concatenate([volume(), volume()])
    times = {"FrameContentSequence": {"TemporalPositionIndex": [1] * 6 + [2] * 6}}
    path = enhanced(tmp_path / "e.dcm", planes, [3 * k for k in range(6)] * 2, **times)
    with pytest.raises(DataError, match=r"frame 1 and .*frame 7 .*TemporalPositionIndex 1 and 2"):
        opened(path)


def test_frames_without_positions_are_refused(tmp_path):
    path = write_dicom(
        tmp_path / "film.dcm", volume()[0], NumberOfFrames=6, PixelData=volume().tobytes()
    )
    with pytest.raises(DataError, match="6 frames without positions"):
        opened(path)


def test_a_dose_has_its_scaling_and_offsets(tmp_path):
    planes = volume().astype(np.uint16)
    path = write_dicom(
        tmp_path / "d.dcm", planes[0], SOPClassUID="1.2.840.10008.5.1.4.1.1.481.2", NumberOfFrames=6,
        PixelData=planes.tobytes(), DoseGridScaling=0.25, DoseUnits="GY", PixelSpacing=[2, 2],
        ImagePositionPatient=[-11, -9, 5], ImageOrientationPatient=[1, 0, 0, 0, 1, 0],
        GridFrameOffsetVector=[0, 3, 6, 9, 12, 15],
    )  # fmt: skip
    np.testing.assert_array_equal(values(path), turned() * 0.25)
    assert (opened(path).unit, opened(path).spacing) == ("GY", (3, 2, 2))
    assert opened(path).grid.matrix[2, 3] == 5
