"""A network named as module:Class: ``model.args`` are its constructor's arguments, with one-line
errors for misfits.
"""

import sys
import types

import pytest
import torch
from torch import nn

import pomona
from pomona import Config
from pomona.core.errors import ConfigError
from pomona.models import ModelSettings, build
from pomona.personal import PersonalModel


class Tower(nn.Module):
    """Flat images -> widths -> outputs, with the named activation."""

    def __init__(
        self,
        inputs: int,
        widths: list[int],
        *,
        outputs: int = 10,
        activation: str = "relu",
        bias: bool = True,
    ):
        super().__init__()
        sides = [inputs, *widths]
        self.flat = nn.Flatten()
        self.body = nn.ModuleList(
            nn.Linear(a, b, bias=bias) for a, b in zip(sides, widths, strict=False)
        )
        self.act = {"relu": nn.ReLU, "tanh": nn.Tanh}[activation]()
        self.head = nn.Linear(sides[-1], outputs)

    def forward(self, x):
        x = self.flat(x)
        for layer in self.body:
            x = self.act(layer(x))
        return self.head(x)


ARGS = {"inputs": 64, "widths": [7, 5], "activation": "tanh", "bias": False}


@pytest.fixture(autouse=True)
def towers(monkeypatch):
    module = types.ModuleType("towers")
    module.Tower = Tower
    monkeypatch.setitem(sys.modules, "towers", module)


def test_each_argument_arrives():
    module = build(ModelSettings(name="towers:Tower", args=ARGS), (1, 8, 8), 10)
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert shapes == {
        "body.0.weight": (7, 64),
        "body.1.weight": (5, 7),
        "head.weight": (10, 5),
        "head.bias": (10,),
    }
    assert isinstance(module.act, nn.Tanh)
    x = torch.randn(2, 1, 8, 8)
    a, b = (layer.weight for layer in module.body)
    expected = ((x.flatten(1) @ a.T).tanh() @ b.T).tanh() @ module.head.weight.T + module.head.bias
    torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 3}, r"towers:Tower cannot be built \(.*'depth'\); see model\.args"),
        ({"inputs": None}, r"towers:Tower cannot be built \(.*\); see model\.args"),
        ({"widths": [-1]}, r"towers:Tower cannot be built \(.*negative.*\); see model\.args"),
        ({"activation": "gelu"}, r"towers:Tower cannot be built \(.*gelu.*\); see model\.args"),
        ({"outputs": 3}, r"outputs of shape \(1, 3\); the data needs \(1, 10\)"),
        ({"inputs": 63}, r"fails on a sample of shape \(1, 8, 8\)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_argument_that_does_not_fit_is_one_line(change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build(ModelSettings(name="towers:Tower", args={**ARGS, **change}), (1, 8, 8), 10)
    assert "\n" not in str(caught.value)


def test_an_argument_that_is_missing_is_one_line():
    with pytest.raises(
        ConfigError, match=r"towers:Tower cannot be built \(.*'inputs'.*\); see model\.args"
    ):
        build(ModelSettings(name="towers:Tower", args={"widths": [3]}), (1, 8, 8), 10)


def by_activation(settings, input_shape, n_outputs, vocabulary):
    return Tower(64, [3], outputs=n_outputs, **settings.args)


class Late(Tower):
    """Finds out that the activation is unknown only when it is called."""

    def __init__(self):
        super().__init__(64, [3])

    def forward(self, x):
        return super().forward({"relu": x}["gelu"])


class Double(Tower):
    """In double precision."""

    def __init__(self):
        super().__init__(64, [3])
        self.double()


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("Double", {}, r"body\.0\.weight is torch\.float64, and training is in float32"),
        ("by_activation", {"activation": "gelu"}, r"cannot be built \(KeyError: 'gelu'\)"),
        ("Late", {}, r"in evaluation mode fails on a sample of shape .*: KeyError: 'gelu';"),
    ],
)
def test_own_code_may_raise_anything_and_is_one_line(monkeypatch, name, args, message):
    monkeypatch.setattr(sys.modules["towers"], name, globals()[name], raising=False)
    with pytest.raises(ConfigError, match=message) as caught:
        build(ModelSettings(name=f"towers:{name}", args=args), (1, 8, 8), 10)
    assert "\n" not in str(caught.value)


class Auxiliary(nn.Sequential):
    """Returns a second head's outputs too during training, like GoogLeNet."""

    def __init__(self, heads=2):
        super().__init__(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
        self.heads = heads

    def forward(self, x):
        outputs = super().forward(x)
        return (outputs,) * self.heads if self.training and self.heads > 1 else outputs


def test_what_a_network_returns_is_looked_at_in_both_modes(monkeypatch):
    monkeypatch.setattr(sys.modules["towers"], "Auxiliary", Auxiliary, raising=False)
    with pytest.raises(
        ConfigError, match=r"towers:Auxiliary in training mode returns a tuple; .* set model\.args"
    ):
        build(ModelSettings(name="towers:Auxiliary"), (1, 8, 8), 10)
    module = build(ModelSettings(name="towers:Auxiliary", args={"heads": 1}), (1, 8, 8), 10)
    assert module.training
    for name, buffer in Auxiliary().named_buffers():
        assert torch.equal(module.get_buffer(name), buffer)  # the statistics have seen nothing


def test_a_run_of_a_class_with_arguments_ends_in_models_that_answer(tmp_path):
    model = {"name": "towers:Tower", "args": ARGS, "train": ["body.1.*", "head"]}
    settings = {"clients": 2, "rounds": 1, "lr": 0.1, "workers": 1, "data": {"train_limit": 40}}
    result = pomona.run(Config(model=model, **settings), tmp_path / "run")
    assert sorted(result.models[0]) == ["body.1.weight", "head.bias", "head.weight"]
    answering = PersonalModel.load(
        tmp_path / "run" / "models" / "client-00.safetensors", own_code=True
    )
    assert answering.about.network.args == ARGS
    assert torch.equal(
        answering.module.state_dict()["head.weight"], result.models[0]["head.weight"]
    )
