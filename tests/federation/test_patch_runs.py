"""Runs that train on patches and evaluate whole images: reproducible bytes, and models that predict
on their own.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import pomona
from masks import archive, discs, settings
from pomona.config import resolve
from pomona.core.errors import ConfigError, StorageError
from pomona.federation.run_checks import cautions
from pomona.models import ModelSettings
from pomona.models.parameter_space import ParameterSpace
from pomona.personal import PersonalModel
from pomona.personal.export import export, inputs
from pomona.record import model_file
from pomona.scenario import Scenario
from pomona.simulation import run

pytestmark = pytest.mark.long

pytest.importorskip("monai")

PATCH = {"size": [8, 8], "overlap": 0.5, "blend": "gaussian"}


def patched(folder, patch=PATCH, model=None, **changes):
    path = archive(folder / "masks.npz", side=16)
    base = settings(path)
    return resolve(base, {"model": {**base["model"], "patch": patch, **(model or {})}}, changes)


def test_a_window_as_large_as_the_images_changes_nothing(tmp_path):
    results = [run(patched(tmp_path, patch)) for patch in (None, {"size": [16, 16]})]
    assert results[0].evaluations == results[1].evaluations
    assert results[0].final == results[1].final


def test_workers_and_resumption_give_the_same_bytes(tmp_path):
    unbroken = run(patched(tmp_path, rounds=2, augment=["flip"]), tmp_path / "one")
    run(patched(tmp_path, rounds=1, augment=["flip"]), tmp_path / "two")
    resumed = run(
        patched(tmp_path, rounds=2, augment=["flip"], workers=3), tmp_path / "two", resume=True
    )
    assert unbroken.evaluations == resumed.evaluations
    for name in ("predictions.npz", "models/client-01.safetensors", "mask_examples.npz"):
        assert (unbroken.folder / name).read_bytes() == (resumed.folder / name).read_bytes()


@pytest.mark.parametrize(
    "method",
    [
        {"name": "apple", "budget": 1},
        {"name": "fedala"},
        {"name": "fed-rod"},
        {"name": "per-fedavg", "order": "hf"},
    ],
    ids=str,
)
def test_methods_take_patches_as_they_take_images(method, tmp_path):
    result = run(patched(tmp_path, method=method))
    curve = result.curve(*result.about["headline"])
    assert len({e.loss for e in curve}) == len(curve)  # the model moved in each round
    assert not any(row.refused for row in result.rounds)


def test_a_model_knows_its_windows(tmp_path, capsys):
    from pomona.cli import main

    config = patched(tmp_path, rounds=1)
    result = run(config, tmp_path / "run")
    model = tmp_path / "run" / "models" / "client-00.safetensors"
    net = PersonalModel.load(model)
    assert net.about.network.patch == config.model.patch
    scenario, (x, y) = Scenario.prepare(config), discs(side=16)
    test, row = scenario.partition.clients[0].test, ParameterSpace(net.module).pack(net.module)
    torch.testing.assert_close(
        scenario.objective().outputs(row, 0, "test")[0], net.outputs(x[test])
    )
    unpatched = replace(net, about=net.about.model_copy(update={"network": ModelSettings()}))
    # GroupNorm sees other pixels
    assert not torch.allclose(unpatched.outputs(x[test]), net.outputs(x[test]), atol=1e-3)
    for answer, truth, counts in zip(
        net.predict(x[test]), y[test], result.predictions(0)[0], strict=True
    ):
        assert [((answer["mask"] == c) & (truth == c)).sum() for c in range(3)] == counts[
            :3
        ].tolist()
    assert "on patches of [8, 8]" in model.with_name("client-00.card.md").read_text().replace(
        "\\", ""
    )
    np.savez(tmp_path / "new.npz", x=x[:2])
    with pytest.raises(SystemExit) as exit_info:
        main(["predict", str(model), str(tmp_path / "new.npz"), "--json"])
    assert exit_info.value.code == 0
    assert [sum(row["pixels"].values()) for row in json.loads(capsys.readouterr().out)] == [
        256,
        256,
    ]


def test_an_exported_network_takes_windows(tmp_path):
    """As the guide has it: MONAI's windows over normalised numbers, or over the raw ones that a
    program takes.
    """
    from monai.inferers.utils import sliding_window_inference

    folder = run(patched(tmp_path, rounds=1), tmp_path / "run").folder
    net = PersonalModel.load(folder / "models" / "client-00.safetensors")
    assert inputs(net) == "(batch, 8, 8, 1) uint8, windows of samples (16, 16, 1)"
    export(net, tmp_path / "a.pt2", "pt2")
    program = torch.export.load(tmp_path / "a.pt2").module()
    x, _ = discs(n=2, side=16, seed=3)

    def network(windows):
        return program(windows.movedim(1, -1).to(torch.uint8))

    raw = torch.from_numpy(x).movedim(-1, 1).float()
    outputs = sliding_window_inference(raw, (8, 8), 4, network, 0.5, "gaussian")
    torch.testing.assert_close(outputs, net.outputs(x), atol=1e-5, rtol=1e-4)
    export(net, tmp_path / "a.safetensors", "safetensors")
    assert torch.equal(PersonalModel.load(tmp_path / "a.safetensors").outputs(x), net.outputs(x))


def test_a_file_whose_patches_do_not_fit_is_refused(tmp_path):
    folder = run(patched(tmp_path, rounds=1), tmp_path / "run").folder
    path = folder / "models" / "client-00.safetensors"
    module, info = model_file.read(path)
    patch = info.network.patch.model_copy(update={"size": (8, 17)})
    unfit = info.model_copy(update={"network": info.network.model_copy(update={"patch": patch})})
    model_file.write(path, dict(module.state_dict()), unfit)
    with pytest.raises(StorageError, match="patches do not fit the samples"):
        PersonalModel.load(path)


def test_features_are_not_kept_where_patches_are_drawn(tmp_path):
    network = {"name": "masks:pixelwise", "train": "head"}
    images, patches = (
        Scenario.prepare(patched(tmp_path, patch, network)) for patch in (None, PATCH)
    )
    assert images.network.keeps_features
    assert not patches.network.keeps_features
    assert any(
        "in every step, since model.patch changes the samples" in note.text
        for note in cautions(patches)
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"patch": {"size": [8, 17]}},
            r"model.patch.size = \[8, 17\]: a patch is larger than the images",
        ),
        ({"patch": {"size": [8, 8, 8]}}, "images have 2 sides"),
        (
            {"method": "fedphp"},
            "fedphp compares outputs on training images.*set method.transfer_weight=0, or take",
        ),
    ],
)
def test_what_does_not_go_with_patches_is_refused_before_the_run(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        Scenario.prepare(patched(tmp_path, **changes))


def test_classes_have_no_patches():
    with pytest.raises(ConfigError, match="patches are for masks, the targets are classes"):
        Scenario.prepare(pomona.Config(model={"name": "cnn", "patch": {"size": [4, 4]}}))


def test_an_unknown_key_of_the_section_has_its_neighbours():
    with pytest.raises(
        ConfigError, match=r"unknown key 'model.patch.sise'; did you mean model.patch.size\?"
    ):
        pomona.Config(model={"patch": {"size": [8, 8], "sise": 1}})
    with pytest.raises(ConfigError, match=r"model\.patch\.size must be set"):
        pomona.Config(model={"patch": {"overlap": 0.5}})


def test_volumes(tmp_path):
    path = archive(tmp_path / "volumes.npz", n=12, volume=True)
    base = settings(path)
    patch = {"size": [4, 6, 8]}
    result = run(
        resolve(base, {"rounds": 1, "model": {**base["model"], "patch": patch}}), tmp_path / "run"
    )
    assert result.about["input_shape"] == [1, 8, 8, 8]
    net = PersonalModel.load(tmp_path / "run" / "models" / "client-01.safetensors")
    assert net.outputs(discs(n=2, volume=True)[0]).shape == (2, 3, 8, 8, 8)
