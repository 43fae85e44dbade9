"""Networks of torchvision, timm and MONAI by name: built to fit, refused if they cannot, nothing
downloaded.
"""

import socket
import sys
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn

import pomona
from pomona import Config
from pomona.core.errors import ConfigError
from pomona.models import ModelSettings, build, outline
from pomona.models.frozen_prefix import split_network
from pomona.models.packages import MODULES, PACKAGES
from pomona.personal import PersonalModel

pytestmark = pytest.mark.long

DENSE = {"init_features": 4, "growth_rate": 2, "block_config": [2]}
SWIN = {
    "img_size": 8,
    "depths": [1, 1],
    "num_heads": [1, 1],
    "embed_dim": 8,
    "patch_size": 2,
    "window_size": 2,
}


def require(first):
    """Skip if a package is missing, or its binaries are for another PyTorch."""
    try:
        import_module(first)
    except Exception as fault:
        pytest.skip(f"{first} cannot be imported: {fault}")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refused(*_, **__):
        pytest.fail("a network was built from the internet")

    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setattr(torch.hub, "download_url_to_file", refused)


def network(name, shape=(3, 32, 32), outputs=5, construct=build, **args):
    require(name.partition(":")[0])
    return construct(ModelSettings(name=name, args=args), shape, outputs)


@pytest.mark.parametrize(
    ("name", "shape", "args"),
    [
        ("torchvision:shufflenet_v2_x0_5", (3, 32, 32), {}),
        ("timm:test_resnet", (1, 32, 32), {}),
        ("timm:test_vit", (2, 32, 32), {"img_size": 32}),
        ("monai:DenseNet", (1, 32, 32), DENSE),
        # pretrained unless told otherwise
        ("monai:EfficientNetBN", (1, 32, 32), {"model_name": "efficientnet-b0"}),
    ],
)
def test_a_network_fits_outputs_and_channels(name, shape, args):
    ours = network(name, shape, **args)
    with torch.no_grad():
        assert ours.eval()(torch.zeros(2, *shape)).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "shape", "args", "message"),
    [
        (
            "torchvision:shufflenet_v2_x0_5",
            (1, 32, 32),
            {},
            r"fails on a sample of shape \(1, 32, 32\): .*3 channels",
        ),
        ("torchvision:lraspp_mobilenet_v3_large", (3, 32, 32), {}, "returns a OrderedDict"),
        (
            "torchvision:googlenet",
            (3, 32, 32),
            {"init_weights": False},
            "in training mode returns a GoogLeNetOutputs",
        ),
        ("torchvision:vit_b_32", (3, 28, 28), {}, r"shape \(3, 28, 28\): .*224.*data\.resize"),
        (
            "torchvision:ssdlite320_mobilenet_v3_large",
            (3, 32, 32),
            {},
            "returns a list|fails on a sample",
        ),
        ("torchvision:raft_small", (3, 32, 32), {}, r"cannot be built \(TypeError: .*num_classes"),
        (
            "torchvision:resnet81",
            (3, 32, 32),
            {},
            "unknown model.name=torchvision:resnet81; did you mean",
        ),
        (
            "timm:hf-hub:someone/something",
            (3, 32, 32),
            {},
            "unknown model.name=timm:hf-hub:someone/something",
        ),
        (
            "timm:local-dir:/somewhere",
            (3, 32, 32),
            {},
            "unknown model.name=timm:local-dir:/somewhere",
        ),
        ("timm:test_resnet", (3, 32, 32), {"features_only": True}, "returns a list"),
        ("monai:Transchex", (3, 32, 32), {}, "unknown model.name=monai:Transchex"),
        (
            "monai:UNet",
            (1, 32, 32),
            {"channels": [2, 4], "strides": [2]},
            r"into outputs of shape \(1, 5, 32, 32\)",
        ),
        ("monai:DenseNet", (1, 32, 32), {"widths": 3}, "cannot be built .*widths"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name, shape, args, message):
    with pytest.raises(ConfigError, match=message) as fault:
        network(name, shape, **args)
    assert len(str(fault.value)) < 800  # and not the thousand names of a package


@pytest.mark.parametrize(
    "args",
    [
        {"pretrained": True},
        {"weights": "DEFAULT"},
        {"weights_backbone": "DEFAULT"},
        {"checkpoint_path": "first.pth"},
        {"pretrained_cfg": {"url": "https://example.org"}},
        {"pretrained_cfg_overlay": {"file": "first.pth"}},
        {"cache_dir": "somewhere"},
    ],
)
def test_arguments_that_would_fetch_or_unpickle_are_refused(args):
    with pytest.raises(
        ConfigError, match=rf"model\.args\.{next(iter(args))}: weights are never downloaded"
    ):
        network("monai:DenseNet", **args)


@pytest.mark.parametrize("construct", [build, outline])
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"growth_rate": 10**9}, r"model\.args\.growth_rate holds a number above 1000000"),
        ({"block_config": [2, 10**9]}, r"model\.args\.block_config holds a number above 1000000"),
        ({"block_config": [10**6]}, f"more than {MODULES} modules"),
    ],
)
def test_sizes_are_bounded_before_anything_is_made_of_them(construct, args, message):
    with pytest.raises(ConfigError, match=message):
        network("monai:DenseNet", (1, 8, 8), construct=construct, **args)


def test_no_memory_is_taken_for_weights_that_would_not_fit():
    with pytest.raises(ConfigError, match=r"monai:DenseNet has \d+\.\d GB of weights, the machine"):
        network(
            "monai:DenseNet", (1, 8, 8), init_features=10**6, growth_rate=10**6, block_config=[2]
        )


@pytest.mark.parametrize("first", PACKAGES)
def test_a_package_that_cannot_be_imported_is_said_in_one_line(first, tmp_path, monkeypatch):
    """As torchvision, whose binaries are for another PyTorch."""
    (tmp_path / first).mkdir()
    (tmp_path / first / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == first]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match=f"needs {first}, which cannot be imported .RuntimeError: operator .*nms"
    ):
        build(ModelSettings(name=f"{first}:x"), (3, 8, 8), 2)


def partly(name, tmp_path, args, train="head"):
    """One round of FedAvg on digits; returns the folder and client 0's model."""
    require(name.partition(":")[0])
    keys = {"method": "fedavg", "clients": 2, "rounds": 1, "lr": 0.1, "workers": 1}
    data = {"name": "digits", "train_limit": 60, "test_limit": 20}
    run = pomona.run(
        Config(**keys, data=data, model={"name": name, "args": args, "train": train}),
        tmp_path / "run",
    )
    return run, PersonalModel.load(tmp_path / "run/models/client-00.safetensors")


@pytest.mark.parametrize(
    ("name", "args", "head"),
    [
        ("timm:test_resnet", {}, {"fc.weight", "fc.bias"}),
        (
            "monai:DenseNet",
            {**DENSE, "block_config": [1]},
            {"class_layers.out.weight", "class_layers.out.bias"},
        ),
    ],
)
def test_a_head_is_trained_and_comes_back(name, args, head, tmp_path):
    run, model = partly(name, tmp_path, args)
    assert set(run.models[0]) == head
    x = np.zeros((2, 8, 8, 1), np.uint8)
    assert model.outputs(x).shape == (2, 10)


def test_buffers_that_are_in_no_file_are_computed_again(tmp_path):
    """Swin's index of relative positions: a network read from its shapes alone would have zeros
    there.
    """
    _, model = partly("timm:swin_tiny_patch4_window7_224", tmp_path, SWIN, train="all")
    ours = network("timm:swin_tiny_patch4_window7_224", (1, 8, 8), 10, **SWIN)
    expected, loaded = dict(ours.named_buffers()), dict(model.module.named_buffers())
    assert expected.keys() - ours.state_dict().keys()
    assert all(torch.equal(loaded[name], buffer) for name, buffer in expected.items())


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("torchvision:resnet18", {}),
        ("torchvision:efficientnet_b0", {}),
        ("timm:resnet18", {}),
        ("timm:tf_efficientnet_lite0", {}),
    ],
)
def test_the_frozen_part_is_cut_off(name, args):
    require(name.partition(":")[0])
    module = build(ModelSettings(name=name, args=args, train="head"), (3, 32, 32), 5)
    halves = split_network(module, torch.zeros(1, 3, 32, 32))
    last = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1]
    assert halves is not None
    assert halves.shape == (last.in_features,)
