"""Volumes of every source on the axes of the patient: SimpleITK and nibabel write them, and
SimpleITK's own turning says what is right.
"""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import CT, nifti, pixels, series

from pomona.core.errors import DataError
from pomona.data import data_settings, read
from pomona.data.formats.image_formats import opened

nibabel = pytest.importorskip("nibabel")
tifffile = pytest.importorskip("tifffile")
pytest.importorskip("pydicom")
sitk = pytest.importorskip("SimpleITK")

SIGNED = [
    np.array([[s * (k == a) for k in range(3)] for a, s in zip(order, signs, strict=True)]).T
    for order in permutations(range(3))
    for signs in product((1, -1), repeat=3)
]
ROTATIONS = [matrix for matrix in SIGNED if np.linalg.det(matrix) > 0]


def patient(shape=(6, 10, 12)):
    """HU (z, y, x) of an axial CT as stored: a lesion low in the body, on the left, at the back."""
    volume = np.arange(np.prod(shape), dtype=np.int16).reshape(shape) % 97 - 1024
    volume[1:3, 7:9, 8:11] = 1000
    return volume


def voxels(path):
    return pixels(path)[..., 0]


def pair(folder, image, mask, classes=("rest", "lesion")):
    """The data set of an image and its mask."""
    (folder / "pair.csv").write_text(
        f"path,mask\n{image.relative_to(folder)},{mask.relative_to(folder)}\n"
    )
    return read(
        data_settings(
            name="images", path=str(folder / "pair.csv"), targets="segmentation", classes=classes
        )
    )


def turned(path):
    """The array of SimpleITK, turned to right, front, head by itself."""
    if path.is_dir():
        image = sitk.ReadImage(sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(path)))
    else:
        image = sitk.ReadImage(str(path))
    return sitk.GetArrayFromImage(sitk.DICOMOrient(image, "RAS"))


def test_a_series_and_its_nifti_are_one_array(tmp_path):
    ct = series(tmp_path / "ct", patient())
    sitk.WriteImage(
        sitk.ReadImage(sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(ct))),
        str(tmp_path / "ct.nii.gz"),
    )
    np.testing.assert_array_equal(voxels(ct), voxels(tmp_path / "ct.nii.gz"))
    np.testing.assert_array_equal(voxels(ct), turned(ct))
    assert np.argwhere(voxels(ct) == 1000)[0].tolist() == [1, 1, 1]  # low, back, left


@pytest.mark.parametrize("rotation", range(len(ROTATIONS)))
def test_a_series_in_each_of_24_orientations(tmp_path, rotation):
    """Axial, coronal and sagittal slices, from each side, of one patient."""
    volume = patient((4, 5, 6))
    row, column, normal = ROTATIONS[rotation].T  # directions of a row, a column and the slices
    ct = series(tmp_path / "ct", volume, (*row, *column), (7, -3, 20), 3 * normal)
    np.testing.assert_array_equal(voxels(ct), turned(ct))
    assert opened(ct).spacing == tuple(turned_spacing(ct))


def turned_spacing(path):
    image = sitk.ReadImage(sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(path)))
    return sitk.DICOMOrient(image, "RAS").GetSpacing()[::-1]


@settings(max_examples=12, deadline=None)
@given(
    matrix=st.sampled_from(SIGNED),
    spacing=st.tuples(*[st.sampled_from([0.5, 1.0, 2.5])] * 3),
    suffix=st.sampled_from([".nii.gz", ".nii", ".nrrd", ".nhdr", ".mha", ".mhd", ".nii.bz2", ".img", ".mgz"]),
)  # fmt: skip
def test_any_order_and_direction_of_axes(tmp_path_factory, matrix, spacing, suffix):
    """Whoever wrote it, in whatever axes: the array is that of the patient."""
    folder = tmp_path_factory.mktemp("axes")
    stored = np.arange(60, dtype=np.int16).reshape(3, 4, 5)  # x, y, z of the file
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = matrix * spacing, (3, -7, 11)
    path = folder / f"v{suffix}"
    if suffix in (".nrrd", ".nhdr", ".mha", ".mhd"):
        image = sitk.GetImageFromArray(stored.transpose(2, 1, 0))
        lps = np.diag([-1, -1, 1]) @ matrix
        image.SetDirection(lps.ravel().astype(float))
        image.SetSpacing(spacing)
        image.SetOrigin((-3.0, 7.0, 11.0))
        sitk.WriteImage(image, str(path))
    elif suffix == ".mgz":
        nibabel.save(nibabel.MGHImage(stored.astype(np.int32), affine), path)
    else:
        writer = nibabel.Nifti1Pair if suffix == ".img" else nibabel.Nifti1Image
        nibabel.save(writer(stored, affine), path)
    expected = nibabel.as_closest_canonical(nibabel.Nifti1Image(stored, affine))
    file = opened(path)
    np.testing.assert_array_equal(voxels(path), np.asarray(expected.dataobj).transpose(2, 1, 0))
    assert file.spacing == pytest.approx(expected.header.get_zooms()[::-1], rel=1e-5)
    back = file.grid.stored(voxels(path))
    np.testing.assert_array_equal(back, stored)
    np.testing.assert_allclose(file.grid.matrix, affine, atol=1e-4)
    assert file.notes == ()


# masks


@pytest.mark.parametrize("writer", ["nibabel", "SimpleITK", "nrrd", "series", "turned"])
def test_a_mask_lies_on_its_series(tmp_path, writer):
    """The mask in NIfTI of 3D Slicer, ITK-SNAP and TotalSegmentator, and others."""
    ct = series(tmp_path / "ct", patient())
    lesion = (patient() == 1000).astype(np.uint8)
    if writer == "nibabel":
        mask = nifti(tmp_path / "m.nii.gz", lesion)
    elif writer == "series":
        mask = series(tmp_path / "m", lesion, Modality="SEG")
    elif writer == "turned":  # on the axes right, front, head
        image = nibabel.as_closest_canonical(nibabel.load(nifti(tmp_path / "o.nii", lesion)))
        nibabel.save(image, tmp_path / "m.nii")
        mask = tmp_path / "m.nii"
    else:
        image = sitk.ReadImage(sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(ct))) == 1000
        mask = tmp_path / ("m.nii.gz" if writer == "SimpleITK" else "m.seg.nrrd")
        sitk.WriteImage(image, str(mask))
    data = pair(tmp_path, ct, mask)
    assert ((data.x[0, ..., 0] == 1000) == (data.y[0] == 1)).all()
    assert data.y.sum() == 12
    assert not [note for note in data.notes if "m." in note]


def shifted(affine, matrix=None, shift=(0, 0, 0)):
    result = np.array(affine)
    if matrix is not None:
        result[:3, :3] = matrix @ result[:3, :3]
    result[:3, 3] += shift
    return result


COS, SIN = np.cos(np.deg2rad(2)), np.sin(np.deg2rad(2))
DIFFERENT = {
    "identity": (np.eye(4), ("of 1 x 1 x 1 mm", "of 3 x 2 x 2 mm")),
    "shifted by half a voxel": (shifted(CT, shift=(1, 0, 0)), ("(-11, -9, 0)", "(-10, -9, 0)")),
    "a slice higher": (shifted(CT, shift=(0, 0, 3)), ("from (-11, -9, 0)", "from (-11, -9, 3)")),
    "mirrored": (shifted(CT, np.diag([-1.0, 1, 1])), ("on axes LPS", "on axes RPS")),
    "rotated": (shifted(CT, np.array([[COS, -SIN, 0], [SIN, COS, 0], [0, 0, 1]])), ("turned by 2 degrees",)),
    "other voxels": (CT * [1.05, 1, 1, 1], ("of 3 x 2 x 2.1 mm",)),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_mask_on_another_grid_is_refused(tmp_path, case):
    affine, messages = DIFFERENT[case]
    image = nifti(tmp_path / "i.nii.gz", patient())
    mask = nifti(tmp_path / "m.nii.gz", (patient() == 1000).astype(np.uint8), affine)
    with pytest.raises(DataError, match=r"grids .*m\.nii\.gz .*i\.nii\.gz differ") as fault:
        pair(tmp_path, image, mask)
    assert all(message in str(fault.value) for message in messages), str(fault.value)


def test_a_mask_of_another_size_is_refused(tmp_path):
    image = nifti(tmp_path / "i.nii.gz", patient())
    mask = nifti(tmp_path / "m.nii.gz", np.zeros((6, 10, 11), np.uint8))
    with pytest.raises(DataError, match=r"6 x 10 x 11 voxels.* 6 x 10 x 12 voxels"):
        pair(tmp_path, image, mask)


def test_rounding_in_headers_is_no_difference(tmp_path):
    """A qform holds an angle in 32 bits; DICOM has 16 characters a number."""
    affine = shifted(CT, np.array([[COS, -SIN, 0], [SIN, COS, 0], [0, 0, 1]]))
    image = nifti(tmp_path / "i.nii.gz", patient(), affine)
    mask = nibabel.Nifti1Image((patient() == 1000).astype(np.uint8).transpose(2, 1, 0), None)
    mask.set_qform(affine, 1)
    nibabel.save(mask, tmp_path / "m.nii.gz")
    assert pair(tmp_path, image, tmp_path / "m.nii.gz").y.sum() == 12


@pytest.mark.parametrize("spacing", [None, {}, {f"PhysicalSize{axis}": 9.0 for axis in "XYZ"}])
@pytest.mark.parametrize("silent", ["image", "mask", "both"])
def test_a_header_without_orientation_is_taken_as_stored(tmp_path, silent, spacing):
    """Where only the header lacks the orientation: voxel for voxel as stored, with a note; in OME
    with and without voxel sizes, and in NIfTI.
    """
    lesion = (patient() == 1000).astype(np.uint8)
    files = []
    for name, values in (("image", patient()), ("mask", lesion)):
        path = nifti(tmp_path / f"{name}.nii.gz", values)
        if silent in (name, "both"):
            nibabel.save(nibabel.Nifti1Image(values.transpose(2, 1, 0), None), path)
            if spacing is not None:
                path = tmp_path / f"{name}.ome.tif"
                tifffile.imwrite(path, values, metadata={"axes": "ZYX", **spacing})
        files.append(path)
    data = pair(tmp_path, *files)
    assert ((data.x[0, ..., 0] == 1000) == (data.y[0] == 1)).all()
    assert ("does not state" in " ".join(data.notes)) == (silent != "neither")
    assert data.orientation == ("RAS" if silent == "mask" else "")


def test_a_mask_without_orientation_that_fits_only_turned_is_refused(tmp_path):
    """Which of its axes were those of the image is anyone's guess."""
    for name, shape, affine in (("i", (6, 10, 12), CT[:, [2, 1, 0, 3]]), ("m", (12, 10, 6), None)):
        file = nibabel.Nifti1Image(np.zeros(shape, np.uint8), affine)
        nibabel.save(file, tmp_path / f"{name}.nii")
    with pytest.raises(DataError, match=r"grids of the mask .* differ"):
        pair(tmp_path, tmp_path / "i.nii", tmp_path / "m.nii")


def test_scaled_labels_are_rounded_or_refused_with_the_scale(tmp_path):
    """Labels held as real numbers, stored by nibabel as uint8: 1 is 0.996 in the file."""
    labels = np.zeros((12, 10, 6))
    labels[2:4, 2:4, 2:4], labels[6:8, 6:8, 4:6] = 1, 2
    image = nifti(tmp_path / "i.nii.gz", patient())
    stored = nibabel.Nifti1Image(labels, CT)
    stored.set_data_dtype(np.uint8)
    nibabel.save(stored, tmp_path / "m.nii.gz")
    data = pair(tmp_path, image, tmp_path / "m.nii.gz", ("a", "b", "c"))
    assert np.bincount(data.y.ravel()).tolist() == [720 - 16, 8, 8]
    assert "m.nii.gz): the file scales its numbers in steps of 0.00784" in " ".join(data.notes)
    labels[0, 0, 0] = 0.5
    stored = nibabel.Nifti1Image(labels, CT)
    stored.set_data_dtype(np.uint8)
    nibabel.save(stored, tmp_path / "m.nii.gz")
    with pytest.raises(
        DataError,
        match=r"holds 0.501961 in 1 .*scales its numbers, in steps of 0.007843: save it as whole",
    ):
        pair(tmp_path, image, tmp_path / "m.nii.gz", ("a", "b", "c"))


def test_sform_and_qform_that_differ_are_noted(tmp_path):
    image = nibabel.Nifti1Image(patient().transpose(2, 1, 0), CT)
    image.set_sform(CT, 1)
    image.set_qform(shifted(CT, np.diag([-1.0, 1, 1])), 1)
    nibabel.save(image, tmp_path / "i.nii")
    np.testing.assert_array_equal(voxels(tmp_path / "i.nii"), patient()[:, ::-1, ::-1])
    assert "sform and qform" in opened(tmp_path / "i.nii").notes[0]
    content = bytearray((tmp_path / "i.nii").read_bytes())
    content[80:92] = np.ones(3, "<f4").tobytes()  # pixdim
    (tmp_path / "i.nii").write_bytes(content)
    assert "other voxel sizes than its affine" in opened(tmp_path / "i.nii").notes[0]


def test_headers_that_name_data_elsewhere_are_refused(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "secret").write_bytes(bytes(60))
    head = "ObjectType = Image\nNDims = 3\nDimSize = 3 4 5\nElementType = MET_UCHAR\n"
    for name in ("../secret", str(tmp_path / "secret"), "LIST", "%d.raw 1 5 1"):
        for gap in ("", "\n"):
            (tmp_path / "sub" / "v.mhd").write_text(f"{head}{gap}ElementDataFile = {name}\n")
            with pytest.raises(DataError, match="must be one file in the same folder"):
                opened(tmp_path / "sub" / "v.mhd")
    (tmp_path / "sub" / "v.nhdr").write_text(
        "NRRD0004\ntype: uchar\ndimension: 3\nsizes: 3 4 5\nencoding: raw\ndata file: ../secret\n\n"
    )
    with pytest.raises(DataError, match="must be one file in the same folder"):
        opened(tmp_path / "sub" / "v.nhdr")


def test_a_sheared_grid_is_noted(tmp_path):
    """3 mm up and 1 mm to the side: arctan(1 / 3), as the same slices in DICOM."""
    shear = CT + np.array([[0, 0, 1, 0], *np.zeros((3, 4))])
    (note,) = opened(nifti(tmp_path / "v.nii", patient(), shear)).notes
    assert note.startswith("tilted by 18.4 degrees")
    (note,) = opened(series(tmp_path / "s", patient(), step=(-1, 0, 3))).notes
    assert note.startswith("tilted by 18.4 degrees")


@pytest.mark.parametrize("angle", [20, 40])
def test_axes_far_from_those_of_the_patient_are_noted(tmp_path, angle):
    c, s = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    turn = np.array([[c, -s, 0, 0], [s, c, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    notes = opened(nifti(tmp_path / "v.nii", patient(), turn @ CT)).notes
    assert [note[:31] for note in notes] == ["axes are up to 40 degrees off t"] * (angle == 40)
