"""Levels of folders: classes, sites, patients, parts; what is taken by itself, asked for, refused."""

import json
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from image_files import write_dicom
from PIL import Image

from pomona.core.errors import ConfigError, DataError
from pomona.data import data_settings, read
from pomona.data.formats import image_formats
from pomona.data.images.file_notes import by_note
from pomona.data.images.image_file import ImageFile
from pomona.personal import image_inputs


def images(root, *paths):
    """Gray PNG files; pixels are the number of the path."""
    for k, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 2), k).save((root / path).with_suffix(".png"))
    return root


def tree(root, *patterns, n=2):
    """``n`` images in each folder; ``A+B/c+d`` is four folders."""
    for pattern in patterns:
        folders = [root]
        for level in pattern.split("/"):
            folders = [folder / name for folder in folders for name in level.split("+")]
        for folder in folders:
            images(folder, *(str(k) for k in range(n)))
    return root


def dataset(root, **settings):
    return read(data_settings(name="images", path=root, **settings))


def by_site(data):
    """The classes of the rows of each client, and its number of rows in each part."""
    return {
        name: (
            sorted({data.classes[k] for k in data.y[data.owners.client == number]}),
            np.bincount(data.owners.role[data.owners.client == number], minlength=3).tolist(),
        )
        for number, name in enumerate(data.owners.names)
    }


def notes(data):
    return " ".join(data.notes)


CLASSES = ["benign", "malign"]


def test_folders_of_the_same_names_are_classes_of_sites(tmp_path):
    data = dataset(tree(tmp_path, "North+South+West/benign+malign"))
    assert (data.classes, len(data)) == (("benign", "malign"), 12)
    assert by_site(data) == dict.fromkeys(("North", "South", "West"), (CLASSES, [4, 0, 0]))
    assert all(text in notes(data) for text in ("North, South, West", "benign, malign", "clients"))
    assert data.groups is None


@pytest.mark.parametrize(
    "pattern", ["North+South/{part}/benign+malign", "{part}/North+South/benign+malign"]
)
def test_sites_with_parts(tmp_path, pattern):
    for split, n in (("train", 4), ("val", 1), ("test", 2)):
        tree(tmp_path, pattern.format(part=split), n=n)
    data = dataset(tmp_path)
    assert by_site(data) == dict.fromkeys(("North", "South"), (CLASSES, [8, 2, 4]))
    assert data.n_train == 20


@pytest.mark.parametrize(
    ("train", "test"), [("Training", "Testing"), ("Train", "Test"), ("training_set", "test set")]
)
@pytest.mark.parametrize("pattern", ["{part}/a+b", "A+B/{part}/a+b"])
def test_other_usual_names_of_training_and_test_folders(tmp_path, train, test, pattern):
    tree(tmp_path, pattern.format(part=train), n=3)
    tree(tmp_path, pattern.format(part=test), n=1)
    tree(tmp_path, pattern.format(part="valid"), n=2)
    data = dataset(tmp_path)
    assert data.classes == ("a", "b")
    sites = 2 if "A+B" in pattern else 1
    assert (len(data.x), len(data.x) - data.n_train) == (12 * sites, 2 * sites)


def test_parts_unpacked_into_folders_of_their_names(tmp_path):
    """training_set/training_set/CLASS: the inner folder is no site; test/test is a class if other
    classes are beside it.
    """
    tree(tmp_path / "twice", "train/train/a+b", n=3)
    tree(tmp_path / "twice", "test/test/a+b", n=1)
    data = dataset(tmp_path / "twice")
    assert (data.classes, len(data), data.n_train, data.owners) == (("a", "b"), 8, 6, None)
    tree(tmp_path / "once", "train+test/control+test", n=2)
    assert dataset(tmp_path / "once").classes == ("control", "test")


def test_parts_inside_classes(tmp_path):
    tree(tmp_path, "a+b/train", n=3)
    tree(tmp_path, "a+b/test", n=1)
    data = dataset(tmp_path)
    assert (data.classes, data.y.tolist(), data.n_train) == (
        ("a", "b"),
        [0] * 3 + [1] * 3 + [0, 1],
        6,
    )


def test_a_site_may_lack_a_class(tmp_path):
    data = dataset(tree(tmp_path, "North+West/benign+malign", "South/benign"))
    assert by_site(data)["South"] == (["benign"], [2, 0, 0])
    assert "South has no images of malign" in notes(data)


@pytest.mark.parametrize(
    "patterns",
    [
        ("North/benign+malign", "South/benign+malignant"),
        ("North/a+b+c", "South/b+c+d"),
        ("North/benign+malign",),
        ("a/c50+c61", "b/c50+c61"),
    ],
)
def test_folders_of_unclear_meaning_are_refused_with_the_setting(tmp_path, patterns):
    tree(tmp_path, *patterns)
    with pytest.raises(DataError, match=r"data\.folders = \['site', 'class'\]"):
        dataset(tmp_path)
    assert dataset(tmp_path, folders=["site", "class"]).owners is not None
    data = dataset(tmp_path, folders=["class", "patient"])
    assert data.owners is None
    assert data.classes == tuple(sorted(p.name for p in tmp_path.iterdir()))


def test_names_of_classes_decide(tmp_path):
    tree(tmp_path, "North/benign+malign")
    assert dataset(tmp_path, classes=CLASSES).owners.names == ("North",)
    assert dataset(tmp_path, classes=["North"]).owners is None


def test_folders_of_patients_keep_their_rows_together(tmp_path):
    data = dataset(tree(tmp_path, "benign/p1+p2+p3", "malign/p4+p5", n=3))
    assert (data.classes, data.owners) == (("benign", "malign"), None)
    assert data.groups.number.tolist() == np.repeat(range(5), 3).tolist()
    assert "15 files are of 5 patients by the folder" in notes(data)


def test_folders_of_patients_in_classes_of_sites(tmp_path):
    tree(tmp_path, "North/benign+malign/1+2", "South/benign+malign/1+3", n=3)
    data = dataset(tmp_path)
    assert set(by_site(data)) == {"North", "South"}
    groups = data.groups.within(data.owners.client)
    assert len({*groups}) == 4  # patient 1 of North is not patient 1 of South
    assert "1 patients (1) appear at several clients" in notes(data)


def test_one_folder_in_each_class_is_not_a_patient(tmp_path):
    data = dataset(tree(tmp_path, "n01+n02/images"))
    assert (data.classes, data.owners, data.groups) == (("n01", "n02"), None, None)


def test_any_level_may_be_skipped(tmp_path):
    tree(tmp_path, "2021+2022/North+South/a+b")
    data = dataset(tmp_path, folders=["any", "site", "class"])
    assert set(by_site(data)) == {"North", "South"}
    with pytest.raises(ConfigError, match="one level class"):
        dataset(tmp_path, folders=["site"])


def test_images_above_the_levels_are_named(tmp_path):
    tree(tmp_path, "North+South/a+b")
    images(tmp_path / "North", "loose")
    with pytest.raises(DataError, match=r"1 images lie above.*North/loose\.png"):
        dataset(tmp_path, folders=["site", "class"])


def test_a_loop_of_links_ends(tmp_path):
    tree(tmp_path, "a+b")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    assert len(dataset(tmp_path)) == 4


def test_a_linked_folder_is_read(tmp_path):
    tree(tmp_path / "elsewhere", "b")
    tree(tmp_path / "scans", "a")
    (tmp_path / "scans" / "b").symlink_to(tmp_path / "elsewhere" / "b")
    assert dataset(tmp_path / "scans").y.tolist() == [0, 0, 1, 1]


# patients by header and path


def slices(root, patients, n=3, **changes):
    for k, (folder, patient) in enumerate(patients):
        for i in range(n):
            pixels = np.full((4, 4), 10 * k + i, np.uint16)
            write_dicom(root / folder / f"{k}_{i}.dcm", pixels, PatientID=patient, **changes)
    return root


def test_slices_of_one_patient_are_kept_together_by_the_header(tmp_path):
    data = dataset(slices(tmp_path, [("a", "p1"), ("a", "p2"), ("b", "p3"), ("b", "p1")]))
    assert data.groups.number.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [0] * 3
    assert "12 files are of 3 patients by PatientID" in notes(data)


def test_slices_without_a_patient_are_kept_together_by_their_coordinates(tmp_path):
    """As after a tool that empties PatientID."""
    for name in "ab":
        slices(tmp_path / name, [(".", None)], FrameOfReferenceUID=f"1.{ord(name)}")
    assert dataset(tmp_path).groups.number.tolist() == [0] * 3 + [1] * 3


@pytest.mark.parametrize(
    ("pattern", "noted"),
    [
        ("a/P{0}_{1}", True),
        ("{2}/{0}_{3}", True),  # of eyes
        ("a/img{0}_rot90 a/img{0}", True),
        ("a/la_{0}_000{1}", True),  # channels of nnU-Net
        ("a/P{0}_e1 a/P{0}_e2", True),  # echoes, and resampled series, of dcm2niix
        ("a/P{0} a/P{0}_Tilt_1", True),
        ("a/site{0}_T1_P{1} a/site{0}_T1_P2{1}", False),
        ("n{4}/n{4}_{0}{1} n{4}/n{4}_{0}2345", False),  # ImageNet
        ("n{4}/images/n{4}_{0}{1}", False),  # Tiny ImageNet
        ("a/{0}{1}", False),
        ("a/image_{0}{1}", False),
        ("{2}/{0}", False),
        ("a/2020_{0}{1}", False),
    ],
)
def test_several_images_of_one_patient_by_their_names_are_noted(tmp_path, pattern, noted):
    for k, side in product(range(12), range(2)):
        text = pattern.format(k, side, "ab"[side], ("left", "right")[side], 100 + k)
        images(tmp_path, *text.split())
    images(tmp_path, "b/x")
    line = "24 images seem to be several of 12 patients"
    assert (line in notes(dataset(tmp_path))) == noted


def test_folders_of_sites_with_numbers_are_no_patients(tmp_path):
    tree(tmp_path, "a+b/" + "+".join(f"site{k}" for k in range(12)))
    assert "seem to be several" not in notes(dataset(tmp_path, folders=["class", "site"]))


def test_one_identifier_for_all_is_not_used(tmp_path):
    data = dataset(slices(tmp_path, [("a", "ANON"), ("b", "ANON")]))
    assert data.groups is None
    assert all(text in notes(data) for text in ("'ANON'", "not used", "column group"))


def test_identifiers_that_are_all_different_need_no_word(tmp_path):
    data = dataset(slices(tmp_path, [("a", "1"), ("a", "2"), ("b", "3")], n=1))
    assert (data.groups, data.notes) == (None, ())


def test_a_site_that_writes_one_identifier_is_named(tmp_path):
    slices(tmp_path, [("N/a", "1"), ("N/b", "2"), ("S/a", "ANON"), ("S/b", "ANON")])
    data = dataset(tmp_path)
    assert len({*data.groups.number}) == 2 + 6
    assert "files of S have one patient" in notes(data)


def test_a_patient_for_training_and_testing_is_noted(tmp_path):
    data = dataset(
        slices(tmp_path, [("train/a", "1"), ("train/b", "2"), ("test/a", "1"), ("test/b", "3")])
    )
    assert "1 patients (1) have rows for training and for testing" in notes(data)


def test_folders_of_patients_are_not_taken_for_classes_in_silence(tmp_path):
    """As in an archive's export: PATIENT/STUDY/SERIES/files."""
    slices(tmp_path, [("P1/study/se1", "P1"), ("P2/study/se1", "P2")])
    note = "each class has the files of one patient"
    assert note in notes(dataset(tmp_path, folders=["class"]))
    slices(tmp_path, [("P1/study/se2", "P1"), ("P2/study/se2", "P3")])
    assert note not in notes(dataset(tmp_path, folders=["class"]))


def test_folders_of_patients_with_the_same_few_files_are_not_classes_in_silence(tmp_path):
    """As BraTS names them: P/P-t1n and P/P-t2w, with numbers in the names of the patients."""
    note = "each class has the files of one patient (by the names)"
    parts = [f"GLI-{k:05d}-000" for k in range(3)]
    images(tmp_path / "a", *(f"{p}/{p}-{m}" for p in parts for m in ("t1n", "t2w")))
    assert note in notes(dataset(tmp_path / "a"))
    images(tmp_path / "a", f"{parts[0]}/{parts[0]}-t2f")
    assert note not in notes(dataset(tmp_path / "a"))
    assert note not in notes(dataset(tree(tmp_path / "b", "cat+dog+cow")))
    assert note not in notes(dataset(tree(tmp_path / "faces", "s1+s2+s3", n=10)))
    images(tmp_path / "c", *(f"grade{k}/P{k}{j}/{m}" for k in range(3) for j in "ab" for m in "xy"))
    assert note not in notes(dataset(tmp_path / "c", folders=["class", "patient"]))
    lines = [f"c/grade{k}/P{k}{j}/{m}.png,{k}\n" for k in range(3) for j in "ab" for m in "xy"]
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(lines))
    assert note not in notes(dataset(tmp_path / "list.csv"))


@pytest.mark.parametrize("session", ["", "ses-1", "ses-*"])
def test_subjects_of_bids_are_not_taken_for_classes(tmp_path, session):
    for name in ("sub-01", "sub-02"):
        for k in range(2):
            images(tmp_path, f"{name}/{session.replace('*', str(k))}/anat/{name}_T{k}w.png")
    with pytest.raises(DataError, match=r"sub-01, sub-02 are subjects.*path and label"):
        dataset(tmp_path)
    assert dataset(tmp_path, folders=["class"]).classes == ("sub-01", "sub-02")


def test_notes_that_differ_in_numbers_share_a_line():
    """Else a data set has as many notes as scans, each with its own angle or file."""
    angles = [(f"{k}/CT", [f"tilted by {k}.5 degrees"]) for k in range(4)]
    (line,) = by_note(angles, "files")
    assert line.startswith("4 of 4 files (0/CT, 1/CT and 2 more): tilted by 0.5 degrees")
    assert "others differ" in line
    assert len(by_note([*angles, ("x", ["palette"])], "files")) == 2


def test_files_of_one_name_are_told_apart(tmp_path):
    for name in ("a", "b"):
        images(tmp_path, f"{name}/0", f"{name}/1")
        Image.new("RGBA", (3, 2)).save(tmp_path / name / "0.png")
    assert "2 of 4 files (a/0.png, b/0.png): " in notes(dataset(tmp_path))


def test_subjects_of_bids_are_patients(tmp_path):
    names = [f"{c}/sub-0{k}/ses-{s}/anat/sub-0{k}_ses-{s}_T1w" for c, k in (("a", 1), ("a", 2), ("b", 3)) for s in (1, 2)]  # fmt: skip
    data = dataset(images(tmp_path, *names))
    assert data.groups.number.tolist() == [0, 0, 1, 1, 2, 2]
    flat = images(tmp_path / "flat", *(f"{n[0]}/{n.split('/')[-1]}" for n in names))
    data = dataset(flat)
    assert data.groups.number.tolist() == [0, 0, 1, 1, 2, 2]
    assert "subject in the path" in notes(data)


def test_a_list_of_slices_keeps_patients_together(tmp_path):
    slices(tmp_path, [("x", "1"), ("x", "2")], n=2)
    (tmp_path / "m.csv").write_text(
        "path,label\n" + "".join(f"x/{k}_{i}.dcm,{'ab'[k]}\n" for k in (0, 1) for i in (0, 1))
    )
    data = dataset(tmp_path / "m.csv")
    assert data.groups.number.tolist() == [0, 0, 1, 1]
    assert "PatientID" in notes(data)


def test_the_column_group_counts_before_headers(tmp_path):
    slices(tmp_path, [("x", "1")], n=2)
    (tmp_path / "m.csv").write_text("path,label,group\nx/0_0.dcm,a,g\nx/0_1.dcm,b,h\n")
    data = dataset(tmp_path / "m.csv")
    assert (data.groups.column, data.groups.number.tolist()) == ("group", [0, 1])


# refusals


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("1.svs", b"II*\0", ("whole-slide", "tiles")),
        ("1.heic", b"?", ("HEIF", "PNG")),
        ("1.jpg", b"\0\0\0\x18ftypheic" + bytes(200), ("HEIF", "content", "PNG")),
        ("1.png", b"%PDF-1.7" + bytes(200), ("document", "content")),
        ("1.mp4", b"?", ("video", "frames")),
        ("1.czi", b"?", ("microscope", "OME-TIFF")),
        ("1.npy", b"?", ("NumPy", ".npz")),
        ("1.jp2", b"?", ("JPEG 2000", "PNG")),
        ("1.png", b"\x1f\x8b" + bytes(300), ("gzip", ".nii.gz")),
        ("1.jpg", bytes(128) + b"DICM" + bytes(20), ("DICOM", ".dcm")),
    ],
)
def test_other_files_are_named_with_what_to_do(tmp_path, name, content, texts):
    tree(tmp_path, "a+b")
    (tmp_path / "a" / name).write_bytes(content)
    with pytest.raises(DataError) as folder:
        dataset(tmp_path)
    (tmp_path / "m.csv").write_text(f"path,label\na/{name},x\n")
    with pytest.raises(DataError) as listed:
        dataset(tmp_path / "m.csv")
    for fault in (folder, listed):
        assert all(text in str(fault.value) for text in (name, *texts))


@pytest.mark.parametrize("name", ["IM0001", "CT.1.2.840.5"])
def test_dicom_without_a_suffix_is_read(tmp_path, name):
    for k in range(2):
        write_dicom(tmp_path / "ab"[k] / "x.dcm", np.full((4, 4), k, np.uint16))
        (tmp_path / "ab"[k] / "x.dcm").rename(tmp_path / "ab"[k] / name)
    assert dataset(tmp_path).x[:, 0, 0, 0].tolist() == [0, 1]


# which reading is taken


@pytest.mark.parametrize("names", ["sub-01+sub-02", "P001+P002", "patient_3+patient_4", "p1+p2"])
def test_patients_that_have_images_of_every_class_are_no_classes(tmp_path, names):
    data = dataset(tree(tmp_path, f"benign+malign/{names}"))
    assert (data.classes, data.owners) == (("benign", "malign"), None)
    assert data.groups.number.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert "data.folders = ['site', 'class']" in notes(data)
    assert dataset(tmp_path, folders=["site", "class"]).owners.names == ("benign", "malign")


def test_the_reading_as_sites_names_the_setting_for_the_other(tmp_path):
    tree(tmp_path, "benign+malign/anna+ben")
    assert "data.folders = ['class', 'patient']" in notes(dataset(tmp_path))
    data = dataset(tmp_path, folders=["class", "patient"])
    assert (data.classes, len({*data.groups.number})) == (("benign", "malign"), 2)


def test_files_beside_images_are_one_note_however_many_folders_have_them(tmp_path):
    """As in BIDS, where each image has a .json."""
    for k in range(4):
        images(tmp_path, f"{'ab'[k % 2]}/sub-0{k}/ses-1/sub-0{k}_T1w")
        (tmp_path / "ab"[k % 2] / f"sub-0{k}" / "ses-1" / f"sub-0{k}_T1w.json").write_text("{}")
    (line,) = (note for note in dataset(tmp_path).notes if ".json" in note)
    assert "4 files .json are not read" in line


# dataset.json of the Medical Segmentation Decathlon


@pytest.fixture
def decathlon(tmp_path):
    """Three volumes with masks, and one without, as the challenge lays them out."""
    nibabel = pytest.importorskip("nibabel")
    entries = []
    for k in range(4):
        volume = np.full((4, 3, 2), k, np.int16)
        for folder, values in (("imagesTr", volume), ("labelsTr", (volume > 1).astype(np.uint8))):
            path = tmp_path / (folder.replace("Tr", "Ts") if k == 3 else folder) / f"la_{k}.nii.gz"
            path.parent.mkdir(exist_ok=True)
            if path.parent.name != "labelsTs":
                nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), path)
        entries.append({"image": f"./imagesTr/la_{k}.nii.gz", "label": f"./labelsTr/la_{k}.nii.gz"})
    tree = {
        "name": "LeftAtrium", "modality": {"0": "MRI"}, "labels": {"0": "background", "1": "atrium"},
        "numTraining": 3, "numTest": 1, "training": entries[:3], "test": ["./imagesTs/la_3.nii.gz"],
    }  # fmt: skip
    (tmp_path / "dataset.json").write_text(json.dumps(tree))
    return tmp_path


def test_a_folder_of_the_decathlon_is_images_with_masks(decathlon):
    for path in (decathlon, decathlon / "dataset.json"):
        data = dataset(path)
        assert (data.targets, data.classes) == ("segmentation", ("background", "atrium"))
        assert data.x[:, 0, 0, 0, 0].tolist() == [0, 1, 2]
        assert data.y[:, 0, 0, 0].tolist() == [0, 0, 1]
        assert "1 images for testing have no masks" in notes(data)
    assert dataset(decathlon, classes=["no", "yes"]).classes == ("no", "yes")


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        ({"training": []}, ("'training'", "path and mask")),
        ({"validation": 3}, ("'validation'", "path and mask")),
        ({"test": {}}, ("'test'", "path and mask")),
        ({"training": [{"image": "a.nii.gz", "label": 1}]}, ("'training'", "path and mask")),
        ({"labels": None}, ("data.classes",)),
        ({"training": [{"image": "../x.nii.gz", "label": "y.nii.gz"}]}, ("pair 1", "within")),
    ],
)
def test_another_dataset_json_is_refused_with_the_remedy(decathlon, change, texts):
    path = decathlon / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises((DataError, ConfigError)) as fault:
        dataset(decathlon)
    assert all(text in fault.value.line() for text in texts)


# formats of other packages


def opened_text(path):
    """An image of one row, written as numbers."""
    values = np.array([[[int(cell)] for cell in path.read_text().split()]], np.uint8)
    return ImageFile(path, values.shape, values.dtype, lambda: values)


def test_a_package_adds_a_format_by_an_entry_point(tmp_path, monkeypatch):
    entry = SimpleNamespace(
        name=".dots", load=lambda: image_formats.ImageFormat(f"{__name__}:opened_text")
    )
    monkeypatch.setattr(image_formats, "entry_points", lambda group: [entry] * (group == "pomona.image_readers"))  # fmt: skip
    image_formats.image_formats.cache_clear()
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.dots").write_text("7 8 9")
    try:
        data = dataset(tmp_path)
    finally:
        image_formats.image_formats.cache_clear()
    assert data.x[..., 0].tolist() == [[[7, 8, 9]]] * 2


def test_images_for_validation_that_are_for_testing_are_noted(tmp_path):
    line = "the images in val/ are for testing"
    assert line in notes(dataset(tree(tmp_path, "train+val/a+b")))
    assert line not in notes(dataset(tree(tmp_path, "test/a+b")))


def test_gray_read_in_colour_and_changed_proportions_are_noted(tmp_path):
    tree(tmp_path, "a+b")  # gray, 3 x 2
    assert notes(dataset(tmp_path, resize=2)) == ""
    Image.new("RGB", (4, 2)).save(tmp_path / "b" / "wide.png")
    line = notes(dataset(tmp_path, resize=2))
    assert "mixed: 4 of gray (a/0.png), 1 of colour (b/wide.png); all are read in RGB" in line
    assert "(width / height): 4 of 1.5 (a/0.png), 1 of 2 (b/wide.png); cut or pad all" in line


@pytest.mark.parametrize(
    ("names", "masks"),
    [
        (("a/0", "a/0_mask", "a/0_mask_1", "a/1", "a/1-seg"), 3),  # ultrasound of BUSI
        (("images/0", "images/1", "masks/0", "masks/1"), 2),
        (("imagesTr/x_0000", "imagesTr/x_0001", "labelsTr/x"), 1),  # nnU-Net
        (("a/s_t1", "a/s_flair", "a/s_seg"), 1),  # BraTS
        (("JPEGImages/0", "SegmentationClass/0"), 1),  # Pascal VOC
        (("images/t/0", "annotations/t/0"), 1),  # ADE20K
        (("s/mask/0", "s/none/1", "t/mask/1", "t/none/0"), 0),  # classes at two sites
        (("with_mask/0", "without_mask/0"), 0),  # classes of people
        (("a/0_mask", "a/1_mask", "a/2"), 0),
        (("a/img_0000", "a/img_0001", "a/label_1", "b/0"), 0),
    ],
)
def test_images_that_are_named_like_masks_of_others_are_noted(tmp_path, names, masks):
    for name in names:
        folder, _, stem = name.rpartition("/")
        images(tmp_path / folder, stem)
    images(tmp_path / "z", "9")
    remark = f"{masks} images are named like masks of others"
    assert (remark in notes(dataset(tmp_path))) == (masks > 0)
    assert any(remark in line for line in image_inputs.files(tmp_path, False)[1]) == (masks > 0)


def test_an_image_in_two_formats_is_noted(tmp_path):
    tree(tmp_path, "a+b")
    assert "another suffix" not in notes(dataset(tmp_path))
    Image.open(tmp_path / "a" / "0.png").save(tmp_path / "a" / "0.jpg", quality=50)
    assert "1 images have a second file with another suffix (0)" in notes(dataset(tmp_path))
