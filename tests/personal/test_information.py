"""The information of rows in closed form, against PyTorch's derivatives of the losses; and where
those are inexact (its softplus is linear beyond 20) against 50 digits.
"""

import mpmath
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev

import pomona
from pomona.data import from_frame
from pomona.models import losses
from pomona.models.parameter_space import ParameterSpace
from pomona.personal.information import Information, LinearModel, of_log_hazards
from pomona.scenario import Scenario

ROWS, COLUMNS = 700, 3  # more rows than one evaluation batch
TIMES = {"targets": "survival", "label_columns": ["time", "event"], "time_edges": [3.0, 6.0, 12.0]}
OUTCOMES = {
    "two classes": ({"label_column": "dead"}, "logistic"),
    "three classes": ({"label_column": "grade"}, "logistic"),
    "numbers": ({"label_column": "time", "targets": "regression"}, "mlp"),
    "labels": ({"label_columns": ["event", "cough"], "targets": "multilabel"}, "logistic"),
    "intervals": (TIMES, "logistic"),
    "hazards": (TIMES, "proportional-hazards"),
}


def prepared(columns, model):
    draw = np.random.default_rng(0)
    table = pd.DataFrame(draw.normal(size=(ROWS, COLUMNS))).add_prefix("x")
    time = draw.exponential(10 * np.exp(-table.x0))
    table = table.assign(time=np.minimum(time, 12.0), event=(time < 12) * 1, site="A")
    table["dead"], table["grade"] = (
        table.event.map({0: "no", 1: "yes"}),
        draw.choice(list("abc"), ROWS),
    )
    table["cough"] = draw.integers(0, 2, ROWS)
    used = [columns.get("label_column"), *columns.get("label_columns", [])]
    table = table[["site", *(c for c in table if c.startswith("x") or c in used)]]
    data = from_frame(table, client_column="site", **columns)
    settings = {"name": model} | ({"hidden": []} if model == "mlp" else {})
    return Scenario.prepare(pomona.Config(method="separate", data=data, model=settings))


def likelihood(targets, outputs, y, precision):
    if targets == "regression":
        return precision * (outputs - y) ** 2 / 2
    if targets == "multilabel":
        return nn.functional.binary_cross_entropy_with_logits(outputs, y, reduction="none")
    loss = losses.hazard_surprise if targets == "survival" else losses.cross_entropy
    return loss(outputs, y)


@pytest.mark.long  # the import of the compiler behind torch.func
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_information_is_the_derivatives_of_the_loss(outcome):
    scenario = prepared(*OUTCOMES[outcome])
    network, module = LinearModel.of(scenario), scenario.module().double()
    rows, parameters = network.data.rows["train"][0], ParameterSpace(module).parameters
    theta = (
        torch.randn(parameters[-1].stop, generator=torch.Generator().manual_seed(0)).double() / 10
    )
    x, y = network.data.gather(rows)
    x, y = x.double(), y.double() if y.is_floating_point() else y

    def outputs(theta):
        return functional_call(module, {p.name: p.view(theta) for p in parameters}, (x,))

    precision = None
    if outcome == "numbers":
        precision = (len(rows) - COLUMNS - 1) / ((outputs(theta) - y) ** 2).sum(0)

    def loss(theta):
        return likelihood(network.data.targets, outputs(theta), y, precision).sum()

    expected = Information.of(grad(loss)(theta).numpy(), jacrev(grad(loss))(theta).numpy())
    information = network.information(theta, rows)
    for name, value in vars(expected).items():
        assert np.abs(getattr(information, name) - value).max() <= 1e-12 * np.abs(value).max()


@pytest.mark.parametrize("event", [0, 1])
@pytest.mark.parametrize("output", [-30.0, -2.0, 0.5, 3.5, 6.0])
def test_derivatives_of_hazards_near_0_and_1(output, event):
    mpmath.mp.dps = 50

    def loss(z):
        hazard = mpmath.exp(z)
        return (1 - event) * hazard - event * mpmath.log(1 - mpmath.exp(-hazard))

    score, curvature = of_log_hazards(
        torch.tensor([[output]]).double(), torch.ones(1, 1), torch.tensor([[event]])
    )
    assert score.item() == pytest.approx(float(mpmath.diff(loss, output)), rel=1e-12)
    second = float(mpmath.diff(loss, output, 2))
    assert curvature.item() == pytest.approx(second, rel=1e-12, abs=1e-15)
