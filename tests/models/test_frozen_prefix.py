"""Splitting a network behind its frozen part: the halves equal it; none of the first is trained or
random.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pomona.models import ModelSettings, build
from pomona.models.frozen_prefix import split_network
from pomona.models.layers import training_mode

IMAGE = (3, 32, 32)


class Branches(nn.Module):
    """Two branches from the frozen part: the features of a sample are two tensors."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, 2)
        self.deep = nn.Conv2d(4, 2, 3)
        self.head = nn.Linear(4 + 2 * 13 * 13, 5)
        self.stem.requires_grad_(False)

    def forward(self, x):
        h = self.stem(x).relu()
        pooled = h.mean((2, 3))
        return self.head(torch.cat([pooled, self.deep(h).view(x.shape[0], -1)], 1))


class DropsBefore(nn.Module):
    def __init__(self, functional):
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 2)
        self.body.requires_grad_(False)
        self.functional = functional

    def forward(self, x):
        h = self.body(x)
        return self.head(F.dropout(h, 0.5, self.training) if self.functional else self.drop(h))


class BranchesOnValues(DropsBefore):
    def forward(self, x):
        return self.head(self.body(x) if x.sum() > 0 else -self.body(x))


@pytest.mark.parametrize(
    ("name", "train", "shape"),
    [
        ("cnn", "head", (512,)),
        ("cnn", ["fc1.*", "head"], (64 * 5 * 5,)),
        ("resnet18", "head", (512,)),
        ("resnet18", ["layer4.1.*", "head"], (512, 1, 1)),
        ("vgg11", {"lora": {"rank": 2, "on": ["fc2"]}}, (512,)),
        ("efficientnet-lite0", "head", (1280,)),
        ("efficientnet-lite0", {"lora": {"rank": 2, "on": ["_conv_head"]}}, (320, 1, 1)),
    ],
)
def test_the_halves_are_the_network(name, train, shape):
    module = build(ModelSettings(name=name, train=train), IMAGE, 10, seed=2)
    halves = split_network(module, torch.zeros(1, *IMAGE))
    assert halves is not None
    assert halves.shape == shape
    x = torch.randn(5, *IMAGE)
    training_mode(module)()
    with torch.no_grad():
        features = halves.features(x)
    assert features.shape == (5, *shape)
    torch.testing.assert_close(halves.trained(features), module(x))
    parameters = dict(module.named_parameters())
    for path, parameter in halves.trained.named_parameters():
        assert parameter is parameters[path]
    assert {p for p, t in parameters.items() if t.requires_grad} <= dict(
        halves.trained.named_parameters()
    ).keys()


def test_several_features_stand_side_by_side():
    """Of the stem's output (4, 15, 15) both the map and its mean are handed on."""
    module = Branches()
    halves = split_network(module, torch.zeros(1, *IMAGE))
    assert halves.shape == (4 * 15 * 15 + 4,)
    x = torch.randn(7, *IMAGE)
    torch.testing.assert_close(halves.trained(halves.features(x)), module(x))


def test_dropout_before_the_head_is_drawn_anew_each_time():
    module = DropsBefore(functional=False)
    halves = split_network(module, torch.zeros(1, 6))
    assert halves.shape == (4,)
    halves.trained.train()
    features = halves.features(torch.randn(64, 6))
    assert not torch.equal(halves.trained(features), halves.trained(features))


def test_what_cannot_be_followed_is_not_cut():
    # would drop in evaluation too
    assert split_network(DropsBefore(functional=True), torch.zeros(1, 6)) is None
    assert split_network(BranchesOnValues(False), torch.zeros(1, 6)) is None


def test_nothing_is_cut_where_the_first_layer_is_trained():
    assert (
        split_network(build(ModelSettings(name="cnn"), IMAGE, 10), torch.zeros(1, *IMAGE)) is None
    )
    assert (
        split_network(
            build(ModelSettings(name="cnn", train=["conv1.*"]), IMAGE, 10), torch.zeros(1, *IMAGE)
        )
        is None
    )


def test_a_layer_that_mixes_the_batch_is_not_early():
    module = nn.Sequential(
        nn.Linear(6, 4).requires_grad_(False), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2)
    )
    halves = split_network(module, torch.zeros(1, 6))
    assert halves.shape == (4,)
    assert [name for name, _ in halves.trained.named_buffers()] == [
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    ]
