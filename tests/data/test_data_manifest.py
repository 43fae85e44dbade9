"""Manifests: reading of their lines, and errors that name line and file."""

from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import labels_of, write_nifti, write_series
from PIL import Image

import pomona
from pomona.core.errors import ConfigError, DataError
from pomona.core.rng import stream
from pomona.data import data_settings, from_arrays, from_clients, read
from pomona.data.images import image_stack


def picture(path, value, size=(6, 4), mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def listed(folder, *lines):
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    return folder / "list.csv"


def load(path, **settings):
    return read(data_settings(name="images", path=path, **settings))


@pytest.fixture
def six(tmp_path):
    """Images 0.png to 5.png with these values."""
    for k in range(6):
        picture(tmp_path / "in" / f"{k}.png", k)
    return tmp_path


LINES = (
    "label,path,client,split,group",
    "well,in/3.png,Bergen,test,p3",
    "ill,in/0.png,Aachen,train,p0",
    'ill,"in/5.png",Aachen,validation,p1',
    "well,in/1.png,Bergen,,p2",
    "well,in/4.png,Aachen,Test,p4",
    "ill,in/2.png,Bergen,val,",
)


def test_each_line_is_a_row_and_test_rows_come_last(six):
    data = load(listed(six, *LINES))
    assert data.x[:, 0, 0, 0].tolist() == [0, 5, 1, 2, 3, 4]
    assert (data.classes, data.y.tolist(), data.n_train) == (("ill", "well"), [0, 0, 1, 0, 1, 1], 4)
    assert (data.owners.names, data.owners.client.tolist()) == (
        ("Aachen", "Bergen"),
        [0, 0, 1, 1, 1, 0],
    )
    assert data.owners.role.tolist() == [0, 1, 0, 1, 2, 2]


def test_a_group_is_whole_however_its_part_is_written(six):
    splits = ("train", "Train", "", "validation", "val", "VAL")
    lines = [f"in/{k}.png,a,{split},p{k // 3}" for k, split in enumerate(splits)]
    assert (
        load(listed(six, "path,label,split,group", *lines)).groups.number.tolist()
        == [0] * 3 + [1] * 3
    )
    lines[0] = "in/0.png,a,train,P0"
    assert "groups that differ in capital" in " ".join(
        load(listed(six, "path,label,split,group", *lines)).notes
    )


def test_validation_rows_are_for_training_without_clients(six):
    data = load(listed(six, "path,label,split", "in/0.png,a,val", "in/1.png,b,val"))
    assert (len(data), data.n_train) == (2, 2)
    assert "validation images are used for training" in " ".join(data.notes)
    with pytest.raises(DataError, match="0 of 2 rows are for training"):
        load(listed(six, "path,label,split", "in/0.png,a,test", "in/1.png,b,test"))


def test_a_path_and_a_label_suffice(six):
    data = load(listed(six, "path,label", "in/1.png,2.5", "in/0.png,-1"), targets="regression")
    assert (data.x[:, 0, 0, 0].tolist(), data.y.tolist(), data.owners, data.n_train) == (
        [1, 0],
        [[2.5], [-1]],
        None,
        2,
    )
    data = load(listed(six, "path,label", "in/1.png,b", "in/0.png,a"), classes=("b", "a"), resize=3)
    assert (data.x.shape, data.y.tolist(), data.classes) == ((2, 3, 3, 1), [0, 1], ("b", "a"))


BAD_LINES = {
    "no path": (("label", "a"), "no column 'path'"),
    "no label": (("path", "in/0.png"), "no column 'label'; add it$"),
    "masks that nobody asked for": (("path,mask", "in/0.png,in/1.png"), ("or set data.targets = "
                                                                        "\"segmentation\"")),
    "another column": (("path,lable", "in/0.png,a"), "has the column 'lable'; did you mean label"),
    "no line": (("path,label",), "no line below its header"),
    "empty": ((), "is empty|has no line|no row"),
    "above": (("path,label", "../list.csv,a"), (r"line 2: '../list.csv' is not within the "
                                               r"manifest's folder")),
    "absolute": (("path,label", "/etc/hostname,a"), r"line 2: '/etc/hostname' is not within"),
    "a link out": (("path,label", "out.png,a"), r"line 2: 'out.png' is not within"),
    "links in a circle": (("path,label", "circle.png,a"), r"line 2: 'circle.png' does not exist"),
    "a long name": (("path,label", "x" * 300 + ",a"), r"line 2: '(x+)(\.\.\.)?' does not exist"),
    "listed twice": (("path,label", "in/0.png,a", "in/0.png,b"), ("'in/0.png' is in line 2 and "
                                                                 "line 3, and rows are split")),
    "in two parts": (
        ("path,label,split", "in/0.png,a,train", "in/0.png,a,test"),
        r"path in/0.png is in split train \(line 2\) and test \(line 3\); keep a path together",
    ),
    "in two parts by two paths": (
        ("path,label,split", "in/0.png,a,train", "./in/../in/0.png,a,test"),
        r"path in/0.png is in split train \(line 2\) and test \(line 3\)",
    ),
    "the folder itself": (("path,label", ".,a"), r"line 2: '.' is not within"),
    "no file": (("path,label", "in/0.png,a", "in/9.png,a"), (r"line 3: 'in/9.png' does not exist; "
                                                            r"correct the path")),
    "no name": (("path,label", ",a"), "line 2: no path; every line needs one"),
    "no label on a line": (("path,label", "in/0.png,a", "in/1.png,"), "every row needs a label"),
    "no client": (("path,label,client", "in/0.png,a,", "in/1.png,a,A"), ("1 of 2 lines name no "
                                                                        "client, first line 2")),
    "another part": (("path,label,split", "in/0.png,a,tset"), ("line 2: split 'tset'; say train, "
                                                              "validation or test")),
    "torn groups": (
        ("path,label,split,group", "in/0.png,a,train,p", "in/1.png,a,test,p"),
        r"group p is in split train \(line 2\) and test \(line 3\); keep a group together",
    ),
    "groups of several clients": (
        ("path,label,split,client,group", "in/0.png,a,train,A,p", "in/1.png,a,train,B,p"),
        r"group p is in client A \(line 2\) and B \(line 3\)",
    ),
    "a damaged image": (("path,label", "in/0.png,a", "list.csv,b"), ("cannot read the image "
                                                                    ".*list.csv")),
    "a folder without slices": (("path,label", "in,a"), "no DICOM file"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_LINES)
def test_lines_that_are_wrong(six, case):
    pytest.importorskip("pydicom")
    lines, message = BAD_LINES[case]
    (six / "out.png").symlink_to("/etc/hostname")
    (six / "circle.png").symlink_to("circle.png")
    with pytest.raises((DataError, ConfigError), match=message) as fault:
        load(listed(six, *lines))
    assert "list.csv" in fault.value.line()


def test_everything_is_said_at_once(six):
    path = listed(six, "path,label,split", "in/9.png,a,train", "in/0.png,,train", "in/1.png,a,tset")
    with pytest.raises(DataError, match="has 3 problems"):
        load(path)


def test_volumes_and_series(tmp_path):
    for package in ("nibabel", "pydicom"):
        pytest.importorskip(package)
    volumes = stream(1, "volumes").integers(0, 99, (3, 5, 4, 3)).astype(np.int16)
    write_nifti(tmp_path / "v.nii.gz", volumes[0])
    write_series(tmp_path / "ct", volumes[1])
    write_nifti(tmp_path / "w.nii", volumes[2])
    data = load(listed(tmp_path, "path,label", "v.nii.gz,a", "ct,b", "w.nii,a"))
    np.testing.assert_array_equal(data.x[..., 0], volumes)
    assert (data.x.dtype, data.y.tolist()) == (np.int16, [0, 1, 0])


def test_bad_files_are_skipped_and_named(six):
    (six / "in" / "0.png").write_bytes(b"?")
    (six / "in" / "4.png").write_bytes(b"")
    data = load(listed(six, *LINES), skip_bad=True)
    assert (data.x[:, 0, 0, 0].tolist(), data.y.tolist(), data.n_train) == (
        [5, 1, 2, 3],
        [0, 1, 0, 1],
        3,
    )
    assert (data.owners.client.tolist(), data.owners.role.tolist()) == ([0, 1, 1, 1], [1, 0, 1, 2])
    assert data.notes[0].endswith("list.csv: 2 of 6 files are skipped (data.skip_bad)")
    assert data.notes[1].startswith("cannot read the image in/0.png")


# lists of files in Python


@pytest.mark.parametrize("path_type", [str, Path])
@pytest.mark.parametrize(
    ("labels", "column"), [([0, 1], "path and label"), (["m.nii.gz", "n.nii.gz"], "path and mask")]
)
def test_files_in_dictionaries_are_shown_the_way_to_a_table(labels, column, path_type):
    """As MONAI's datalists: image and label are paths, or the label is a number."""
    items = [{"image": path_type(f"{k}.nii.gz"), "label": label} for k, label in enumerate(labels)]
    for read_them in (
        lambda: from_clients({"A": items}),
        lambda: from_clients({"A": ([item["image"] for item in items], labels)}),
        lambda: from_arrays([item["image"] for item in items], labels),
    ):
        with pytest.raises(DataError, match=rf"0\.nii\.gz.*{column}.*name='images'"):
            read_them()


@pytest.mark.parametrize("cast", [torch.as_tensor, np.asarray])
def test_channels_that_are_moved_to_the_end_are_a_note(cast):
    items = [{"image": cast(np.full((1, 6, 5), k, np.float32)), "label": k % 2} for k in range(4)]
    data = read(from_clients({"A": items}))
    assert data.x.shape == (4, 6, 5, 1)
    assert any("channels" in note and "moved to the end" in note for note in data.notes)


# Masks


@pytest.mark.parametrize("encoding", ["gray", "black and white", "palette", "16 bits"])
def test_masks_are_numbers_and_not_colours(tmp_path, encoding):
    truth = stream(2, "mask").integers(0, 2, (4, 6))
    image = {
        "gray": lambda: Image.fromarray(truth.astype(np.uint8)),
        "black and white": lambda: Image.fromarray(truth.astype(bool)),
        "palette": lambda: _palette(truth),
        "16 bits": lambda: Image.fromarray(truth.astype(np.uint16)),
    }[encoding]()
    image.save(tmp_path / "m.png")
    labels = labels_of(tmp_path / "m.png", (4, 6), 2)
    assert labels.dtype == np.uint8
    np.testing.assert_array_equal(labels, truth)


def _palette(truth):
    image = Image.fromarray(truth.astype(np.uint8)).convert("L")
    image = Image.frombytes("P", image.size, image.tobytes())
    image.putpalette([200, 10, 10, 3, 4, 5])
    return image


def test_masks_at_another_size_keep_their_numbers(tmp_path):
    """Each pixel takes the class under its middle: of columns 0 to 5 in three, columns 1, 3 and
    5.
    """
    Image.fromarray(np.tile(np.arange(6, dtype=np.uint8), (4, 1))).save(tmp_path / "m.png")
    assert labels_of(tmp_path / "m.png", (4, 6), 6, size=(3, 2)).tolist() == [[1, 3, 5]] * 2
    unresized = labels_of(tmp_path / "m.png", (4, 6), 6, size=(6, 4))
    np.testing.assert_array_equal(unresized, np.tile(np.arange(6), (4, 1)))


def test_masks_of_volumes(tmp_path):
    pytest.importorskip("nibabel")
    truth = stream(3, "mask").integers(0, 3, (5, 4, 3))
    for dtype in ("u1", "i2", "f4"):
        write_nifti(tmp_path / "m.nii.gz", truth.astype(dtype))
        np.testing.assert_array_equal(labels_of(tmp_path / "m.nii.gz", (5, 4, 3), 3), truth)
    for values, message in (
        (truth + 1.5, "holds 1.5 in"),
        (truth - 1.0, "holds -1 in"),
        (truth * 2.0, "holds 4 in"),
    ):
        write_nifti(tmp_path / "m.nii.gz", values.astype(np.float32))
        with pytest.raises(DataError, match=f"{message} .*classes are whole numbers from 0 to 2"):
            labels_of(tmp_path / "m.nii.gz", (5, 4, 3), 3)


@pytest.mark.parametrize(
    ("value", "size", "mode", "message"),
    [
        (
            255,
            (6, 4),
            "L",
            r"the mask .*m.png holds 255 in 24 of 24 pixels; classes are whole numbers from 0 to 1",
        ),
        (
            1,
            (4, 6),
            "L",
            r"the mask .*m.png has 6 x 4 x 1 values, but its image has 4 x 6 pixels; .* size",
        ),
        ((1, 1, 1), (6, 4), "RGB", r"the mask .*m.png has 4 x 6 x 3 values.*one class.*colours"),
    ],
)
def test_masks_that_do_not_fit(tmp_path, value, size, mode, message):
    picture(tmp_path / "m.png", value, size, mode)
    with pytest.raises(DataError, match=message):
        labels_of(tmp_path / "m.png", (4, 6), 2)


def test_a_mask_of_black_and_white_says_which_numbers_to_save(tmp_path):
    """As ImageJ and drawing programs write it."""
    Image.fromarray(np.eye(4, dtype=np.uint8) * 255).save(tmp_path / "m.png")
    with pytest.raises(DataError, match="save it with 1 in place of 255"):
        labels_of(tmp_path / "m.png", (4, 4), 2)
    with pytest.raises(DataError) as fault:  # as a tumour of BraTS without its first class
        labels_of(tmp_path / "m.png", (4, 4), 3)
    assert "in place of" not in str(fault.value)
    Image.fromarray(np.eye(4, dtype=np.uint8) + 1).save(tmp_path / "m.png")
    with pytest.raises(DataError) as fault:  # 1 and 2: which of them is the background?
        labels_of(tmp_path / "m.png", (4, 4), 2)
    assert "in place of" not in str(fault.value)


def test_masks_are_read_for_their_images(six):
    """Images 0 to 5 have masks of these classes; those of 1 and 4 cannot be used."""
    for k in range(6):
        picture(six / "masks" / f"{k}.png", k % 3)
    picture(six / "masks" / "1.png", 7)
    picture(six / "masks" / "4.png", 0, size=(2, 2))
    images, masks = ([six / folder / f"{k}.png" for k in range(6)] for folder in ("in", "masks"))
    settings = data_settings(
        name="images",
        path="list.csv",
        classes=("a", "b", "c"),
        targets="segmentation",
        skip_bad=True,
    )
    stack = image_stack.stacked("six", images, settings, masks=masks, classes=settings.classes)
    assert (stack.masks[:, 0, 0].tolist(), stack.rows.tolist()) == ([0, 2, 0, 2], [0, 2, 3, 5])
    assert (stack.masks.shape, stack.masks.dtype, len(stack.x)) == ((4, 4, 6), np.uint8, 4)
    assert "1.png holds 7" in stack.notes[1]
    assert "4.png has 2 x 2 x 1 values" in stack.notes[2]
    images[3].write_bytes(b"damaged after its mask was read")
    stack = image_stack.stacked("six", images, settings, masks=masks, classes=settings.classes)
    assert (stack.masks[:, 0, 0].tolist(), stack.rows.tolist()) == ([0, 2, 2], [0, 2, 5])


def test_folders_of_patients_and_masks_of_several_images_are_noted(six):
    """Rows are split at random, so that parts of one may be for training and for testing."""
    rows = [(f"P{k}/{i}.png", f"P{k}/m.png") for k in range(10) for i in range(2)]
    for k, (path, mask) in enumerate(rows):
        picture(six / path, k)
        picture(six / mask, 0)
    plain = load(listed(six, "path,label", *(f"{path},{path[3:]}" for path, _ in rows)))
    assert "20 images seem to be several of 10 patients" in " ".join(plain.notes)
    path = listed(six, "path,mask", *map(",".join, rows))
    notes = " ".join(load(path, targets="segmentation", classes=["a", "b"]).notes)
    assert "10 masks belong to several images (m.png" in notes


@pytest.fixture
def masked(tmp_path):
    """Sixteen images whose bright pixels are of class "vessel", half of them for each of two
    clients.
    """
    lines = ["path,mask,client,split"]
    for k in range(16):
        truth = stream(4, "masks", k).integers(0, 2, (8, 8)).astype(np.uint8)
        for folder, values in (("in", 100 + 100 * truth), ("masks", truth)):
            (tmp_path / folder).mkdir(exist_ok=True)
            Image.fromarray(values.astype(np.uint8)).save(tmp_path / folder / f"{k}.png")
        lines.append(f"in/{k}.png,masks/{k}.png,{'AB'[k % 2]},{('train', 'test')[k >= 12]}")
    return listed(tmp_path, *lines)


MASKED = {"targets": "segmentation", "classes": ("other", "vessel")}
UNET = {"partition": "natural", "model": "unet", "rounds": 1, "lr": 0.05, "workers": 1}


def test_masks_are_targets(masked):
    data = load(masked, **MASKED)
    assert (data.targets, data.classes, data.y.shape, data.y.dtype) == (
        "segmentation",
        MASKED["classes"],
        (16, 8, 8),
        np.uint8,
    )
    np.testing.assert_array_equal(data.y, data.x[..., 0] // 200)
    small = load(masked, resize=4, **MASKED)
    # the class under the middle of each new pixel
    np.testing.assert_array_equal(small.y, data.y[:, 1::2, 1::2])
    (masked.parent / "in" / "3.png").write_bytes(b"?")
    picture(masked.parent / "masks" / "5.png", 2, size=(8, 8))
    with pytest.raises(DataError, match="has 2 problems"):
        load(masked, **MASKED)
    usable = load(masked, skip_bad=True, **MASKED)
    numbers = [k for k in range(16) if k not in {3, 5}]
    np.testing.assert_array_equal(usable.y, data.y[numbers])
    np.testing.assert_array_equal(usable.x, data.x[numbers])
    assert (usable.n_train, usable.owners.client.tolist(), len(usable.notes)) == (
        10,
        [k % 2 for k in numbers],
        3,
    )
    with pytest.raises(
        ConfigError, match=r"needs names for the numbers in masks: set data.classes"
    ):
        load(masked, targets="segmentation")
    with pytest.raises(ConfigError, match="is for tables"):
        load(masked, targets="survival")


def test_a_federation_of_masks_runs(masked, tmp_path):
    data = {"name": "images", "path": masked, **MASKED}
    result = pomona.run(None, tmp_path / "run", method="fedavg-ft", data=data, **UNET)
    assert result is not None
    assert len(list((tmp_path / "run" / "models").glob("*.safetensors"))) == 2


def test_the_record_lists_what_was_skipped(masked, tmp_path):
    (masked.parent / "in" / "3.png").write_bytes(b"?")
    data = {"name": "images", "path": masked, **MASKED, "skip_bad": True}
    run = pomona.run(None, tmp_path / "run", method="fedavg", data=data, **UNET)
    lines = [note.text for note in run.notes if note.topic == "data"]
    assert [
        text in note
        for text, note in zip(("1 of 16 files are skipped", "in/3.png"), lines, strict=True)
    ] == [True] * 2
