"""Misfits are reported before a run: samples, outputs, names; and losses and layers of valid
networks.
"""

from math import prod

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from pomona.core.errors import ConfigError
from pomona.models import ModelSettings, build
from pomona.models.layers import layers
from pomona.tasks import TASKS
from pomona.tasks.criterion import criterion

THIS_MODULE = __name__


def own_network(settings, input_shape, n_outputs, vocabulary):
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), n_outputs))


def wrong_width(settings, input_shape, n_outputs, vocabulary):
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), n_outputs + 1))


def wrong_input(settings, input_shape, n_outputs, vocabulary):
    return nn.Linear(input_shape[-1] + 1, n_outputs)


def no_module(settings, input_shape, n_outputs, vocabulary):
    return "a network"


def absolute(outputs, targets):
    return (outputs - targets).abs().sum(dim=1)


@pytest.mark.parametrize(
    ("name", "shape", "vocabulary", "texts"),
    [
        ("lenet", (1, 8, 8), 0, ["8x8", "2x2", "conv2", "5x5", "small"]),  # 8 -> 4 -> 2
        ("cnn", (3, 28, 9), 0, ["28x9", "12x2", "conv2", "small"]),  # 28 -> 12, 9 -> 5 -> 2
        ("fomo-cnn", (1, 17, 17), 0, ["conv3", "2x2", "3x3 kernel;"]),  # 17 -> 15 -> 7 -> 5 -> 2
        ("small", (1, 3, 3), 0, ["conv2", "1x1", "mlp"]),
        ("mcmahan-cnn", (1, 1, 28), 0, ["conv1", "1x28"]),
        ("lenet", (30,), 0, ["images", "(30,)", "mlp"]),
        ("resnet18", (200,), 50, ["images", "fasttext"]),
        ("vgg11", (7,), 0, ["images", "mlp"]),
        ("efficientnet-lite0", (7,), 0, ["images", "mlp"]),
        ("mlp", (200,), 50, ["texts", "fasttext"]),
        ("logistic", (200,), 50, ["texts", "fasttext"]),
        ("fasttext", (1, 28, 28), 0, ["texts", "cnn"]),
        ("fasttext", (30,), 0, ["texts", "mlp"]),
        ("lennet", (1, 28, 28), 0, ["lennet", "did you mean lenet"]),
        (f"{THIS_MODULE}:missing", (4,), 0, ["missing"]),
        (f"{THIS_MODULE}:wrong_width", (4,), 0, ["(1, 4)", "(1, 3)"]),
        (f"{THIS_MODULE}:wrong_input", (4,), 0, ["(4,)"]),
        (f"{THIS_MODULE}:no_module", (4,), 0, ["str", "nn.Module"]),
    ],
)
def test_misfits_are_named_with_a_remedy(name, shape, vocabulary, texts):
    with pytest.raises(ConfigError) as caught:
        build(ModelSettings(name=name), shape, 3, vocabulary)
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "side"),
    [("lenet", 16), ("cnn", 16), ("mcmahan-cnn", 4), ("fomo-cnn", 18), ("small", 4)],
)
def test_the_least_side_is_where_the_arithmetic_puts_it(name, side):
    """From 1 back through the layers: times 2 for pooling, plus kernel - 1 - 2 * padding for a
    convolution.
    """
    build(ModelSettings(name=name), (1, side, side), 2)
    with pytest.raises(ConfigError):
        build(ModelSettings(name=name), (1, side - 1, side), 2)


def test_a_network_of_the_users_own():
    module = build(ModelSettings(name=f"{THIS_MODULE}:own_network"), (2, 3), 5)
    assert module(torch.zeros(4, 2, 3)).shape == (4, 5)


@pytest.mark.parametrize("values", [{"hidden": (0,)}, {"width": 0}, {"depth": -1}, {"layers": 3}])
def test_settings_reject_nonsense(values):
    with pytest.raises(ValidationError):
        ModelSettings(**values)


def test_losses_are_per_sample_and_follow_their_formulas():
    outputs = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]], dtype=torch.float64)
    classes = torch.tensor([2, 0])
    flags = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    z, t = outputs.numpy(), flags.numpy()
    expected = {
        "classes": np.log(np.exp(z).sum(1)) - z[[0, 1], [2, 0]],
        "multilabel": (np.log1p(np.exp(-z)) * t + np.log1p(np.exp(z)) * (1 - t)).mean(1),
        "regression": ((z - t) ** 2).mean(1),
    }
    for targets, values in expected.items():
        losses = criterion(ModelSettings(), TASKS[targets])(
            outputs, classes if targets == "classes" else flags
        )
        np.testing.assert_allclose(losses.numpy(), values, rtol=1e-12)


def test_a_loss_of_the_users_own_and_an_unknown_one():
    assert criterion(ModelSettings(loss=f"{THIS_MODULE}:absolute"), TASKS["regression"]) is absolute
    with pytest.raises(ConfigError, match="unknown loss 'hinge'"):
        criterion(ModelSettings(loss="hinge"), TASKS["classes"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lenet", ["conv1", "conv2", "fc1", "fc2"]),
        ("lenet5", ["conv1", "conv2", "fc1", "fc2", "fc3"]),
        ("fomo-cnn", ["conv1", "conv2", "conv3", "fc1", "fc2"]),
        ("mlp", ["fc1", "fc2"]),
        ("logistic", ["fc1"]),
        ("resnet18", ["stem", "layer1", "layer2", "layer3", "layer4", "fc"]),
    ],
)
def test_layers_from_input_to_output(name, expected):
    module = build(ModelSettings(name=name), (1, 28, 28), 10)
    blocks = layers(module)
    assert [layer for layer, _ in blocks] == expected
    assert [p for _, names in blocks for p in names] == [p for p, _ in module.named_parameters()]
    assert all(p.startswith(f"{layer}.") for layer, names in blocks for p in names)


def test_layers_of_a_network_with_parameters_of_its_own():
    class Network(nn.Module):
        parameter_blocks = ("tail",)

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.body = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2, bias=False))
            self.tail = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.BatchNorm1d(2)})
            self.tails = nn.Linear(2, 1)

    tail = ["tail.a.weight", "tail.a.bias", "tail.b.weight", "tail.b.bias"]
    assert layers(Network()) == [
        ("", ["scale"]),
        ("body.0", ["body.0.weight", "body.0.bias"]),
        ("body.2", ["body.2.weight"]),
        ("tail", tail),
        ("tails", ["tails.weight", "tails.bias"]),
    ]
    assert layers(nn.ReLU()) == []


def test_a_network_larger_than_memory_is_refused_before_it_is_made():
    with pytest.raises(ConfigError, match=r"mlp has 40\d\d\.\d GB of weights.*narrower layers"):
        build(ModelSettings(hidden=(10**6, 10**6)), (64,), 10)
