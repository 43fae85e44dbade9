"""Federations that learn masks: training, evaluation, records, predictions and exports."""

import json

import numpy as np
import pytest
import torch

import pomona
from masks import archive, discs, settings
from pomona.config import resolve
from pomona.core.errors import DataError
from pomona.federation import client_queries
from pomona.federation.client import ClientRuntime
from pomona.metrics.overlap import dice, mean_dice
from pomona.objective import pytorch
from pomona.objective.pytorch import TorchObjective
from pomona.personal import PersonalModel
from pomona.record.paired_gain import gains
from pomona.record.predictions import example, read_examples
from pomona.results.figures.plot import drawing
from pomona.results.figures.stills import masks as masks_figure
from pomona.results.run_numbers import runs
from pomona.scenario import Scenario
from pomona.simulation import run
from pomona.tasks.segmentation import counts

pytestmark = pytest.mark.long


@pytest.fixture
def masks(tmp_path):
    return archive(tmp_path / "masks.npz", n=36)


def curve(result):
    """The evaluations of the headline model."""
    return result.curve(*result.about["headline"])


def test_a_federation_learns_masks(tmp_path):
    masks = archive(tmp_path / "masks.npz", n=36, classes=2)
    quick = {"optimizer": {"name": "adamw"}, "lr": 0.02, "rounds": 15, "method": "fedavg-ft"}
    result = run(resolve(settings(masks), quick))
    points = curve(result)
    assert result.metric.name == "dice"
    assert points[-1].mean > 0.7 > 0.4 > points[0].mean
    assert result.about["constant"]["own"]["dice"]["mean"] == 0.0  # background everywhere
    assert points[-1].accuracy == (None, None, None)


def test_the_record_holds_counts_and_figures_of_each_class(masks, tmp_path):
    config = resolve(settings(masks))
    scenario = Scenario.prepare(config)
    result = pomona.load(run(config, tmp_path / "run").folder)
    for client, rows in enumerate(scenario.partition.clients):
        outputs, targets = result.predictions(client)
        assert outputs.shape == (len(rows.test), 9)
        truth = scenario.dataset.y[rows.test].reshape(len(rows.test), -1)
        assert targets.tolist() == [np.bincount(mask, minlength=3).tolist() for mask in truth]
        final = next(f for f in result.final if f["client"] == client and f["split"] == "test")
        weights = np.ones((1, len(rows.test)))
        assert final["dice"] == mean_dice(outputs, targets, weights)[0]
        assert final["dice"] == result.curve(final["model"], final["when"])[-1].value[client]
        assert final["regions"]["pixels"] == targets.sum(axis=0).tolist()


def columns(predictions, targets):
    return predictions.shape[1] + targets.shape[1] / 10


def test_an_own_metric_gets_the_same_arrays_in_rounds_and_at_the_end(masks):
    """Three counts and the true pixels, of three classes each, also where MONAI adds distances."""
    result = run(resolve(settings(masks), {"metric": f"{__name__}:columns"}))
    expected = 3 * 3 + 3 / 10
    assert set(curve(result)[-1].value) == {expected}
    assert {final[result.metric.name] for final in result.final} == {expected}


def test_gains_over_training_alone_are_paired(masks):
    runs = [
        run(resolve(settings(masks), {"method": name, "rounds": 3}))
        for name in ("fedavg", "separate")
    ]
    clients, mean = gains(*runs)
    assert [mean.clients, mean.rows] == [len(clients), sum(gain.rows for gain in clients)]
    assert mean.interval is None  # of so few masks
    expected = [a - b for a, b in zip(*(curve(r)[-1].value for r in runs), strict=True)]
    assert [gain.value for gain in clients] == pytest.approx(expected)


def test_evaluation_sees_a_batch_at_a_time(masks, monkeypatch):
    scenario = Scenario.prepare(resolve(settings(masks)))
    objective, row = scenario.objective(), scenario.initial()
    outputs, targets = objective.outputs(row, 0, "train")
    expected_counts = objective.batchwise(row, 0, "train", counts)
    sizes = []
    monkeypatch.setattr(pytorch, "TARGETS_AT_ONCE", 3 * 64)

    def counted(outputs, targets):
        sizes.append(len(outputs))
        return counts(outputs, targets)

    batch_counts = objective.batchwise(row, 0, "train", counted)
    assert max(sizes) == 3
    assert sum(sizes) == len(outputs)
    for a, b, expected in zip(batch_counts, expected_counts, counts(outputs, targets), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, expected)
    assert (
        objective.batchwise(row, 0, "test", lambda o, t: (o.argmax(1), t))[1].dtype == torch.int64
    )


def test_no_samples_have_no_outputs(masks):
    scenario = Scenario.prepare(
        resolve(settings(masks), {"data": {**settings(masks)["data"], "validation_share": 0}})
    )
    objective = scenario.objective()
    assert objective.batchwise(scenario.initial(), 0, "validation", counts) == ()
    assert len(objective.outputs(scenario.initial(), 0, "validation")[1]) == 0


@pytest.mark.parametrize("workers", [3])
def test_workers_and_resumption_give_the_same_bytes(masks, tmp_path, workers):
    uninterrupted = run(resolve(settings(masks), {"rounds": 4}), tmp_path / "one")
    run(resolve(settings(masks), {"rounds": 2}), tmp_path / "two")
    resumed = run(
        resolve(settings(masks), {"rounds": 4, "workers": workers}), tmp_path / "two", resume=True
    )
    assert uninterrupted.evaluations == resumed.evaluations
    assert uninterrupted.final == resumed.final
    for name in ("predictions.npz", "models/client-01.safetensors"):
        assert (uninterrupted.folder / name).read_bytes() == (resumed.folder / name).read_bytes()


def test_many_rows_at_a_time_are_as_one(masks):
    scenario = Scenario.prepare(resolve(settings(masks), {"rows_per_call": 3, "method": "apple"}))
    from pomona.objective.stacked import StackedObjective

    module, space = scenario.network.trained()
    loop = scenario.objective()
    assert isinstance(loop, TorchObjective)  # convolutions on a CPU
    stack = StackedObjective(module, space, scenario.resident, loop.criterion)
    W = torch.stack([scenario.initial(i) for i in range(3)])
    indices = [scenario.resident.rows["train"][i][: 4 - i] for i in range(3)]
    for a, b in zip(loop.gradient(W, indices), stack.gradient(W, indices), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_a_personal_model_predicts_masks_and_is_exported(masks, tmp_path):
    from pomona.personal.export import export

    config = resolve(settings(masks), {"rounds": 1})
    folder = run(config, tmp_path / "run").folder
    net = PersonalModel.load(folder / "models" / "client-00.safetensors")
    x, _ = discs(n=5, seed=3)
    outputs = net.outputs(x)
    assert outputs.shape == (5, 3, 8, 8)
    answers = net.predict(x)
    for answer, logits in zip(answers, outputs, strict=True):
        assert np.array_equal(answer["mask"], logits.argmax(0).numpy())
        assert answer["mask"].dtype == np.uint8
        assert sum(answer["pixels"].values()) == 64
        assert answer["pixels"]["class 1"] == (answer["mask"] == 1).sum()
    assert net.outputs(x[:0]).shape == (0, 3, 8, 8)
    assert net.predict(x[:0]) == []
    export(net, tmp_path / "a.pt2", "pt2")
    program = torch.export.load(tmp_path / "a.pt2").module()
    torch.testing.assert_close(program(torch.from_numpy(x)), outputs)
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    import onnxruntime

    export(net, tmp_path / "a.onnx", "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    (computed,) = session.run(None, {"inputs": x})
    assert computed == pytest.approx(outputs.numpy(), abs=1e-4)


def test_the_command_writes_masks(masks, tmp_path, capsys):
    from pomona.cli import main

    folder = run(resolve(settings(masks), {"rounds": 1}), tmp_path / "run").folder
    model, path = folder / "models" / "client-00.safetensors", tmp_path / "masks-out.npz"
    x, _ = discs(n=4, seed=5)
    np.savez(tmp_path / "new.npz", x=x)
    with pytest.raises(SystemExit) as exit_info:
        main(["predict", str(model), str(tmp_path / "new.npz"), "--json", "--masks", str(path)])
    assert exit_info.value.code == 0
    rows = json.loads(capsys.readouterr().out)
    with np.load(path) as written:
        masks = written["masks"]
    assert masks.shape == (4, 8, 8)
    for row, mask in zip(rows, masks, strict=True):
        assert row["pixels"] == dict(
            zip(row["pixels"], np.bincount(mask.ravel(), minlength=3).tolist(), strict=True)
        )
    assert np.array_equal(masks, [a["mask"] for a in PersonalModel.load(model).predict(x)])


def test_volumes(tmp_path):
    path = archive(tmp_path / "volumes.npz", n=18, volume=True)
    result = run(resolve(settings(path), {"rounds": 1, "batch_size": 3}))
    assert result.about["input_shape"] == [1, 8, 8, 8]
    assert curve(result)[-1].mean is not None


def test_a_network_of_monai_and_its_frozen_parts(masks):
    pytest.importorskip("monai")
    network = {"name": "monai:UNet", "args": {"channels": [4, 8], "strides": [2]}}
    for train in ("all", "head", {"lora": {"rank": 2, "on": ["model.0.conv"]}}):
        config = resolve(settings(masks), {"rounds": 1, "model": {**network, "train": train}})
        assert curve(run(config))[-1].mean is not None


def test_client_figures_hold_for_a_runtime_without_test_samples(masks):
    scenario = Scenario.prepare(resolve(settings(masks)))
    untested = {**scenario.resident.rows, "test": [torch.empty(0, dtype=torch.int64)] * 3}
    scenario.resident.rows.update(untested)
    method = scenario.config.method.method()
    runtime = ClientRuntime(method.client, scenario.objective(), scenario.initial, ((0,),), 0)
    assert client_queries.final_metrics(runtime, 0, ("personal", "trained")) == (None, [])


def test_the_best_and_the_worst_mask_of_a_client_can_be_looked_at(masks, tmp_path):
    config = resolve(settings(masks))
    scenario = Scenario.prepare(config)
    result = pomona.load(run(config, tmp_path / "run").folder)
    for client, rows in enumerate(scenario.partition.clients):
        examples = read_examples(result.folder, client)
        scores = np.nanmean(dice(result.predictions(client)[0].astype(float))[:, 1:], axis=1)
        assert examples.dice.tolist() == [scores.max(), scores.min()]
        extremes = rows.test[[scores.argmax(), scores.argmin()]]
        assert np.array_equal(examples.truth, scenario.dataset.y[extremes])
        for k in range(2):
            overlap = (examples.truth[k] == 1) & (examples.predicted[k] == 1)
            claimed, actual = (examples.predicted[k] == 1).sum(), (examples.truth[k] == 1).sum()
            first = dice(result.predictions(client)[0].astype(float))[
                [scores.argmax(), scores.argmin()][k], 1
            ]
            assert (
                2 * overlap.sum() / (claimed + actual) if claimed + actual else np.nan
            ) == pytest.approx(first, nan_ok=True)
    with drawing():
        figure = masks_figure(runs([result]))
    assert len(figure.rows) == 2 * len(scenario.partition.clients)
    assert "worst of all" in figure.alt
    (result.folder / "mask_examples.npz").write_bytes(b"no archive")
    with pytest.raises(DataError):
        read_examples(result.folder, 0)


def test_of_a_volume_the_slice_with_most_of_the_truth_is_shown():
    x, truth = np.zeros((4, 300, 8, 2), np.float32), np.zeros((4, 300, 8), np.uint8)
    x[2, :, :, 0], truth[2, 10] = 7.0, 3
    x[2, 0, 0, 0] = -1.0
    image, true_slice, predicted = example(x, truth, truth)
    assert image.shape == (150, 4, 1)  # thinned out to no more than 256 pixels
    assert set(image.ravel().tolist()) == {0, 255}
    assert true_slice[5].tolist() == [3] * 4
    assert np.array_equal(true_slice, predicted)
    assert not example(x[0, ..., :1], truth[0], truth[0])[0].any()  # the same everywhere
