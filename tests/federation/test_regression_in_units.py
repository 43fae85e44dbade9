"""Regression: learned in standard deviations from the training mean; scored, saved and predicted in
original units.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pomona.config import resolve
from pomona.core.rng import stream
from pomona.data.dataset import Dataset
from pomona.personal import PersonalModel
from pomona.scenario import Scenario
from pomona.scenario.description import about
from pomona.simulation import simulate

SETTINGS = {
    "method": "fedavg",
    "rounds": 6,
    "lr": 0.1,
    "workers": 1,
    "model": "logistic",
    "clients": 3,
}


def days(unit=1.0, shift=0.0, n=600):
    """Two targets of very different size, linear in the features."""
    draw = stream(0, "days")
    x = draw.normal(size=(n, 3)).astype(np.float32)
    y = x @ np.array([[1.0, 200.0], [0.5, -90.0], [0.0, 10.0]]) + [4.0, 1000.0]
    return Dataset("days", "table", x, (y * unit + shift).astype(np.float32), (), n)


def ran(data, folder=None, **settings):
    return simulate(Scenario.prepare(resolve(SETTINGS, settings), lambda _: data), folder)


def test_a_loss_of_the_users_own_gets_the_numbers_as_they_are():
    settings = {"model": {"name": "logistic", "loss": "pomona.models.losses:squared_error"}}
    data = Scenario.prepare(resolve(SETTINGS, settings), lambda _: days()).dataset
    assert (data.target_shift, data.target_scale) == ((0.0,), (1.0,))
    assert Scenario.prepare(resolve(SETTINGS), lambda _: days()).dataset.target_shift != (0.0,)


def test_errors_are_in_units_and_do_not_hang_on_them():
    hours, minutes = ran(days()), ran(days(60.0, -7.0))
    first, second = (r.curve("global", "received", "test")[-1] for r in (hours, minutes))
    assert first.metric == "mae"
    assert second.value == pytest.approx([60 * v for v in first.value], rel=1e-3)
    assert second.loss == pytest.approx(first.loss, rel=1e-3)  # in deviations: without a unit
    for client in range(3):
        outputs, targets = hours.predictions(client)
        assert np.abs(outputs - targets).mean() == pytest.approx(first.value[client], rel=1e-5)
        rows = [f for f in hours.final if f["client"] == client and f["split"] == "test"]
        assert any(f["mae"] == pytest.approx(first.value[client], rel=1e-5) for f in rows)


def test_a_rate_that_suits_deviations_suits_any_unit():
    """Undivided, a target of about 1,000 would drive plain SGD with this rate up at once; here it
    explains nearly all.
    """
    result = ran(days(), metric="r2", rounds=15)
    assert result.curve("global", "received", "test")[-1].mean > 0.95
    assert result.summary["diverging"] == ""


def test_a_constant_answer_is_the_training_mean():
    data = days()
    scenario = Scenario.prepare(resolve(SETTINGS), lambda _: data)
    rows = scenario.partition.clients
    constant = about(scenario)["constant"]
    expected = [np.abs(data.y[c.test] - data.y[c.train].mean(0)).mean() for c in rows]
    assert constant["own"]["mae"]["clients"] == pytest.approx(expected, rel=1e-5)
    everyone = data.y[np.concatenate([c.train for c in rows])].astype(float)
    z = [((data.y[c.test] - everyone.mean(0)) / everyone.std(0)) ** 2 for c in rows]
    assert constant["all"]["loss"]["clients"] == pytest.approx([v.mean() for v in z], rel=1e-4)


def test_the_model_file_answers_in_units(tmp_path):
    data = days()
    result = ran(data, tmp_path / "run")
    scenario = Scenario.prepare(resolve(SETTINGS), lambda _: data)
    model = PersonalModel.load(tmp_path / "run" / "models" / "client-00.safetensors")
    outputs = model.outputs(data.x[scenario.partition.clients[0].test])
    assert outputs.numpy() == pytest.approx(result.predictions(0)[0], rel=1e-4, abs=1e-3)

    from pomona.personal.export import Raw

    x = torch.from_numpy(data.x[:5])
    with torch.no_grad():
        assert Raw(model)(x).numpy() == pytest.approx(
            model.outputs(data.x[:5]).numpy(), rel=1e-4, abs=1e-3
        )


def test_with_privacy_no_moments_of_targets_are_released():
    data = days()
    privacy = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-4}
    privacy["acknowledge"] = [
        "sample-counts",
        "metrics",
        "feature-moments",
        "training-loss",
        "unlimited-epsilon",
    ]
    scenario = Scenario.prepare(resolve(SETTINGS, {"privacy": privacy}), lambda _: data)
    assert (scenario.dataset.target_shift, scenario.dataset.target_scale) == ((0.0,), (1.0,))


def test_a_target_that_does_not_vary_is_no_division_by_zero():
    dataset = days()
    y = dataset.y.copy()
    y[:, 1] = 5.0
    result = ran(replace(dataset, y=y), rounds=1)
    assert np.isfinite(result.summary["models"]["global, received"]["last"]["test"])
