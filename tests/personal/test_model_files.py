"""A model file is untrusted data: it runs nothing, allocates no memory on its word, and is intact
or refused.
"""

import json
import os
import sys

import numpy as np
import pytest
import torch
from crafted import METADATA, WEIGHTS, craft, good, tree
from safetensors.torch import load_file, save_file

from command_line import command
from pomona.core.errors import StorageError
from pomona.models import MODELS, ModelSettings, build, outline
from pomona.models.layers import MOST_BYTES, require_small
from pomona.personal import PersonalModel
from pomona.record import model_file

ROW = np.array([[3.0, 5.0]], np.float32)


def refused(path):
    """The one line that refuses a file."""
    with pytest.raises(StorageError) as fault:
        PersonalModel.load(path)
    assert len(str(fault.value)) < 800
    return str(fault.value)


def test_a_file_comes_back_as_it_was_written(tmp_path):
    """At (3, 5): ((3 - 1) / 2, (5 - 1) / 2) = (1, 2); outputs 1 + 4 + 0.5 and 3 + 8 - 0.5."""
    model = PersonalModel.load(good(tmp_path / "m"))
    assert model.about == METADATA
    assert model.outputs(ROW).tolist() == [[5.5, 10.5]]
    (answer,) = model.predict(ROW)
    no = 1 / (1 + np.exp(10.5 - 5.5))
    assert answer["class"] == "yes"
    assert (
        answer["probability"] == answer["probabilities"]["yes"] == pytest.approx(1 - no, rel=1e-12)
    )
    assert answer["probabilities"]["no"] == pytest.approx(no, rel=1e-12)


def test_other_programs_read_the_tensors_and_the_metadata(tmp_path):
    from safetensors import safe_open

    path = good(tmp_path / "m")
    assert all(torch.equal(load_file(path)[name], WEIGHTS[name]) for name in WEIGHTS)
    with safe_open(path, "pt") as file:
        metadata = json.loads(file.metadata()["pomona"])
    assert (metadata["format"], metadata["shift"], metadata["columns"]) == (
        "pomona-model-2",
        [1.0, 1.0],
        ["age", "dose"],
    )
    assert metadata["sha256"] == model_file.seal(metadata, WEIGHTS)


def test_a_file_whose_writing_breaks_off_is_the_one_before(tmp_path, monkeypatch):
    path = good(tmp_path / "m")
    data, pieces = path.read_bytes(), model_file.pieces

    def broken(*arguments):
        yield next(iter(pieces(*arguments)))
        raise OSError("no space left")

    monkeypatch.setattr(model_file, "pieces", broken)
    with pytest.raises(OSError, match="no space"):
        good(path, client="B")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (data, [path])


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A folder with a model file that names code beside it, which leaves a trace when imported or
    called.
    """
    (tmp_path / "evil.py").write_text(
        "from pathlib import Path\nfrom torch import nn\nPath('imported').touch()\ndef "
        "net(settings, input_shape, n_outputs, vocabulary):\n    Path('called').touch()\n    "
        "return nn.Sequential(nn.Flatten(), nn.Linear(2, 2))\n"
    )
    weights = {name.replace("fc1", "1"): tensor for name, tensor in WEIGHTS.items()}
    craft(tmp_path / "evil.safetensors", tree(network={"name": "evil:net"}), weights)
    (tmp_path / "rows.csv").write_text("3,5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("evil", None)


def test_a_model_file_never_runs_code_unless_told_to(evil, capsys):
    assert command("predict", "evil.safetensors", "rows.csv") == 6
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert all(
        phrase in err
        for phrase in ("own code, evil:net", "--own-code", "the folder that holds evil.py")
    )
    assert not (evil / "imported").exists()
    assert "evil" not in sys.modules
    assert command("predict", "evil.safetensors", "rows.csv", "--own-code", "--json") == 0
    assert (evil / "called").exists()
    assert json.loads(capsys.readouterr().out)[0]["class"] == "yes"


def test_export_runs_no_code_unless_told_to(evil, capsys, monkeypatch):
    class LoadedRun:
        about = {"clients": ["A"]}  # noqa: RUF012

    (evil / "models").mkdir()
    (evil / "evil.safetensors").rename(evil / "models/client-00.safetensors")
    monkeypatch.setattr("pomona.record.run_folder.load", lambda run: LoadedRun)
    argv = ("export", ".", "--client", "A", "--to", "safetensors")
    assert command(*argv) == 6
    assert "--own-code" in capsys.readouterr().err
    assert not (evil / "imported").exists()
    assert command(*argv, "--own-code") == 0
    assert (evil / "called").exists()


def test_own_code_that_is_not_here_is_said_with_its_place(tmp_path):
    craft(tmp_path / "m", tree(network={"name": "mynet.parts:mycnn"}))
    with pytest.raises(
        StorageError,
        match=r"own code, mynet.parts:mycnn, which fails here .*holds mynet.*PYTHONPATH",
    ):
        PersonalModel.load(tmp_path / "m", own_code=True)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_an_outline_has_the_tensors_of_the_network_and_no_memory(name):
    sizes = ((7,), 3, 50) if name == "fasttext" else ((1, 28, 28), 3, 0)
    shape = (3, 28, 28) if name == "unet" else None
    built = build(ModelSettings(name=name), *sizes, output_shape=shape)
    outlined = outline(ModelSettings(name=name), *sizes)
    assert all(tensor.is_meta for tensor in outlined.state_dict().values())
    assert {k: (v.shape, v.dtype) for k, v in outlined.state_dict().items()} == {
        k: (v.shape, v.dtype) for k, v in built.state_dict().items()
    }


@pytest.mark.parametrize("name", sorted(MODELS))
def test_what_a_network_computes_is_known_before_memory_is_taken(name):
    texts, shape = name == "fasttext", (7,) if name == "fasttext" else (1, 32, 32)
    network = outline(ModelSettings(name=name), shape, 3, 50 * texts)
    assert require_small(network, shape, texts) == ((1, 3, 32, 32) if name == "unet" else (1, 3))


def test_a_sample_whose_layers_take_gigabytes_is_refused():
    """The weights of a network that pools fit images of any size: resnet18's first layer has 64
    maps of half the side.
    """
    network = outline(ModelSettings(name="resnet18"), (1, 32, 32), 3)
    side = 4096
    assert 4 * 64 * (side // 2) ** 2 <= MOST_BYTES < 4 * 64 * side**2
    assert require_small(network, (1, side, side), False) == (1, 3)
    with pytest.raises(ValueError, match=r"takes 4\.3 GB in one layer \(Conv2d\)"):
        require_small(network, (1, 2 * side, 2 * side), False)


@pytest.mark.parametrize("name", ["resnet18", "fasttext", "small"])
def test_statistics_and_counters_come_back(tmp_path, name):
    """A registered network read from a file answers as the one it was taken from."""
    text = name == "fasttext"
    sizes = ((7,), 3, 50) if text else ((1, 16, 16), 3, 0)
    built = build(ModelSettings(name=name), *sizes).eval()
    for k, buffer in enumerate(b for b in built.buffers() if b.is_floating_point()):
        buffer.add_(0.25 + 0.5 * k)
    floats = {k: v for k, v in built.state_dict().items() if v.is_floating_point()}
    changes = {
        "network": {"name": name}, "kind": "text" if text else "image", "input_shape": sizes[0], "outputs": 3,
        "vocabulary": sizes[2], "classes": list("abc"), "columns": [], "shift": [0.0], "scale": [1.0],
    }  # fmt: skip
    model = PersonalModel.load(craft(tmp_path / "m", tree(**changes), floats))
    x = (
        np.arange(49, dtype=np.int32).reshape(7, 7)
        if text
        else np.arange(512, dtype=np.uint8).reshape(2, 16, 16, 1)
    )
    values = torch.from_numpy(x) if text else torch.from_numpy(x).float().movedim(-1, 1)
    with torch.no_grad():
        assert torch.equal(model.outputs(x), built(values))
    assert all(
        int(b) == 0 for k, b in model.module.named_buffers() if k.endswith("num_batches_tracked")
    )


DEEP = "[" * 200_000 + "]" * 200_000
NETWORK = {"name": "mlp", "hidden": [1], "loss": "auto"}
LIES = {
    "a spacing of a table": ({"spacings": [[1.0, 1.0, 1.0]]}, "only volumes have a spacing"),
    "a spacing of 0": ({"spacings": [[1.0, 0.0, 1.0]]}, "spacings"),
    "a spacing of two sides": ({"spacings": [[1.0, 1.0]]}, "spacings"),
    "many spacings": ({"spacings": [[1.0, 1.0, 1.0]] * 65}, "spacings"),
    "an orientation": ({"orientation": "LPS"}, "orientation"),
    "100,000 layers": ({"network": {**NETWORK, "hidden": [1] * 100_000}}, "network.hidden"),
    "as many layers as are read": (
        {"network": {**NETWORK, "hidden": [10**6] * 1000}},
        "tensor 'fc10",
    ),
    "a layer of 10^12": ({"network": {**NETWORK, "hidden": [10**12]}}, "network.hidden.0"),
    "wide layers": (
        {"network": {**NETWORK, "hidden": [10**6, 10**6]}},
        "tensor 'fc2.bias' is missing",
    ),
    "an unknown network": ({"network": {"name": "logistik"}}, "did you mean logistic"),
    "a network for images": ({"network": {"name": "resnet18"}}, "takes images"),
    "a key of the network": ({"network": {"name": "mlp", "layers": 3}}, "network.layers"),
    "a huge table": (
        {"input_shape": [2**26], "shift": [0.0], "columns": [], "scale": [1.0]},
        "fc1.weight",
    ),
    "a sample of too many values": ({"input_shape": [2**62]}, "input_shape.0"),
    "no side": ({"input_shape": [0]}, "input_shape.0"),
    "a side too many": ({"input_shape": [2, 2, 2, 2]}, "input_shape"),
    "an image as a table": ({"input_shape": [1, 2, 2]}, "input_shape is not that of its kind"),
    "other sides": (
        {"input_shape": [3], "shift": [0.0], "scale": [1.0], "columns": []},
        "has shape (2, 2)",
    ),
    "outputs": ({"outputs": 3, "classes": ["a", "b", "c"]}, "has shape (2, 2), expected (3, 2)"),
    "outputs of 10^18": ({"outputs": 10**18}, "outputs"),
    "no outputs": ({"outputs": 0}, "outputs"),
    "classes null": ({"classes": None}, "classes"),
    "classes of numbers": ({"classes": [1, 2]}, "classes.0"),
    "a class short": ({"classes": ["no"]}, "classes are not the outputs"),
    "a class twice": ({"classes": ["no", "no"]}, "two outputs have one name"),
    "classes of flags": ({"targets": "multilabel"}, "classes are not the outputs"),
    "unknown targets": ({"targets": "sums"}, "targets"),
    "labels of classes": ({"labels": ["a", "b"]}, "labels are not the outputs"),
    "a column short": ({"columns": ["age"]}, "columns are not those of a sample"),
    "a column twice": ({"columns": ["age", "age"]}, "two columns have one name"),
    "a vocabulary of a table": ({"vocabulary": 7}, "only texts, have a vocabulary"),
    "a text without a vocabulary": (
        {"kind": "text", "columns": []},
        "only texts, have a vocabulary",
    ),
    "words of a table": ({"words": ["a"]}, "words are not those"),
    "a vocabulary of 2^40": ({"kind": "text", "vocabulary": 2**40}, "vocabulary"),
    "shift of another length": ({"shift": [0.0, 0.0, 0.0]}, "shift or scale"),
    "shift of text": ({"shift": ["a", "b"]}, "shift.0"),
    "no scale": ({"scale": []}, "shift or scale"),
    "scale 0": ({"scale": [1.0, 0.0]}, "a scale is 0"),
    "units of three targets": ({"target_shift": [1.0, 1.0, 1.0]}, "is not that of the outputs"),
    "no unit": ({"target_scale": [0.0]}, "a scale is 0"),
    "times of classes": ({"edges": [1.0, 2.0]}, "edges are not the outputs"),
    "no times": ({"targets": "survival", "classes": []}, "edges are not the outputs"),
    "times in disorder": (
        {"targets": "survival", "classes": [], "edges": [2.0, 1.0]},
        "edges do not ascend",
    ),
    "a time before the start": (
        {"targets": "survival", "classes": [], "edges": [-1.0, 1.0]},
        "edges",
    ),
    "endless times": ({"targets": "survival", "classes": [], "edges": [1.0, 1e300]}, "edges"),
    "a key too many": ({"pickle": "x"}, "pickle"),
}


@pytest.mark.parametrize("lie", LIES)
def test_whatever_a_well_sealed_file_says_is_held_against_its_bytes_first(
    tmp_path, monkeypatch, lie
):
    """No tensor is read, and none made, before everything fits: there is nothing that could be
    large or slow.
    """
    monkeypatch.setattr(model_file, "fill", lambda *_: pytest.fail("tensors were read"))
    monkeypatch.setattr(
        torch.nn.Module, "to_empty", lambda *_, **__: pytest.fail("memory was taken")
    )
    changes, message = LIES[lie]
    line = refused(craft(tmp_path / "m", tree(**changes)))
    assert "does not contain a model" in line
    assert message in line, line


@pytest.mark.parametrize(
    "key",
    sorted(
        tree().keys()
        - {"frozen_sha256", "preprocessing", "window", "edges", "form", "tokenizer"}
        - {"spacings", "orientation", "traits", "resize"}
    ),
)
def test_every_key_is_needed(tmp_path, key):
    line = refused(craft(tmp_path / "m", {k: v for k, v in tree().items() if k != key}))
    assert key in line or "metadata" in line


RAW = {
    "1e400": json.dumps(tree()).replace('"outputs": 2', '"outputs": 1e400'),
    "shift 1e400": json.dumps(tree()).replace('"shift": [1.0', '"shift": [1e400'),
    "NaN": json.dumps(tree()).replace('"shift": [1.0', '"shift": [NaN'),
    "5,000 digits": json.dumps(tree()).replace('"outputs": 2', '"outputs": ' + "9" * 5000),
    "deep": DEEP,
    "deep within": json.dumps(tree()).replace('"words": []', f'"words": {DEEP}'),
    "65 deep": "[" * 65 + "]" * 65,
    "a list": "[]",
    "a number": "7",
    "nothing": "",
    "no JSON": "{",
    "half a character": json.dumps({**tree(), "sha256": "0" * 64, "classes": ["no", "\ud800"]}),
}


@pytest.mark.parametrize("raw", RAW)
def test_metadata_that_are_no_record_are_one_line(tmp_path, raw):
    text = RAW[raw]
    record = (
        json.loads(text) | {"sha256": "0" * 64} if raw in {"1e400", "shift 1e400", "NaN"} else text
    )
    note = json.dumps(record).replace("Infinity", "1e400") if isinstance(record, dict) else record
    save_file(WEIGHTS, tmp_path / "m", {"pomona": note})
    assert "does not contain a model" in refused(tmp_path / "m")


def test_a_digit_that_flips_is_refused(tmp_path):
    """In the metadata: the shift 1.0 becomes 3.0. In the weights: 1.0 becomes 1.0000001."""
    path = good(tmp_path / "m")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"[1.0, 1.0]", b"[1.0, 3.0]"))
    assert "is damaged: its SHA-256" in refused(path)
    position = data.index(WEIGHTS["fc1.weight"].numpy().tobytes())
    path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
    assert "is damaged: its SHA-256" in refused(path)
    path.write_bytes(data)
    assert PersonalModel.load(path).outputs(ROW).tolist() == [[5.5, 10.5]]


def test_weights_that_are_not_finite_are_refused(tmp_path):
    line = refused(
        craft(tmp_path / "m", tree(), {**WEIGHTS, "fc1.bias": torch.tensor([0.0, torch.nan])})
    )
    assert "'fc1.bias' has values that are not finite (1 of 2)" in line


def test_an_answer_that_is_not_finite_is_no_answer(tmp_path):
    from pomona.core.errors import DataError

    huge = {**WEIGHTS, "fc1.weight": torch.full((2, 2), 3e38)}
    with pytest.raises(DataError, match="not finite"):
        PersonalModel.load(craft(tmp_path / "m", tree(), huge)).predict(ROW)


def test_the_format_before_is_said_with_what_to_do(tmp_path):
    line = refused(craft(tmp_path / "m", tree(format="pomona-model-1")))
    assert "'pomona-model-1'" in line
    assert "repeat the run, or export the model" in line


def test_pipes_folders_and_nothing_are_no_models(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "absent"):
        assert str(path) in refused(path)


def test_tensors_alone_are_refused_like_a_whole_model_where_the_header_is_nested_too_deeply(
    tmp_path,
):
    path = tmp_path / "m"
    path.write_bytes(len(DEEP).to_bytes(8, "little") + DEEP.encode())
    with pytest.raises(StorageError, match="does not contain a model"):
        model_file.tensors(path)
    assert "does not contain a model" in refused(path)


def test_tensors_alone_need_the_hash_of_the_content(tmp_path):
    path = good(tmp_path / "m")
    assert model_file.tensors(path).keys() == WEIGHTS.keys()
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(StorageError, match="is damaged"):
        model_file.tensors(path)
