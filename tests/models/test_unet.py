"""The U-Net, and its loss."""

import pytest
import torch
from torch.func import functional_call, vmap

from pomona.core.errors import ConfigError
from pomona.models import ModelSettings, build
from pomona.models.layers import layers
from pomona.models.losses import cross_entropy_dice, cross_entropy_foreground_dice
from pomona.models.segmentation import UNet


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 13, 21), (2, 9, 8, 10)])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_logit_for_each_class_of_each_pixel(shape, depth):
    settings = ModelSettings(name="unet", width=4, depth=depth)
    module = build(settings, shape, 3, output_shape=(3, *shape[1:]))
    outputs = module(torch.randn(2, *shape))
    assert outputs.shape == (2, 3, *shape[1:])
    single = module(torch.randn(1, *shape))
    assert single.shape[0] == 1


def test_its_levels_are_its_layers_from_input_to_output():
    module = UNet(1, 2, 2, width=4, depth=2)
    assert [path for path, _ in layers(module)] == [
        "down.0",
        "down.1",
        "down.2",
        "up.0",
        "up.1",
        "head",
    ]
    # A level: two 3x3 convolutions without bias, GroupNorm of two numbers a channel; 1x1 to the
    # classes.
    levels = [(1, 4), (4, 8), (8, 16), (8 + 16, 8), (4 + 8, 4)]
    expected = sum(9 * a * b + 9 * b * b + 4 * b for a, b in levels) + 4 * 2 + 2
    assert sum(p.numel() for p in module.parameters()) == expected


def test_no_sample_depends_on_those_beside_it():
    module = UNet(1, 2, 2, width=8, depth=2).train()
    x = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(module(x)[1:2], module(x[1:2]))
    assert not list(module.buffers())


def test_stacked_models_are_those_one_by_one():
    module = UNet(1, 2, 2, width=4, depth=1).double()
    W = {k: torch.randn_like(p.expand(3, *p.shape)) for k, p in module.named_parameters()}
    x = torch.randn(3, 2, 1, 8, 8, dtype=torch.float64)
    stacked = vmap(lambda w, x: functional_call(module, w, (x,)))(W, x)
    for k in range(3):
        torch.testing.assert_close(
            stacked[k], functional_call(module, {n: w[k] for n, w in W.items()}, (x[k],))
        )


@pytest.mark.parametrize(
    ("shape", "vocabulary", "message"),
    [
        ((5,), 0, "takes images or volumes"),
        ((5,), 9, "takes images or volumes"),
        ((1, 7, 8), 0, "lower model.depth"),
    ],
)
def test_what_it_does_not_take(shape, vocabulary, message):
    with pytest.raises(ConfigError, match=message):
        build(ModelSettings(name="unet"), shape, 2, vocabulary)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("background", [True, False])
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
def test_the_loss_is_monais(rank, background):
    losses = pytest.importorskip("monai.losses")
    theirs = losses.DiceCELoss(
        to_onehot_y=True,
        softmax=True,
        include_background=background,
        smooth_nr=1e-5,
        smooth_dr=1e-5,
    )
    ours = cross_entropy_dice if background else cross_entropy_foreground_dice
    outputs = torch.randn(4, 3, *[6] * rank)
    truth = torch.randint(3, (4, *[6] * rank))
    truth[1] = 0
    got = ours(outputs, truth)
    assert got.shape == (4,)
    for k in range(4):  # a mean over a batch of one is the sample's own
        torch.testing.assert_close(got[k], theirs(outputs[k : k + 1], truth[k : k + 1, None]))


def test_soft_targets_that_are_one_class_are_that_class():
    outputs, truth = torch.randn(2, 3, 5, 5), torch.randint(3, (2, 5, 5))
    soft = torch.nn.functional.one_hot(truth, 3).movedim(-1, 1).float()
    torch.testing.assert_close(
        cross_entropy_dice(outputs, soft), cross_entropy_dice(outputs, truth)
    )


def test_the_loss_of_a_perfect_answer_and_of_a_wrong_one():
    truth = torch.tensor([[[0, 1], [1, 0]]])
    sure = 50.0 * torch.stack([1.0 - truth, 1.0 * truth], 1)
    assert float(cross_entropy_dice(sure, truth)) == pytest.approx(0, abs=1e-5)
    assert float(cross_entropy_dice(sure, 1 - truth)) == pytest.approx(50 + 1, rel=1e-4)
