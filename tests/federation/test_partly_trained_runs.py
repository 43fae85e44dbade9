"""Whole runs in which part of the network is trained: workers, resume, files, and the resulting
models.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import pomona
from pomona import Config
from pomona.core.errors import CheckpointError, StorageError
from pomona.federation.run_checks import cautions
from pomona.models import ModelSettings, build
from pomona.personal import PersonalModel
from pomona.personal.export import export
from pomona.scenario import Scenario
from pomona.storage.safetensors_stream import digest

pytestmark = pytest.mark.long

HEAD = 32 * 10 + 10  # numbers of the last layer of ``small`` on digits


def config(**keys):
    model = {"name": "small", "train": "head", **keys.pop("model", {})}
    return Config(
        **{
            "method": "apple",
            "clients": 3,
            "rounds": 2,
            "lr": 0.1,
            "workers": 1,
            "model": model,
            **keys,
        }
    )


def models(run):
    return {i: dict(model) for i, model in run.models.items()}


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "first.safetensors"
    save_file(build(ModelSettings(name="small"), (1, 8, 8), 10, seed=99).state_dict(), path)
    return path


def test_any_number_of_workers_gives_the_same_bytes(weights):
    a, b = (models(pomona.run(config(workers=w, model={"init": weights}))) for w in (1, 2))
    assert all(torch.equal(a[i][name], b[i][name]) for i in a for name in a[i])


def test_a_resumed_run_is_the_whole_run(tmp_path, weights):
    settings = config(rounds=4, model={"init": weights})
    pomona.run(settings, tmp_path / "whole")
    pomona.run(config(rounds=2, model={"init": weights}), tmp_path / "parts")
    renamed = weights.rename(tmp_path / "elsewhere.safetensors")
    pomona.run(config(rounds=4, model={"init": renamed}), tmp_path / "parts", resume=True)
    for name in ("client-00.safetensors", "client-02.safetensors"):
        a, b = (load_file(tmp_path / run / "models" / name) for run in ("whole", "parts"))
        assert a.keys() == b.keys() == {"fc2.weight", "fc2.bias"}
        assert all(torch.equal(a[k], b[k]) for k in a)


def test_other_weights_are_another_run(tmp_path, weights):
    pomona.run(config(model={"init": weights}), tmp_path / "run")
    save_file({k: v + 1 for k, v in load_file(weights).items()}, weights)
    with pytest.raises(CheckpointError, match=r"model\.init_sha256"):
        pomona.run(config(rounds=3, model={"init": weights}), tmp_path / "run", resume=True)


def test_clients_that_start_apart_share_what_is_frozen():
    scenario = Scenario.prepare(config())
    base, client_1 = scenario.module().state_dict(), scenario.module(1).state_dict()
    assert {k for k in base if not torch.equal(base[k], client_1[k])} == {"fc2.weight", "fc2.bias"}
    assert all(client_1[k].data_ptr() == base[k].data_ptr() for k in scenario.network.frozen)


def test_the_record_names_what_is_frozen(tmp_path, weights):
    run = pomona.run(config(model={"init": weights}), tmp_path / "run")
    about = run.about
    tensors = load_file(weights)
    frozen = {k: v for k, v in tensors.items() if not k.startswith("fc2")}
    assert about["parameters"] == HEAD
    assert about["frozen"] == {
        "parameters": sum(v.numel() for v in frozen.values()),
        "sha256": digest(frozen),
    }
    assert run.config["model"]["init_sha256"] == digest(tensors)


def test_a_model_answers_with_the_frozen_part_beside_it_and_not_without(tmp_path):
    result = pomona.run(config(), tmp_path / "run")
    path = tmp_path / "run/models/client-01.safetensors"
    scenario = Scenario.prepare(config())
    x = scenario.dataset.x[:5]
    module = scenario.module()
    module.load_state_dict(load_file(path), strict=False)
    model = PersonalModel.load(path)
    with torch.no_grad():
        z = (torch.from_numpy(x) - torch.tensor(scenario.dataset.shift)) / torch.tensor(
            scenario.dataset.scale
        )
        expected = module.eval()(z.movedim(-1, 1))
    torch.testing.assert_close(model.outputs(x), expected)
    exported = tmp_path / "whole.safetensors"
    export(model, exported, "safetensors")
    assert load_file(exported).keys() == module.state_dict().keys()
    torch.testing.assert_close(PersonalModel.load(exported).outputs(x), expected)
    (frozen_part,) = (tmp_path / "run/models").glob("frozen-*.safetensors")
    damaged = load_file(frozen_part)
    damaged["conv1.bias"] += 1
    save_file(damaged, frozen_part)
    with pytest.raises(StorageError, match="is not the frozen part of client-01"):
        PersonalModel.load(path)
    frozen_part.unlink()
    with pytest.raises(
        StorageError,
        match=r"the frozen ones are missing: put frozen-[0-9a-f]{16}\.safetensors next to",
    ):
        PersonalModel.load(path)
    assert result.models  # as files


@pytest.mark.parametrize(
    "swapped", ["another run's", "another network's", "a personal model", "nothing", "cut short"]
)
def test_a_swapped_frozen_part_is_refused_by_name(swapped, tmp_path):
    """Put in its place under its very name: the hash in the model's file is not that of what lies
    there.
    """
    pomona.run(config(), tmp_path / "run")
    path = tmp_path / "run/models/client-01.safetensors"
    (frozen_part,) = (tmp_path / "run/models").glob("frozen-*.safetensors")
    match swapped:
        case "another run's" | "another network's":
            other_run = (
                config(seed=1)
                if swapped == "another run's"
                else config(model={"name": "lenet"}, data={"resize": 28})
            )
            pomona.run(other_run, tmp_path / "other")
            (replacement,) = (tmp_path / "other/models").glob("frozen-*.safetensors")
            assert replacement.name != frozen_part.name
            replacement.replace(frozen_part)
        case "a personal model":
            frozen_part.write_bytes(path.read_bytes())
        case "nothing":
            frozen_part.write_bytes(b"")
        case "cut short":
            frozen_part.write_bytes(frozen_part.read_bytes()[:-4])
    with pytest.raises(
        StorageError, match=rf"{frozen_part.name} is not the frozen part of client-01\.safetensors"
    ) as caught:
        PersonalModel.load(path)
    assert "\n" not in str(caught.value)


def test_lora_is_merged_into_an_export(tmp_path):
    lora = {"lora": {"rank": 2, "on": ["conv2", "fc1"]}}
    pomona.run(config(model={"train": lora}), tmp_path / "run")
    model = PersonalModel.load(tmp_path / "run/models/client-00.safetensors")
    x = np.zeros((2, 8, 8, 1), np.uint8)
    expected = model.outputs(x)
    export(model, tmp_path / "whole.safetensors", "safetensors")
    plain = build(ModelSettings(name="small"), (1, 8, 8), 10)
    plain.load_state_dict(load_file(tmp_path / "whole.safetensors"))
    torch.testing.assert_close(
        PersonalModel.load(tmp_path / "whole.safetensors").outputs(x), expected
    )
    torch.testing.assert_close(model.outputs(x), expected)  # the loaded model is as it was


def test_head_of_fedavg_is_logistic_regression_on_features(monkeypatch):
    """FedAvg of a head is FedAvg of the logistic model on what the frozen part makes of the
    samples.
    """
    scenario = Scenario.prepare(config(method="fedavg"))
    features = scenario.resident
    objective = scenario.objective()
    assert features.x.shape == (len(scenario.dataset), 32)
    row = scenario.initial()
    W, b = objective.space.parameters
    outputs, _ = objective.outputs(row, 0, "train")
    expected = features.x[features.rows["train"][0]] @ W.view(row).T + b.view(row)
    torch.testing.assert_close(outputs, expected)
    assert replace(scenario).resident is not features
    assert scenario.network.keeps_features
    changed = scenario.with_settings(lr=0.2)
    assert changed.resident is features
    # a call would fail: the network is not traced
    monkeypatch.setattr("pomona.scenario.network.split_network", None)
    assert changed.network.keeps_features


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (
            {},
            f"{HEAD} parameters are trained; the frozen part is computed once for each sample; "
            "it has random values",
        ),
        (
            {"cache_features": "off"},
            f"{HEAD} parameters are trained; the frozen part is computed in every step",
        ),
    ],
)
def test_what_becomes_of_the_frozen_part_is_said(model, line):
    assert any(
        note.text.startswith(line) for note in cautions(Scenario.prepare(config(model=model)))
    )
    assert not any(
        "frozen" in note.text for note in cautions(Scenario.prepare(config(model={"train": "all"})))
    )
