"""ResNet-18: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, in the layout
for large images.

The 7x7 stem of stride 2 and a 3x3 max-pooling, four stages of two blocks with widths 64 to 512,
mean over positions,
linear: 11,181,642 parameters at 3 channels and 10 classes, 11,279,112 at 200. Weights start from
PyTorch's defaults (the common implementation draws convolutions from a Kaiming normal distribution
instead). Pooling comes before ReLU: they commute exactly.

Any image size works, but a training batch needs two samples if the sides are 32 or less, since
batch normalisation in the last stage then has a single value per sample.
"""

from collections import OrderedDict

from torch import Tensor, nn

from pomona.models import ModelSettings
from pomona.models.compatibility import image


def _convolution(before: int, after: int, kernel: int, stride: int) -> nn.Conv2d:
    """Return a convolution that preserves the size up to its stride, without bias, which
    normalisation would cancel.
    """
    return nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut around them: (B, before, H, W) -> (B, after, H / stride,
    W / stride).
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            OrderedDict[str, nn.Module](
                conv1=_convolution(before, after, 3, stride),
                bn1=nn.BatchNorm2d(after),
                relu=nn.ReLU(),
                conv2=_convolution(after, after, 3, 1),
                bn2=nn.BatchNorm2d(after),
            )
        )
        self.shortcut = nn.Sequential()
        if (before, 1) != (after, stride):
            self.shortcut.append(_convolution(before, after, 1, stride)).append(
                nn.BatchNorm2d(after)
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(B, before, H, W) -> (B, after, ceil(H / stride), ceil(W / stride))."""
        out: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return out


class ResNet(nn.Sequential):
    """A sequence whose layers, for methods that share or adapt layers, are the stem, the stages and
    the head.
    """

    parameter_blocks = ("stem", "layer1", "layer2", "layer3", "layer4", "fc")


def resnet18(
    settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int
) -> ResNet:
    """Build a ResNet-18. Raises ConfigError unless the samples are images."""
    channels, _, _ = image(settings.name, input_shape, vocabulary)
    stem = OrderedDict[str, nn.Module](
        conv=_convolution(channels, 64, 7, 2),
        bn=nn.BatchNorm2d(64),
        pool=nn.MaxPool2d(3, 2, padding=1),
        relu=nn.ReLU(),
    )
    steps: OrderedDict[str, nn.Module] = OrderedDict(stem=nn.Sequential(stem))
    before = 64
    for number, (after, stride) in enumerate([(64, 1), (128, 2), (256, 2), (512, 2)], start=1):
        steps[f"layer{number}"] = nn.Sequential(
            Block(before, after, stride), Block(after, after, 1)
        )
        before = after
    steps["mean"] = nn.AdaptiveAvgPool2d(1)
    steps["flatten"] = nn.Flatten()
    steps["fc"] = nn.Linear(before, n_outputs)
    return ResNet(steps)
