"""Models of volumes answer on the grid of the file that they were given, and say what differs from
their training.
"""

import json
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest
from PIL import Image

import pomona
from data.image_files import CT, nifti, series
from pomona.cli import main
from pomona.config import resolve
from pomona.core.rng import stream
from pomona.personal import PersonalModel, mask_files
from pomona.personal.image_inputs import _differences
from pomona.personal.inputs import read

sitk = pytest.importorskip("SimpleITK")
pytest.importorskip("monai")
SHAPE = (4, 8, 8)


def scan(k):
    """HU (z, y, x) as stored in an axial CT, and a bright block at a random place."""
    draw = stream(8, "scans", k)
    volume = draw.integers(-60, 60, SHAPE).astype(np.int16)
    z, y, x = (draw.integers(0, n - 2) for n in SHAPE)
    block = np.zeros(SHAPE, np.uint8)
    block[z : z + 2, y : y + 3, x : x + 3] = 1
    return volume + 900 * block.astype(np.int16), block


def trained(folder, write=nifti, n=12, rounds=6, **changes):
    """A U-Net of blocks in volumes of two clients, trained on the files that ``write`` makes."""
    lines = ["path,mask,client,split"]
    for k in range(n):
        volume, block = scan(k)
        image = write(folder / f"i{k}{'' if write is series else '.nii.gz'}", volume)
        mask = nifti(folder / f"m{k}.nii.gz", block)
        split = "test" if k >= n - 4 else "train"
        lines.append(f"{image.name},{mask.name},{'AB'[k % 2]},{split}")
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    tree = {
        "data": {
            "name": "images", "path": str(folder / "list.csv"), "targets": "segmentation",
            "classes": ["rest", "block"],
        },
        "model": {"name": "monai:UNet", "args": {"channels": [8, 16], "strides": [2]}},
        "partition": {"name": "natural"}, "method": {"name": "fedavg"}, "rounds": rounds,
        "local_epochs": 4, "lr": 0.02, "optimizer": {"name": "adamw"}, "batch_size": 4, "workers": 1,
    } | changes  # fmt: skip
    result = pomona.run(resolve(tree), folder / "run")
    return result, folder / "run" / "models" / "client-00.safetensors"


def predicted(capsys, *arguments):
    """What `pomona predict` answers as JSON, and its notes."""
    with pytest.raises(SystemExit) as stop:
        main(["predict", *map(str, arguments), "--json"])
    output = capsys.readouterr()
    assert not stop.value.code, output.err
    return json.loads(output.out), output.err


def dice(a, b):
    return 2 * (a & b).sum() / (a.sum() + b.sum())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return folder, trained(folder)[1]


def oblique(path, volume, block):
    """The scan on other stored axes and slightly rotated: its voxels in the order (z, x, y)."""
    affine = CT[:, [2, 0, 1, 3]].copy()
    angle = np.deg2rad(10)
    turn = np.array(
        [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]]
    )
    affine[:3] = turn @ affine[:3]
    nibabel.save(nibabel.Nifti1Image(volume.transpose(0, 2, 1), affine), path)
    return block.transpose(0, 2, 1)


@pytest.mark.long
def test_a_mask_lies_on_the_grid_of_its_nifti(model, tmp_path, capsys):
    _, path = model
    volume, block = scan(50)
    cases = {
        "ct.nii.gz": lambda target: (nifti(target, volume), block.transpose(2, 1, 0))[1],
        "turned.nii": lambda target: oblique(target, volume, block),
    }
    for name, write in cases.items():
        expected = write(tmp_path / name)
        predicted(capsys, path, tmp_path / name, "--masks", tmp_path / f"mask-{name}")
        image, mask = (nibabel.load(tmp_path / f"{p}{name}") for p in ("", "mask-"))
        assert (mask.shape, mask.get_data_dtype()) == (image.shape, np.uint8)
        np.testing.assert_allclose(mask.affine, image.affine, atol=1e-5)
        np.testing.assert_allclose(mask.get_qform(), image.affine, atol=1e-4)
        assert dice(np.asarray(mask.dataobj), expected) > 0.8
        pair = [sitk.ReadImage(str(tmp_path / f"{p}{name}")) for p in ("", "mask-")]
        for read_by in ("GetOrigin", "GetDirection", "GetSpacing", "GetSize"):
            a, b = (getattr(opened, read_by)() for opened in pair)
            assert a == pytest.approx(b, abs=1e-4)


@pytest.mark.long
def test_a_series_gets_its_nifti_and_all_inputs_a_folder_or_an_archive(model, tmp_path, capsys):
    _, path = model
    volume, block = scan(51)
    ct, image = series(tmp_path / "ct", volume), nifti(tmp_path / "i.nii.gz", volume)
    answers, notes = predicted(capsys, path, ct, image, "--masks", tmp_path / "out")
    assert answers[0]["pixels"] == answers[1]["pixels"]
    assert "note" not in notes
    files = [nibabel.load(tmp_path / "out" / f"{name}.nii.gz") for name in ("ct", "i")]
    by_sitk = sitk.ReadImage(sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(ct)))
    mask = sitk.ReadImage(str(tmp_path / "out" / "ct.nii.gz"))
    assert mask.GetDirection() == pytest.approx(by_sitk.GetDirection(), abs=1e-6)
    assert mask.GetOrigin() == pytest.approx(by_sitk.GetOrigin(), abs=1e-4)
    assert dice(sitk.GetArrayFromImage(mask), block) > 0.8
    for file in files:
        np.testing.assert_allclose(file.affine, CT, atol=1e-5)
    predicted(capsys, path, ct, image, "--masks", tmp_path / "out.npz")
    archive = np.load(tmp_path / "out.npz")
    z, y, x = np.argwhere(archive["masks"][0])[0]
    i, j, k = np.rint(np.linalg.inv(CT) @ archive["affines"][0] @ [z, y, x, 1])[:3].astype(int)
    assert np.asarray(files[1].dataobj)[i, j, k] == 1
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(path), str(ct), str(image), "--masks", str(tmp_path / "one.nii.gz")])
    assert (stop.value.code, "name a folder" in capsys.readouterr().err) == (3, True)


@pytest.mark.long
def test_what_differs_from_the_training_is_noted(model, tmp_path):
    """Voxels of three times the size, no orientation, real numbers."""
    _, path = model
    metadata = PersonalModel.load(path).about
    assert metadata.spacings == ((3.0, 2.0, 2.0),)
    assert (metadata.orientation, metadata.dtype) == ("RAS", "int16")
    volume, _ = scan(52)
    wide = nifti(tmp_path / "wide.nii.gz", volume, CT * [[3], [3], [3], [1]])
    assert "voxels of 9 x 6 x 6 mm (z, y, x), but the model was trained on 3 x 2 x 2" in (
        read(wide, metadata).note
    )
    nibabel.save(nibabel.Nifti1Image(volume.transpose(2, 1, 0), None), tmp_path / "bare.nii")
    assert "may be mirrored" in read(tmp_path / "bare.nii", metadata).note
    real = nifti(tmp_path / "real.nii.gz", volume + np.float32(0.25))
    samples = read(real, metadata)
    assert "rounded by up to 0.25 to int16" in samples.note
    np.testing.assert_array_equal(samples.x, read(nifti(tmp_path / "i.nii", volume), metadata).x)
    assert read(series(tmp_path / "ct", volume), metadata).note == ""
    np.testing.assert_array_equal(samples.x, read(tmp_path / "ct", metadata).x)


@pytest.mark.slow
def test_the_format_of_a_site_does_not_change_its_model(tmp_path):
    """The same scans as DICOM series with NIfTI masks, and all as NIfTI: the same Dice."""
    scores = []
    for write in (nifti, series):
        folder = tmp_path / write.__name__
        folder.mkdir()
        result, _ = trained(folder, write)
        scores.append({k: v for k, v in result.summary.items() if k != "seconds"})
    assert scores[0] == scores[1]


def test_the_mask_of_an_image_has_the_size_of_the_image(tmp_path):
    """Of a model that resizes its images: a PNG of the input's own size."""
    Image.new("L", (6, 4)).save(tmp_path / "photo.png")
    mask = mask_files.PredictedMask(
        tmp_path / "photo.png", np.array([[0, 1], [2, 3]], np.uint8), None, (4, 6)
    )
    mask_files.write(tmp_path / "out", [mask])
    pixels = np.asarray(Image.open(tmp_path / "out" / "photo.png"))
    (tmp_path / "linked.png").symlink_to(tmp_path / "photo.png")  # as git-annex stores files
    mask_files.write(tmp_path / "links", [mask._replace(source=tmp_path / "linked.png")])
    assert (tmp_path / "links" / "linked.png").exists()
    assert pixels.tolist() == [[0, 0, 0, 1, 1, 1]] * 2 + [[2, 2, 2, 3, 3, 3]] * 2


def test_a_turned_volume_is_noted_where_the_training_had_no_orientation():
    """As where MONAI's arrays (x, y, z) trained the model, and a file is answered."""
    metadata = SimpleNamespace(orientation="", spacings=(), traits={}, window=None)
    grid = SimpleNamespace(oriented=True)
    file = SimpleNamespace(
        path=None, shape=(4, 4, 4, 1), grid=grid, spacing=None, unit="HU", traits=()
    )
    (note,) = _differences(file, metadata)
    assert "without an orientation" in note
    grid.oriented = False
    assert _differences(file, metadata) == []
