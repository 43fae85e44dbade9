"""Volumes and DICOM: the lines of ``docs/formats.md``."""

import bz2
import gzip
import inspect
from pathlib import Path

import nibabel
import numpy as np
import pytest
import test_dicom_segmentations as segments
import test_dicom_series as slices
import test_dicom_values as scales
import test_volume_grids as grids
from format_lines import Cases
from image_files import CT, nifti
from pydicom.data import get_testdata_file

from pomona.core.errors import DataError
from pomona.data import data_settings, read
from pomona.data.formats.image_formats import opened
from pomona.data.images import mask as masks

sitk = pytest.importorskip("SimpleITK")
VOLUMES, DICOM = Cases("Volumes"), Cases("DICOM")


def apply_each(function, values, folder):
    """Call a test with each value, in a folder of its own."""
    for k, value in enumerate(values):
        (folder / str(k)).mkdir()
        function(folder / str(k), value)


def mixed(path):
    return opened(path).decoded(opened(path).shape[-1])


def nrrd(path, *fields):
    """A volume of 3 x 4 x 5 voxels whose header has further fields."""
    header = ("NRRD0004\ntype: uchar\ndimension: 3\n", *fields, "sizes: 3 4 5\n")
    directions = "space directions: (1,0,0) (0,1,0) (0,0,1)\n" * ("space:" in "".join(fields))
    text = "".join((*header, directions, "encoding: raw\n\n"))
    path.write_bytes(text.encode() + bytes(60))
    return opened(path)


@VOLUMES.line("V1")
def axes(tmp):
    image = sitk.GetImageFromArray(grids.patient())
    image.SetDirection((0, 0, 1, 1, 0, 0, 0, 1, 0))
    for suffix in (".nii", ".nii.gz", ".nii.bz2", ".img", ".mgz", ".nrrd", ".nhdr", ".mha", ".mhd"):
        if suffix in (".nii", ".nrrd", ".nhdr", ".mha", ".mhd", ".img"):
            sitk.WriteImage(image, str(tmp / f"v{suffix}"))
        elif suffix == ".mgz":
            volume = nibabel.load(tmp / "v.nii")
            nibabel.save(nibabel.MGHImage(np.asarray(volume.dataobj), volume.affine), tmp / "v.mgz")
        else:
            nibabel.save(nibabel.load(tmp / "v.nii"), tmp / f"v{suffix}")
        np.testing.assert_array_equal(grids.voxels(tmp / f"v{suffix}"), grids.turned(tmp / "v.nii"))
    grids.test_a_series_and_its_nifti_are_one_array(tmp)


@VOLUMES.line("V2")
def channels(tmp):
    values = np.arange(120, dtype=np.int16).reshape(2, 3, 4, 5)  # z, y, x, C
    sitk.WriteImage(sitk.GetImageFromArray(values, isVector=True), str(tmp / "v.nrrd"))
    image = nibabel.Nifti1Image(values.transpose(2, 1, 0, 3), np.diag([-1, -1, 1, 1]))
    nibabel.save(image, tmp / "v.nii")
    np.testing.assert_array_equal(mixed(tmp / "v.nii"), mixed(tmp / "v.nrrd"))
    assert mixed(tmp / "v.nii").shape == (2, 3, 4, 5)
    assert "the 5 components of each voxel are read as channels" in opened(tmp / "v.nrrd").notes
    assert any(line.startswith("the 5 volumes along") for line in opened(tmp / "v.nii").notes)


@VOLUMES.line("V3")
def silent(tmp):
    nibabel.save(nibabel.Nifti1Image(np.zeros((3, 4, 5)), None), tmp / "n.nii")
    nibabel.save(nibabel.AnalyzeImage(np.zeros((3, 4, 5), np.int16), None), tmp / "a.img")
    header = "NRRD0004\ntype: uchar\ndimension: 3\nsizes: 3 4 5\nencoding: raw\n\n"
    (tmp / "r.nrrd").write_bytes(header.encode() + bytes(60))
    for name in ("n.nii", "a.img", "r.nrrd"):
        assert "does not state the volume's orientation" in opened(tmp / name).notes[-1]
    for space in ("scanner-xyz", "3D-right-handed"):
        assert "does not state" in " ".join(nrrd(tmp / "s.nrrd", f"space: {space}\n").notes)
    assert nrrd(tmp / "s.nrrd", "space: RAS\n").notes == ()
    slices.test_a_series_without_positions_says_so(tmp)


@VOLUMES.line("V4")
def two_affines(tmp):
    grids.test_sform_and_qform_that_differ_are_noted(tmp)


@VOLUMES.line("V5")
def other_grids(tmp):
    apply_each(grids.test_a_mask_on_another_grid_is_refused, grids.DIFFERENT, tmp)
    grids.test_a_mask_of_another_size_is_refused(tmp)


@VOLUMES.line("V6")
def silent_mask(tmp):
    grids.test_a_header_without_orientation_is_taken_as_stored(tmp, "mask", None)


@VOLUMES.line("V7")
def scaled_mask(tmp):
    grids.test_scaled_labels_are_rounded_or_refused_with_the_scale(tmp)


@VOLUMES.line("V8")
def voxel_sizes(tmp):
    for name, factor in (("a", 1), ("b", 2)):
        nifti(tmp / name / "v.nii", grids.patient(), CT * [[factor], [factor], [factor], [1]])
    data = read(data_settings(name="images", path=tmp))
    assert "several voxel sizes (z, y, x): 1 of 3 x 2 x 2 mm" in " ".join(data.notes)
    assert data.spacings == ((3, 2, 2), (6, 4, 4))


@VOLUMES.line("V9")
def data_elsewhere(tmp):
    grids.test_headers_that_name_data_elsewhere_are_refused(tmp)


@VOLUMES.line("V10")
def four_axes(tmp):
    image = sitk.GetImageFromArray(np.zeros((2, 3, 4, 5), np.uint8), isVector=False)
    sitk.WriteImage(image, str(tmp / "v.nrrd"))
    with pytest.raises(DataError, match=r"has 4 axes \(5 x 4 x 3 x 2\); a volume has three"):
        opened(tmp / "v.nrrd")


@VOLUMES.line("V11")
def segments_of_slicer(tmp):
    """Label values in the order in which segments were drawn, and their names in the header."""
    values = np.arange(60, dtype=np.uint8).reshape(3, 4, 5) % 3
    image = sitk.GetImageFromArray(values)
    for k, name in enumerate(("Tumour", "liver")):
        image.SetMetaData(f"Segment{k}_Name", name)
        image.SetMetaData(f"Segment{k}_LabelValue", str(k + 1))
    sitk.WriteImage(image, str(tmp / "m.seg.nrrd"))
    expected = np.array([0, 2, 1], np.uint8)[grids.voxels(tmp / "m.seg.nrrd")]
    file = opened(tmp / "m.seg.nrrd")
    names = ("rest", "liver", "tumour")
    mask = masks.read(tmp / "m.seg.nrrd", file, names)
    np.testing.assert_array_equal(mask.classes, expected)
    assert mask.notes == ()
    cropped = image[1:, 1:, :2]  # as Slicer crops
    for key in image.GetMetaDataKeys():
        cropped.SetMetaData(key, image.GetMetaData(key))
    sitk.WriteImage(cropped, str(tmp / "c.seg.nrrd"))
    inside = np.pad(np.ones((4, 3, 2), np.uint8), ((1, 0), (1, 0), (0, 1)))
    expected = expected * file.grid.turned(inside)
    np.testing.assert_array_equal(masks.read(tmp / "c.seg.nrrd", file, names).classes, expected)
    mask = masks.read(tmp / "m.seg.nrrd", file, ("a", "b", "c"))
    assert "by number" in mask.notes[0]
    with pytest.raises(DataError, match=r"1 \(Tumour\)"):
        masks.read(tmp / "m.seg.nrrd", file, ("rest", "liver"))
    refusals = {label: f"LabelValue {label}; renumber" for label in ("-1", "1000000000000", "one")}
    for label, reason in (refusals | {"1": "one LabelValue, in layers"}).items():
        image.SetMetaData("Segment1_LabelValue", label)
        sitk.WriteImage(image, str(tmp / "m.seg.nrrd"))
        with pytest.raises(DataError, match=reason):
            opened(tmp / "m.seg.nrrd")


@VOLUMES.line("V12")
def unapplied_scale(tmp):
    assert "old max, old min" in nrrd(tmp / "s.nrrd", "old min: 0\nold max: 9\n").notes[0]
    units = 'space: RAS\nspace units: "{0}" "{0}" "{0}"\n'
    assert "lengths in um, which" in nrrd(tmp / "u.nrrd", units.format("um")).notes[0]
    assert nrrd(tmp / "u.nrrd", units.format("mm")).notes == ()
    image = sitk.GetImageFromArray(np.zeros((3, 4, 5), np.uint8))
    sitk.WriteImage(image, str(tmp / "v.mha"))
    header = (
        (tmp / "v.mha").read_bytes().replace(b"ElementType", b"DistanceUnits = cm\nElementType")
    )
    (tmp / "v.mha").write_bytes(header)
    assert "lengths in cm, which" in opened(tmp / "v.mha").notes[0]


@VOLUMES.line("V13")
def doubles(tmp):
    image = sitk.GetImageFromArray(np.zeros((3, 4, 5)))
    for name in ("v.nii", "v.mha", "v.nrrd"):
        sitk.WriteImage(image, str(tmp / name))
        assert opened(tmp / name).notes == ("real numbers of 64 bits are rounded to 32",)


@DICOM.line("D1")
def slope(tmp):
    slices.test_an_enhanced_file_is_a_volume_in_order_of_its_positions(tmp)
    (tmp / "one").mkdir()
    slices.test_an_enhanced_file_of_one_frame_is_an_image_and_many_are_a_series(tmp / "one")


@DICOM.line("D2")
def lut(tmp):
    scales.test_a_modality_lut(tmp, inverted=False)


@DICOM.line("D3")
def real_world(tmp):
    scales.test_a_real_world_mapping_where_no_other_scale_is(tmp)
    scales.test_a_table_of_real_world_values_is_noted(tmp)


@DICOM.line("D4")
def real_pixels(tmp):
    for name in ("FloatPixelData", "DoubleFloatPixelData"):
        scales.test_float_pixels(tmp, name)
    slices.test_a_dose_has_its_scaling_and_offsets(tmp)


@DICOM.line("D5")
def monochrome(tmp):
    scales.test_monochrome1_is_inverted_unless_the_values_have_a_unit(
        tmp, {"Modality": "CR"}, "", True
    )


@DICOM.line("D6")
def display(tmp):
    apply_each(scales.test_what_is_not_applied_is_noted, scales.NOTED, tmp)


@DICOM.line("D7")
def units(tmp):
    scales.test_files_of_several_units_are_noted(tmp)


@DICOM.line("D8")
def order(tmp):
    apply_each(slices.test_files_are_recognised_by_their_content, ["some", "all", "bare"], tmp)
    slices.test_a_series_without_positions_says_so(tmp / "numbers")


@DICOM.line("D9")
def many_frames(tmp):
    slices.test_an_enhanced_file_is_a_volume_in_order_of_its_positions(tmp)


@DICOM.line("D10")
def films(tmp):
    slices.test_frames_without_positions_are_refused(tmp)


@DICOM.line("D11")
def no_block(tmp):
    apply_each(slices.test_slices_that_form_no_block, slices.BAD, tmp)
    slices.test_time_points_in_one_file_are_refused_by_name(tmp)


@DICOM.line("D12")
def odd_blocks(tmp):
    tests = (
        slices.test_a_tilted_gantry_is_noted_and_its_grid_is_sheared,
        slices.test_uneven_distances_are_noted,
        slices.test_files_fewer_than_the_header_counts_are_noted,
    )
    apply_each(lambda folder, test: test(folder), tests, tmp)


@DICOM.line("D13")
def strangers(tmp):
    slices.test_localizers_are_left_out(tmp, "scout.dcm")
    (tmp / "other").mkdir()
    slices.test_strangers_are_left_out_with_a_note_and_damaged_slices_are_not(tmp / "other")


def segmented(tmp):
    return inspect.unwrap(segments.ct)(tmp)


@DICOM.line("D14")
def by_name(tmp):
    for name in segments.TYPES:
        segments.test_segments_are_classes_by_name(tmp, segmented(tmp), name, ("Lesion", "Liver"))


@DICOM.line("D15")
def by_number(tmp):
    segments.test_segments_without_the_name_of_a_class_are_taken_by_number(tmp, segmented(tmp))


@DICOM.line("D16")
def refused_segments(tmp):
    segments.test_segments_that_overlap_are_refused(tmp, segmented(tmp))
    segments.test_a_segmentation_of_another_grid_is_refused(tmp, segmented(tmp))


@DICOM.line("D17")
def reports(tmp):
    scales.test_what_is_no_image_is_named("reportsi.dcm", "Basic Text SR")


def compressed(*names):
    def check(tmp):
        for name in names:
            path = get_testdata_file(name, download=False)
            if path is not None:
                assert mixed(Path(path)).size > 0

    return check


DICOM.line("C1")(
    compressed("MR_small.dcm", "MR_small_bigendian.dcm", "image_dfl.dcm", "MR_small_implicit.dcm")
)
DICOM.line("C2")(compressed("MR_small_RLE.dcm"))
DICOM.line("C3")(compressed("SC_rgb_small_odd_jpeg.dcm"))
DICOM.line("C4")(compressed("SC_rgb_jpeg_gdcm.dcm"))
DICOM.line("C5")(compressed("MR_small_jpeg_ls_lossless.dcm"))
DICOM.line("C6")(compressed("MR_small_jp2klossless.dcm"))


@DICOM.line("C7")
def not_read(tmp):
    with pytest.MonkeyPatch.context() as patch:
        scales.test_a_missing_decoder_is_named(tmp, patch)
    with pytest.raises(DataError, match=r"JPEG Extended .* of 12 bits, which is not supported"):
        mixed(Path(get_testdata_file("JPEG-lossy.dcm", download=False)))


@pytest.mark.long
@pytest.mark.parametrize("line", VOLUMES.names)
def test_a_line_on_volumes(line, tmp_path):
    VOLUMES.functions[line](tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("line", DICOM.names)
def test_a_line_on_dicom(line, tmp_path):
    DICOM.functions[line](tmp_path)


def test_the_document_and_the_cases_have_the_same_lines():
    VOLUMES.check()
    DICOM.check()


def test_voxels_that_would_begin_in_the_header_are_refused(tmp_path):
    content = nifti(tmp_path / "v.nii", np.zeros((2, 3, 4), np.int16)).read_bytes()
    (tmp_path / "0.nii").write_bytes(content[:108] + bytes(4) + content[112:])  # vox_offset
    with pytest.raises(DataError, match="vox_offset"):
        opened(tmp_path / "0.nii")


def test_headers_with_packed_data_are_one_volume_each(tmp_path):
    """As nibabel and pynrrd write them."""
    volume = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    header = "NRRD0004\ntype: int16\ndimension: 3\nsizes: 2 3 4\nendian: little\nencoding: gzip\n"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        nibabel.save(nibabel.Nifti1Pair(volume, np.eye(4)), tmp_path / name / "1.img.gz")
        nibabel.save(nibabel.Nifti1Pair(volume, np.eye(4)), tmp_path / name / "2.img.bz2")
        (tmp_path / name / "3.nhdr").write_text(f"{header}data file: 3.raw.gz\n")
        content = gzip.compress(volume.transpose(2, 1, 0).tobytes())
        (tmp_path / name / "3.raw.gz").write_bytes(content)
    data = read(data_settings(name="images", path=tmp_path))
    assert data.x.shape == (6, 4, 3, 2, 1)
    assert not any("are not read" in note or "second file" in note for note in data.notes)
    text = f"{header}\n".replace("gzip", "bzip2")
    (tmp_path / "v.nrrd").write_bytes(text.encode() + bz2.compress(volume.tobytes()))
    with pytest.raises(DataError, match="is packed by bzip2"):
        opened(tmp_path / "v.nrrd")
