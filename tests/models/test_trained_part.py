"""Training part of a network: which part, its initial values, and the rest."""

import json
import sys
import types
from copy import deepcopy

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pomona.core import files
from pomona.core.errors import ConfigError
from pomona.models import ModelSettings, build
from pomona.models.layers import active, evaluated, frozen, training_mode
from pomona.models.lora import Lora, insert, merge
from pomona.models.parameter_space import ParameterSpace
from pomona.models.weights import read

SHAPE = (1, 16, 16)


def network(**settings):
    return build(ModelSettings(**{"name": "small", **settings}), SHAPE, 5, seed=1)


def trained(module):
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


@pytest.mark.parametrize(
    ("train", "names"),
    [
        ("head", ["fc2.weight", "fc2.bias"]),
        (["head"], ["fc2.weight", "fc2.bias"]),
        (["conv2.*", "head"], ["conv2.weight", "conv2.bias", "fc2.weight", "fc2.bias"]),
        (["*.bias"], ["conv1.bias", "conv2.bias", "fc1.bias", "fc2.bias"]),
    ],
)
def test_a_row_holds_what_is_trained_and_nothing_else(train, names):
    module = network(train=train)
    assert trained(module) == names
    space = ParameterSpace(module)
    assert [e.name for e in space.parameters] == names
    assert space.trained == sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert frozen(module).keys() == module.state_dict().keys() - set(names)
    assert torch.equal(space.row(space.unpack(space.pack(module))), space.pack(module))


def test_a_network_may_freeze_its_own_parameters(monkeypatch):
    class Frozen(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Flatten(), nn.Linear(256, 3), nn.Linear(3, 5))
            self[1].requires_grad_(False)

    monkeypatch.setitem(sys.modules, "own_network", types.SimpleNamespace(Frozen=Frozen))
    assert trained(network(name="own_network:Frozen")) == ["2.weight", "2.bias"]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            ["conv9.*"],
            (
                r"model\.train: 'conv9\.\*' matches no parameter of the network; the last of its "
                r"8: "
                r".*fc2\.bias"
            ),
        ),
        (
            {"lora": {"on": ["relu1"]}},
            r"model\.train\.lora\.on: relu1 is a ReLU; LoRA applies to linear layers",
        ),
        ({"lora": {"on": ["nowhere"]}}, r"model\.train\.lora\.on: 'nowhere' matches no layer"),
        ({"lora": {"on": ["fc2"], "rank": 6}}, r"rank = 6, but fc2 has a weight of rank 5 at most"),
    ],
)
def test_what_cannot_be_trained_is_said_in_one_line(train, message):
    with pytest.raises(ConfigError, match=message):
        network(train=train)


def test_a_network_with_nothing_to_train_is_refused(monkeypatch):
    module = types.SimpleNamespace(
        make=lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(256, 5)).requires_grad_(False)
    )
    monkeypatch.setitem(sys.modules, "own_network", module)
    with pytest.raises(ConfigError, match="nothing is trained, all parameters are frozen"):
        network(name="own_network:make")


def test_frozen_statistics_stay_and_frozen_dropout_is_off():
    module = nn.Sequential(
        nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)),
        nn.Dropout(0.5),
        nn.Linear(3, 2),
    )
    module[0].requires_grad_(False)
    assert list(evaluated(module)) == [module[0]]
    assert [path for path, _ in active(module)] == ["", "1", "2"]
    assert {"0.1.running_mean", "0.1.running_var", "0.1.num_batches_tracked"} <= frozen(
        module
    ).keys()
    assert not ParameterSpace(module).has_statistics
    training_mode(module)()
    assert [module[0][1].training, module[0][2].training, module[1].training] == [
        False,
        False,
        True,
    ]


def test_lora_starts_as_the_network_was_and_merges_into_it():
    """(W + s B A) x is W x + s B (A x), for a linear layer and for a convolution."""
    plain = network()
    module = network(train={"lora": {"rank": 2, "alpha": 6, "on": ["conv2", "fc1"]}})
    x = torch.randn(4, *SHAPE)
    names = [
        "conv2.lora_A.weight",
        "conv2.lora_B.weight",
        "fc1.lora_A.weight",
        "fc1.lora_B.weight",
        "fc2.weight",
        "fc2.bias",
    ]
    assert trained(module) == names
    changes = [layer for layer in module.modules() if isinstance(layer, Lora)]
    assert [layer.scale for layer in changes] == [3, 3]
    for name, parameter in module.named_parameters():
        if name in {"fc2.weight", "fc2.bias"}:
            parameter.data.copy_(plain.get_parameter(name))
    torch.testing.assert_close(module(x), plain(x))
    for layer in changes:
        nn.init.normal_(layer.lora_B.weight)
    expected = module(x)
    assert not torch.allclose(expected, plain(x))
    merged = merge(module)
    assert merged.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(merged(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_lora_beside_layers_that_are_not_called(training):
    """Attention reads the weight of its output layer, and in evaluation mode those of the whole
    block.
    """
    block = nn.TransformerEncoderLayer(8, 2, dim_feedforward=6, dropout=0.0, batch_first=True)
    changed = deepcopy(block)
    insert(changed, 2, 0.5, ("self_attn.out_proj", "linear1"))
    x = torch.randn(3, 4, 8)
    torch.testing.assert_close(changed.train(training)(x), block.train(training)(x))
    for layer in (changed.self_attn.out_proj, changed.linear1):
        nn.init.normal_(layer.lora_B.weight)
    (outputs := changed(x)).square().sum().backward()
    assert [
        name for name, p in changed.named_parameters() if p.grad is not None and p.grad.any()
    ] == trained(changed)
    assert not torch.allclose(outputs, block(x), atol=0.01)
    with torch.no_grad():
        torch.testing.assert_close(changed(x), outputs)  # in evaluation mode by PyTorch's fast path
        torch.testing.assert_close(merge(changed)(x), outputs)


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({k: v + 1 for k, v in network().state_dict().items()}, path)
    return path


def test_first_weights_come_from_a_file(weights):
    tensors = read(weights).tensors
    module = network(init=weights, init_skip=["fc*"])
    fresh = network()
    for name, tensor in module.state_dict().items():
        assert torch.equal(
            tensor, fresh.state_dict()[name] if name.startswith("fc") else tensors[name]
        )


def test_a_pinned_file_is_that_file_or_refused(weights):
    network(init=weights, init_sha256=read(weights).sha256)
    with pytest.raises(
        ConfigError, match=r"contains other weights: their hash is [0-9a-f]{64}, expected 0{64}"
    ):
        network(init=weights, init_sha256="0" * 64)
    with pytest.raises(ConfigError, match=r"model\.init is not set"):
        network(init_sha256="0" * 64)


def test_weights_that_do_not_fit_are_named_line_by_line(tmp_path):
    tensors = network().state_dict()
    misfits = {k: v for k, v in tensors.items() if k != "conv1.bias"} | {
        "fc2.weight": torch.zeros(2, 2),
        "x": torch.ones(1),
    }
    save_file(misfits, tmp_path / "odd.safetensors")
    with pytest.raises(ConfigError) as fault:
        network(init=tmp_path / "odd.safetensors")
    _, *lines = fault.value.args
    assert lines == [
        "conv1.bias is missing",
        "'x' is unknown",
        f"fc2.weight has shape (2, 2), the network's {tuple(tensors['fc2.weight'].shape)}",
    ]


def header_of(shape):
    header = {"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        b"not weights at all",
        (10**12).to_bytes(8, "little") + b"{}",
        header_of([2**62, 2**62, 0]),  # 0 bytes, but PyTorch's strides overflow
    ],
)
def test_a_file_that_holds_no_weights_is_one_line(tmp_path, content):
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.init: .* holds no weights"):
        network(init=tmp_path / "w")
    with pytest.raises(ConfigError, match=r"model\.init: cannot read .*it is a folder"):
        network(init=tmp_path)


def test_a_file_of_weights_has_a_largest_size(tmp_path):
    with (tmp_path / "w").open("wb") as file:
        file.truncate(files.WEIGHTS + 1)  # sparse
    with pytest.raises(ConfigError, match=rf"the limit is {files.WEIGHTS}"):
        network(init=tmp_path / "w")


def test_weights_that_are_not_numbers_are_refused(tmp_path):
    tensors = network().state_dict()
    tensors["fc1.bias"][0] = float("nan")
    save_file(tensors, tmp_path / "w")
    with pytest.raises(ConfigError, match="not finite"):
        network(init=tmp_path / "w")


def test_whole_numbers_are_no_weights(tmp_path):
    tensors = network().state_dict()
    tensors["fc1.bias"] = tensors["fc1.bias"].to(torch.int8)
    save_file(tensors, tmp_path / "w")
    with pytest.raises(
        ConfigError, match=r"fc1\.bias holds torch\.int8, the network's numbers are torch\.float32"
    ):
        network(init=tmp_path / "w")
