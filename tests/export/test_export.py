"""Exports give the personal model's answers, on the data it was trained for."""

import copy
import json
from collections import OrderedDict
from typing import get_args

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import pomona
from command_line import command
from pomona.cli.predict import client_index
from pomona.config import resolve
from pomona.core.errors import ConfigError
from pomona.personal import PersonalModel
from pomona.personal.export import ONNX_PACKAGES, Target, export
from pomona.record import model_file
from pomona.record.model_metadata import ModelMetadata
from pomona.scenario import Scenario

pytestmark = pytest.mark.long

SMALL = {"method": "fedavg-ft", "rounds": 1, "batch_size": 16, "workers": 1, "lr": 0.1}
DIGITS = {**SMALL, "data": {"name": "digits", "train_limit": 240, "test_limit": 60}, "clients": 3}


def patients(folder):
    """A table whose columns have offsets and scales far from a network's."""
    draw = np.random.Generator(np.random.Philox(3))
    x = np.stack([draw.normal(60, 12, 120), draw.normal(0.002, 0.001, 120)], axis=1)
    rows = [
        f"{a:.3f},{b:.6f},{'ill' if a > 60 else 'well'},{'AB'[k % 2]}" for k, (a, b) in enumerate(x)
    ]
    (folder / "patients.csv").write_text("\n".join(["age,dose,outcome,site", *rows]) + "\n")
    return {
        "name": "table",
        "path": str(folder / "patients.csv"),
        "label_column": "outcome",
        "client_column": "site",
    }


def reviews(folder):
    """Texts of two kinds."""
    rows = [
        f"{('good day' if k % 2 else 'bad night')} number {k % 7},{'up' if k % 2 else 'down'}"
        for k in range(80)
    ]
    (folder / "reviews.csv").write_text("\n".join(["text,mood", *rows]) + "\n")
    return {
        "name": "text",
        "path": str(folder / "reviews.csv"),
        "label_column": "mood",
        "text_columns": ["text"],
        "sequence_length": 6,
    }


def normed(settings, input_shape, n_outputs, vocabulary):
    """A network with BatchNorm, whose batch counters no run needs."""
    steps = OrderedDict(
        flatten=nn.Flatten(),
        fc1=nn.Linear(64, 6),
        bn=nn.BatchNorm1d(6),
        fc2=nn.Linear(6, n_outputs),
    )
    return nn.Sequential(steps)


RUNS = ["images", "a table", "texts", "batch normalisation"]


@pytest.fixture(scope="module", params=RUNS)
def exported(request, tmp_path_factory):
    """The folder with a run's first client in every format, its model, and test samples in raw
    form.
    """
    folder = tmp_path_factory.mktemp("export")
    trees = {
        "images": {**DIGITS, "model": {"name": "small"}},
        "a table": {**SMALL, "data": patients(folder), "model": {"name": "mlp", "hidden": [5]}},
        "texts": {
            **SMALL,
            "data": reviews(folder),
            "clients": 2,
            "model": {"name": "fasttext", "width": 4},
        },
        "batch normalisation": {**DIGITS, "model": {"name": f"{__name__}:normed"}},
    }
    config = resolve(trees[request.param])
    scenario = Scenario.prepare(config)
    pomona.run(config, folder / "run")
    options = ["--own-code"] if request.param == "batch normalisation" else []
    for target in get_args(Target):
        assert command("export", folder / "run", "--client", "0", "--to", target, *options) == 0
    x = scenario.dataset.x[scenario.partition.clients[0].test][:7]
    assert len(x) == 7
    net = PersonalModel.load(folder / "run" / "models" / "client-00.safetensors", own_code=True)
    return folder / "run" / "exports" / "client-00", net, x


def test_every_format_answers_as_the_personal_model_for_any_batch(exported):
    path, net, x = exported
    program = torch.export.load(path.with_suffix(".pt2")).module()
    session = onnxruntime.InferenceSession(path.with_suffix(".onnx"))
    plain = copy.deepcopy(net.module)
    plain.load_state_dict({k: torch.zeros_like(v) for k, v in plain.state_dict().items()})
    # strict: nothing missing, nothing over
    plain.load_state_dict(load_file(path.with_suffix(".safetensors")))
    for samples in (x, x[:1]):
        expected = net.outputs(samples)
        assert expected.abs().max() > 0
        assert torch.equal(PersonalModel(plain, net.about).outputs(samples), expected)
        torch.testing.assert_close(program(torch.from_numpy(samples)), expected)
        (outputs,) = session.run(None, {"inputs": samples})
        np.testing.assert_allclose(outputs, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_exported_tensors_are_still_a_model(exported):
    path, net, x = exported
    assert torch.equal(
        PersonalModel.load(path.with_suffix(".safetensors"), own_code=True).outputs(x),
        net.outputs(x),
    )


def test_what_outputs_mean_goes_along_and_no_path_does(exported):
    path, net, x = exported
    with safe_open(path.with_suffix(".safetensors"), "pt") as file:
        texts = [file.metadata()["pomona"]]
    extra = {"pomona": ""}
    torch.export.load(path.with_suffix(".pt2"), extra_files=extra)
    graph = onnx.load(path.with_suffix(".onnx"))
    texts += [extra["pomona"], {p.key: p.value for p in graph.metadata_props}["pomona"]]
    for text in texts:
        metadata = json.loads(text)
        assert (
            ModelMetadata.model_validate({k: metadata[k] for k in ModelMetadata.model_fields})
            == net.about
        )
    for text in texts[1:]:  # tensors alone take what the network takes
        assert (
            json.loads(text)["inputs"] == f"(batch, {', '.join(map(str, x.shape[1:]))}) {x.dtype}"
        )
        if net.about.kind == "table":
            assert json.loads(text)["features"] == ["age", "dose"]
    for target in get_args(Target):
        data = path.with_suffix(f".{target}").read_bytes()
        assert b"site-packages" not in data, target
        assert b"export.py" not in data, target


def logistic_file(path, network="logistic", **changes):
    """A handmade model file: 2 features, 2 classes, shift 1 and scale 2."""
    tensors = {
        "fc1.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "fc1.bias": torch.tensor([0.5, -0.5]),
    }
    model_file.write(
        path,
        tensors,
        ModelMetadata.model_validate({**LOGISTIC, "network": {"name": network}, **changes}),
    )


LOGISTIC = {
    "client": "A", "model": "personal, trained", "kind": "table", "input_shape": [2], "outputs": 2, "vocabulary": 0,
    "words": [], "classes": ["no", "yes"], "targets": "classes", "labels": [], "columns": [], "others": [],
    "shift": [1.0, 1.0], "scale": [2.0, 2.0], "target_shift": [0.0], "target_scale": [1.0],
}  # fmt: skip


def test_a_program_normalises_by_hand(tmp_path):
    """At (3, 5): ((3 - 1) / 2, (5 - 1) / 2) = (1, 2); outputs 1 + 4 + 0.5 and 3 + 8 - 0.5."""
    logistic_file(tmp_path / "m.safetensors")
    export(PersonalModel.load(tmp_path / "m.safetensors"), tmp_path / "m.pt2", "pt2")
    program = torch.export.load(tmp_path / "m.pt2").module()
    assert program(torch.tensor([[3.0, 5.0]])).tolist() == [[5.5, 10.5]]


def test_a_program_tells_numbers_in_their_units_by_hand(tmp_path):
    """The outputs 5.5 and 10.5 of the test above, times 10 and 0.5, plus 100 and -1."""
    units = {"target_shift": [100.0, -1.0], "target_scale": [10.0, 0.5]}
    logistic_file(
        tmp_path / "m.safetensors", targets="regression", classes=[], labels=["g", "mm"], **units
    )
    net = PersonalModel.load(tmp_path / "m.safetensors")
    export(net, tmp_path / "m.pt2", "pt2")
    program = torch.export.load(tmp_path / "m.pt2").module()
    assert program(torch.tensor([[3.0, 5.0]])).tolist() == [[155.0, 4.25]]
    assert net.predict(np.float32([[3, 5]])) == [{"values": {"g": 155.0, "mm": 4.25}}]


class Wayward(nn.Sequential):
    """A network with data-dependent control flow, which no graph captures."""

    def __init__(self):
        super().__init__(OrderedDict(fc1=nn.Linear(2, 2)))

    def forward(self, x):
        return self.fc1(x) if x.sum() > 7 else self.fc1(-x)


def wayward(settings, input_shape, n_outputs, vocabulary):
    return Wayward()


def test_a_network_without_a_graph_is_said(tmp_path):
    logistic_file(tmp_path / "m.safetensors", network=f"{__name__}:wayward")
    net = PersonalModel.load(tmp_path / "m.safetensors", own_code=True)
    with pytest.raises(ConfigError, match=r"cannot be traced.*safetensors"):
        export(net, tmp_path / "m.pt2", "pt2")
    assert not (tmp_path / "m.pt2").exists()
    export(net, tmp_path / "plain.safetensors", "safetensors")


def test_missing_packages_are_said(tmp_path, monkeypatch):
    logistic_file(tmp_path / "m.safetensors")
    monkeypatch.setattr("pomona.personal.export.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=f"{' and '.join(ONNX_PACKAGES)}; install Pomona with its extra export"
    ):
        export(PersonalModel.load(tmp_path / "m.safetensors"), tmp_path / "m.onnx", "onnx")


@pytest.mark.parametrize(
    ("client", "message"), [("9", "a number from 0 to 2"), ("client 7", "did you mean client ")]
)
def test_an_unknown_client_is_one_line(client, message, tmp_path, capsys):
    pomona.run(resolve({**DIGITS, "model": {"name": "logistic"}}), tmp_path / "run")
    assert command("export", tmp_path / "run", "--client", client, "--to", "pt2") == 2
    assert message in capsys.readouterr().err
    options = ("--to", "safetensors", "--out", tmp_path / "m", "--json")
    assert command("export", tmp_path / "run", "--client", "client 2", *options) == 0
    message = json.loads(capsys.readouterr().out)
    assert message == {
        "written": str(tmp_path / "m"),
        "client": "client 2",
        "model": "personal, received",
        "inputs": "(batch, 8, 8, 1) uint8",
    }
    assert PersonalModel.load(tmp_path / "m").about.client == "client 2"


@pytest.mark.parametrize(
    ("query", "names", "expected"),
    [
        ("a", "abc", 0),
        ("1", "abc", 1),
        ("1", "123", 0),  # its name
        ("0", "123", "no client '0'; give a name"),
        ("9", "123", "no client '9'"),
        ("3", "abc", "no client '3'; give a number from 0 to 2"),
    ],
)
def test_a_client_is_named_by_name_or_place_and_never_guessed(query, names, expected):
    if isinstance(expected, int):
        assert client_index(query, list(names)) == expected
    else:
        with pytest.raises(ConfigError, match=expected):
            client_index(query, list(names))
