"""Models of volumes and 16-bit images accept files like those of their training, and refuse others
by name.
"""

import json

import numpy as np
import pytest
from PIL import Image

import pomona
from data.image_files import write_dicom, write_nifti, write_series
from pomona.cli import main
from pomona.config import resolve
from pomona.core.errors import DataError
from pomona.core.rng import stream
from pomona.personal import PersonalModel
from pomona.personal.inputs import read

pytest.importorskip("nibabel")
pytest.importorskip("pydicom")


def volumes(n=24):
    """Volumes (n, 5, 4, 3) int16, every second one bright."""
    x = stream(6, "volumes").integers(-1000, 0, (n, 5, 4, 3)).astype(np.int16)
    x[1::2] += 900
    return x


def trained(folder, write, **data):
    """A model trained on the files that ``write`` makes of each sample, by a manifest."""
    lines = ["path,label,client,split"]
    for k, x in enumerate(volumes()):
        path = write(folder / "in" / f"{k}", x)
        lines.append(
            f"{path.relative_to(folder)},{'ab'[k % 2]},{'AB'[k % 4 // 2]},{('train', 'test')[k >= 16]}"
        )
    (folder / "list.csv").write_text("\n".join(lines))
    tree = {"data": {"name": "images", "path": str(folder / "list.csv"), **data}}
    tree |= {"model": {"name": "logistic"}, "partition": {"name": "natural"}}
    tree |= {"method": {"name": "fedavg"}, "rounds": 2, "lr": 0.1, "workers": 1}
    pomona.run(resolve(tree), folder / "run")
    return folder / "run" / "models" / "client-00.safetensors"


def test_volumes_of_both_kinds_get_the_answer_of_the_array(tmp_path, capsys):
    path = trained(tmp_path, lambda p, x: write_nifti(p.with_suffix(".nii.gz"), x))
    model, x = PersonalModel.load(path), volumes(3)
    form = (model.about.dtype, model.about.input_shape, model.about.window)
    assert form == ("int16", (1, 5, 4, 3), None)
    files = [write_nifti(tmp_path / "v.nii", x[0]), write_series(tmp_path / "ct", x[1])]
    # whole numbers are these, as stored
    files.append(write_nifti(tmp_path / "f.nii.gz", x[2].astype(np.float32)))
    with pytest.raises(SystemExit):
        main(["predict", str(path), *map(str, files), "--json"])
    answers = json.loads(capsys.readouterr().out)
    expected = [pytest.approx(e["probabilities"]) for e in model.predict(x[..., None])]
    assert [a["probabilities"] for a in answers] == expected
    write_nifti(tmp_path / "all" / "v.nii", x[0])
    write_series(tmp_path / "all" / "ct", x[1])
    (tmp_path / "all" / "list.txt").write_text("v, ct")
    with pytest.raises(SystemExit):
        main(["predict", str(path), str(tmp_path / "all"), "--json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out) == [
        answer | {"input": str(tmp_path / "all" / name)}
        for answer, name in zip(answers, ("v.nii", "ct"), strict=False)
    ]
    assert f"{tmp_path}/all: files that are not images are left out (list.txt)" in printed.err
    write_dicom(tmp_path / "1.dcm", x[0, 0])
    Image.new("L", (3, 4)).save(tmp_path / "p.png")
    for file, message in (
        (
            write_nifti(tmp_path / "o.nii", x[0, :4]),
            r"o.nii has shape \(4, 4, 3, 1\), the model takes \(5, 4, 3, 1\)",
        ),
        (
            write_nifti(tmp_path / "h.nii", x[0] + np.float32(1e6)),
            "h.nii: row 0 is float32 and does not fit into int16",
        ),
        (
            write_nifti(tmp_path / "e.nii", (x[0] % 100).astype(np.uint8)),
            "has uint8 values, but the model takes int16",
        ),
        (tmp_path / "1.dcm", r"1.dcm has shape \(4, 3, 1\)"),
        (tmp_path / "p.png", r"p.png has shape \(4, 3, 1\)"),
    ):
        with pytest.raises(DataError, match=message):
            read(file, model.about)


def test_a_window_goes_with_the_model(tmp_path, capsys):
    path = trained(
        tmp_path, lambda p, x: write_dicom(p.with_suffix(".dcm"), x[0]), window=[-500, 1000]
    )
    model = PersonalModel.load(path)
    form = (model.about.dtype, model.about.window, model.about.shift)
    assert form == ("uint8", (-500.0, 1000.0), (127.5,))
    raw = np.full((4, 3), -250, np.int16)  # three quarters of the window's way
    assert (
        read(write_dicom(tmp_path / "q.dcm", raw), model.about).x.tolist()
        == np.full((1, 4, 3, 1), 191).tolist()
    )
    with pytest.raises(SystemExit):  # files of one image each, no series
        main(["predict", str(path), str(tmp_path / "in"), "--json"])
    answers = json.loads(capsys.readouterr().out)
    assert [a["input"] for a in answers] == [str(p) for p in sorted((tmp_path / "in").iterdir())]
    (tmp_path / "none").mkdir()
    with pytest.raises(SystemExit):
        main(["predict", str(path), str(tmp_path / "none")])
    assert "none has no images; name a folder" in capsys.readouterr().err
    larger = np.full((8, 6), -250, np.int16)  # images, not volumes, are brought to the model's size
    assert (
        read(write_dicom(tmp_path / "r.dcm", larger), model.about).x.tolist()
        == np.full((1, 4, 3, 1), 191).tolist()
    )


def test_png_of_16_bits(tmp_path):
    def write(path, x):
        Image.fromarray((x[0].astype(int) + 1000).astype(np.uint16)).save(path.with_suffix(".png"))
        return path.with_suffix(".png")

    (tmp_path / "in").mkdir()
    model = PersonalModel.load(trained(tmp_path, write))
    assert model.about.dtype == "uint16"
    x = (volumes(2)[:, 0].astype(int) + 1000)[..., None]
    assert read(tmp_path / "in" / "1.png", model.about).x.tolist() == x[1:].tolist()


FLAT = {
    "Modality": "CT", "RescaleSlope": 1, "RescaleIntercept": 0, "PixelSpacing": [2, 1],
    "ImageOrientationPatient": [1, 0, 0, 0, 1, 0], "ImagePositionPatient": [0, 0, 0],
}  # fmt: skip


def test_what_an_image_has_other_than_those_of_the_training_is_a_note(tmp_path):
    """An image in stored numbers, of another pixel size, mirrored or resized gives other answers:
    each is a note, and an image as in training gives none.
    """
    model = PersonalModel.load(
        trained(tmp_path, lambda p, x: write_dicom(p.with_suffix(".dcm"), x[0], **FLAT))
    )
    pixels = volumes(1)[0, 0]
    assert read(write_dicom(tmp_path / "a.dcm", pixels, **FLAT), model.about).note == ""
    changes = {
        "RescaleSlope": None, "PixelSpacing": [4, 2], "ImageOrientationPatient": [-1, 0, 0, 0, -1, 0],
    }  # fmt: skip
    note = read(write_dicom(tmp_path / "b.dcm", pixels, **FLAT | changes), model.about).note
    for message in (
        "values in stored numbers, but the model was trained on HU",
        "pixels of 4 x 2 mm, but the model was trained on 2 x 1 mm",
        "rows and columns to R, A, but the model was trained on L, P",
    ):
        assert message in note
    larger = np.repeat(np.repeat(pixels, 2, 0), 2, 1)
    note = read(write_dicom(tmp_path / "c.dcm", larger, **FLAT), model.about).note
    assert note.endswith("resized from 6 x 8 to 3 x 4 pixels, which all images of the training had")


def test_values_of_another_scale_than_in_the_training_are_noted(tmp_path):
    """Stored numbers 10 times as large, or from 0 to 1; an array too, which states no axes."""
    write = lambda p, x: write_nifti(p.with_suffix(".nii"), x.astype(np.float32))  # noqa: E731
    model = PersonalModel.load(trained(tmp_path, write))
    x = volumes(1)[0].astype(np.float32)
    for values, noted in ((x, False), (x + 300, False), (x / 1000, True), (20 * x, True)):
        note = read(write_nifti(tmp_path / "v.nii", values), model.about).note
        assert ("1 of 1 images have values unlike the training's: mean" in note) == noted
    blank = write_nifti(tmp_path / "v.nii", 0 * x)
    assert "one value in all pixels" in read(blank, model.about).note
    np.savez(tmp_path / "a.npz", x=np.stack([x, 20 * x])[..., None])
    note = read(tmp_path / "a.npz", model.about).note
    assert "z to the head" in note
    assert "1 of 2 images have values" in note


def test_stored_numbers_for_a_model_of_hu_are_noted(tmp_path):
    """Of the same patients, 1024 higher, as in files without an intercept; fat and air are then
    above 0 too.
    """
    write = lambda p, x: write_nifti(p.with_suffix(".nii"), x)  # noqa: E731
    model = PersonalModel.load(trained(tmp_path, write))
    x = volumes(1)[0]
    mean, deviation = model.about.shift[0], model.about.scale[0]
    assert mean < -0.05 * deviation
    for values, noted in ((x, False), (x + 1024, True)):
        assert values.min() < 0 or noted
        note = read(write_nifti(tmp_path / "v.nii", values), model.about).note
        assert ("values unlike the training's" in note) == noted


def test_another_shape_than_the_resized_images_of_the_training_had_is_noted(tmp_path):
    """Of pictures from 3 x 4 to 6 x 4 pixels; the note is by width / height."""

    def write(path, x):
        x = x[0] if path.name > "2" else np.repeat(x[0], 2, axis=1)
        Image.fromarray((x > 0).astype(np.uint8)).save(path.with_suffix(".png"))
        return path.with_suffix(".png")

    (tmp_path / "in").mkdir()
    model = PersonalModel.load(trained(tmp_path, write, resize=4))
    line = "width / height {}, but the model was trained on 1.5, 0.75"
    for columns, shape in ((2, "0.5"), (3, ""), (4, ""), (6, ""), (8, "2")):
        Image.linear_gradient("L").resize((columns, 4)).save(tmp_path / "a.png")
        note = read(tmp_path / "a.png", model.about).note
        assert note == (f"{tmp_path / 'a.png'}: {line.format(shape)}" if shape else "")


def test_a_colour_image_for_a_gray_model_and_8_bits_next_to_a_window_are_notes(tmp_path):
    model = PersonalModel.load(
        trained(tmp_path, lambda p, x: write_dicom(p.with_suffix(".dcm"), x[0]), window=[0, 900])
    )
    Image.new("RGB", (3, 4), (255, 0, 0)).save(tmp_path / "red.png")
    samples = read(tmp_path / "red.png", model.about)
    assert samples.x.tolist() == np.full((1, 4, 3, 1), 76).tolist()  # 0.299 of 255
    assert "colours are converted to gray" in samples.note
    assert "8 bits are kept as stored; the window" in samples.note


def test_a_gray_image_for_a_colour_model_is_a_note(tmp_path):
    def draw(path, x):
        colours = np.repeat((x[0, :, :, None] % 256).astype(np.uint8), 3, axis=2)
        Image.fromarray(colours).save(path.with_suffix(".png"))
        return path.with_suffix(".png")

    (tmp_path / "in").mkdir()
    model = PersonalModel.load(trained(tmp_path, draw))
    Image.new("L", model.about.sample_shape[1::-1], 76).save(tmp_path / "gray.png")
    samples = read(tmp_path / "gray.png", model.about)
    assert (samples.x == 76).all()
    assert "gray is read as RGB" in samples.note
    assert not read(tmp_path / "in" / "0.png", model.about).note


def test_a_folder_is_read_as_in_training(tmp_path, capsys):
    """A link to the folder itself, what file managers and storage servers write, and a report are
    no further images.
    """
    path = trained(tmp_path, lambda p, x: write_dicom(p.with_suffix(".dcm"), x[0]))
    folder = tmp_path / "new"
    write_dicom(folder / "b.dcm", volumes(1)[0, 0])
    write_dicom(folder / "in" / "a.dcm", volumes(1)[0, 0])
    write_dicom(folder / "in" / "@eaDir" / "a.dcm", volumes(1)[0, 0])
    write_dicom(folder / "Thumbs.db", volumes(1)[0, 0])
    report = {"Rows": None, "Columns": None, "PixelData": None}
    write_dicom(folder / "in" / "report.dcm", volumes(1)[0, 0], **report)
    (folder / "in" / "self").symlink_to(folder)
    with pytest.raises(SystemExit):
        main(["predict", str(path), str(folder), "--json"])
    printed = capsys.readouterr()
    names = [answer["input"] for answer in json.loads(printed.out)]
    assert names == [str(folder / "b.dcm"), str(folder / "in" / "a.dcm")]
    assert "report.dcm is a DICOM CT Image, not an image" in printed.err
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(path), str(folder / "in" / "report.dcm")])
    assert stop.value.code


def test_all_unreadable_images_are_named_at_once(tmp_path, capsys):
    path = trained(tmp_path, lambda p, x: write_dicom(p.with_suffix(".dcm"), x[0]))
    for name in "abcd":
        write_dicom(tmp_path / "new" / f"{name}.dcm", volumes(1)[0, 0])
    for name in "bd":
        (tmp_path / "new" / f"{name}.dcm").write_bytes(b"no image")
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(path), str(tmp_path / "new")])
    assert stop.value.code
    printed = capsys.readouterr()
    assert not printed.out
    assert "new has 2 problems" in printed.err
    assert "b.dcm" in printed.err
    assert "d.dcm" in printed.err
    (tmp_path / "new" / "d.dcm").unlink()
    with pytest.raises(SystemExit):
        main(["predict", str(path), str(tmp_path / "new")])
    assert f"error[DATA]: cannot read the image {tmp_path}/new/b.dcm" in capsys.readouterr().err
