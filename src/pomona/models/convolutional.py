"""Convolutional networks: those of federated-learning papers, as one function with a table; VGG-11;
ResNet-18.

| name | convolutions (width, kernel, pooled) | hidden | parameters |
| --- | --- | --- | --- |
| `lenet` | 20 and 50, 5x5, both | 500 | 431,080 at 1x28x28, 10 classes |
| `cnn` | 32 and 64, 5x5, both | 512 | 582,026 at 1x28x28, 878,538 at 3x32x32, 10 classes |
| `lenet5` | 6 and 16, 5x5, both | 120 and 84 | 44,426 at 1x28x28, 62,006 at 3x32x32, 10 classes |
| `mcmahan-cnn` | 32 and 64, 5x5 with padding 2, both | 512 | 1,663,370 at 1x28x28, 10 classes |
| `fomo-cnn` | 32, 64 and 64, 3x3, the first two | 64 | 122,570 at 3x32x32; 128,420 for 100 |
| `small` | 8 and 16, 3x3 with padding 1, both | 32 | for tests and 8x8 images |

Sources: `lenet` is the network of Luo and Wu, "Adapt to Adaptation: Learning Personalization for
Cross-Silo Federated Learning" (APPLE), IJCAI 2022, from its published code; `cnn` of Zhang et al.,
"FedALA", AAAI 2023; `lenet5` of Li et al., "Federated Learning on Non-IID Data Silos: An
Experimental Study", ICDE 2022, section V; `mcmahan-cnn` of McMahan et al., "Communication-Efficient
Learning of Deep Networks from Decentralized Data", AISTATS 2017; `fomo-cnn` of the published code
of Zhang et al., "Personalized Federated Learning with First Order Model Optimization" (FedFomo),
ICLR 2021, whose sizes there hold for 32x32 images only and are computed from the input here.

Pooling comes before ReLU: the two commute exactly (max is monotone), and ReLU then works on a
quarter of the values.
"""

from collections import OrderedDict
from functools import partial

from torch import Tensor, nn

from pomona.core.errors import ConfigError
from pomona.models import ModelSettings
from pomona.models.compatibility import image

_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
_HIDDEN = 512


def vgg11(
    settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int
) -> nn.Sequential:
    """Build VGG-11 (Simonyan and Zisserman, ICLR 2015).

    Raises ConfigError unless the samples are images.

    Eight 3x3 convolutions (configuration A) with five poolings, then three linear layers. Adapted
    to small images: poolings round up (so any side from 1 works, and multiples of 32 shrink as
    published), positions are averaged, the hidden layers have 512 units instead of 4096, and there
    is no dropout (it would use a global generator).

    As an embedder for latent partitions, ``net[:-2]`` gives the output of the second linear layer,
    (B, 512), as in FedFomo's code.
    """
    in_channels, _, _ = image(settings.name, input_shape, vocabulary)
    steps: OrderedDict[str, nn.Module] = OrderedDict()
    for stage, widths in enumerate(_STAGES, start=1):
        for number, out_channels in enumerate(widths, start=1):
            steps[f"conv{stage}_{number}"] = nn.Conv2d(in_channels, out_channels, 3, padding=1)
            if number == len(widths):  # before ReLU: they commute exactly
                steps[f"pool{stage}"] = nn.MaxPool2d(2, ceil_mode=True)
            steps[f"relu{stage}_{number}"] = nn.ReLU()
            in_channels = out_channels
    steps["mean"] = nn.AdaptiveAvgPool2d(1)
    steps["flatten"] = nn.Flatten()
    for number in (1, 2):
        steps[f"fc{number}"] = nn.Linear(in_channels, _HIDDEN)
        steps[f"relu{number}"] = nn.ReLU()
        in_channels = _HIDDEN
    steps["fc3"] = nn.Linear(in_channels, n_outputs)
    return nn.Sequential(steps)


def convolutional(
    settings: ModelSettings,
    input_shape: tuple[int, ...],
    n_outputs: int,
    vocabulary: int,
    *,
    widths: tuple[int, ...],
    kernel: int,
    padding: int,
    pooled: int,
    hidden: tuple[int, ...],
) -> nn.Sequential:
    """Stack convolutions of stride 1, the first ``pooled`` of them followed by 2x2 max-pooling, and
    linear layers.

    Raises ConfigError if the samples are not images, or are too small for a layer.
    """
    channels, height, width = image(settings.name, input_shape, vocabulary)
    steps: OrderedDict[str, nn.Module] = OrderedDict()
    side = height, width
    for number, out_channels in enumerate(widths, start=1):
        pool = 2 if number <= pooled else 1
        left = tuple((length + 2 * padding - kernel + 1) // pool for length in side)
        if min(left) < 1:
            raise ConfigError(
                f"model.name={settings.name}: a {height}x{width} image has shrunk to "
                f"{side[0]}x{side[1]} at layer conv{number}, too small for a {kernel}x{kernel} "
                f"kernel{' and 2x2 pooling' if pool == 2 else ''}; take "
                f"{'mlp' if settings.name == 'small' else 'small, mlp'} or resnet18"
            )
        steps[f"conv{number}"] = nn.Conv2d(channels, out_channels, kernel, padding=padding)
        if pool == 2:
            steps[f"pool{number}"] = nn.MaxPool2d(2)
        steps[f"relu{number}"] = nn.ReLU()
        channels, side = out_channels, (left[0], left[1])
    steps["flatten"] = nn.Flatten()
    in_features = channels * side[0] * side[1]
    for number, width in enumerate(hidden, start=1):
        steps[f"fc{number}"] = nn.Linear(in_features, width)
        steps["relu" if number == 1 else f"relu_fc{number}"] = nn.ReLU()
        in_features = width
    steps[f"fc{len(hidden) + 1}"] = nn.Linear(in_features, n_outputs)
    return nn.Sequential(steps)


lenet = partial(convolutional, widths=(20, 50), kernel=5, padding=0, pooled=2, hidden=(500,))
cnn = partial(convolutional, widths=(32, 64), kernel=5, padding=0, pooled=2, hidden=(512,))
lenet5 = partial(convolutional, widths=(6, 16), kernel=5, padding=0, pooled=2, hidden=(120, 84))
mcmahan_cnn = partial(convolutional, widths=(32, 64), kernel=5, padding=2, pooled=2, hidden=(512,))
fomo_cnn = partial(convolutional, widths=(32, 64, 64), kernel=3, padding=0, pooled=2, hidden=(64,))
small = partial(convolutional, widths=(8, 16), kernel=3, padding=1, pooled=2, hidden=(32,))


def _convolution(in_channels: int, out_channels: int, kernel: int, stride: int) -> nn.Conv2d:
    """Return a convolution that preserves the size up to its stride, without bias, which
    normalisation would cancel.
    """
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut around them."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            OrderedDict[str, nn.Module](
                conv1=_convolution(in_channels, out_channels, 3, stride),
                bn1=nn.BatchNorm2d(out_channels),
                relu=nn.ReLU(),
                conv2=_convolution(out_channels, out_channels, 3, 1),
                bn2=nn.BatchNorm2d(out_channels),
            )
        )
        self.shortcut = nn.Sequential()
        if (in_channels, 1) != (out_channels, stride):
            self.shortcut.append(_convolution(in_channels, out_channels, 1, stride)).append(
                nn.BatchNorm2d(out_channels)
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, out_channels, ceil(H / stride), ceil(W / stride))."""
        outputs: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return outputs


class ResNet(nn.Sequential):
    """A sequence whose layers, for methods that share or adapt layers, are the stem, the stages and
    the head.
    """

    parameter_blocks = ("stem", "layer1", "layer2", "layer3", "layer4", "fc")


def resnet18(
    settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int
) -> ResNet:
    """Build a ResNet-18 (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016), in
    the layout for large images.

    Raises ConfigError unless the samples are images.

    The 7x7 stem of stride 2 and a 3x3 max-pooling, four stages of two blocks with widths 64 to 512,
    mean over positions, linear: 11,181,642 parameters at 3 channels and 10 classes, 11,279,112 at
    200. Weights start from PyTorch's defaults (the common implementation draws convolutions from a
    Kaiming normal distribution instead).

    Any image size works, but a training batch needs two samples if the sides are 32 or less, since
    batch normalisation in the last stage then has a single value per sample.
    """
    channels, _, _ = image(settings.name, input_shape, vocabulary)
    stem = OrderedDict[str, nn.Module](
        conv=_convolution(channels, 64, 7, 2),
        bn=nn.BatchNorm2d(64),
        pool=nn.MaxPool2d(3, 2, padding=1),
        relu=nn.ReLU(),
    )
    steps: OrderedDict[str, nn.Module] = OrderedDict(stem=nn.Sequential(stem))
    in_channels = 64
    for number, (out_channels, stride) in enumerate(
        [(64, 1), (128, 2), (256, 2), (512, 2)], start=1
    ):
        steps[f"layer{number}"] = nn.Sequential(
            Block(in_channels, out_channels, stride), Block(out_channels, out_channels, 1)
        )
        in_channels = out_channels
    steps["mean"] = nn.AdaptiveAvgPool2d(1)
    steps["flatten"] = nn.Flatten()
    steps["fc"] = nn.Linear(in_channels, n_outputs)
    return ResNet(steps)
