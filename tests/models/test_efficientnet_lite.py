"""EfficientNet-Lite0: its padding, its layers, and the ImageNet weights, tested on three
photographs.
"""

import os
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import nn

import pomona
from pomona import Config
from pomona.core.errors import ConfigError
from pomona.models import ModelSettings, build
from pomona.models.efficientnet_lite import _padding
from pomona.models.layers import layers
from pomona.personal import PersonalModel

pytestmark = pytest.mark.long

WEIGHTS = Path(os.environ.get("POMONA_DATA", "")) / "pretrained" / "efficientnet-lite0.safetensors"
needs_weights = pytest.mark.skipif(
    not WEIGHTS.is_file(), reason="needs pretrained/efficientnet-lite0.safetensors in POMONA_DATA"
)


@pytest.mark.parametrize(
    ("side", "kernel", "leading", "trailing"),
    [
        (224, 3, 0, 1),
        (112, 5, 1, 2),
        (7, 5, 2, 2),
        (7, 3, 1, 1),
        (2, 3, 0, 1),
        (1, 3, 1, 1),
        (1, 5, 2, 2),
    ],
)
def test_padding_is_that_of_same(side, kernel, leading, trailing):
    """(ceil(side / 2) - 1) * 2 + kernel - side zeros in all, so that ceil(side / 2) windows fit;
    the odd one comes last.
    """
    pad = _padding((side, 4), kernel, 2)
    assert tuple(pad.padding) == (
        (kernel - 2) // 2,
        (kernel - 2) - (kernel - 2) // 2,
        leading,
        trailing,
    )
    assert (side + leading + trailing - kernel) // 2 + 1 == -(-side // 2)
    assert isinstance(_padding((side, side), kernel, 1), nn.Identity)


def test_layers_are_stem_blocks_and_head():
    names = [
        layer
        for layer, _ in layers(build(ModelSettings(name="efficientnet-lite0"), (3, 32, 32), 10))
    ]
    assert names == [
        "_conv_stem",
        "_bn0",
        *(f"_blocks.{k}" for k in range(16)),
        "_conv_head",
        "_bn1",
        "_fc",
    ]


def test_frozen_statistics_stay_when_the_head_is_trained(tmp_path):
    model = {"name": "efficientnet-lite0", "train": "head"}
    settings = {
        "model": model,
        "clients": 2,
        "rounds": 1,
        "lr": 0.1,
        "workers": 1,
        "data": {"train_limit": 40},
    }
    pomona.run(Config(method="fedavg", **settings), tmp_path / "run")
    file = tmp_path / "run" / "models" / "client-00.safetensors"
    trained = PersonalModel.load(file).module.state_dict()
    (frozen,) = (tmp_path / "run" / "models").glob("frozen-*.safetensors")
    assert {name for name in trained if name.startswith("_fc")} == set(
        pomona.load(tmp_path / "run").models[0]
    )
    # as they were built
    assert all(t.eq(0).all() for name, t in trained.items() if "running_mean" in name)
    assert all(t.eq(1).all() for name, t in trained.items() if "running_var" in name)
    assert frozen.stat().st_size > 4 * 3_000_000


def photographs():
    """Three photographs that come with libraries, and their ImageNet classes."""
    hopper = Image.open(
        Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    ).convert("RGB")
    yield hopper, 652  # military uniform
    yield Image.fromarray(load_sample_image("china.jpg")), 698  # palace
    yield Image.fromarray(load_sample_image("flower.jpg")), 985  # daisy


@needs_weights
def test_the_imagenet_weights_know_three_photographs():
    module = build(
        ModelSettings(name="efficientnet-lite0", init=WEIGHTS), (3, 224, 224), 1000
    ).eval()
    for photograph, number in photographs():
        width, height = photograph.size
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        square = photograph.crop((left, top, left + side, top + side)).resize(
            (224, 224), Image.Resampling.BICUBIC
        )
        x = torch.from_numpy(np.array(square)).float().movedim(-1, 0) / 127.5 - 1
        with torch.no_grad():
            assert module(x[None]).argmax() == number


@needs_weights
def test_the_file_is_complete_and_has_nothing_more():
    """Without the classifier of 1,000 classes: all other tensors are the file's, none is left
    over.
    """
    settings = ModelSettings(name="efficientnet-lite0", init=WEIGHTS, init_skip=("_fc.*",))
    assert build(settings, (3, 64, 64), 7)._fc.weight.shape == (7, 1280)
    with pytest.raises(ConfigError) as caught:
        build(settings.model_copy(update={"init_skip": ()}), (3, 64, 64), 7)
    assert [str(line).split()[0] for line in caught.value.args[1:]] == ["_fc.weight", "_fc.bias"]
