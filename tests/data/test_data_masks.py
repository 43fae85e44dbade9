"""Masks as targets: the readers' output, and one-line errors for invalid ones."""

from itertools import product

import numpy as np
import pytest
from image_files import labels_of, write_dicom
from PIL import Image

from masks import archive, discs, settings
from pomona.config import resolve
from pomona.core.errors import ConfigError, DataError
from pomona.data import Dataset, checked, data_settings, from_arrays, read
from pomona.data.formats import image_formats, pictures
from pomona.data.images import mask
from pomona.data.images.image_arrays import resized
from pomona.scenario import Scenario


def load(path, **settings):
    return read(data_settings(name="arrays", path=path, targets="segmentation", **settings))


def test_an_archive_of_images_and_masks(tmp_path):
    x, y = discs()
    data = load(archive(tmp_path / "a.npz"))
    assert (data.targets, data.classes, data.n_outputs) == (
        "segmentation",
        ("background", "class 1", "class 2"),
        3,
    )
    assert np.array_equal(data.x, x)
    assert np.array_equal(data.y, y)
    assert data.y.dtype == np.uint8
    assert load(tmp_path / "a.npz", classes=["none", "a", "b", "unused"]).n_outputs == 4


def test_names_in_the_archive(tmp_path):
    x, y = discs()
    np.savez(tmp_path / "a.npz", x=x, y=y, classes=np.array(["ground", "disc", "other disc"]))
    assert load(tmp_path / "a.npz").classes == ("ground", "disc", "other disc")


def test_masks_of_real_numbers_that_are_whole_are_class_numbers():
    """As MONAI's transforms return them."""
    x, y = discs()
    data = read(from_arrays(x, y.astype(np.float32), targets="segmentation"))
    assert np.array_equal(data.y, y)
    assert data.y.dtype == np.uint8


def masks_of_a_function(settings):
    return discs(classes=2)


def test_a_function_of_ones_own():
    name = f"{__name__}:masks_of_a_function"
    data = read(data_settings(name=name, targets="segmentation", classes=["ground", "disc"]))
    assert (data.targets, data.classes) == ("segmentation", ("ground", "disc"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x, y[:, 1:]), r"images have \(8, 8\) pixels, masks \(7, 8\)"),
        (lambda x, y: (x, y * 127), "pixels of the masks are 0, 127, 254, not 0"),
        (lambda x, y: (x, y * 0), "pixels of the masks are 0, not 0"),
        (lambda x, y: (x, y + 0.5), "store whole numbers"),
        (lambda x, y: (x, y.astype(int) - 1), "row 0 has the value -1, the classes are 0 to 255"),
        (lambda x, y: (x, y[:, 0, 0]), "store whole numbers"),
        (lambda x, y: (x[:, :, :, 0].reshape(len(x), -1), y), "masks are for images"),
        (lambda x, y: (x, y[:-1]), "has 24 rows but"),
    ],
)
def test_what_is_no_mask_is_refused_in_one_line(tmp_path, change, message):
    x, y = change(*discs())
    np.savez(tmp_path / "a.npz", x=x, y=y)
    with pytest.raises(DataError, match=message) as fault:
        load(tmp_path / "a.npz")
    assert "\n" not in str(fault.value)


def test_a_value_beyond_the_classes_is_named_with_its_row(tmp_path):
    x, y = discs(classes=2)
    y[5, 2, 3] = 9
    np.savez(tmp_path / "a.npz", x=x, y=y)
    with pytest.raises(DataError, match="row 5 has the value 9, the classes are 0 to 1"):
        load(tmp_path / "a.npz", classes=["ground", "disc"])


def test_names_of_classes_must_fit():
    x, y = discs()
    for names in ((), ("ground",), ("a", "b", "b")):
        with pytest.raises(DataError, match="name each of 2 to 256 once"):
            checked(Dataset("own", "image", x, y, names, len(y), target_kind="segmentation"))


def test_masks_are_resized_with_their_images(tmp_path):
    data = load(archive(tmp_path / "a.npz", side=8), resize=16)
    assert data.x.shape[1:] == (16, 16, 1)
    # the nearest pixel's class
    assert np.array_equal(data.y, discs(side=8)[1].repeat(2, 1).repeat(2, 2))
    assert resized(data, 16, 1.0) is data


@pytest.mark.parametrize(("old", "new"), [(2, 7), (3, 2), (9, 6)])
def test_masks_in_files_and_in_arrays_are_resized_alike(old, new, tmp_path):
    rows = [min(k for k in range(old) if 2 * (k + 1) * new > (2 * n + 1) * old) for n in range(new)]
    labels = np.arange(old * old, dtype=np.uint8).reshape(old, old) % 5
    np.savez(tmp_path / "a.npz", x=labels[None], y=labels[None])
    expected = labels[rows][:, rows]
    data = load(tmp_path / "a.npz", classes=list("abcde"), resize=new)
    assert np.array_equal(data.y[0], expected)
    Image.fromarray(labels).save(tmp_path / "a.png")
    assert np.array_equal(labels_of(tmp_path / "a.png", (old, old), 5, (new, new)), expected)


def test_labels_by_class_need_classes(tmp_path):
    path = archive(tmp_path / "a.npz")
    with pytest.raises(ConfigError, match=r"needs classes, .* has none; use one of: .*iid"):
        Scenario.prepare(resolve(settings(path), {"partition": {"name": "classes"}}))


def test_quarter_turns_turn_masks_too(tmp_path):
    path = archive(tmp_path / "a.npz")
    x, y = discs()
    unturned, turned = (
        Scenario.prepare(
            resolve(
                settings(path), {"clients": 2, "partition": {"name": "iid", "turn_groups": groups}}
            )
        )
        for groups in (0, 2)
    )
    assert np.array_equal(unturned.dataset.y, y)
    for client, rows in enumerate(turned.partition.clients):
        for k in np.concatenate([rows.train, rows.test]):
            assert np.array_equal(turned.dataset.x[k], np.rot90(x[k], client))
            assert np.array_equal(turned.dataset.y[k], np.rot90(y[k], client))


def test_a_mask_in_jpeg_is_refused(tmp_path):
    """Its compression changes numbers by more than neighbouring classes differ."""
    labels = np.zeros((8, 8), np.uint8)
    labels[2:6, 2:6] = 1
    Image.fromarray(labels).save(tmp_path / "m.jpg")
    Image.fromarray(labels).save(tmp_path / "m.tif", compression="jpeg")
    for name in ("m.jpg", "m.tif"):
        with pytest.raises(DataError, match="is JPEG, whose compression can change class numbers"):
            labels_of(tmp_path / name, (8, 8), 2)


@pytest.mark.parametrize(
    ("compression", "options", "refused"),
    [
        ("jpeg2000", {"level": 0, "reversible": True}, False),
        ("jpeg2000", {"level": 25, "reversible": False}, True),
        ("jpegxl", {"lossless": False, "distance": 3}, True),
        ("lerc", {"level": 1.0}, True),
    ],
)
def test_a_mask_in_tiff_whose_compression_may_change_it_is_refused(
    tmp_path, compression, options, refused
):
    """By tifffile with imagecodecs, which reads the lossy ones as other numbers than drawn."""
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("imagecodecs")
    labels = np.tri(32, dtype=np.uint8) + np.tri(32, k=-9, dtype=np.uint8)
    path = tmp_path / "m.tif"
    tifffile.imwrite(path, labels, compression=compression, compressionargs=options)
    assert np.array_equal(tifffile.imread(path), labels) != refused
    if refused:
        with pytest.raises(DataError, match=f"is {compression.upper()}, whose compression can"):
            labels_of(path, (32, 32), 3)
    else:
        assert np.array_equal(labels_of(path, (32, 32), 3), labels)


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ({"TransferSyntaxUID": "1.2.840.10008.1.2.4.50"}, "is stored as JPEG Baseline"),
        ({"TransferSyntaxUID": "1.2.840.10008.1.2.4.91", "LossyImageCompression": "01"}, "losses"),
        ({"PhotometricInterpretation": "MONOCHROME1", "BitsStored": 1, "HighBit": 0}, "inverted"),
    ],
)
def test_a_mask_in_dicom_whose_numbers_are_not_those_drawn_is_refused(tmp_path, elements, message):
    encaps = pytest.importorskip("pydicom.encaps")
    labels = np.eye(8, dtype=np.uint8)
    path = write_dicom(tmp_path / "a.dcm", labels, LossyImageCompression="01")  # of its image
    assert np.array_equal(labels_of(path, (8, 8), 2), labels)
    if "TransferSyntaxUID" in elements:
        elements |= {"PixelData": encaps.encapsulate([labels.tobytes()])}
    with pytest.raises(DataError, match=message):
        labels_of(write_dicom(tmp_path / "b.dcm", labels, **elements), (8, 8), 2)


def test_an_image_and_a_mask_of_which_only_one_is_turned_are_noted(tmp_path):
    """Turned by half a circle both have one size, whichever of them the mask was drawn on."""
    marks, tag = np.eye(4, 6, dtype=np.uint8), Image.Exif()
    tag[0x0112] = 3
    for name, options in (("plain", {}), ("turned", {"exif": tag})):
        Image.fromarray(marks).save(tmp_path / f"{name}.png", **options)
    for image, labels in product(("plain", "turned"), repeat=2):
        opened = image_formats.opened(tmp_path / f"{image}.png")
        answer = mask.read(tmp_path / f"{labels}.png", opened, ("a", "b"))
        assert len(answer.notes) == (image != labels)


def test_an_orientation_tag_behind_the_pixels_of_a_png_is_refused(tmp_path):
    """Viewers and Pillow turn it (PNG 3: eXIf may stand anywhere), but Pillow reads it last."""
    tag = Image.Exif()
    tag[0x0112] = 3
    Image.new("L", (6, 4)).save(tmp_path / "a.png", exif=tag)
    content = (tmp_path / "a.png").read_bytes()
    start, end = content.index(b"eXIf") - 4, content.index(b"IDAT") - 4
    last = content.index(b"IEND") - 4
    parts = content[:start], content[end:last], content[start:end], content[last:]
    (tmp_path / "b.png").write_bytes(b"".join(parts))
    assert pictures.TURNED in image_formats.opened(tmp_path / "a.png").notes
    with pytest.raises(DataError, match="orientation tag lies behind its pixels"):
        image_formats.opened(tmp_path / "b.png").decoded(1)


def test_a_bitmap_of_two_colours_in_eight_bits_is_refused(tmp_path):
    """Pillow takes its bytes for bits; BMP counts the colours at byte 46."""
    Image.fromarray(np.eye(16, dtype=np.uint8)).save(tmp_path / "m.bmp")
    content = bytearray((tmp_path / "m.bmp").read_bytes())
    content[46:50], content[54:62] = (2).to_bytes(4, "little"), bytes(4) + b"\xff\xff\xff\0"
    (tmp_path / "m.bmp").write_bytes(content)
    assert (np.asarray(Image.open(tmp_path / "m.bmp")) != np.eye(16)).any()
    with pytest.raises(DataError, match="a palette of two colours for pixels of more than 1 bit"):
        labels_of(tmp_path / "m.bmp", (16, 16), 2)


def test_masks_whose_numbers_may_mean_something_else_are_noted(tmp_path):
    """A class drawn in transparency alone, white on black in MinIsWhite, palettes that differ."""
    tifffile = pytest.importorskip("tifffile")
    drawn = np.eye(4, dtype=np.uint8)
    Image.new("L", (4, 4)).save(tmp_path / "i.png")
    image = image_formats.opened(tmp_path / "i.png")
    Image.fromarray(np.stack([drawn * 0 + 1, drawn * 255], axis=2)).save(tmp_path / "a.png")
    assert mask.read(tmp_path / "a.png", image, ("a", "b")).notes == (pictures.ALPHA,)
    for values, noted in ((drawn, False), (1 - drawn, True)):
        tifffile.imwrite(tmp_path / "w.tif", values.astype(bool))
        answer = mask.read(tmp_path / "w.tif", image, ("a", "b"))
        assert ("MinIsWhite" in " ".join(answer.notes)) == noted
    lines = ["path,mask"]
    for name, palette in (("r", "ff0000"), ("r2", "ff0000"), ("g", "00ff00")):
        labels = Image.fromarray(drawn)
        labels.putpalette(bytes(3) + bytes.fromhex(palette))
        (tmp_path / name).mkdir()
        labels.save(tmp_path / name / "m.png")
        Image.new("L", (4, 4), len(lines)).save(tmp_path / f"{name}-i.png")
        lines.append(f"{name}-i.png,{name}/m.png")
        (tmp_path / "list.csv").write_text("\n".join(lines))
        data = data_settings(name="images", path=tmp_path / "list.csv", targets="segmentation", classes=["a", "b"])  # fmt: skip
        line = "number 1 as #ff0000 in r/m.png, #00ff00 in g/m.png"
        assert (line in " ".join(read(data).notes)) == (name == "g")


PLANE = {
    "ImagePositionPatient": [0, 0, 5],
    "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
    "PixelSpacing": [2, 2],
    "PatientID": "P",
}


def placed(folder, labels, **elements):
    """The classes of a mask in DICOM, on an image of the same plane."""
    image = image_formats.opened(write_dicom(folder / "i.dcm", np.zeros((4, 6), "u2"), **PLANE))
    path = write_dicom(folder / "m.dcm", labels, **(PLANE | elements))
    return mask.read(path, image, ("a", "b")).classes


def test_a_flat_mask_in_dicom_is_placed_by_its_position(tmp_path):
    """Stored from right to left, it starts at the centre of the last column: 5 columns of 2 mm."""
    labels = np.eye(4, 6, dtype=np.uint8)
    right = {"ImagePositionPatient": [10, 0, 5], "ImageOrientationPatient": [-1, 0, 0, 0, 1, 0]}
    assert np.array_equal(placed(tmp_path, labels), labels)
    assert np.array_equal(placed(tmp_path, labels[:, ::-1], **right), labels)
    for elements, message in (
        ({"ImagePositionPatient": [0, 0, 8]}, "lies in another plane than its image"),
        ({"ImagePositionPatient": [2, 0, 5]}, "lies outside"),
        ({"PatientID": "Q"}, "is of patient 'Q', but its image"),
    ):
        with pytest.raises(DataError, match=message):
            placed(tmp_path, labels, **elements)


def test_a_flat_mask_whose_axes_run_elsewhere_is_refused(tmp_path):
    sitk = pytest.importorskip("SimpleITK")
    labels = sitk.GetImageFromArray(np.eye(4, 6, dtype=np.uint8))
    sitk.WriteImage(labels, tmp_path / "i.mha")
    # in place, by its direction
    sitk.WriteImage(sitk.Flip(labels, [True, False]), tmp_path / "m.mha")
    image = image_formats.opened(tmp_path / "i.mha")
    assert mask.read(tmp_path / "i.mha", image, ("a", "b")).classes.sum() == 4
    with pytest.raises(DataError, match="has rows and columns to -x, y, but its image"):
        mask.read(tmp_path / "m.mha", image, ("a", "b"))
