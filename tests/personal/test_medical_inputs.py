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
    tree = {
        "data": {"name": "images", "path": str(folder / "list.csv"), **data},
        "model": {"name": "logistic"},
    }
    tree |= {
        "partition": {"name": "natural"},
        "method": {"name": "fedavg"},
        "rounds": 2,
        "lr": 0.1,
        "workers": 1,
    }
    pomona.run(resolve(tree), folder / "run")
    return folder / "run" / "models" / "client-00.safetensors"


def test_volumes_of_both_kinds_get_the_answer_of_the_array(tmp_path, capsys):
    path = trained(tmp_path, lambda p, x: write_nifti(p.with_suffix(".nii.gz"), x))
    model, x = PersonalModel.load(path), volumes(3)
    assert (model.about.dtype, model.about.input_shape, model.about.window) == (
        "int16",
        (1, 5, 4, 3),
        None,
    )
    files = [write_nifti(tmp_path / "v.nii", x[0]), write_series(tmp_path / "ct", x[1])]
    # whole numbers are these, as stored
    files.append(write_nifti(tmp_path / "f.nii.gz", x[2].astype(np.float32)))
    with pytest.raises(SystemExit):
        main(["predict", str(path), *map(str, files), "--json"])
    answers = json.loads(capsys.readouterr().out)
    expected = model.predict(x[..., None])
    assert [a["probabilities"] for a in answers] == [
        pytest.approx(e["probabilities"]) for e in expected
    ]
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
    for file, told in (
        (
            write_nifti(tmp_path / "o.nii", x[0, :4]),
            r"o.nii has shape \(4, 4, 3, 1\), but the model takes \(5, 4, 3, 1\)",
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
        with pytest.raises(DataError, match=told):
            read(file, model.about)


def test_a_window_goes_with_the_model(tmp_path, capsys):
    path = trained(
        tmp_path, lambda p, x: write_dicom(p.with_suffix(".dcm"), x[0]), window=[-500, 1000]
    )
    model = PersonalModel.load(path)
    assert (model.about.dtype, model.about.window, model.about.shift) == (
        "uint8",
        (-500.0, 1000.0),
        (127.5,),
    )
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
