"""DICOM segmentations of highdicom on the grid of their image: segments by name, frames by place."""

import numpy as np
import pytest
from image_files import CT, nifti, series, write_dicom

from pomona.core.errors import DataError
from pomona.data.formats.image_formats import opened
from pomona.data.images import mask

pydicom = pytest.importorskip("pydicom")
highdicom = pytest.importorskip("highdicom")
from highdicom import seg  # noqa: E402
from pydicom.sr.codedict import codes  # noqa: E402

SHAPE = (5, 6, 7)
NAMES = ("rest", "Liver", "Lesion")


def truth():
    """Classes (z, y, x) as stored in the slices: a liver, and a lesion next to it."""
    classes = np.zeros(SHAPE, np.uint8)
    classes[1:4, 1:4, 2:6] = 1
    classes[2, 4, 5:7] = 2
    return classes


@pytest.fixture
def ct(tmp_path):
    patient = {"StudyInstanceUID": "1.2", "SliceThickness": 3, "PatientID": "p", "PatientName": "a^b", "StudyDate": "20200101",
               "StudyTime": "101010", "AccessionNumber": "1", "StudyID": "1", "FrameOfReferenceUID": "1.5",
               "PatientBirthDate": "", "PatientSex": "O", "ReferringPhysicianName": ""}  # fmt: skip
    folder = series(tmp_path / "ct", np.zeros(SHAPE, np.int16), **patient)
    for k, path in enumerate(sorted(folder.iterdir())):
        dataset = pydicom.dcmread(path)
        dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = f"1.2.3.{k + 1}"
        dataset.save_as(path)
    return folder


def segmentation(path, ct, pixels, labels, segment_type=None, index=None, **options):
    """A segmentation by highdicom; ``pixels``: (slices, rows, columns), or with segments last;
    ``index``: the slice on which it was drawn, all by default.
    """
    segment_type = segment_type or seg.SegmentationTypeValues.BINARY
    descriptions = [
        seg.SegmentDescription(
            segment_number=k,
            segment_label=label,
            segmented_property_category=codes.SCT.Organ,
            segmented_property_type=codes.SCT.Liver,
            algorithm_type=seg.SegmentAlgorithmTypeValues.MANUAL,
        )
        for k, label in enumerate(labels, start=1)
    ]
    sources = [pydicom.dcmread(p) for k, p in enumerate(sorted(ct.iterdir())) if index in {k, None}]
    seg.Segmentation(
        source_images=sources, pixel_array=pixels, segmentation_type=segment_type,
        segment_descriptions=descriptions, series_instance_uid="1.2.9", series_number=9,
        sop_instance_uid="1.2.9.1", instance_number=1, manufacturer="a", manufacturer_model_name="b",
        software_versions="c", device_serial_number="d", **options,
    ).save_as(path)  # fmt: skip
    return path


def placed(path, ct, names=NAMES):
    image = opened(ct)
    return mask.read(path, image, names)


def right():
    """The classes on the axes of the patient."""
    return truth()[:, ::-1, ::-1]


TYPES = ["BINARY", "FRACTIONAL", "LABELMAP"]


@pytest.mark.parametrize("segment_type", TYPES)
@pytest.mark.parametrize("order", [("Liver", "Lesion"), ("Lesion", "liver ")])
def test_segments_are_classes_by_name(tmp_path, ct, segment_type, order):
    """In any order; frames of slices without a segment are left out by highdicom."""
    numbers = [NAMES.index(name.strip().capitalize()) for name in order]
    stack = np.stack([truth() == n for n in numbers], axis=-1).astype(np.uint8)
    if segment_type == "LABELMAP":
        stack = (stack * np.arange(1, 3)).sum(axis=-1).astype(np.uint8)
    options = (
        {"fractional_type": "PROBABILITY", "max_fractional_value": 200}
        if segment_type == "FRACTIONAL"
        else {}
    )
    pixels = stack * (1.0 if segment_type == "FRACTIONAL" else 1)
    path = segmentation(
        tmp_path / "s.dcm", ct, pixels, order, seg.SegmentationTypeValues[segment_type], **options
    )
    placed_mask = placed(path, ct)
    np.testing.assert_array_equal(placed_mask.classes, right())
    assert ("fractional" in " ".join(placed_mask.notes)) == (segment_type == "FRACTIONAL")


def test_a_fraction_counts_from_one_half(tmp_path, ct):
    shares = np.zeros((*SHAPE, 1))
    shares[2, 3, :4, 0] = 0.2, 0.49, 0.51, 1
    path = segmentation(
        tmp_path / "s.dcm", ct, shares, ["Liver"], seg.SegmentationTypeValues.FRACTIONAL,
        fractional_type="OCCUPANCY", max_fractional_value=100,
    )  # fmt: skip
    classes = placed(path, ct).classes[:, ::-1, ::-1]
    assert classes[2, 3, :5].tolist() == [0, 0, 1, 1, 0]
    assert classes.sum() == 2


def test_segments_without_the_name_of_a_class_are_taken_by_number(tmp_path, ct):
    path = segmentation(tmp_path / "s.dcm", ct, truth(), ["Segment A", "Segment B"])
    placed_mask = placed(path, ct)
    np.testing.assert_array_equal(placed_mask.classes, right())
    assert "Segment A is Liver, Segment B is Lesion" in placed_mask.notes[0]
    with pytest.raises(
        DataError, match=r"segments 2 \(Segment B\), but data.classes names 2 classes"
    ):
        placed(path, ct, NAMES[:2])
    path = segmentation(tmp_path / "t.dcm", ct, truth(), ["Liver", "Spleen"])
    with pytest.raises(DataError, match=r"segments 2 \(Spleen\), but data.classes"):
        placed(path, ct)


def test_a_segmentation_drawn_on_few_slices_is_noted(tmp_path, ct):
    path = segmentation(tmp_path / "s.dcm", ct, truth()[2:3], ["Liver", "Lesion"], index=2)
    assert placed(path, ct).notes == ("it was drawn on 1 of 5 slices; others are background",)


def test_segments_that_overlap_are_refused(tmp_path, ct):
    overlapping = np.stack([truth() == 1, truth() > 0], axis=-1).astype(np.uint8)
    path = segmentation(tmp_path / "s.dcm", ct, overlapping, ["Liver", "Lesion"])
    with pytest.raises(DataError, match="segments Liver and Lesion overlap"):
        placed(path, ct)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_segmentation_on_the_nifti_of_its_series(tmp_path, ct, order):
    """Stored on any axes, also where slices of the segmentation are no slices of the file."""
    path = segmentation(tmp_path / "s.dcm", ct, truth(), ["Liver", "Lesion"])
    import nibabel

    stored = np.zeros(SHAPE, np.int16).transpose(2, 1, 0).transpose(order)
    nibabel.save(nibabel.Nifti1Image(stored, CT[:, [*order, 3]]), tmp_path / "i.nii")
    np.testing.assert_array_equal(placed(path, tmp_path / "i.nii").classes, right())


def test_a_segmentation_of_another_grid_is_refused(tmp_path, ct):
    path = segmentation(tmp_path / "s.dcm", ct, truth(), ["Liver", "Lesion"])
    volume = np.zeros(SHAPE, np.int16)
    right, upward = np.zeros((4, 4)), np.zeros((4, 4))
    right[0, 3], upward[2, 3] = 1, 9
    for affine, message in (
        (CT + right, "does not lie on the voxels"),
        (CT + upward, "lies outside"),
        (CT * [1, 1, 2, 1], "does not lie on the voxels"),
        (CT * [1.5, 1, 1, 1], "does not lie on the voxels"),
    ):
        image = nifti(tmp_path / "i.nii.gz", volume, affine)
        with pytest.raises(DataError, match=message):
            placed(path, image)


def test_a_segmentation_is_no_image_and_contours_are_no_mask(tmp_path, ct):
    path = segmentation(tmp_path / "s.dcm", ct, truth(), ["Liver", "Lesion"])
    with pytest.raises(DataError, match="Segmentation, not an image; name it in the column mask"):
        opened(path)
    contours = write_dicom(
        tmp_path / "r.dcm", np.zeros((2, 2), np.uint8), SOPClassUID=pydicom.uid.RTStructureSetStorage,
        Rows=None, Columns=None, PixelData=None,
    )  # fmt: skip
    with pytest.raises(DataError, match="RT Structure Set, not an image; draw its contours"):
        placed(contours, ct)


def test_a_flat_image_takes_the_frames_in_its_plane(tmp_path, ct):
    path = segmentation(tmp_path / "s.dcm", ct, truth(), ["Liver", "Lesion"])
    for slice_path, classes in zip(sorted(ct.iterdir()), truth(), strict=True):
        answer = placed(path, slice_path)
        np.testing.assert_array_equal(answer.classes, classes)  # not turned, as the image
        planes = sum((truth() == k).any((1, 2)).sum() for k in (1, 2))
        omitted = planes - sum((classes == k).any() for k in (1, 2))
        assert answer.notes == (
            f"{omitted} frames lie in other planes than the image, and are left out",
        )


def test_a_segmentation_of_another_patient_or_series(tmp_path, ct):
    path = segmentation(tmp_path / "s.dcm", ct, truth(), ["Liver", "Lesion"])
    for key, value in (("FrameOfReferenceUID", "1.6"), ("PatientID", "q")):
        for slice_path in ct.iterdir():
            dataset = pydicom.dcmread(slice_path)
            setattr(dataset, key, value)
            dataset.save_as(slice_path)
        if key == "FrameOfReferenceUID":
            (note,) = placed(path, ct).notes
            assert "may be the mask of another series" in note
    with pytest.raises(DataError, match=r"is of patient 'p', but its image .* of 'q'"):
        placed(path, ct)


def test_a_mask_of_another_slice_is_refused(tmp_path, ct):
    """Unless it names no images, or this one too, in whose plane it has nothing."""
    paths = sorted(ct.iterdir())
    single = segmentation(tmp_path / "a.dcm", ct, truth()[1:2], ["Liver"], index=1)
    np.testing.assert_array_equal(placed(single, paths[1]).classes, truth()[1])
    with pytest.raises(DataError, match=r"was drawn on other images, not on .*002\.dcm"):
        placed(single, paths[2])
    dataset = pydicom.dcmread(single)
    del dataset.ReferencedSeriesSequence
    dataset.save_as(single)
    assert placed(single, paths[2]).notes[0].startswith("1 frames lie in other planes")


def test_a_flat_image_without_a_position_takes_a_mask_drawn_on_it_alone(tmp_path, ct):
    of_volume = segmentation(tmp_path / "w.dcm", ct, truth(), ["Liver", "Lesion"])
    for slice_path in sorted(ct.iterdir())[1:]:
        slice_path.unlink()
    single = segmentation(tmp_path / "s.dcm", ct, truth()[1:2], ["Liver"])
    (path,) = ct.iterdir()
    dataset = pydicom.dcmread(path)
    del dataset.ImagePositionPatient
    dataset.save_as(path)
    np.testing.assert_array_equal(placed(single, path).classes, truth()[1])
    with pytest.raises(DataError, match="was drawn on 5 images, not on"):
        placed(of_volume, path)
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = "1.2.3.99"
    dataset.save_as(path)
    with pytest.raises(DataError, match="was drawn on other images, not on"):
        placed(single, path)
