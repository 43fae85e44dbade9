"""The networks: sizes by arithmetic, shapes, the order of pooling and ReLU, and initial weights."""

import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

from pomona.models import MODELS, ModelSettings, build

IMAGES = (
    "cnn", "efficientnet-lite0", "fomo-cnn", "lenet", "lenet5", "logistic", "mcmahan-cnn", "mlp", "resnet18", "small",
    "vgg11",
)  # fmt: skip


def conv(inputs, outputs, kernel, bias=True):
    return inputs * outputs * kernel**2 + bias * outputs


def fc(inputs, outputs):
    return (inputs + 1) * outputs


def two_convolutions(channels, classes, widths, hidden, side):
    """Two 5x5 convolutions, then linear layers from ``side`` x ``side`` positions."""
    first, second = widths
    convolutions = conv(channels, first, 5) + conv(first, second, 5)
    return convolutions + fc(side**2 * second, hidden) + fc(hidden, classes)


def lenet5(channels, side):
    return two_convolutions(channels, 84, (6, 16), 120, side) + fc(84, 10)


def fomo(classes, side):
    return (
        conv(3, 32, 3) + conv(32, 64, 3) + conv(64, 64, 3) + fc(side**2 * 64, 64) + fc(64, classes)
    )


def resnet(classes):
    def block(inputs, outputs):
        normalisations = 2 * 2 * outputs + (2 * outputs if inputs != outputs else 0)
        shortcut = conv(inputs, outputs, 1, bias=False) if inputs != outputs else 0
        return (
            conv(inputs, outputs, 3, bias=False)
            + conv(outputs, outputs, 3, bias=False)
            + shortcut
            + normalisations
        )

    stages = [(64, 64), (64, 128), (128, 256), (256, 512)]
    stem = conv(3, 64, 7, bias=False) + 2 * 64
    return stem + sum(block(a, b) + block(b, b) for a, b in stages) + fc(512, classes)


def lite(channels, classes):
    """Each convolution is followed by a normalisation of two numbers a channel; a depthwise one has
    one input channel.
    """

    def norm(*convolution):
        return conv(*convolution, bias=False) + 2 * convolution[1]

    def block(inputs, outputs, kernel, factor):
        inside = factor * inputs
        widen = norm(inputs, inside, 1) if factor > 1 else 0
        return widen + norm(1, inside, kernel) + norm(inside, outputs, 1)

    rows = [
        (1, 3, 1, 16),
        (2, 3, 6, 24),
        (2, 5, 6, 40),
        (3, 3, 6, 80),
        (3, 5, 6, 112),
        (4, 5, 6, 192),
        (1, 3, 6, 320),
    ]
    total, inputs = norm(channels, 32, 3), 32
    for repeats, kernel, factor, outputs in rows:
        for _ in range(repeats):
            total, inputs = total + block(inputs, outputs, kernel, factor), outputs
    return total + norm(320, 1280, 1) + fc(1280, classes)


def vgg(classes):
    widths = [3, 64, 128, 256, 256, 512, 512, 512, 512]
    convolutions = sum(conv(a, b, 3) for a, b in pairwise(widths))
    return convolutions + 2 * fc(512, 512) + fc(512, classes)


# Sides: 28 -> 24 -> 12 -> 8 -> 4 and 32 -> 28 -> 14 -> 10 -> 5 without padding, 28 -> 14 -> 7 with;
# 32 -> 15 -> 6 -> 4.
SIZES = [
    ("lenet", (1, 28, 28), 10, two_convolutions(1, 10, (20, 50), 500, 4), 431_080),
    ("lenet", (3, 28, 28), 9, two_convolutions(3, 9, (20, 50), 500, 4), 431_579),
    ("lenet5", (1, 28, 28), 10, lenet5(1, 4), 44_426),
    ("lenet5", (3, 32, 32), 10, lenet5(3, 5), 62_006),
    ("cnn", (1, 28, 28), 10, two_convolutions(1, 10, (32, 64), 512, 4), 582_026),
    ("cnn", (1, 28, 28), 62, two_convolutions(1, 62, (32, 64), 512, 4), 608_702),
    ("cnn", (3, 32, 32), 10, two_convolutions(3, 10, (32, 64), 512, 5), 878_538),
    ("cnn", (3, 64, 64), 200, two_convolutions(3, 200, (32, 64), 512, 13), 5_694_600),
    ("mcmahan-cnn", (1, 28, 28), 10, two_convolutions(1, 10, (32, 64), 512, 7), 1_663_370),
    ("fomo-cnn", (3, 32, 32), 10, fomo(10, 4), 122_570),
    ("fomo-cnn", (3, 32, 32), 100, fomo(100, 4), 128_420),
    ("fomo-cnn", (3, 28, 28), 10, fomo(10, 3), None),
    ("resnet18", (3, 64, 64), 10, resnet(10), 11_181_642),
    ("resnet18", (3, 64, 64), 200, resnet(200), 11_279_112),
    ("efficientnet-lite0", (3, 224, 224), 1000, lite(3, 1000), 4_652_008),
    ("efficientnet-lite0", (1, 28, 28), 5, lite(1, 5), None),
    ("vgg11", (3, 32, 32), 10, vgg(10), None),
    (
        "small",
        (1, 8, 8),
        10,
        conv(1, 8, 3) + conv(8, 16, 3) + fc(2 * 2 * 16, 32) + fc(32, 10),
        None,
    ),
    ("mlp", (30,), 2, fc(30, 64) + fc(64, 2), None),
    ("logistic", (1, 28, 28), 10, fc(28 * 28, 10), None),
]


@pytest.mark.parametrize(("name", "shape", "classes", "derived", "published"), SIZES)
def test_numbers_of_parameters(name, shape, classes, derived, published):
    module = build(ModelSettings(name=name), shape, classes)
    assert sum(p.numel() for p in module.parameters()) == derived
    assert published in (None, derived)


def test_fasttext_has_its_published_size():
    module = build(ModelSettings(name="fasttext"), (200,), 4, vocabulary=98_635)
    assert (
        sum(p.numel() for p in module.parameters())
        == 98_635 * 32 + fc(32, 32) + fc(32, 4)
        == 3_157_508
    )


@pytest.mark.parametrize("hidden", [(), (5,), (7, 3)])
def test_mlp_follows_its_widths(hidden):
    module = build(ModelSettings(hidden=hidden), (2, 3, 4), 6)
    widths = [2 * 3 * 4, *hidden, 6]
    linear = [m for m in module if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == list(pairwise(widths))
    assert sum(isinstance(m, nn.ReLU) for m in module) == len(hidden)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 20, 33)])
def test_outputs_have_one_row_a_sample(name, shape):
    module = build(ModelSettings(name=name), shape, 7).eval()
    with torch.no_grad():
        for batch in (1, 2, 3):
            outputs = module(
                torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch))
            )
            assert outputs.shape == (batch, 7)
            assert outputs.isfinite().all()


@pytest.mark.parametrize("name", ["efficientnet-lite0", "resnet18", "vgg11", "mlp", "logistic"])
def test_networks_for_any_size_take_a_single_pixel(name):
    assert build(ModelSettings(name=name), (1, 1, 1), 3).eval()(torch.ones(2, 1, 1, 1)).shape == (
        2,
        3,
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_fasttext_averages_over_padding_too(dtype):
    module = build(ModelSettings(name="fasttext", width=4), (6,), 3, vocabulary=10)
    text = torch.tensor([[1, 2, 0, 0, 0, 0], [3, 4, 5, 6, 7, 8], [0, 0, 0, 0, 0, 0]], dtype=dtype)
    table = module.embedding.weight.detach()
    mean = torch.stack([(table[1] + table[2]) / 6, table[3:9].mean(0), torch.zeros(4)])
    expected = module.fc(module.fc1(mean))
    torch.testing.assert_close(module(text), expected)
    module(text).sum().backward()
    assert module.embedding.weight.grad[0].eq(0).all()
    assert module.embedding.weight.grad[1].ne(0).any()


def relu_first(module, x):
    """The network as the papers draw it, each ReLU before its pooling, from the same weights."""
    steps = dict(module.named_children())
    for name, step in steps.items():
        if name.startswith("stem"):
            x = functional.max_pool2d(functional.relu(step.bn(step.conv(x))), 3, 2, 1)
        elif name.startswith("conv"):
            x = functional.relu(step(x))
        elif not name.startswith("relu") or name.replace("relu", "conv") not in steps:
            x = step(x)
    return x


@pytest.mark.parametrize(
    "name", ["lenet", "lenet5", "cnn", "mcmahan-cnn", "fomo-cnn", "small", "resnet18", "vgg11"]
)
def test_pooling_before_relu_changes_nothing(name):
    module = build(ModelSettings(name=name), (3, 32, 32), 10, seed=3).eval()
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    results = []
    for forward in (module, lambda batch: relu_first(module, batch)):
        outputs = forward(x)
        gradient = torch.autograd.grad(outputs.square().sum(), list(module.parameters()))
        results.append([outputs, *gradient])
    for ours, expected in zip(*results, strict=True):
        assert torch.equal(ours, expected)


def test_resnet_matches_the_equations_of_its_paper():
    """One residual block: y = relu(F(x) + x), and with a projection where the width changes."""
    module = build(ModelSettings(name="resnet18"), (3, 32, 32), 10).eval()
    x = torch.randn(2, 64, 8, 8, generator=torch.Generator().manual_seed(1))
    for block, shape in ((module.layer1[0], (2, 64, 8, 8)), (module.layer2[0], (2, 128, 4, 4))):
        inner = block.residual.bn2(
            block.residual.conv2(functional.relu(block.residual.bn1(block.residual.conv1(x))))
        )
        y = functional.relu(inner + (block.shortcut(x) if shape[1] != 64 else x))
        assert y.shape == shape
        assert torch.equal(block(x), y)


def test_vgg_without_its_last_two_steps_embeds():
    module = build(ModelSettings(name="vgg11"), (3, 28, 28), 10).eval()
    x = torch.rand(2, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    hidden = module[:-2](x)
    assert hidden.shape == (2, 512)
    torch.testing.assert_close(module.fc3(functional.relu(hidden)), module(x))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_initial_weights_follow_the_seed_alone(name):
    shape, vocabulary = ((5,), 9) if name == "fasttext" else ((1, 28, 28), 0)
    settings = ModelSettings(name=name)
    random_state = torch.get_rng_state()
    outputs = (2, 28, 28) if name == "unet" else None
    first = build(settings, shape, 2, vocabulary, 1, outputs).state_dict()
    torch.rand(3)  # somebody else draws
    torch.set_rng_state(random_state)
    repeated, other_seed = (
        build(settings, shape, 2, vocabulary, seed, outputs).state_dict() for seed in (1, 2)
    )
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(first[k], repeated[k]) for k in first)
    assert any(not torch.equal(first[k], other_seed[k]) for k in first)


def test_a_network_is_ready_to_train_and_its_statistics_untouched():
    module = build(ModelSettings(name="resnet18"), (3, 16, 16), 2)
    assert all(m.training for m in module.modules())
    assert all(
        int(m.num_batches_tracked) == 0 for m in module.modules() if isinstance(m, nn.BatchNorm2d)
    )
    assert all(p.requires_grad and p.grad is None for p in module.parameters())


def test_settings_and_listings_need_no_torch():
    code = (
        "import sys, pomona.models as m; m.ModelSettings(); list(m.MODELS); sys.exit('torch' "
        "in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
